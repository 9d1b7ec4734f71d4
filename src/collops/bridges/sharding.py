"""Sharded JAX arrays as distributed arrays, and back; layouts as partition specs, and back."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from numpy.typing import DTypeLike

import collops
from collops import Communicator, DistributedArray, Layout
from collops.errors import InputError, LayoutError, UnsupportedTypeError, type_name
from collops.extend.arrays import LocalArray, as_shape, fill_random
from collops.extend.communication import collective_values, communicator_or_world
from collops.extend.engines import engine

__all__ = ["from_jax", "full", "layout_to_spec", "ones", "random", "spec_to_layout", "to_jax", "zeros"]

_Device: TypeAlias = Any  # a jax.Device, which has no static type
_Box: TypeAlias = tuple[tuple[int, int], ...]
"""First index and the index after the last, per axis."""


def layout_to_spec(layout: Layout, axis_names: Sequence[str | tuple[str, ...]]) -> PartitionSpec:
    """Return the partition spec that shards an array over devices as `layout` splits it over ranks. No messages.

    Parameters
    ----------
    layout : Layout
        A layout with equal parts.
    axis_names : sequence of str or of tuple of str
        The axis of the mesh, or the axes, for each axis of ``layout.process_grid``. The devices of the mesh are in the
        order of the ranks.

    Raises
    ------
    LayoutError
        If JAX cannot shard an array like this: the parts differ in size, or the layout has a mask. Also if the number
        of names is wrong.

    Examples
    --------
    >>> import collops
    >>> from collops.bridges.sharding import layout_to_spec
    >>> tuple(layout_to_spec(collops.Layout.split((8, 6), 2, axis=1), ["devices"]))
    (None, 'devices')
    """
    if not isinstance(layout, Layout):
        raise LayoutError(f"expected a layout, not {type_name(layout)}")
    names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
    if len(names) != len(layout.process_grid):
        raise LayoutError(
            f"axis_names must have a name for each axis of the process grid {layout.process_grid}: {names}"
        )
    if layout.mask is not None:
        raise LayoutError(f"the layout {layout} has a mask, which a partition spec cannot have")
    for axis in layout.split_axes:
        if len(set(layout.sizes[axis])) > 1:
            raise LayoutError(
                f"JAX shards an axis into equal parts only, but the layout {layout} has the parts {layout.sizes[axis]} "
                f"along axis {axis}: pad the array, or redistribute it to Layout.replicated"
            )
    return PartitionSpec(*(None if axis is None else names[axis] for axis in layout.axes))


def spec_to_layout(sharding: Sharding, shape: int | Sequence[int], comm: Communicator | None = None) -> Layout:
    """Return the layout of an array whose parts are on the ranks as `sharding` places them on the ranks' devices.

    Collective: one metadata message; none on one rank, which holds the whole array on any number of devices.

    Parameters
    ----------
    sharding : jax.sharding.Sharding
        A sharding over the devices of all ranks, such as a ``NamedSharding``. Each rank is a process of JAX.
    shape : int or sequence of int
        Global shape.
    comm : Communicator, optional
        The ranks; the world by default.

    Raises
    ------
    LayoutError
        On every rank, if no layout places the parts on the same ranks, `shape` cannot be sharded like this, or the
        ranks pass different shapes or their own devices only.

    Examples
    --------
    >>> import collops, jax
    >>> from collops.bridges.sharding import spec_to_layout
    >>> device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    >>> comm = collops.world()
    >>> comm.size > 1 or spec_to_layout(device, (4, 3)).is_replicated
    True
    """
    comm = communicator_or_world(comm)
    layout = _layout_of(lambda: (sharding, as_shape(shape)), comm)
    if layout is None:
        raise LayoutError(
            f"no layout over {comm.size} ranks has the parts of {sharding}: ranks hold blocks of a grid, in C order"
        )
    return layout


def from_jax(x: jax.Array, comm: Communicator | None = None) -> DistributedArray:
    """Return a sharded array as a distributed array, without moving data if its sharding matches a layout.

    On one rank the local array is `x` itself, on all its devices. On several ranks, each a process of JAX, it is the
    shard of the rank. Several shards of a rank, on several devices, are joined on its first device. If the sharding
    matches no layout, JAX first redistributes the array. Collective: one metadata message; none on one rank.

    Parameters
    ----------
    x : jax.Array
        At least one axis. On one rank it may be traced.
    comm : Communicator, optional
        The ranks; the world by default.

    Raises
    ------
    LayoutError
        On every rank, if the array is not sharded over the devices of all ranks, or has no axes.
    UnsupportedTypeError
        On every rank, if `x` is not an array of JAX, or is traced on several ranks.

    Notes
    -----
    The result shares the memory of `x`: do not donate `x` to a program.

    Examples
    --------
    >>> import collops, jax.numpy as jnp
    >>> comm = collops.world()
    >>> comm.size > 1 or collops.from_jax(jnp.arange(4)).shape == (4,)
    True
    """
    comm = communicator_or_world(comm)
    if comm.size == 1 and isinstance(x, Tracer):
        return DistributedArray(Layout.replicated(x.shape, 1), comm, x)
    layout = _layout_of(lambda: (_concrete(x).sharding, x.shape), comm)
    if layout is None:
        x = _resharded(x, _grid_of_ranks(x.sharding, x.shape, comm))
        layout = spec_to_layout(x.sharding, x.shape, comm)
    return _distributed(x, layout, comm)


def to_jax(x: DistributedArray, mesh: Mesh | None = None, spec: PartitionSpec | None = None) -> jax.Array:
    """Return a distributed array as an array of JAX, sharded over the devices of all ranks.

    Nothing is moved if the layout of `x` matches the sharding; otherwise `x` is redistributed once. Collective.

    Parameters
    ----------
    x : DistributedArray
        An array of an engine other than ``jax`` is copied.
    mesh, spec
        The sharding. By default, on one rank the sharding of the local array; on several ranks, the first device of
        each rank has its part, in equal parts.

    Raises
    ------
    LayoutError
        If JAX cannot shard the array like this, because an extent is not divisible; or no layout matches the sharding.
    InputError
        If only one of `mesh` and `spec` is given.
    UnsupportedTypeError
        If `x` is not a distributed array, or is traced on several ranks.

    Examples
    --------
    >>> import collops
    >>> comm = collops.world()
    >>> comm.size > 1 or collops.to_jax(collops.ones(4, engine="jax")).shape == (4,)
    True
    """
    if not isinstance(x, DistributedArray):
        raise UnsupportedTypeError(f"to_jax takes a DistributedArray, not {type_name(x)}")
    if (mesh is None) != (spec is None):
        raise InputError("to_jax takes a mesh and a spec together")
    sharding = None if mesh is None or spec is None else NamedSharding(mesh, spec)
    if x.comm.size == 1:
        values = _local(x)
        return values if sharding is None else _resharded(values, sharding)
    if sharding is None:
        layout = Layout(x.shape, x.comm.size, x.layout.process_grid, x.layout.axes, mask=x.layout.mask)
        sharding = _first_devices(layout, x.comm)
    else:
        layout = spec_to_layout(sharding, x.shape, x.comm)
    if layout is not x.layout:
        x = x.redistribute(layout)
    return _sharded(_local(x), sharding, layout, x.comm)


def zeros(
    shape: int | Sequence[int], sharding: Sharding, *, comm: Communicator | None = None, dtype: DTypeLike = np.float64
) -> DistributedArray:
    """Return an array of zeros with a sharding. Each device makes its part only.

    Collective: one metadata message; none on one rank.

    Parameters
    ----------
    shape : int or sequence of int
        Global shape.
    sharding : jax.sharding.Sharding
        On one rank, the sharding of the local array. On several ranks, each a process of JAX, a sharding over the
        devices of all of them; see :func:`spec_to_layout`.
    comm : Communicator, optional
        The ranks; the world by default.
    dtype : dtype, optional
        Element type, in single precision without ``jax_enable_x64``.

    Raises
    ------
    LayoutError
        On every rank, if no layout places the parts on the same ranks, or `shape` cannot be sharded like this.
    InputError
        If there is no such dtype.

    Examples
    --------
    >>> import collops, jax
    >>> from collops.bridges import sharding
    >>> device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    >>> collops.world().size > 1 or sharding.zeros((4, 3), device, dtype="float32").shape == (4, 3)
    True
    """
    return _created(jnp.zeros, shape, sharding, comm, dtype)


def ones(
    shape: int | Sequence[int], sharding: Sharding, *, comm: Communicator | None = None, dtype: DTypeLike = np.float64
) -> DistributedArray:
    """Return an array of ones with a sharding; parameters and messages as for :func:`zeros`.

    Examples
    --------
    >>> import collops, jax
    >>> from collops.bridges import sharding
    >>> device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    >>> collops.world().size > 1 or float(sharding.ones(4, device).sum()) == 4.0
    True
    """
    return _created(jnp.ones, shape, sharding, comm, dtype)


def full(
    shape: int | Sequence[int],
    value: float | complex,
    sharding: Sharding,
    *,
    comm: Communicator | None = None,
    dtype: DTypeLike | None = None,
) -> DistributedArray:
    """Return an array with a sharding, filled with a number, whose dtype is the default; else as :func:`zeros`.

    Examples
    --------
    >>> import collops, jax
    >>> from collops.bridges import sharding
    >>> device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    >>> collops.world().size > 1 or float(sharding.full(4, 2.5, device).sum()) == 10.0
    True
    """
    element = collops.full(1, value, comm=comm, dtype=dtype, engine="jax")  # checks the value
    make = functools.partial(jnp.full, fill_value=value)
    return _created(make, shape, sharding, comm, element.dtype)


def random(
    shape: int | Sequence[int],
    sharding: Sharding,
    *,
    kind: str = "normal",
    seed: int = 0,
    comm: Communicator | None = None,
    dtype: DTypeLike = np.float64,
) -> DistributedArray:
    """Return random numbers with a sharding: the global array of :func:`collops.random`.

    Each device makes its part only. Parameters and messages as for :func:`zeros` and :func:`collops.random`.

    Examples
    --------
    >>> import collops, jax
    >>> from collops.bridges import sharding
    >>> device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    >>> options = {"kind": "uniform", "seed": 3, "dtype": "float32"}
    >>> same = lambda: sharding.random(5, device, **options) == collops.random(5, engine="jax", **options)
    >>> collops.world().size > 1 or bool(same().all())
    True
    """
    comm = communicator_or_world(comm)
    layout = spec_to_layout(sharding, shape, comm)
    element = collops.zeros(0, comm=comm, dtype=dtype).dtype
    parts: dict[_Box, LocalArray] = {}
    values = []
    for device, box in _boxes(sharding, layout.shape, comm).items():
        if box not in parts:
            cuts = [(start, stop - start, n - stop) for (start, stop), n in zip(box, layout.shape, strict=True)]
            grid = [3] * layout.ndim  # the box is in the middle
            around = Layout(layout.shape, math.prod(grid), grid, range(layout.ndim), cuts)
            with jax.default_device(device), jax.ensure_compile_time_eval():
                parts[box] = fill_random(engine("jax"), around, around.ranks // 2, element, kind, seed)
        values.append(jax.device_put(parts[box], device))
    return _distributed(jax.make_array_from_single_device_arrays(layout.shape, sharding, values), layout, comm)


def _created(
    make: Callable[..., jax.Array],
    shape: int | Sequence[int],
    sharding: Sharding,
    comm: Communicator | None,
    dtype: DTypeLike,
) -> DistributedArray:
    """Return the array made by a function of JAX that takes a sharding as its device."""
    comm = communicator_or_world(comm)
    layout = spec_to_layout(sharding, shape, comm)
    element = collops.zeros(0, comm=comm, dtype=dtype, engine="jax").dtype  # as JAX has it
    x = make(layout.shape, dtype=element, device=sharding)
    if isinstance(x, Tracer):  # which JAX makes without a sharding
        x = jax.lax.with_sharding_constraint(x, sharding)
    return _distributed(x, layout, comm)


def _distributed(x: jax.Array, layout: Layout, comm: Communicator) -> DistributedArray:
    """Return a sharded array whose parts are on the ranks as in `layout`."""
    return DistributedArray(layout, comm, x if comm.size == 1 else _joined(x))


def _concrete(x: jax.Array) -> jax.Array:
    """Return an array of JAX that is not traced."""
    if not isinstance(x, jax.Array):
        raise UnsupportedTypeError(
            f"expected an array of JAX, not {type_name(x)}; use collops.from_global or from_local"
        )
    if isinstance(x, Tracer):
        raise UnsupportedTypeError(
            "with several ranks, convert sharded arrays outside of traced functions, which take distributed arrays"
        )
    return x


def _local(x: DistributedArray) -> jax.Array:
    """Return this rank's part as an array of JAX."""
    values = x.local_array
    if not isinstance(values, jax.Array):
        return engine("jax").from_host(x.engine.to_host(values))
    return values if x.comm.size == 1 else _concrete(values)


