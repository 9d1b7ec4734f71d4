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
from collops.seismic.kirchhoff.eikonal import Thomsen
from collops.seismic.kirchhoff.fixed_point import FixedTables, Scale
from collops.seismic.kirchhoff.geometry import ImageGrid
from collops.seismic.kirchhoff.local import LocalKirchhoff, StreamedKirchhoff
from collops.seismic.kirchhoff.nodes import checked_factor
from collops.seismic.kirchhoff.split import SplitImage, boxes_of, shot_blocks
from collops.seismic.kirchhoff.stations import tables_of_stations
from collops.seismic.kirchhoff.traveltimes import checked_tolerance, coarsest_grid, interpolates_alike
from collops.seismic.kirchhoff.weights import Bands, Weighting, Weights
from collops.seismic.survey.checks import FACTORS, table_factor
from collops.seismic.survey.geometry import Geometry, Grid
from collops.seismic.survey.traveltimes import times_at

_SAMPLES = 1 << 26  # approximate maximum number of samples of one local operator
_MAX_KERNEL_SHARE = 0.2  # of device memory; above it, kernels are constructed for each application


@dataclass(frozen=True)
class _Plan:
    """The storage of an operator's tables."""

    factor: int  # tables hold every `factor`-th image point
    streamed: bool = False  # whether the tables are in a file
    split: bool = False  # whether the image is split over the ranks


