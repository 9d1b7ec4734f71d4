"""The Kirchhoff operator of a survey: tables of its stations, and a local operator for each spread of receivers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from tempfile import gettempdir

import numpy as np

from collops import Communicator, Layout, VStack
from collops.errors import InputError
from collops.extend.applications import local_stage
from collops.extend.engines import Engine, memory_of
from collops.seismic.kirchhoff.fixed_point import FixedTables, Scale
from collops.seismic.kirchhoff.geometry import Grid as Points
from collops.seismic.kirchhoff.local import LocalKirchhoff, StreamedKirchhoff
from collops.seismic.kirchhoff.nodes import checked_factor
from collops.seismic.kirchhoff.split import SplitImage, boxes_of, shot_blocks
from collops.seismic.kirchhoff.stations import tables_of_stations
from collops.seismic.kirchhoff.weights import Bands, Weighting, Weights
from collops.seismic.survey.checks import FACTORS, table_factor
from collops.seismic.survey.geometry import Geometry, Grid
from collops.seismic.survey.traveltimes import check_mode, seconds_from

_SAMPLES = 1 << 26  # of the traces of one local operator, about
_SHARE_OF_KERNELS = 0.2  # of the memory of a device, above which kernels are made for each application


@dataclass(frozen=True)
class _Plan:
    """Where the tables of an operator are."""

    factor: int  # they have every so many image points
    streamed: bool = False  # whether they are in a file
    split: bool = False  # whether a rank has its part of the image only


@dataclass(frozen=True)
class SurveyModelling:
    """How an operator models the shots of a survey; the options are those of :meth:`Survey.operator`."""

    geometry: Geometry
    comm: Communicator
    notes: list[str]  # to which decisions are added
    grid: Grid
    taps: np.ndarray
    centre: int
    weighting: Weighting
    antialias: bool
    dtype: np.dtype
    engine: Engine
    threads: int | None

    def operator(
        self,
        velocity: np.ndarray,
        mode: str,
        coarsen: int | None,
        folder: Path | None,
        streamed: bool,
        split: bool | None,
    ) -> tuple[VStack | SplitImage, list[FixedTables]]:
        """Return the operator, and the travel times of each local one. Collective.

        `velocity` is given on the grid.
        """
        comm, geometry, shares = self.comm, self.geometry, self.geometry.shares(self.comm.size)
        positions, *_ = geometry.stations
        with local_stage(comm):
            check_mode(mode)
            early = int(np.ceil(max(0.0, geometry.start) / 2 / geometry.interval))
            scale = Scale(geometry.interval, geometry.samples, early, self.dtype)
            plans = self._plans(coarsen, folder is not None, streamed, split)
            fits = np.array([self._problem(plan) is None for plan in plans], np.int64)
        fits = comm.allreduce(fits, "min")
        with local_stage(comm):
            plan = plans[int(fits.argmax()) if fits.any() else -1]
            if not fits.any() and (problem := self._problem(plan)) is not None:
                raise problem
        factor, streamed = plan.factor, plan.streamed
        folder = Path(folder or gettempdir()) if streamed else None
        needed, layout, boxes = [geometry.needed(share) for share in shares], None, None
        if plan.split:
            layout = Layout.split(self.grid.shape, comm.size)
            needed, boxes = [np.arange(len(positions))] * comm.size, boxes_of(layout, factor, comm.size)
        axes = (self.grid.axes.get(axis) for axis in "zxy")
        tables, weights, rows = tables_of_stations(
            lambda station, at: seconds_from(positions[station], velocity, self.grid, mode, at),
            positions,
            velocity,
            Points.from_axes(*axes),
            scale,
            needed,
            comm,
            start=geometry.start,
            factor=factor,
            weighting=self.weighting,
            folder=folder,
            boxes=boxes,
        )
        if factor > 1:
            self.notes.append(
                f"travel times at one of {factor} image points along each axis, interpolated: wrong by "
                f"{tables.error:.2g} samples, root mean square, at the worst station"
            )
        if streamed:
            self.notes.append(f"travel times are read from a file in {folder} whenever they are needed")
        if plan.split and split is None:
            self.notes.append(
                f"the image is split over the {comm.size} ranks, as it does not fit with its travel times otherwise"
            )
        blocks = [[shares[comm.rank]]]
        if plan.split:
            blocks = shot_blocks(shares, geometry.traces * geometry.samples)
        with local_stage(comm):
            own = needed[comm.rank]
            places = np.empty((len(tables.times), len(self.grid.shape)))
            places[rows[own]] = positions[own]
            of_blocks = [[self._spreads(tables, rows, shots) for shots in block] for block in blocks]
            spreads = [spread for block in of_blocks for each in block for spread in each]
            make = self._streamed if streamed else self._resident
            operators = make(tables, weights, spreads, places) if tables.nodes.points else []
        if layout is None or boxes is None:
            return VStack(operators, comm, dims=self.grid.shape), spreads
        made = iter(operators)
        parts = [[list(islice(made, len(each))) for each in block] for block in of_blocks]
        sizes = [[sum(math.prod(geometry.trace_shape(shot)) for shot in shots) for shots in block] for block in blocks]
        return SplitImage(layout, boxes, parts, sizes, self.dtype, self.engine, comm), spreads

    def _spreads(self, tables: FixedTables, rows: np.ndarray, shots: range) -> list[FixedTables]:
        """Return the tables of each local operator of some shots, from the rows of all stations."""
        _, sources, receivers = self.geometry.stations
        groups = [list(group) for _, group in groupby(shots, key=lambda shot: id(receivers[shot]))]
        # As many shots as receivers at a time, so that the traces of one operator and, if they are streamed, its
        # tables take no more memory if there are more shots; and fewer if their traces are long.
        groups = [part for group in groups for part in _parts(group, self._at_a_time(group))]
        return [tables.of(rows[sources[group]], rows[receivers[group[0]]]) for group in groups]

    def _at_a_time(self, shots: list[int]) -> int:
        """Return how many shots with the same receivers one local operator models."""
        count, samples = self.geometry.trace_shape(shots[0])
        return min(count, max(1, _SAMPLES // (count * samples)))

    def _plans(self, coarsen: int | None, may_stream: bool, streamed: bool, split: bool | None) -> list[_Plan]:
        """Return where tables and image may be, in the order in which they are tried."""
        factors = FACTORS if coarsen is None else (checked_factor(coarsen),)
        if streamed and split:
            raise InputError("tables of a split image are not read from a file: leave out streamed or split")
        if streamed:
            return [_Plan(factors[0], streamed=True)]
        whole, parts = ([_Plan(factor, split=each) for factor in factors] for each in (False, True))
        if self.comm.size == 1:  # one part is the whole image
            return whole + [_Plan(factors[-1], streamed=True)] * may_stream
        if split is not None:
            return parts if split else whole + [_Plan(factors[-1], streamed=True)] * may_stream
        return whole + parts + [_Plan(factors[-1], streamed=True)] * may_stream

    def _problem(self, plan: _Plan) -> InputError | None:
        """Return an error if the tables of a plan do not fit into the memory of this rank, else ``None``."""
        geometry, comm = self.geometry, self.comm
        own = geometry.shares(comm.size)[comm.rank]
        stations = 0 if plan.streamed else len(geometry.needed(own))
        if plan.split:
            stations = len(geometry.stations[0])
        fields, parts = self.weighting.fields(len(self.grid.shape)), comm.size if plan.split else 1
        try:
            table_factor(self.grid, stations, self.dtype, comm, fields, (plan.factor,), self.engine, parts)
        except InputError as problem:
            return problem
        return None

    def _resident(
        self, tables: FixedTables, weights: Weights | None, spreads: list[FixedTables], places: np.ndarray
    ) -> list[LocalKirchhoff] | list[StreamedKirchhoff]:
        there, weights = tables.on(self.engine), weights and weights.on(self.engine)
        makers = [
            partial(self._local, there.of(spread.sources, spread.receivers), weights, bands and bands.on(self.engine))
            for spread, bands in zip(spreads, self._bands(spreads, places), strict=True)
        ]
        if self.engine.memory == "device":
            # Kernels keep two copies of their traces, so that they can be recorded.
            size = 2 * sum(len(each.sources) * len(each.receivers) * each.scale.samples for each in spreads)
            if size * self.dtype.itemsize > _SHARE_OF_KERNELS * memory_of(self.engine):
                made = zip(makers, spreads, strict=True)
                return [StreamedKirchhoff(make, spread, spread.nodes.points) for make, spread in made]
        return [make() for make in makers]

    def _streamed(
        self, _tables: FixedTables, weights: Weights | None, spreads: list[FixedTables], places: np.ndarray
    ) -> list[StreamedKirchhoff]:
        def loaded(spread: FixedTables) -> LocalKirchhoff:
            ((bands,), of_spread) = self._bands([spread], places), weights
            if self.engine.memory == "device":  # kernels on the host read the file
                spread, used = spread.only()
                of_spread = weights and replace(weights, fields=np.array(weights.fields[used]))
            return self._local(spread, of_spread, bands)

        return [StreamedKirchhoff(partial(loaded, spread), spread, self.grid.points) for spread in spreads]

    def _bands(self, spreads: list[FixedTables], places: np.ndarray) -> Sequence[Bands | None]:
        """Return the filters against aliasing of each spread; `places` are the positions of the rows of tables."""
        if not self.antialias:
            return [None] * len(spreads)
        return Bands.between(spreads, places, None, len(self.taps))

    def _local(self, spread: FixedTables, weights: Weights | None, bands: Bands | None) -> LocalKirchhoff:
        return LocalKirchhoff(
            spread,
            spread.nodes.shape,
            self.taps,
            self.centre,
            weights=weights,
            bands=bands,
            engine=self.engine,
            threads=self.threads,
        )


def _parts(shots: list[int], size: int) -> list[list[int]]:
    return [shots[first : first + size] for first in range(0, len(shots), size)]
