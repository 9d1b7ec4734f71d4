"""The time loops of one shot on a device: launches that are recorded, so that a loop takes little time of the host.

Everything that a step needs lies on the device, also its number: see :class:`Clock`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from collops.extend.arrays import LocalArray
from collops.extend.engines import engine_of
from collops.seismic.waves.cuda.clock import Clock, State
from collops.seismic.waves.cuda.media_march import on_device
from collops.seismic.waves.cuda.steps import Arguments, CudaSteps
from collops.seismic.waves.cuda.storage import CudaStorage
from collops.seismic.waves.grid import Slab, Tile
from collops.seismic.waves.halos import TileHalos
from collops.seismic.waves.march import March as HostMarch
from collops.seismic.waves.media.medium import Medium
from collops.seismic.waves.shot import Shot
from collops.seismic.waves.storage import Segments, Storage


def make_steps(
    medium: Medium, slabs: Sequence[Slab], dtype: np.dtype, kernels: str | None, threads: int | None, xp: Any
) -> Any:
    """Return the steps of a device; `kernels` and `threads` are for hosts."""
    return medium.device_steps(slabs, dtype, xp)


def march_for(steps: Any, loops: type[HostMarch]) -> Any:
    """Return the time loops for steps; `loops` are the ones of hosts."""
    return March if isinstance(steps, CudaSteps) else on_device(loops)


class March:
    """The time loops on a tile, for one model; parameters and methods as for the form of hosts in ``march.py``.

    `c` and the arrays of all methods are on the device; `memory` is for hosts.
    """

    def __init__(
        self,
        tile: Tile,
        steps: CudaSteps,
        memory: int,
        c: LocalArray,
        fill: TileHalos | None,
        storage: Storage,
    ) -> None:
        self._tile, self._steps, self._c, self._fill = tile, steps, c, fill
        self._storage = storage
        self._xp: Any = engine_of(c).xp
        a, b = (self._xp.asarray(values) for values in (steps.a, steps.b))
        self._shared = {"a": a, "b": b, "c": c, "clock": self._xp.zeros(2, np.int32)}
        tick = partial(steps.tick, steps.arguments(**self._shared))
        self._clock = Clock(self._shared["clock"], tick, fill is None or fill.recordable)
        self._store: CudaStorage | None = None  # kept from shot to shot, as are checkpoints
        self._segments = Segments(storage)

    def wavefields(self) -> LocalArray:
        """Return memory for the wavefields of all steps of a shot."""
        return self._xp.empty((self._storage.steps, *self._tile.inner), self._c.dtype)

    def model(self, shot: Shot, traces: LocalArray, wavefields: LocalArray | None = None) -> None:
        """Fill `traces`, shape (receivers, samples), with the pressure at the receivers of this tile, 0 at others.

        Also fill `wavefields`, if any.
        """
        steps, state = self._steps, self._at_rest()
        values = self._source(shot) | self._receivers(shot, traces) | self._stored(wavefields)
        arguments = self._of_turns(state, **values)

        def step(turn: int, ahead: int, sides: Sequence[Any]) -> None:
            self._exchange(state.fields[turn])
            steps.forward(arguments[turn], ahead, sides)

        since = self._clock.run(step, (state,), 0, traces.shape[1] - 1)
        self._exchange(state.fields[state.turn])
        steps.record(arguments[state.turn], since)

    def linearised(
        self, shot: Shot, change: LocalArray, traces: LocalArray, wavefields: LocalArray | None = None
    ) -> None:
        """Fill `traces` with their derivative along a change of c, of the same shape.

        `wavefields` are of the shot, from :meth:`model`; without them they are computed again.
        """
        steps, scattered = self._steps, self._at_rest()
        values = self._receivers(shot, traces) | {"change": change}
        fields = []
        if wavefields is None:
            w, state = self._xp.empty(self._tile.inner, self._c.dtype), self._at_rest()
            fields.append((state, self._of_turns(state, **self._source(shot), stored=w)))
            values |= {"scattering": w}
        else:
            values |= {"scattering": wavefields, "storage": change.size}
        second = self._of_turns(scattered, **values)
        fields.append((scattered, second))

        def step(turn: int, ahead: int, sides: Sequence[Any]) -> None:
            for own, arguments in fields:
                self._exchange(own.fields[turn])
                steps.forward(arguments[turn], ahead, sides)

        since = self._clock.run(step, [own for own, _ in fields], 0, traces.shape[1] - 1)
        self._exchange(scattered.fields[scattered.turn])
        steps.record(second[scattered.turn], since)

    def migrate(self, shot: Shot, traces: LocalArray, image: LocalArray, wavefields: LocalArray | None = None) -> None:
        r"""Add to `image` the sum over time of :math:`\kappa w`; see the form for hosts.

        `traces` has the traces of all receivers; `wavefields` are as for :meth:`linearised`.
        """
        if wavefields is not None:
            back = self._back(shot, traces, image, self._stored(wavefields))
            return back(len(wavefields) - 1, len(wavefields), 0)
        steps, state = self._steps, self._at_rest()
        if self._store is None:
            engine = engine_of(self._c)
            self._store = CudaStorage(self._storage, self._tile.inner, self._c.dtype, state.bytes, engine)
        store, source = self._store, self._source(shot)
        state.copies_far = store.checkpoints_far
        near, far = {"stored": store.near, "storage": image.size}, {"stored": store.buffer}
        moves = {place: self._of_turns(state, **source, **values) for place, values in enumerate(({}, near, far))}
        backward = self._back(shot, traces, image, near, far)
        graphs: dict[Any, Callable[[], None]] = {}

        def forward(own: State, first: int, count: int, place: int) -> None:
            def step(turn: int, ahead: int, sides: Sequence[Any]) -> None:
                self._exchange(own.fields[turn])
                steps.forward(moves[place][turn], ahead, sides)

            self._clock.run(step, (own,), first, count, graphs, place)

        def move(own: State, first: int, last: int, stored: bool) -> None:
            if not stored:
                return forward(own, first, last - first, 0)
            middle = min(last, first + len(store.near))
            forward(own, first, middle - first, 1)
            for n in range(middle, last):
                forward(own, n, 1, 2)
                store.store(n - middle)

        for first, last in self._segments.visit(state, move):
            middle = min(last, first + len(store.near))
            for n in range(last - 1, middle - 1, -1):
                store.load(n - middle)
                backward(n, 1, 1)
            backward(middle - 1, middle - first, 0)

    def _back(
        self, shot: Shot, traces: LocalArray, image: LocalArray, *places: dict[str, Any]
    ) -> Callable[[int, int, int], None]:
        """Return ``backward(last, count, place)``, which does adjoint steps with wavefields in one of these places."""
        steps, adjoint, residuals = self._steps, self._at_rest(3), self._residuals(shot, traces)
        backs = [self._of_turns(adjoint, **residuals, **values, image=image) for values in places]
        graphs: dict[Any, Callable[[], None]] = {}

        def backward(last: int, count: int, place: int) -> None:
            def step(turn: int, ahead: int, sides: Sequence[Any]) -> None:
                steps.inject(backs[place][turn], ahead)
                self._exchange(adjoint.fields[turn])
                steps.adjoint(backs[place][turn], ahead, sides)

            base = last - count + 1
            self._clock.run(step, (adjoint,), last, count, graphs, place, direction=-1, base=base)

        return backward

    def _stored(self, wavefields: LocalArray | None) -> dict[str, Any]:
        """Return the arguments of steps that store wavefields, or use them."""
        return {} if wavefields is None else {"stored": wavefields, "storage": self._c.size}

    def _exchange(self, field: LocalArray) -> None:
        """Fill the halo of a field from the neighbouring tiles."""
        if self._fill is not None:
            self._fill(field[self._steps.window])

    def _at_rest(self, variables: int = 2) -> State:
        return State(self._steps.shape, (variables, self._steps.elements), self._c.dtype, self._xp)

    def _of_turns(self, state: State, **values: Any) -> tuple[Arguments, Arguments]:
        """Return the arguments of steps from either of the two fields of a state to the other."""
        first, second = (self._steps.arguments(**self._shared, **_arrays(state, turn), **values) for turn in (0, 1))
        return first, second

    def _source(self, shot: Shot) -> dict[str, Any]:
        """Return the arguments for the source: a box of grid points, and the signal at those that it is spread over."""
        if not shot.source_points.size:
            return {}
        places = np.array(np.unravel_index(shot.source_points, self._tile.inner))
        first = places.min(axis=1)
        slots = np.full(places.max(axis=1) - first + 1, -1, np.int32)
        slots[tuple(places - first[:, np.newaxis])] = np.arange(len(shot.source_points))
        arrays = {"slots": self._xp.asarray(slots), "signal": self._xp.asarray(shot.source)}
        return {**arrays, "sources": shot.source.shape[1], "source_first": tuple(first), "source_size": slots.shape}

    def _receivers(self, shot: Shot, traces: LocalArray) -> dict[str, Any]:
        """Return the arguments that sample the receivers."""
        rows, (count, samples) = shot.receivers, traces.shape
        return {
            "reads": self._xp.asarray(rows.indptr.astype(np.int32)),
            "columns": self._xp.asarray(self._steps.columns(rows.indices)),
            "weights": self._xp.asarray(rows.data),
            "traces": traces,
            "receivers": count,
            "samples": samples,
        }

    def _residuals(self, shot: Shot, traces: LocalArray) -> dict[str, Any]:
        """Return the arguments that add residuals to the adjoint field."""
        rows = shot.spread
        return {
            "adds": self._xp.asarray(rows.indptr.astype(np.int32)),
            "receiver": self._xp.asarray(rows.indices.astype(np.int32)),
            "spread": self._xp.asarray(rows.data),
            "points": self._xp.asarray(shot.receiver_points.astype(np.int64)),
            "traces": traces,
            "added": len(shot.receiver_points),
            "samples": traces.shape[1],
        }


def _arrays(state: State, turn: int) -> dict[str, LocalArray]:
    """Return the arguments of a step from field number `turn`."""
    memory = state.memory
    found = {"now": state.fields[turn], "next": state.fields[1 - turn], "first": memory[0], "second": memory[1]}
    if len(memory) > 2:  # of the adjoint, one more that takes turns
        found |= {"second": memory[1 + turn], "earlier": memory[2 - turn]}
    return found