def _layout_of(described: Callable[[], tuple[Sharding, tuple[int, ...]]], comm: Communicator) -> Layout | None:
    """Return the layout of an array with the sharding and the shape that `described` returns; ``None`` if none fits."""

    def describe() -> list[list]:
        sharding, shape = described()
        return [list(shape), [list(box) for box in _boxes(sharding, shape, comm).values()]]

    if comm.size == 1:
        return Layout.replicated(describe()[0], 1)
    shapes, boxes = zip(*collective_values(comm, describe), strict=True)
    if any(shape != shapes[0] for shape in shapes):
        raise LayoutError(f"the ranks must pass one global array, but pass arrays of the shapes {shapes}")
    hulls = [_hull({tuple(map(tuple, box)) for box in held}) for held in boxes]
    blocks = [hull for hull in hulls if hull is not None]
    return _layout_of_blocks(shapes[0], blocks) if len(blocks) == comm.size else None


def _boxes(sharding: Sharding, shape: tuple[int, ...], comm: Communicator) -> dict[_Device, _Box]:
    """Return the part of each device of this process."""
    if not isinstance(sharding, Sharding):
        raise UnsupportedTypeError(f"expected a sharding of JAX, not {type_name(sharding)}")
    if sharding.is_fully_addressable and comm.size > 1:
        raise LayoutError(
            "the sharding has devices of this process only: start jax.distributed on all ranks before JAX is used, or "
            "use collops.from_local for the parts of the ranks, collops.from_global for copies"
        )
    if not sharding.is_fully_addressable and comm.size == 1:
        raise LayoutError("the sharding has devices of other processes, but the communicator has one rank")
    try:
        indices = sharding.addressable_devices_indices_map(shape)
    except ValueError as error:
        raise LayoutError(f"an array of shape {shape} cannot have the sharding {sharding}: {error}") from error
    return {device: _box(index, shape) for device, index in indices.items() if index is not None}


