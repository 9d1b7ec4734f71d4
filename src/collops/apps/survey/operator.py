"""The Kirchhoff operator of a survey: tables of its stations, and a local operator for each spread of receivers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

import numpy as np

from collops.apps.stages import local_stage
from collops.apps.survey.checks import FACTORS, table_factor
from collops.apps.survey.geometry import Grid, shots_of
from collops.apps.survey.traveltimes import check_mode, seconds_from
from collops.backend import Engine
from collops.errors import InputError
from collops.operators import VStack
from collops.operators.kirchhoff import (
    Bands,
    FixedTables,
    LocalKirchhoff,
    StreamedKirchhoff,
    Weighting,
    Weights,
)
from collops.operators.kirchhoff.fixed_point import Scale
from collops.operators.kirchhoff.geometry import Grid as Points
from collops.operators.kirchhoff.nodes import checked_factor
from collops.operators.kirchhoff.stations import tables_of_stations

if TYPE_CHECKING:
    from collops.apps.survey.survey import Survey

__all__ = ["SurveyModelling"]


@dataclass(frozen=True)
class SurveyModelling:
    """How an operator models the shots of a survey; the options are those of :meth:`Survey.operator`."""

    survey: Survey
    grid: Grid
    taps: np.ndarray
    centre: int
    weighting: Weighting
    antialias: bool
    dtype: np.dtype
    engine: Engine
    threads: int | None

    def operator(
        self, velocity: np.ndarray, mode: str, coarsen: int | None, folder: Path | None, streamed: bool
    ) -> tuple[VStack, list[FixedTables]]:
        """Return the operator, and the travel times of each local one. Collective.

        `velocity` is given on the grid.
        """
        survey, comm, geometry = self.survey, self.survey.comm, self.survey.geometry
        positions, sources, receivers = geometry.stations
        with local_stage(comm):
            check_mode(mode)
            early = int(np.ceil(max(0.0, geometry.start) / 2 / geometry.interval))
            scale = Scale(geometry.interval, geometry.samples, early, self.dtype)
            factor, streamed = self._fitting(coarsen, folder is not None, streamed)
        factor, streamed = comm.allreduce(np.array([factor, int(streamed)]), "max").tolist()
        folder = Path(folder or gettempdir()) if streamed else None
        axes = (self.grid.axes.get(axis) for axis in "zxy")
        tables, weights, rows = tables_of_stations(
            lambda station: seconds_from(positions[station], velocity, self.grid, mode),
            positions,
            velocity,
            Points.from_axes(*axes),
            scale,
            [geometry.needed(shots_of(rank, geometry.shots, comm.size)) for rank in range(comm.size)],
            comm,
            start=geometry.start,
            factor=factor,
            weighting=self.weighting,
            folder=folder,
        )
        if factor > 1:
            survey.notes.append(
                f"travel times at every {factor}th image point along each axis, interpolated: wrong by "
                f"{tables.error:.2g} samples, root mean square, at the worst station"
            )
        if streamed:
            survey.notes.append(f"travel times are read from a file in {folder} whenever they are needed")
        with local_stage(comm):
            groups = [list(group) for _, group in groupby(survey.shots, key=lambda shot: id(receivers[shot]))]
            if streamed:  # as many shots as receivers at a time, so that any number of shots takes no more memory
                groups = [part for group in groups for part in _parts(group, len(receivers[group[0]]))]
            spreads = [tables.of(rows[sources[shots]], rows[receivers[shots[0]]]) for shots in groups]
            places = np.empty((len(tables.times), len(self.grid.shape)))
            own = geometry.needed(survey.shots)
            places[rows[own]] = positions[own]
            make = self._streamed if streamed else self._resident
            operators = make(tables, weights, spreads, places)
        return VStack(operators, comm, dims=self.grid.shape), spreads

    def _fitting(self, coarsen: int | None, may_stream: bool, streamed: bool) -> tuple[int, bool]:
        """Return the factor of coarser tables, and whether they are streamed, as this rank needs it."""
        factors = FACTORS if coarsen is None else (checked_factor(coarsen),)
        stations = 0 if streamed else len(self.survey.geometry.needed(self.survey.shots))
        fields = self.weighting.fields(len(self.grid.shape))
        try:
            return table_factor(
                self.grid, stations, self.dtype, self.survey.comm, fields, factors, self.engine
            ), streamed
        except InputError:
            if not may_stream:
                raise
            return factors[-1], True

    def _resident(
        self, tables: FixedTables, weights: Weights | None, spreads: list[FixedTables], places: np.ndarray
    ) -> list[LocalKirchhoff]:
        there, weights = tables.on(self.engine), weights and weights.on(self.engine)
        return [
            self._local(there.of(spread.sources, spread.receivers), weights, bands and bands.on(self.engine))
            for spread, bands in zip(spreads, self._bands(spreads, places), strict=True)
        ]

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
            self.grid.shape,
            self.taps,
            self.centre,
            weights=weights,
            bands=bands,
            engine=self.engine,
            threads=self.threads,
        )


def _parts(shots: list[int], size: int) -> list[list[int]]:
    return [shots[first : first + size] for first in range(0, len(shots), size)]