@dataclass(frozen=True)
class SurveyModelling:
    """The construction of a survey's operator; for the options see :meth:`Survey.operator`."""

    geometry: Geometry
    comm: Communicator
    notes: list[str]  # decisions are appended
    grid: Grid  # of the velocity
    target: Grid  # of the image: the same, or a part of it
    velocity: np.ndarray  # in the shape of `grid`
    mode: str
    thomsen: Thomsen | None  # anisotropy of the medium
    taps: np.ndarray
    centre: int
    weighting: Weighting
    antialias: bool
    dtype: np.dtype
    engine: Engine
    threads: int | None

    def operator(
        self,
        coarsen: int | None,
        folder: str | Path | None,
        streamed: bool,
        split: bool | None,
        tolerance: float | None,
        kept: list[FixedTables] | None,
    ) -> VStack | SplitImage:
        """Return the operator. Collective."""
        comm, geometry, shares = self.comm, self.geometry, self.geometry.shares(self.comm.size)
        positions, *_ = geometry.stations
        with local_stage(comm):
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
            layout = Layout.split(self.target.shape, comm.size)
            needed, boxes = [np.arange(len(positions))] * comm.size, boxes_of(layout, factor, comm.size)
        image = ImageGrid.from_axes(*(self.grid.axes.get(axis) for axis in "zxy"))
        arguments = positions, self.velocity, self.grid, self.mode, self.engine, self.dtype, self.threads
        box, (step, error) = self.grid.box(self.target), self._coarsest_grid(image, tolerance)
        tables, weights, rows = tables_of_stations(
            times_at(*arguments, self.thomsen, step),
            positions,
            self.velocity,
            image,
            scale,
            needed,
            comm,
            start=geometry.start,
            factor=factor,
            weighting=self.weighting,
            folder=folder,
            boxes=boxes,
            target=box,
            error=error / scale.interval,
            measured=not interpolates_alike(factor, step, [part.start for part in box], self.thomsen),
            of_rays=times_at(*arguments) if self.thomsen is not None and self.weighting.traces_rays else None,
        )
        if factor > 1:
            self.notes.append(
                f"travel times coarsened by {factor} along each axis and interpolated: root mean square error "
                f"{tables.error:.2g} samples at the worst {'station' if step == 1 else 'of some stations'}"
            )
        if streamed:
            self.notes.append(f"travel times are read from a file in {folder} in each application")
        if plan.split and split is None:
            self.notes.append(
                f"the image is split over the {comm.size} ranks: with its travel times it does not fit on one rank"
            )
        blocks = shot_blocks(shares, geometry.traces * geometry.samples) if plan.split else [[shares[comm.rank]]]
        with local_stage(comm):
            stations = needed[comm.rank]
            row_positions = np.empty((len(tables.times), len(self.grid.shape)))
            row_positions[rows[stations]] = positions[stations]
            of_blocks = [[self._spreads(tables, rows, shots) for shots in block] for block in blocks]
            spreads = [spread for block in of_blocks for group in block for spread in group]
            make = self._streamed if streamed else self._resident
            operators = make(tables, weights, spreads, row_positions) if tables.nodes.points else []
        if kept is not None:
            kept += spreads
        if layout is None or boxes is None:
            return VStack(operators, comm, dims=self.target.shape)
        made = iter(operators)
        parts = [[list(islice(made, len(group))) for group in block] for block in of_blocks]
        sizes = [[sum(math.prod(geometry.trace_shape(shot)) for shot in shots) for shots in block] for block in blocks]
        return SplitImage(layout, boxes, parts, sizes, self.dtype, self.engine, comm)

    def _coarsest_grid(self, image: ImageGrid, tolerance: float | None) -> tuple[int, float]:
        """Return the result of `coarsest_grid`; without a tolerance, and for formulas, all points. Collective."""
        with local_stage(self.comm):
            tolerance = checked_tolerance(tolerance, self.weighting.traces_rays)
        if tolerance is None:
            return 1, 0.0
        if self.mode != "eikonal":
            self.notes.append("travel times are computed by a formula: the tolerance of their errors does not apply")
            return 1, 0.0
        positions, *_ = self.geometry.stations
        arguments = image, positions, self.velocity, self.engine, self.dtype, self.threads, self.thomsen
        step, error = coarsest_grid(*arguments, tolerance, self.comm)
        interval = self.geometry.interval
        self.notes.append(
            f"travel times are computed at every {step} points along each axis and interpolated: estimated root mean "
            f"square error {error / interval:.2g} samples at the worst of some stations"
            if step > 1
            else f"travel times are computed at all points: errors with every 2nd are above {tolerance:g} s"
        )
        return step, error

    def _spreads(self, tables: FixedTables, rows: np.ndarray, shots: range) -> list[FixedTables]:
        """Return the tables of each local operator of some shots, from the rows of all stations."""
        _, sources, receivers = self.geometry.stations
        groups = [list(group) for _, group in groupby(shots, key=lambda shot: id(receivers[shot]))]
        # At most as many shots as receivers in one local operator (fewer if traces are long), so that the memory of its
        # traces and streamed tables is bounded for any number of shots.
        groups = [part for group in groups for part in _parts(group, self._at_a_time(group))]
        return [tables.select(rows[sources[group]], rows[receivers[group[0]]]) for group in groups]

    def _at_a_time(self, shots: list[int]) -> int:
        """Return how many shots with the same receivers one local operator models."""
        count, samples = self.geometry.trace_shape(shots[0])
        return min(count, max(1, _SAMPLES // (count * samples)))

    def _plans(self, coarsen: int | None, may_stream: bool, streamed: bool, split: bool | None) -> list[_Plan]:
        """Return the possible plans, in the order in which they are tried."""
        factors = FACTORS if coarsen is None else (checked_factor(coarsen),)
        if streamed and split:
            raise InputError("streamed tables need a replicated image: omit streamed or split")
        if streamed:
            return [_Plan(factors[0], streamed=True)]
        replicated, parts = ([_Plan(factor, split=divided) for factor in factors] for divided in (False, True))
        if self.comm.size == 1:  # a split image would be the same
            return replicated + [_Plan(factors[-1], streamed=True)] * may_stream
        if split is not None:
            return parts if split else replicated + [_Plan(factors[-1], streamed=True)] * may_stream
        return replicated + parts + [_Plan(factors[-1], streamed=True)] * may_stream

    def _problem(self, plan: _Plan) -> InputError | None:
        """Return an error if the tables of a plan do not fit into the memory of this rank, else ``None``."""
        geometry, comm = self.geometry, self.comm
        shots = geometry.shares(comm.size)[comm.rank]
        stations = 0 if plan.streamed else len(geometry.needed(shots))
        if plan.split:
            stations = len(geometry.stations[0])
        fields, parts = self.weighting.fields(len(self.grid.shape)), comm.size if plan.split else 1
        try:
            table_factor(self.target, stations, self.dtype, comm, fields, (plan.factor,), self.engine, parts)
        except InputError as problem:
            return problem
        return None

    def _resident(
        self, tables: FixedTables, weights: Weights | None, spreads: list[FixedTables], row_positions: np.ndarray
    ) -> list[LocalKirchhoff] | list[StreamedKirchhoff]:
        local_tables, weights = tables.to_engine(self.engine), weights and weights.to_engine(self.engine)
        makers = [
            partial(
                self._local,
                local_tables.select(spread.sources, spread.receivers),
                weights,
                bands and bands.to_engine(self.engine),
            )
            for spread, bands in zip(spreads, self._bands(spreads, row_positions), strict=True)
        ]
        if self.engine.memory == "device":
            # Kernels hold two copies of their traces, so that graphs can record them.
            size = 2 * sum(len(group.sources) * len(group.receivers) * group.scale.samples for group in spreads)
            if size * self.dtype.itemsize > _MAX_KERNEL_SHARE * memory_of(self.engine):
                made = zip(makers, spreads, strict=True)
                return [StreamedKirchhoff(make, spread, spread.nodes.points) for make, spread in made]
        return [make() for make in makers]

    def _streamed(
        self, _tables: FixedTables, weights: Weights | None, spreads: list[FixedTables], row_positions: np.ndarray
    ) -> list[StreamedKirchhoff]:
        def loaded(spread: FixedTables) -> LocalKirchhoff:
            ((bands,), of_spread) = self._bands([spread], row_positions), weights
            if self.engine.memory == "device":  # kernels on the host read the file
                spread, used = spread.compact()
                of_spread = weights and replace(weights, fields=np.array(weights.fields[used]))
            return self._local(spread, of_spread, bands)

        return [StreamedKirchhoff(partial(loaded, spread), spread, self.target.points) for spread in spreads]

    def _bands(self, spreads: list[FixedTables], row_positions: np.ndarray) -> Sequence[Bands | None]:
        """Return the filters against aliasing of each spread, from the positions of the tables' rows."""
        if not self.antialias:
            return [None] * len(spreads)
        return Bands.between(spreads, row_positions, None, len(self.taps))

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
