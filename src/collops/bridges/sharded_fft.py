"""Plans and programs of Fourier transforms of sharded JAX arrays: local transforms, and all-to-alls between them."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from collops.errors import InputError, LayoutError, UnsupportedTypeError

__all__: list[str] = []

Norm: TypeAlias = Literal["backward", "ortho", "forward"] | None
_Names: TypeAlias = tuple[str, ...]
_Spec: TypeAlias = tuple[_Names, ...]
"""For each axis of an array, the axes of the mesh that it is split over; the first one changes slowest."""

_MAX_AXES = 3  # of a transform of XLA
_NORMS = (None, "backward", "ortho", "forward")


@dataclass(frozen=True)
class Request:
    """The arguments of a transform, without the array and its sharding."""

    kind: Literal["fft", "ifft", "rfft", "irfft"]
    axes: tuple[int, ...] | None
    norm: Norm
    out_spec: PartitionSpec | None
    chunks: int
    length: int | None = None  # of the last axis of a real result


@dataclass(frozen=True)
class _Local:
    """Transform axes that are not split, the real one last."""

    axes: tuple[int, ...]
    kind: str  # of lax.fft
    length: int | None = None  # of the last axis, if the result is real


@dataclass(frozen=True)
class _Move:
    """Split an axis over axes of the mesh, instead of another axis that was."""

    source: int
    target: int
    names: _Names  # in the order of the target
    sizes: tuple[int, ...]  # of these axes of the mesh
    order: tuple[int, ...]  # of the names in the source
    pad: int = 0  # zeros to append to the target first
    cut: int | None = None  # extent of the source afterwards, if it was padded


@dataclass(frozen=True)
class _FourStep:
    """Transform an axis that is split."""

    axis: int
    names: _Names
    parts: int
    inverse: bool


@dataclass(frozen=True)
class _Plan:
    mesh: Mesh
    source: PartitionSpec
    target: PartitionSpec  # where the steps end
    result: PartitionSpec  # what the user asked for
    steps: tuple[_Local | _Move | _FourStep, ...]
    scale: float
    real: bool  # whether the array is real
    copies: bool  # whether several devices have the same part
    chunks: int
    chunked: tuple[int, int, int, int]  # first step, axis, parts that it is split into, and still is at the end


def _planned(request: Request, shape: tuple[int, ...], sharding: NamedSharding) -> _Plan:
    kind, real = request.kind, request.kind in ("rfft", "irfft")
    mesh = sharding.mesh
    axes = _checked_axes(request, shape)
    last = axes[-1] if axes else None
    out_shape, scale = list(shape), 1.0
    if kind == "rfft" and last is not None:
        out_shape[last] = shape[last] // 2 + 1
    elif kind == "irfft" and last is not None:
        out_shape[last] = 2 * (shape[last] - 1) if request.length is None else request.length
        if out_shape[last] < 1 or out_shape[last] // 2 + 1 != shape[last]:
            raise InputError(f"n must be {2 * shape[last] - 2} or {2 * shape[last] - 1}, not {out_shape[last]}")
    points = math.prod((shape if kind == "rfft" else out_shape)[axis] for axis in axes)
    if request.norm == "ortho":
        scale = math.sqrt(points) if kind in ("ifft", "irfft") else 1 / math.sqrt(points)
    elif request.norm == "forward":
        scale = points if kind in ("ifft", "irfft") else 1 / points
    if not isinstance(mesh, Mesh):
        raise UnsupportedTypeError(f"the mesh must have devices: {mesh}")
    source = names_of(sharding.spec, shape, mesh)
    goal = names_of(sharding.spec if request.out_spec is None else request.out_spec, out_shape, mesh)
    grid = _Grid(tuple(shape), tuple(out_shape), axes, kind, last if real else None, dict(mesh.shape))
    moves, stages, reached = grid.route(source, goal)
    steps = grid.steps(moves, stages)
    return _Plan(
        mesh,
        _spec(source),
        _spec(reached),
        _spec(goal),
        steps,
        scale,
        kind == "rfft",
        grid.parts(tuple(itertools.chain.from_iterable(source))) < mesh.size,
        request.chunks,
        _chunked(steps, stages, grid.out_shape, request.chunks, grid.sizes) if request.chunks > 1 else (0, 0, 1, 1),
    )


def _checked_axes(request: Request, shape: tuple[int, ...]) -> tuple[int, ...]:
    if request.norm not in _NORMS:
        raise InputError(f"norm must be backward, ortho or forward, not {request.norm!r}")
    if not isinstance(request.chunks, int) or request.chunks < 1:
        raise InputError(f"chunks must be a positive integer, not {request.chunks!r}")
    axes = tuple(range(len(shape))) if request.axes is None else request.axes
    if any(not -len(shape) <= axis < len(shape) for axis in axes):
        raise InputError(f"axes {axes} are not axes of an array of shape {shape}")
    axes = tuple(axis % len(shape) for axis in axes)
    if len(set(axes)) < len(axes):
        raise InputError(f"axes must be different, not {axes}")
    if not axes and request.kind in ("rfft", "irfft"):
        raise InputError("a real transform needs at least one axis")
    if any(shape[axis] < 1 for axis in axes):
        raise InputError(f"an axis without elements cannot be transformed: shape {shape}, axes {axes}")
    return axes


def names_of(spec: PartitionSpec, shape: Sequence[int], mesh: Mesh | AbstractMesh) -> _Spec:
    """Return the axes of the mesh that split each axis of an array, without the axes of one device."""
    entries = [*spec, *[None] * (len(shape) - len(spec))]
    names = [(entry,) if isinstance(entry, str) else tuple(entry or ()) for entry in entries]
    flat = list(itertools.chain.from_iterable(names))
    if len(names) > len(shape) or len(set(flat)) < len(flat) or not set(flat) <= set(mesh.axis_names):
        raise LayoutError(f"an array of shape {tuple(shape)} cannot have {spec} on the mesh {dict(mesh.shape)}")
    for axis, (extent, over) in enumerate(zip(shape, names, strict=True)):
        parts = math.prod(mesh.shape[name] for name in over)
        if extent % parts:
            raise LayoutError(
                f"JAX shards an axis into equal parts only, but {spec} splits the {extent} elements of axis {axis} "
                f"over {parts} devices: split other axes, for a result by out_spec"
            )
    return tuple(tuple(name for name in over if mesh.shape[name] > 1) for over in names)


def _spec(names: _Spec) -> PartitionSpec:
    return PartitionSpec(*(over[0] if len(over) == 1 else over or None for over in names))


@dataclass(frozen=True, order=True)
class _Node:
    """A place in the search of a plan; the cheapest one is next."""

    cost: tuple[int, int, float]  # all-to-alls, paddings, part of the array that is sent
    order: int
    names: _Spec = field(compare=False)
    remaining: frozenset[int] = field(compare=False)
    padded: tuple[int, ...] = field(compare=False)  # extents of padded axes, zero for the others
    path: tuple[_Move | _FourStep, ...] = field(compare=False)
    stages: tuple[tuple[_Spec, frozenset[int]], ...] = field(compare=False)


@dataclass(frozen=True)
class _Grid:
    """The problem of a plan: which axes to transform, and the extents before and after."""

    shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    axes: tuple[int, ...]
    kind: str
    real: int | None
    sizes: dict[str, int]

    def parts(self, names: _Names) -> int:
        return math.prod(self.sizes[name] for name in names)

    def route(
        self, source: _Spec, goal: _Spec
    ) -> tuple[tuple[_Move | _FourStep, ...], tuple[tuple[_Spec, frozenset[int]], ...], _Spec]:
        """Return the cheapest moves, the splits and remaining axes before each and at the end, and the last split."""
        count, zeros = itertools.count(), (0,) * len(self.shape)
        remaining = self._settled(source, frozenset(self.axes))
        heap = [_Node((0, 0, 0.0), next(count), source, remaining, zeros, (), ((source, remaining),))]
        seen, ending = set(), None
        reachable = sorted(itertools.chain.from_iterable(source)) == sorted(itertools.chain.from_iterable(goal))
        while heap:
            node = heapq.heappop(heap)
            state = (node.names, node.remaining, node.padded)
            if state in seen:
                continue
            seen.add(state)
            if not node.remaining and node.padded == zeros:
                if node.names == goal:
                    return node.path, node.stages, node.names
                ending = ending or node  # if no moves lead to the goal, XLA reshards from here
                if not reachable:
                    break
            for move, names, remaining, padded in self._next(node):
                remaining = self._settled(names, remaining)
                messages = 3 if isinstance(move, _FourStep) else 1
                parts = move.parts if isinstance(move, _FourStep) else math.prod(move.sizes)
                sent = node.cost[2] + messages * (1 - 1 / parts)
                cost = (node.cost[0] + messages, node.cost[1] + (padded != zeros), sent)
                path, stages = (*node.path, move), (*node.stages, (names, remaining))
                heapq.heappush(heap, _Node(cost, next(count), names, remaining, padded, path, stages))
        if ending is None:
            raise LayoutError(
                f"axes {self.axes} of an array of shape {self.shape} cannot be transformed with the split "
                f"{_spec(source)} over {self.sizes}: no axis is long enough to be split instead, and the four-step "
                "algorithm needs a complex array, and an extent that the square of the number of devices divides"
            )
        return ending.path, ending.stages, ending.names

    def _settled(self, names: _Spec, remaining: frozenset[int]) -> frozenset[int]:
        """Return the axes that remain after all transforms that are possible with a split."""
        ready = {axis for axis in remaining if not names[axis]}
        if self.kind == "rfft" and self.real in remaining - ready:
            return remaining
        if self.kind == "irfft" and ready != remaining:
            ready -= {self.real}
        return remaining - ready

    def _extent(self, axis: int, remaining: frozenset[int]) -> int:
        return self.shape[axis] if axis in remaining else self.out_shape[axis]

    def _next(self, node: _Node) -> Any:
        """Yield what can follow: a move or a transform, the split, the remaining axes and the paddings after it."""
        axes = range(len(self.shape))
        for source, target in itertools.permutations(axes, 2):
            for first in range(len(node.names[source])):
                staying, moved = node.names[source][:first], node.names[source][first:]
                parts, over = self.parts(moved), self.parts(node.names[target])
                extent = node.padded[target] or self._extent(target, node.remaining)
                pad = -extent % (over * parts)
                if pad and (over > 1 or extent < parts):
                    continue
                padded = list(node.padded)
                cut = self._extent(source, node.remaining) if padded[source] and not staying else None
                if pad:
                    padded[target] = extent + pad
                if cut is not None:
                    padded[source] = 0
                for arriving in itertools.permutations(moved):
                    names = list(node.names)
                    names[source], names[target] = staying, (*names[target], *arriving)
                    sizes = tuple(self.sizes[name] for name in arriving)
                    order = tuple(arriving.index(name) for name in moved)
                    move = _Move(source, target, arriving, sizes, order, pad, cut)
                    yield move, tuple(names), node.remaining, tuple(padded)
        if self.real is None:
            for axis in node.remaining:
                parts = self.parts(node.names[axis])
                if self.shape[axis] % parts**2 == 0 and not node.padded[axis]:
                    step = _FourStep(axis, node.names[axis], parts, self.kind == "ifft")
                    yield step, node.names, node.remaining - {axis}, node.padded

    def steps(
        self, moves: tuple[_Move | _FourStep, ...], stages: tuple[tuple[_Spec, frozenset[int]], ...]
    ) -> tuple[_Local | _Move | _FourStep, ...]:
        """Return the moves with the local transforms between them, in as few calls and transposes as possible."""
        in_moves = {move.axis for move in moves if isinstance(move, _FourStep)}
        axes = [axis for axis in self.axes if axis not in in_moves]
        # The real axis changes its extent, and keeps the place that the search has assumed.
        fixed = next(number for number, (_, left) in enumerate(stages) if self.real not in left)
        choices = []
        for axis in axes:
            local = [number for number, (names, _) in enumerate(stages) if not names[axis]]
            if axis == self.real:
                local = [fixed]
            elif self.real is not None:
                local = [n for n in local if (n >= fixed if self.kind == "rfft" else n <= fixed)]
            choices.append(local)

        def cost(numbers: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
            total = 0
            for number in set(numbers):
                group = {axis for axis, chosen in zip(axes, numbers, strict=True) if chosen == number}
                # Other axes than the last ones are transposed before the transform and after it.
                total += 1 if group == set(range(len(self.shape) - len(group), len(self.shape))) else 3
            return total, numbers

        chosen = min(itertools.product(*choices), key=cost)
        steps: list[_Local | _Move | _FourStep] = []
        for number in range(len(stages)):
            group = [axis for axis, stage in zip(axes, chosen, strict=True) if stage == number]
            steps += self._local(sorted(group, key=lambda axis: (axis == self.real, axis)))
            steps += moves[number : number + 1]
        return tuple(steps)

    def _local(self, axes: list[int]) -> list[_Local]:
        """Return local transforms, of at most as many axes at once as XLA takes."""
        complex_kind = "IFFT" if self.kind in ("ifft", "irfft") else "FFT"
        groups = []
        while axes:
            groups.append(tuple(axes[-_MAX_AXES:]))
            axes = axes[:-_MAX_AXES]
        if self.kind == "irfft":  # the real axis is the last one
            groups.reverse()
        result = []
        for group in groups:
            if self.real is not None and self.real == group[-1]:
                length = self.out_shape[self.real] if self.kind == "irfft" else None
                result.append(_Local(group, self.kind.upper(), length))
            else:
                result.append(_Local(group, complex_kind))
        return result


def _chunked(
    steps: tuple[_Local | _Move | _FourStep, ...],
    stages: tuple[tuple[_Spec, frozenset[int]], ...],
    shape: tuple[int, ...],
    chunks: int,
    sizes: dict[str, int],
) -> tuple[int, int, int, int]:
    """Return from which step on pieces along which axis are sent one after the other: see `_Plan`."""
    if not any(isinstance(step, _Move | _FourStep) for step in steps):
        return len(steps), 0, 1, 1
    moves = [number for number, step in enumerate(steps) if isinstance(step, _Move)]
    if not any(isinstance(step, _FourStep) for step in steps):
        for (stage, first), axis in itertools.product(enumerate(moves), range(len(shape))):
            rest = steps[first:]
            busy = {axis for step in rest if isinstance(step, _Local) for axis in step.axes}
            padded = {step.target for step in rest if isinstance(step, _Move) and step.pad}
            begin, later = stages[stage][0][axis], [names[axis] for names, _ in stages[stage:]]
            if axis in busy | padded or any(names[: len(begin)] != begin for names in later):
                continue
            counts = [math.prod(sizes[name] for name in names[len(begin) :]) for names in later]
            extent = shape[axis] // math.prod(sizes[name] for name in begin)
            if extent % (max(counts) * chunks) == 0:
                return first, axis, max(counts), counts[-1]
    raise InputError(f"no axis of an array of shape {shape} can be sent in {chunks} equal pieces: pass chunks=1")


# Programs


@lru_cache(maxsize=256)
def compiled(request: Request, shape: tuple[int, ...], sharding: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    """Return the compiled program of a transform."""
    plan = _planned(request, shape, sharding)
    # Without copies on several devices there is nothing to check, and JAX 0.7 cannot transpose a real transform with
    # the check. With copies the check keeps sums over them out of derivatives.
    mapped = jax.shard_map(
        partial(_on_device, plan), mesh=plan.mesh, in_specs=plan.source, out_specs=plan.target, check_vma=plan.copies
    )
    if plan.result == plan.target:
        return jax.jit(mapped)
    result = NamedSharding(plan.mesh, plan.result)
    return jax.jit(lambda x: lax.with_sharding_constraint(mapped(x), result))


def _on_device(plan: _Plan, x: jax.Array) -> jax.Array:
    """Transform the part of a device."""
    # As jax.numpy.fft, whose real transforms do not take half precision.
    dtype = jax.eval_shape(jnp.fft.fft, jax.ShapeDtypeStruct((1,), x.dtype)).dtype
    x = x.astype(jnp.finfo(dtype).dtype if plan.real else dtype)
    first, axis, parts, parts_left = plan.chunked
    if plan.chunks == 1 or first == len(plan.steps):
        x = _done(plan.steps, x)
    else:
        x = _done(plan.steps[:first], x)
        # Each piece has a piece of every part that the axis is split into.
        blocks = _unmerged(x, axis, parts)
        pieces = [_merged(piece, axis) for piece in jnp.split(blocks, plan.chunks, axis + 1)]
        pieces = [_unmerged(_done(plan.steps[first:], piece), axis, parts // parts_left) for piece in pieces]
        x = _merged(jnp.concatenate(pieces, axis + 1), axis)
    return x if plan.scale == 1 else x * np.asarray(plan.scale, x.real.dtype)


def _done(steps: Sequence[_Local | _Move | _FourStep], x: jax.Array) -> jax.Array:
    for step in steps:
        if isinstance(step, _Move):
            x = _moved(step, x)
        elif isinstance(step, _Local):
            x = _transformed(step, x)
        else:
            x = _four_step(step, x)
    return x


def _unmerged(x: jax.Array, axis: int, parts: int) -> jax.Array:
    return x.reshape(*x.shape[:axis], parts, x.shape[axis] // parts, *x.shape[axis + 1 :])


def _merged(x: jax.Array, axis: int) -> jax.Array:
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])


def _moved(step: _Move, x: jax.Array) -> jax.Array:
    """Send the parts of the target axis to the other devices, and join the parts received along the source axis."""
    if step.pad:
        x = jnp.pad(x, [(0, step.pad if axis == step.target else 0) for axis in range(x.ndim)])
    # The parts are made the first axis, so that each message is contiguous and XLA copies once on either side.
    x = jnp.moveaxis(_unmerged(x, step.target, math.prod(step.sizes)), step.target, 0)
    x = lax.all_to_all(x, step.names, 0, 0, tiled=True)
    x = x.reshape(*step.sizes, *x.shape[1:])
    count = len(step.sizes)
    x = jnp.moveaxis(x, step.order, range(step.source, step.source + count))
    x = x.reshape(*x.shape[: step.source], -1, *x.shape[step.source + count + 1 :])
    return x if step.cut is None else lax.slice_in_dim(x, 0, step.cut, axis=step.source)


def _transformed(step: _Local, x: jax.Array) -> jax.Array:
    last = tuple(range(-len(step.axes), 0))
    x = jnp.moveaxis(x, step.axes, last)
    lengths = [x.shape[axis] for axis in last]
    if step.length is not None:
        lengths[-1] = step.length
    return jnp.moveaxis(lax.fft(x, step.kind, tuple(lengths)), last, step.axes)


def _four_step(step: _FourStep, x: jax.Array) -> jax.Array:
    """Transform a split axis: across the devices, by twiddle factors, within them, and back into order.

    Of n = p m elements, device r has the elements r m + i. The coefficient k = k1 + p k2 is
    sum_i w**(i k1) w**(p i k2) sum_r w**(m r k1) x[r m + i], where w = exp(-2 pi j / n).
    """
    axis, parts = step.axis, step.parts
    kind = "IFFT" if step.inverse else "FFT"
    length = x.shape[axis]  # m
    block = length // parts
    x = _exchanged(x, axis, step)  # first axis: r; axis + 1: i, of the block of this device
    x = jnp.moveaxis(lax.fft(jnp.moveaxis(x, 0, -1), kind, (parts,)), -1, 0)
    # Twiddle factors w**(i k1), for i = block d + l on device d: the integers below are at most m.
    real = jnp.finfo(x.dtype).dtype
    k1, turn = jnp.arange(parts), np.asarray((2 if step.inverse else -2) * np.pi, real)
    coarse = (k1 * lax.axis_index(step.names)).astype(real) * turn / parts**2
    fine = (k1[:, None] * jnp.arange(block)).astype(real) * turn / (length * parts)
    twiddle = (_unit(coarse)[:, None] * _unit(fine)).reshape(parts, *[1] * axis, block, *[1] * (x.ndim - axis - 2))
    x = x * twiddle
    x = lax.all_to_all(x, step.names, 0, 0, tiled=True)  # first axis: the blocks of i; this device has one k1
    x = _merged(jnp.moveaxis(x, 0, axis), axis)
    x = jnp.moveaxis(lax.fft(jnp.moveaxis(x, axis, -1), kind, (length,)), -1, axis)  # k2
    x = _exchanged(x, axis, step)  # first axis: k1; axis + 1: k2, of the block of this device
    return _merged(jnp.moveaxis(x, 0, axis + 1), axis)


def _exchanged(x: jax.Array, axis: int, step: _FourStep) -> jax.Array:
    """Send the parts of an axis to the other devices; the first axis of the result numbers their senders."""
    return lax.all_to_all(jnp.moveaxis(_unmerged(x, axis, step.parts), axis, 0), step.names, 0, 0, tiled=True)


def _unit(angle: jax.Array) -> jax.Array:
    return lax.complex(jnp.cos(angle), jnp.sin(angle))
