"""The propagator as a program of JAX, which JAX compiles, transforms and differentiates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from scipy.sparse import csr_array

from collops import DistributedArray, LinearOperator, StackedArray
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.extend.arrays import Array, LocalArray
from collops.extend.jax import jit
from collops.extend.solvers import jax_problem
from collops.seismic.waves.elastic_model import check_stack, elastic_medium
from collops.seismic.waves.march import last_field
from collops.seismic.waves.modelling import Modelling
from collops.seismic.waves.shot import Shot
from collops.seismic.waves.steps.jax_laplacians import State
from collops.seismic.waves.velocity_model import model_on_tile


class Program:
    """The traces of this rank's shots as a function of the velocity, or of both. Collective: one small allreduce.

    Steps are nested loops; a derivative computes the inner ones again, such that the stored fields fit the memory of
    the propagator. For the scheme, whose derivative JAX computes, see
    :class:`collops.seismic.waves.steps.acoustic.Steps`.

    Parameters
    ----------
    modelling : Modelling
        The modelling of a propagator.

    Attributes
    ----------
    loops : list of int
        Numbers of iterations of the nested loops, the outermost first. Their product is at least the number of samples.

    Raises
    ------
    InputError
        On every rank, if the memory is too small.
    UnsupportedTypeError
        On every rank, if fields are of float64 and JAX has no 64-bit numbers.
    """

    def __init__(self, modelling: Modelling) -> None:
        if not jax.config.read("jax_enable_x64") and modelling.dtype == np.float64:
            raise UnsupportedTypeError(
                "waves in float64 on JAX need jax.config.update('jax_enable_x64', True); the default is float32"
            )
        self._modelling = modelling
        tile, slabs = modelling.tile, modelling.slabs
        self._steps = modelling.medium.traced_steps(slabs, modelling.dtype)
        loops, memory = modelling.time_loops, modelling.row_elements(tile)
        field = math.prod((*modelling.medium.fields, *tile.inner))
        sizes = np.array([math.prod(loops.parts) * field, 2 * (field + loops.laplacians * memory)])
        field, state = modelling.comm.allreduce(sizes * modelling.dtype.itemsize, "max")  # tiles compute the same loops
        steps = modelling.geometry.shape[2] + loops.lead
        self.loops = loops_within(modelling.memory, steps, int(field), int(state))
        shots = [modelling.shot(number) for number in modelling.shots]
        self._shots = _tables(shots) if shots else None
        self._compiled = (jax.jit if modelling.comm.size == 1 else jit)(self._computed)
        self._problem = jax_problem(self)

    def __call__(self, model: Array) -> DistributedArray:
        """Return the traces of all shots. Collective. The values of a traced model are not checked."""
        modelling = self._modelling
        if isinstance(model, StackedArray):
            check_stack(modelling, model)
        elif model.layout is not modelling.domain or model.comm is not modelling.comm:
            raise LayoutError(
                f"the model must have the layout {modelling.domain} of the propagator, not {model.layout}"
            )
        if model.dtype.kind == "c":
            raise UnsupportedTypeError(f"the model must be real, not of {model.dtype}")
        if not any(isinstance(leaf.local_array, Tracer) for leaf in model.leaves):
            parts = [DistributedArray(leaf.layout, leaf.comm, np.asarray(leaf.local_array)) for leaf in model.leaves]
            model_on_tile(modelling, StackedArray(parts) if isinstance(model, StackedArray) else parts[0])
        return self._compiled(model)

    def jacobian(self, model: Array) -> LinearOperator:
        """Return the derivative of the traces at a model. Collective."""
        return self._problem.jacobian(model)

    def _computed(self, model: Array) -> DistributedArray:
        modelling = self._modelling
        replicated, parts = model.engine.replicated_operand, (leaf.local_array for leaf in model.leaves)
        velocities = [replicated(part.astype(modelling.dtype), modelling.across) for part in parts]
        if self._shots is None:  # depends on the model, so that the derivative has the same messages as on other ranks
            nothing = 0 * sum(velocity.sum() for velocity in velocities)
            traces = jnp.zeros((0, *modelling.geometry.shape[1:]), modelling.dtype) + nothing
            return DistributedArray(modelling.range, modelling.comm, traces)
        c = self._coefficients(*(modelling.tile.extend(velocity, jnp) for velocity in velocities))
        traces = lax.map(lambda shot: self._shot(c, *shot), self._shots)
        return DistributedArray(modelling.range, modelling.comm, modelling.joined(traces))

    def _coefficients(self, velocity: LocalArray, *shear: LocalArray) -> LocalArray:
        """Return the coefficients of the scheme for a velocity, or for both, on the tile."""
        modelling = self._modelling
        if shear:
            near = modelling.surrounded(shear[0], 0, 1)
            c = elastic_medium(modelling).moduli.coefficients(velocity**2, near)
        else:
            c = modelling.medium.coefficients(velocity**2)
        c = c * modelling.geometry.interval**2
        return c.at[..., 0].set(0) if modelling.tile.surface and modelling.medium.vanishes_at_surface else c

    def _shot(
        self, c: LocalArray, points: LocalArray, source: LocalArray, read: LocalArray, weights: LocalArray
    ) -> LocalArray:
        """Return the traces of a shot, shape (receivers, samples)."""
        modelling, steps, inner = self._modelling, self._steps, self._modelling.tile.inner
        widths = [(0, 0)] * len(steps.fields) + [(n, n) for n in modelling.tile.halo]

        def filled(fields: LocalArray) -> LocalArray:
            return modelling.fill(jnp.pad(fields, widths))

        def step(state: State, amplitudes: LocalArray) -> tuple[State, LocalArray]:
            u = filled(state.now)
            sample = (weights * last_field(u, modelling.tile.shape)[read]).sum(axis=1)
            w, memory = steps.applied(u, state.memory[0])
            w = _added(w, inner, points, amplitudes[0])
            memories = [memory]
            if len(state.memory) > 1:
                again, memory = steps.applied(filled(steps.product(c, w)), state.memory[1])
                w = _added(w + again / 12, inner, points, amplitudes[1])
                memories.append(memory)
            return State((2 * state.now - state.before) + steps.product(c, w), state.now, memories), sample

        lead, samples = modelling.time_loops.lead, len(source)
        amplitudes = source[:, jnp.newaxis]
        if modelling.grid.time_order == 4:  # the source, and its second difference
            later, now, earlier = (jnp.pad(source, ((n, 2 - n), (0, 0))) for n in range(3))
            amplitudes = jnp.stack([now, (later - 2 * now + earlier) / 12], axis=1)[:-1]
        amplitudes = jnp.pad(amplitudes, ((0, math.prod(self.loops) - len(amplitudes)), (0, 0), (0, 0)))
        at_rest = steps.at_rest(c, modelling.time_loops.laplacians)
        return _nested(step, self.loops, at_rest, amplitudes)[1][lead : lead + samples].T


def _added(fields: LocalArray, shape: tuple[int, ...], points: LocalArray, values: LocalArray) -> LocalArray:
    """Return fields of a shape with values added at points of the last one."""
    first = fields.size - math.prod(shape)
    return fields.reshape(-1).at[first + points].add(values).reshape(fields.shape)


def loops_within(budget: int | None, steps: int, wavefield: int, state: int) -> list[int]:
    """Return the fewest nested loops over at least `steps` steps whose derivative stores at most `budget` bytes.

    Each loop but the innermost stores a state for each of its iterations, and the innermost stores wavefields. A step
    is computed once for each loop. Raises InputError if the budget is too small.
    """
    if budget is None or steps * wavefield <= budget:
        return [steps]
    smallest = math.inf
    for depth in range(2, steps.bit_length() + 1):
        candidates = [[*[outer] * (depth - 1), -(-steps // outer ** (depth - 1))] for outer in range(2, steps + 1)]
        stored, loops = min((sum(loops[:-1]) * state + loops[-1] * wavefield, loops) for loops in candidates)
        if stored <= budget:
            return loops
        smallest = min(smallest, stored)
    raise InputError(f"memory of {budget} bytes is too small for the wavefields of JAX: {smallest} bytes are needed")


def _nested(step: Callable, loops: Sequence[int], state: State, xs: LocalArray) -> tuple[State, LocalArray]:
    """Return the result of ``lax.scan``, by nested loops; derivatives compute the inner ones again."""
    if len(loops) == 1:
        return lax.scan(step, state, xs)
    inner = jax.checkpoint(lambda state, part: _nested(step, loops[1:], state, part), prevent_cse=False)
    state, ys = lax.scan(inner, state, xs.reshape(loops[0], len(xs) // loops[0], *xs.shape[1:]))
    return state, ys.reshape(len(xs), *ys.shape[2:])


def _tables(shots: Sequence[Shot]) -> tuple[np.ndarray, ...]:
    """Return the tables of shots, filled up with zeros to one shape each.

    They are the points of the sources, their values at each time step, the points that each receiver reads, and their
    weights.
    """
    # At least one point, also on tiles without stations: JAX leaves out derivatives of empty arrays, and the messages
    # that other ranks send in them.
    width = max(int(np.diff(shot.receivers.indptr).max(initial=1)) for shot in shots)
    count = max(1, *(len(shot.source_points) for shot in shots))
    sources = [
        (np.pad(shot.source_points, (0, more)), np.pad(shot.source, ((0, 0), (0, more))))
        for shot, more in ((shot, count - len(shot.source_points)) for shot in shots)
    ]
    receivers = [_padded_rows(shot.receivers, width) for shot in shots]
    return tuple(np.stack(column) for rows in (sources, receivers) for column in zip(*rows, strict=True))


def _padded_rows(matrix: csr_array, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return columns and values of a sparse matrix, each of shape (rows, width), with zeros after shorter rows."""
    counts = np.diff(matrix.indptr)
    row = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], counts)
    columns, values = np.zeros((len(counts), width), np.int32), np.zeros((len(counts), width), matrix.dtype)
    columns[row, place], values[row, place] = matrix.indices, matrix.data
    return columns, values
