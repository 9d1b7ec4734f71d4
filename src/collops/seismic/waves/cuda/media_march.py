"""The time loops of any medium on a device: the loops of hosts, with sources, receivers and storage on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from collops.extend.arrays import LocalArray
from collops.extend.engines import engine_of
from collops.seismic.graphs import side_by_side
from collops.seismic.waves.cuda.clock import Clock, State
from collops.seismic.waves.cuda.media_kernels import Wavefield
from collops.seismic.waves.cuda.storage import CudaStorage
from collops.seismic.waves.march import March
from collops.seismic.waves.shot import Shot
from collops.seismic.waves.storage import Segments


class _DeviceShot(NamedTuple):
    """A shot on the device: the arguments of the kernels for its source, its receivers and its residuals."""

    source: dict[str, Any]
    receivers: dict[str, Any]
    residuals: dict[str, Any]


class _KeptFields:
    """The wavefields of all steps; an index is a step's number relative to the clock, plus `lead`."""

    def __init__(self, arrays: LocalArray, clock: LocalArray, lead: int) -> None:
        self._arrays, self._clock, self._lead = arrays, clock, lead

    def __getitem__(self, index: int) -> Wavefield:
        return Wavefield(self._arrays, self._clock, index - self._lead)


class DeviceLoops(March):
    """Time loops whose steps are numbered relative to the clock of the device, so that they can be recorded.

    :func:`on_device` derives the loops of a device from this class and from loops of hosts. Parameters and methods as
    for :class:`March`; `c` and the arrays of all methods are on the device.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        halos = arguments[4]
        time, several = self._xp.zeros(2, np.int32), self._steps.kernels.several
        self._clock = Clock(
            time, lambda by: several("tick", ahead=by, clock=time, count=1), halos is None or halos.recordable
        )
        self._store: CudaStorage | None = None  # kept from shot to shot, as are checkpoints
        self._segments = Segments(self._storage)
        self._sides: Sequence[Any] = ()  # streams for work beside a step, of steps that are recorded
        self._beside: Callable[[], None] | None = None

    def wavefields(self) -> Any:
        """Return memory for the wavefields of all steps of a shot."""
        return self._xp.empty((self._storage.steps, *self._wavefield), self._c.dtype)

    def model(self, shot: Shot, traces: LocalArray, wavefields: Any = None) -> None:
        """Fill `traces` and `wavefields`; see :meth:`March.model`."""
        super().model(shot, traces, self._by_clock(wavefields))

    def linearised(self, shot: Shot, change: LocalArray, traces: LocalArray, wavefields: Any = None) -> None:
        """Fill `traces` with their derivative; see :meth:`March.linearised`."""
        super().linearised(shot, change, traces, self._by_clock(wavefields))

    def migrate(self, shot: Shot, traces: LocalArray, image: LocalArray, wavefields: Any = None) -> None:
        """Add to `image` what :meth:`March.migrate` does."""
        backward = self._back(shot, traces, image)
        if wavefields is not None:
            kept = self._by_clock(wavefields)
            return backward(len(wavefields) - 1, len(wavefields), lambda n: kept[n + self.lead])
        state, own = self._at_rest(), self._prepared(shot)
        if self._store is None:
            engine = engine_of(self._c)
            self._store = CudaStorage(self._storage, self._wavefield, self._c.dtype, state.bytes, engine)
        store, graphs = self._store, {}
        state.copies_far = store.checkpoints_far

        def forward(first: int, count: int, place: Callable[[int], Any] | None) -> None:
            def step(n: int) -> None:
                self._fill(state.now)
                self._advance(own, state, n, None if place is None else place(n))

            self._loop(step, (state,), first, count, graphs, place, base=first)

        def near(n: int) -> Any:
            return Wavefield(store.near, self._clock.time, n)

        def far(n: int) -> Any:
            return store.buffer

        def move(moved: State, first: int, last: int, stored: bool) -> None:
            if not stored:
                return forward(first, last - first, None)
            middle = min(last, first + len(store.near))
            forward(first, middle - first, near)
            for n in range(middle, last):
                forward(n, 1, far)
                store.store(n - middle)

        for first, last in self._segments.visit(state, move):
            middle = min(last, first + len(store.near))
            for n in range(last - 1, middle - 1, -1):
                store.load(n - middle)
                backward(n, 1, far)
            backward(middle - 1, middle - first, near)

    def _back(
        self, shot: Shot, traces: LocalArray, image: LocalArray
    ) -> Callable[[int, int, Callable[[int], Any]], None]:
        """Return ``backward(last, count, place)``, which does adjoint steps with the wavefields ``place(step)``."""
        adjoint, own, graphs = self._at_rest(), self._prepared(shot), {}

        def backward(last: int, count: int, place: Callable[[int], Any]) -> None:
            def step(n: int) -> None:
                self._add_residual(own, adjoint, traces, n)
                self._fill(adjoint.now)
                self._retreat(adjoint, place(n), image)

            base = last - count + 1
            self._loop(step, (adjoint,), last, count, graphs, place, direction=-1, base=base)

        return backward

    def _by_clock(self, wavefields: Any) -> Any:
        """Return kept wavefields as steps use them, by numbers that count from the time on the clock."""
        return None if wavefields is None else _KeptFields(wavefields, self._clock.time, self.lead)

    def _loop(
        self,
        step: Callable[[int], None],
        states: Sequence[State],
        first: int,
        count: int,
        graphs: dict[Any, Callable[[], None]] | None = None,
        name: object = None,
        *,
        direction: int = 1,
        base: int = 0,
    ) -> int:
        """Do steps, of which number 0 is the first one of the loops; see :meth:`Clock.run`."""

        def turned(turn: int, ahead: int, sides: Sequence[Any]) -> None:
            for state in states:
                state.turn = turn
            self._sides = sides
            step(ahead)
            self._sides = ()

        first, base = first - self.lead, base - self.lead
        return self._clock.run(turned, states, first, count, graphs, name, direction=direction, base=base)

    def _run(self, step: Callable[[int], None], states: Any, last: int) -> int:
        return self._loop(step, states, 0, last + self.lead)

    def _at_rest(self) -> Any:
        return State(self._shape, self._memory, self._c.dtype, self._xp)

    def _prepared(self, shot: Shot) -> Any:
        shot, xp = super()._prepared(shot), self._xp
        points = {"points": xp.asarray(shot.source_points.astype(np.int64)), "count": len(shot.source_points)}
        source = {"signal": xp.asarray(shot.source), "lead": self.lead, "parts": math.prod(self.parts), **points}
        residuals = _stations(shot.spread, xp)
        residuals["points"] = xp.asarray(shot.receiver_points.astype(np.int64))
        return _DeviceShot(source, _stations(shot.receivers, xp), residuals)

    def _record(self, fields: Any, shot: Any, traces: LocalArray, n: int) -> None:
        self._fill(fields.now)
        values = {"u": fields.now, "traces": traces, "samples": traces.shape[1]}
        sample = partial(self._launch, "record", shot.receivers, n, **values)
        if self._sides:
            self._beside = sample
        else:
            sample()

    def _advance(self, shot: Any, fields: Any, n: int, w: Any = None) -> None:
        self._beside_sampling(partial(super()._advance, shot, fields, n, w))

    def _scatter(self, scattered: Any, change: LocalArray, w: Any) -> None:
        self._beside_sampling(partial(super()._scatter, scattered, change, w))

    def _beside_sampling(self, work: Callable[[], None]) -> None:
        """Do the work of a step, and sample receivers meanwhile: few threads read many numbers one after the other."""
        if self._beside is None:
            return work()
        sample, self._beside = self._beside, None
        side_by_side(work, [sample], self._sides[:1])

    def _add_source(self, shot: Any, field: LocalArray, n: int) -> None:
        self._launch("add_source", shot.source, n, before=field[(..., *self._tile.box)], c=self._c)

    def _add_signal(self, shot: Any, w: Any, n: int, part: int = 0) -> None:
        self._launch("add_signal", shot.source, n, w=w, part=part)

    def _add_residual(self, shot: Any, adjoint: Any, traces: LocalArray, n: int) -> None:
        fields = {"u": adjoint.now[(..., *self._tile.box)], "c": self._c}
        self._launch("add_residual", shot.residuals, n, traces=traces, samples=traces.shape[1], **fields)

    def _launch(self, name: str, stations: dict[str, Any], ahead: int, **values: Any) -> None:
        """Launch a kernel for sources or receivers."""
        self._steps.kernels.several(name, ahead=ahead, clock=self._clock.time, **stations, **values)


@cache
def on_device(loops: type[March]) -> type[March]:
    """Return the time loops of a device with the steps of loops of hosts."""
    return type(f"Device{loops.__name__}", (DeviceLoops, loops), {})


def _stations(matrix: csr_array, xp: Any) -> dict[str, Any]:
    """Return the arguments of kernels for the rows of a sparse matrix, on the device."""
    rows, columns = (xp.asarray(part.astype(np.int32)) for part in (matrix.indptr, matrix.indices))
    return {"count": matrix.shape[0], "rows": rows, "columns": columns, "weights": xp.asarray(matrix.data)}