def _box(index: Sequence[slice], shape: Sequence[int]) -> _Box:
    return tuple(part.indices(extent)[:2] for part, extent in zip(index, shape, strict=True))


def _size(box: _Box) -> int:
    return math.prod(stop - start for start, stop in box)


def _hull(boxes: set[_Box]) -> _Box | None:
    """Return the box that disjoint boxes fill together; ``None`` if they do not fill one."""
    hull = tuple(
        (min(start for start, _ in bounds), max(stop for _, stop in bounds)) for bounds in zip(*boxes, strict=True)
    )
    return hull if sum(map(_size, boxes)) == _size(hull) else None


def _layout_of_blocks(shape: Sequence[int], blocks: Sequence[_Box]) -> Layout | None:
    """Return the layout in which each rank has its block; ``None`` if there is none."""
    splits = []
    sizes: list[list[int] | None] = [None] * len(shape)
    for axis, extent in enumerate(shape):
        parts = sorted({block[axis] for block in blocks})
        if sum(stop - start for start, stop in parts) != extent:
            return None
        if len(parts) > 1:
            # Ranks are numbered in C order: the number of the part changes first at the stride of its grid axis.
            stride = next(rank for rank, block in enumerate(blocks) if block[axis] != blocks[0][axis])
            splits.append((stride, len(parts), axis))
            sizes[axis] = [stop - start for start, stop in parts]
    ranks, grid = len(blocks), []
    axes: list[int | None] = [None] * len(shape)
    for stride, parts, axis in sorted(splits, reverse=True):
        if ranks % (stride * parts):
            return None
        axes[axis] = len(grid) + 1
        grid += [ranks // (stride * parts), parts]
        ranks = stride
    layout = Layout(shape, len(blocks), [*grid, ranks], axes, sizes)
    found = (tuple((part.start, part.stop) for part in layout.slices(rank)) for rank in range(layout.ranks))
    return layout if all(block == part for block, part in zip(blocks, found, strict=True)) else None


def _grid_of_ranks(sharding: Sharding, shape: tuple[int, ...], comm: Communicator) -> NamedSharding:
    """Return the sharding with as many parts along each axis, but with the devices in the order of the ranks."""
    processes = collective_values(comm, jax.process_index)
    if {device.process_index for device in sharding.device_set} != set(processes):
        raise LayoutError(f"the sharding {sharding} must have devices of all ranks, and of no other process")
    devices = sorted(sharding.device_set, key=lambda device: (processes.index(device.process_index), device.id))
    boxes = [_box(index, shape) for index in sharding.devices_indices_map(shape).values()]
    counts = [len({box[axis] for box in boxes}) for axis in range(len(shape))]
    names = [f"axis {axis}" for axis in range(len(shape))]
    mesh = Mesh(np.array(devices).reshape(*counts, -1), (*names, "copies"))
    return NamedSharding(mesh, PartitionSpec(*names))


def _first_devices(layout: Layout, comm: Communicator) -> NamedSharding:
    """Return the sharding with the part of each rank on its first device. Collective: one metadata message."""
    names = [f"ranks {axis}" for axis in range(len(layout.process_grid))]
    spec = layout_to_spec(layout, names)
    first = {device.process_index: device for device in reversed(jax.devices())}
    processes = collective_values(comm, jax.process_index)
    if len(set(processes)) < comm.size:
        raise LayoutError("each rank must be a process of JAX: start jax.distributed on all ranks before JAX is used")
    devices = [first[process] for process in processes]
    return NamedSharding(Mesh(np.array(devices).reshape(layout.process_grid), names), spec)


def _joined(x: jax.Array) -> jax.Array:
    """Return this rank's shards as one array on its first device."""
    device = jax.local_devices()[0]
    shards: dict[tuple[int, ...], jax.Array] = {}
    for shard in sorted(x.addressable_shards, key=lambda shard: shard.device != device):
        shards.setdefault(tuple(start for start, _ in _box(shard.index, x.shape)), shard.data)

    def nested(starts: list[tuple[int, ...]], axis: int) -> jax.Array | list:
        if axis == x.ndim:
            return jax.device_put(shards[starts[0]], device)
        return [
            nested([start for start in starts if start[axis] == first], axis + 1)
            for first in sorted({start[axis] for start in starts})
        ]

    if len(shards) > 1:
        return jnp.block(nested(list(shards), 0))
    (part,) = shards.values()
    return jax.device_put(part, device)


def _sharded(values: jax.Array, sharding: NamedSharding, layout: Layout, comm: Communicator) -> jax.Array:
    """Return the global array whose part in `layout` this rank holds."""
    parts = []
    offsets = layout.offset(comm.rank)
    for device, box in _boxes(sharding, layout.shape, comm).items():
        part = tuple(slice(start - offset, stop - offset) for (start, stop), offset in zip(box, offsets, strict=True))
        parts.append(jax.device_put(values[part], device))  # a slice of all elements is the array itself
    return jax.make_array_from_single_device_arrays(layout.shape, sharding, parts)


def _identity(x: jax.Array) -> jax.Array:
    return x


def _resharded(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    """Return `x` with a sharding: itself if it has it, otherwise by a compiled program, which is faster than copies."""
    if isinstance(x, Tracer):
        return jax.lax.with_sharding_constraint(x, sharding)
    if x.sharding.is_equivalent_to(sharding, x.ndim):
        return x
    old, new = (list(layout.devices_indices_map(x.shape)) for layout in (x.sharding, sharding))
    if old != new:  # a program has its devices in one order
        return jax.device_put(x, sharding)
    return jax.jit(_identity, out_shardings=sharding)(x)
