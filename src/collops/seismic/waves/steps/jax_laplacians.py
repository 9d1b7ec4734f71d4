"""The Laplacians of all media in JAX: as in NumPy, without changing an array in place."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from collops.extend.arrays import LocalArray
from collops.seismic.waves.steps.acoustic import Steps
from collops.seismic.waves.steps.density import DensitySteps
from collops.seismic.waves.steps.elastic import ElasticSteps, Memory
from collops.seismic.waves.steps.relaxation import RelaxationSteps
from collops.seismic.waves.steps.staggered import StaggeredSteps
from collops.seismic.waves.steps.vti import VTISteps


class State(NamedTuple):
    """The state of the scheme between two steps: fields on the tile, and the memory of each Laplacian in a step.

    A memory has two lists, of the first and of the second memory variables of the layers.
    """

    now: LocalArray
    before: LocalArray
    memory: list[Any]


def _state(like: LocalArray, fields: tuple[int, ...], memory: Any, laplacians: int) -> State:
    field = jnp.zeros((*fields, *like.shape[-3:]), like.dtype)
    return State(field, field, [memory] * laplacians)


class TracedSteps(Steps):
    """The Laplacian with layers."""

    def at_rest(self, like: LocalArray, laplacians: int) -> State:
        """Return the state at rest, of fields on the tile with the type of `like`."""
        memory = [jnp.zeros(slab.shape, like.dtype) for slab in self._slabs]
        return _state(like, self.fields, (memory, memory), laplacians)

    def applied(self, u: LocalArray, memory: Any) -> tuple[LocalArray, Any]:
        """Return the Laplacian of a field whose halo between tiles is filled, and the next memory variables."""
        tile, firsts, seconds = self._tile, [], []
        if tile.surface and 2 in self._axes:
            half = tile.halo[2]
            u = u.at[..., :half].set(-u[..., 2 * half : half : -1])
        w: LocalArray = self._laplacian(u)
        for slab, first, second in zip(self._slabs, *memory, strict=True):
            zone, (a, b) = self._zone(slab), self._profile(slab)
            stored = self._stored(slab, zone)
            first = first.at[stored].set(b * first[stored] + a * self._first(u, zone, tile.halo, slab.axis))
            change = self._first(first, zone, self._shift(slab), slab.axis)
            own = b * second[stored] + a * (self._second(u, zone, tile.halo, slab.axis) + change)
            w = w.at[tuple(slice(*part) for part in zone)].add(change + own)
            firsts.append(first)
            seconds.append(second.at[stored].set(own))
        return w, (firsts, seconds)


class TracedStaggeredSteps(StaggeredSteps):
    """The same parts of steps on a staggered grid."""

    def _padded(self, x: LocalArray, widths: list[tuple[int, int]]) -> LocalArray:
        return jnp.pad(x, widths)

    def _replaced(self, x: LocalArray, index: tuple, values: LocalArray) -> LocalArray:
        return x.at[index].set(values)


class TracedDensitySteps(TracedStaggeredSteps, DensitySteps):
    """The Laplacian with variable density."""

    def at_rest(self, like: LocalArray, laplacians: int) -> State:
        """Return the state at rest, of fields on the tile with the type of `like`."""
        psi, zeta = ([jnp.zeros(self._shape(slab, more), like.dtype) for slab in self._slabs] for more in (1, 0))
        return _state(like, self.fields, (psi, zeta), laplacians)


class TracedElasticSteps(TracedStaggeredSteps, ElasticSteps):
    """The operator of elastic media; the memory has lists of variables by the axes of derivatives."""

    def at_rest(self, like: LocalArray, laplacians: int) -> State:
        """Return the state at rest, of fields on the tile with the type of `like`."""
        memory = tuple(
            {key: [jnp.zeros(zone.shape, like.dtype) for zone in own] for key, own in zones.items()}
            for zones in self._after
        )
        return _state(like, self.fields, memory, laplacians)

    def applied(self, u: LocalArray, memory: Any) -> tuple[LocalArray, Any]:
        """Return the operator applied to fields whose halo between tiles is filled, and the next memory variables."""
        psi, zeta = (
            Memory(zones, {key: list(own) for key, own in values.items()})
            for zones, values in zip(self._after, memory, strict=True)
        )
        fields = self._gradient(self._divergence(u, None, psi), None, zeta)
        return jnp.stack(fields), (psi.values, zeta.values)


class TracedVTISteps(VTISteps):
    """The derivatives of both fields of VTI media; the memory is of both parts."""

    def at_rest(self, like: LocalArray, laplacians: int) -> State:
        """Return the state at rest, of fields on the tile with the type of `like`."""
        memory = tuple(part.at_rest(like, 1).memory[0] for part in self._parts)
        return _state(like, self.fields, memory, laplacians)

    def applied(self, u: LocalArray, memory: Any) -> tuple[LocalArray, Any]:
        """Return the derivatives of fields whose halo between tiles is filled, and the next memory variables."""
        results = [part.applied(field, own) for part, field, own in zip(self._parts, u, memory, strict=True)]
        return self._stacked([w for w, _ in results]), tuple(own for _, own in results)

    def _stacked(self, fields: list[LocalArray]) -> LocalArray:
        return jnp.stack(fields)


class TracedRelaxationSteps(RelaxationSteps):
    """The filtered operator of any medium; the memory is of this operator, and of the mechanisms on the tile."""

    def at_rest(self, like: LocalArray, laplacians: int) -> State:
        """Return the state at rest, of fields on the tile with the type of `like`."""
        relaxed = [jnp.zeros((*self.fields, *self._tile.inner), like.dtype) for _ in self._decays]
        return _state(like, self.fields, (self._steps.at_rest(like, 1).memory[0], relaxed), laplacians)

    def applied(self, u: LocalArray, memory: Any) -> tuple[LocalArray, Any]:
        """Return the filtered result for fields whose halo between tiles is filled, and the next memory variables."""
        q, layers = self._steps.applied(u, memory[0])
        w, relaxed = q, []
        for decay, gain, variable in zip(self._decays, self._gains, memory[1], strict=True):
            w = w + variable
            relaxed.append(decay * variable + gain[self._tile.box] * q)
        return w, (layers, relaxed)
