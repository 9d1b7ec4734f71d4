"""The time loops of one shot on a tile: modelling, linearised modelling and migration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from collops.extend.engines import engine_of
from collops.seismic.host_kernels import uses_numba
from collops.seismic.waves.grid import Slab, Tile
from collops.seismic.waves.media.medium import Medium
from collops.seismic.waves.shot import Shot
from collops.seismic.waves.storage import Reversal, Storage


def make_steps(
    medium: Medium, slabs: Sequence[Slab], dtype: np.dtype, kernels: str | None, threads: int | None, xp: Any
) -> Any:
    """Return the steps of hosts, compiled or in plain NumPy."""
    return medium.host_steps(uses_numba(kernels, "waves propagate"), slabs, dtype, threads)


def march_for(steps: Any, loops: type[March]) -> type[March]:
    """Return the time loops for steps: `loops`."""
    return loops


class Fields:
    """The state of the scheme between two steps: two fields with halos, and the memory variables of the layers."""

    def __init__(self, shape: tuple[int, ...], memory: tuple[int, int], dtype: np.dtype) -> None:
        self.now, self.before = np.zeros((2, *shape), dtype)
        self.memory = np.zeros(memory, dtype)

    def swap(self) -> None:
        """Make the field that a step computed the present one."""
        self.now, self.before = self.before, self.now

    def clear(self) -> None:
        """Set the state to rest."""
        for array in (self.now, self.before, self.memory):
            array.fill(0)

    def copy(self) -> Fields:
        """Return a copy."""
        other = object.__new__(Fields)
        other.now, other.before, other.memory = self.now.copy(), self.before.copy(), self.memory.copy()
        return other

    def restore(self, other: Fields) -> None:
        """Take the values of another state."""
        for name in ("now", "before", "memory"):
            getattr(self, name)[...] = getattr(other, name)


class March:
    """The time loops on a tile, for one model, of second order in time.

    Parameters
    ----------
    tile : Tile
        The tile.
    steps : HostSteps
        The kernels of one step.
    memory : int
        Elements of a memory variable of all slabs.
    c : numpy.ndarray
        The coefficients of the medium on the tile; of constant density the squared velocity times the squared time
        step.
    fill : callable or None
        Fills the halo of a field from the neighbouring tiles, in place. Collective among the ranks of the tiles.
    storage : Storage
        What migration stores.
    """

    lead = 0  # steps before the first sample
    parts: tuple[int, ...] = ()  # of a stored wavefield
    laplacians = 1  # in a step, each with memory variables of its own

    def __init__(
        self,
        tile: Tile,
        steps: Any,
        memory: int,
        c: np.ndarray,
        fill: Callable[[np.ndarray], None] | None,
        storage: Storage,
    ) -> None:
        self._tile, self._steps, self._c, self._fill = tile, steps, c, fill or (lambda field: None)
        self._memory, self._storage = (2 * self.laplacians, memory), storage
        self._xp: Any = engine_of(c).xp
        self._shape = (*steps.fields, *tile.shape)
        self._wavefield = (*self.parts, *steps.fields, *tile.inner)
        self._reversal: Reversal | None = None  # keeps its memory from shot to shot

    def model(self, shot: Shot, traces: np.ndarray) -> None:
        """Fill `traces`, shape (receivers, samples), with the pressure at the receivers of this tile, 0 at others."""
        fields, shot = self._at_rest(), self._prepared(shot)

        def step(n: int) -> None:
            self._record(fields, shot, traces, n)
            self._advance(shot, fields, n)

        self._record(fields, shot, traces, self._run(step, (fields,), traces.shape[1] - 1))

    def linearised(self, shot: Shot, change: np.ndarray, traces: np.ndarray) -> None:
        """Fill `traces` with their derivative along a change of c, of the same shape."""
        fields, scattered, shot = self._at_rest(), self._at_rest(), self._prepared(shot)
        w = self._xp.empty(self._wavefield, self._c.dtype)

        def step(n: int) -> None:
            self._record(scattered, shot, traces, n)
            self._fill(fields.now)
            self._advance(shot, fields, n, w)
            self._scatter(scattered, change, w)

        self._record(scattered, shot, traces, self._run(step, (fields, scattered), traces.shape[1] - 1))

    def migrate(self, shot: Shot, traces: np.ndarray, image: np.ndarray) -> None:
        r"""Add to `image` the sum over time of :math:`\kappa w`: the transpose of :meth:`linearised`, multiplied by c.

        `traces` has the traces of all receivers.
        """
        if self._reversal is None:
            self._reversal = Reversal(self._storage, self._wavefield, self._c.dtype)
        adjoint, shot = self._at_rest(), self._prepared(shot)

        def advance(fields: Fields, number: int, w: np.ndarray | None) -> None:
            self._fill(fields.now)
            self._advance(shot, fields, number - self.lead, w)

        for number, w in self._reversal.walk(self._at_rest(), advance):
            self._add_residual(shot, adjoint, traces, number - self.lead)
            self._fill(adjoint.now)
            self._retreat(adjoint, w, image)

    def _run(self, step: Callable[[int], None], states: Sequence[Fields], last: int) -> int:
        """Do the steps from the first one to the one before `last`, and return the number of this one."""
        for n in range(-self.lead, last):
            step(n)
        return last

    def _at_rest(self) -> Any:
        return Fields(self._shape, self._memory, self._c.dtype)

    def _prepared(self, shot: Shot) -> Shot:
        """Return a shot as steps need it: its source begins at the first step."""
        return shot

    def _record(self, fields: Fields, shot: Shot, traces: np.ndarray, n: int) -> None:
        """Fill the halo of the present field, and sample the receivers."""
        self._fill(fields.now)
        if n >= 0:
            traces[:, n] = shot.receivers @ last_field(fields.now, self._tile.shape)

    def _advance(self, shot: Shot, fields: Fields, n: int, w: np.ndarray | None = None) -> None:
        """Compute step n of the field, whose halo is filled, and its Laplacian with the source in `w`."""
        self._steps.forward(fields.now, fields.before, fields.memory, self._c, w)
        self._add_source(shot, fields.before, n)
        if w is not None:
            self._add_signal(shot, w, n)
        fields.swap()

    def _scatter(self, scattered: Fields, change: np.ndarray, w: np.ndarray) -> None:
        """Compute a step of the field, whose halo is filled, that a change of c causes by a stored wavefield."""
        self._steps.forward(scattered.now, scattered.before, scattered.memory, self._c, None, (change, w))
        scattered.swap()

    def _retreat(self, adjoint: Fields, w: np.ndarray, image: np.ndarray) -> None:
        """Compute a step of the adjoint field, whose halo is filled, and add its product with `w` to the image."""
        self._steps.adjoint(adjoint.now, adjoint.before, adjoint.memory, self._c, w, image)
        adjoint.swap()

    def _add_source(self, shot: Shot, field: np.ndarray, n: int) -> None:
        """Add the source of step n to the field after it."""
        self._add(field, shot.source_points, shot.source[n])

    def _add_signal(self, shot: Shot, w: np.ndarray, n: int, part: int = 0) -> None:
        """Add the source of step n to a part of its wavefield."""
        signal = shot.source[n + self.lead]
        last_field(w, self._tile.inner)[shot.source_points] += signal[part] if self.parts else signal

    def _add_residual(self, shot: Shot, adjoint: Fields, traces: np.ndarray, n: int) -> None:
        """Add the residual of the step after n to the field that later residuals cause."""
        self._add(adjoint.now, shot.receiver_points, shot.spread @ traces[:, n + 1])

    @cached_property
    def _column(self) -> np.ndarray:
        return self._steps.column(self._c).reshape(*self._steps.fields, -1)

    def _add(self, field: np.ndarray, points: np.ndarray, values: np.ndarray) -> None:
        """Add values on the last field, multiplied by c, to fields with halo at points of the tile."""
        if points.size:
            inner = field[(..., *self._tile.box)]
            inner[(..., *np.unravel_index(points, self._tile.inner))] += self._column[..., points] * values


def last_field(fields: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the last field of contiguous fields of a shape as a flat array, which shares their memory."""
    return fields.reshape(-1, math.prod(shape))[-1]
