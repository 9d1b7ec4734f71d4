"""Factors of arrivals in the kernels (spreading, obliquity, apertures), and the wavelets of arrivals.

A weight belongs to a source, a receiver and an image point. Its separable part and the directions of the rays are
tables for each station; the kernels compute the rest of them, which saves a table for each pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal

import numpy as np

from collops.errors import InputError
from collops.extend.engines import Engine
from collops.seismic.kirchhoff.fixed_point import FixedTables
from collops.seismic.kirchhoff.geometry import Grid
from collops.seismic.kirchhoff.rays import trace_rays

Amplitude = Literal["none", "2d", "2.5d", "3d"]

_AXES = {"2d": 2, "2.5d": 2, "3d": 3}
_TAPER = 0.8  # of an aperture; from there to its end weights fall to zero
_TAIL = 1e-4  # of the largest tap: where the differentiated wavelet is cut off


@dataclass(frozen=True)
class Weighting:
    """How arrivals are weighted; without arguments, all alike.

    Parameters
    ----------
    amplitude : {"none", "2d", "2.5d", "3d"}
        ``"none"`` models travel times only. The others model the amplitudes of reflected waves (see
        :class:`KirchhoffOperator`): ``"2d"`` from line sources, ``"2.5d"`` from point sources above a medium that does
        not vary in y, both for 2-D images, and ``"3d"`` for 3-D images.
    aperture : float, optional
        Horizontal distance in metres from the source and from the receiver at which weights fall to zero, from four
        fifths of it on. By default there is no limit.
    dip : float, optional
        Dip in degrees, below 90, at which weights fall to zero, from four fifths of it on. It is the dip of a reflector
        which bisects the two rays. By default there is no limit.

    Raises
    ------
    InputError
        If an argument cannot be used.

    Examples
    --------
    >>> from collops.seismic.kirchhoff import Weighting
    >>> Weighting("2.5d", aperture=800.0, dip=60.0).none
    False
    """

    amplitude: Amplitude = "none"
    aperture: float | None = None
    dip: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.amplitude, str) or self.amplitude not in ("none", *_AXES):
            raise InputError(f"amplitude must be 'none', '2d', '2.5d' or '3d', not {self.amplitude!r}")
        if self.aperture is not None and not _between_zero_and(math.inf, self.aperture):
            raise InputError(f"aperture must be a positive distance in metres, not {self.aperture!r}")
        if self.dip is not None and not _between_zero_and(90, self.dip):
            raise InputError(f"max_dip must be an angle between 0 and 90 degrees, not {self.dip!r}")

    def check(self, axes: int) -> None:
        """Raise InputError if the amplitude is not one of an image with so many axes."""
        if _AXES.get(self.amplitude, axes) != axes:
            fit = "'3d'" if axes == 3 else "'2d' (line sources) or '2.5d' (point sources)"
            raise InputError(f"amplitude {self.amplitude!r} is not for a {axes}-D image: use {fit}")

    @property
    def none(self) -> bool:
        """Whether all arrivals have the same weight."""
        return self.amplitude == "none" and self.aperture is None and self.dip is None

    @property
    def traces_rays(self) -> bool:
        """Whether the weights depend on the directions of the rays."""
        return self.amplitude != "none" or self.dip is not None

    def wavelet(self, taps: np.ndarray, center: int, interval: float) -> tuple[np.ndarray, int]:
        """Return the wavelet that belongs to the amplitude: its derivative of order 1 (3-D), 1/2 (2-D, 2.5-D) or 0."""
        order = {"none": 0.0, "3d": 1.0}.get(self.amplitude, 0.5)
        return _differentiate(taps, center, interval, order) if order else (taps, center)

    def fields(self, axes: int) -> int:
        """Return the numbers that a station has at each point of an image with so many axes."""
        return 0 if self.none else 1 + axes * self.traces_rays + (self.amplitude == "2.5d")

    def fields_of(self, times: np.ndarray, grid: Grid, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the fields of a station for `Weights` from its travel times in seconds; the first axis counts them."""
        weight = np.ones(grid.shape)
        parts: list[np.ndarray] = []
        if self.traces_rays:
            rays = trace_rays(times, grid, position, velocity)
            parts = [*rays.direction]
            if self.amplitude != "none":
                # Each of the two stations of a trace gets half of the factor that belongs to the image point.
                weight = rays.amplitude * np.sqrt(math.prod(grid.spacing) / velocity)
            if self.amplitude == "2.5d":
                weight = weight / (2 * np.pi) ** 0.25
                parts.append(rays.spreading)
        if self.aperture is not None:
            horizontal = np.meshgrid(*(a - p for a, p in zip(grid.axes, position, strict=True)), indexing="ij")[:-1]
            distance = np.sqrt(sum(part**2 for part in horizontal)) / self.aperture
            weight = weight * np.cos(np.pi / 2 * np.clip((distance - _TAPER) / (1 - _TAPER), 0, 1)) ** 2
        return np.stack([weight, *parts])


@dataclass(frozen=True)
class Weights:
    """The weights of one rank's traces, as the kernels read them.

    A station has these fields at each point: its factor; if rays are traced, the components of the direction of its
    ray, depth last; in 2.5-D its spreading. The weight of a trace is the product of the two factors, times the
    length of the sum q of the two directions (the obliquity) if there is an amplitude, over the root of the
    sum of the spreadings in 2.5-D, times a taper of the dip of q.
    """

    fields: Any  # (stations, fields, nodes): the rows of FixedTables
    weighting: Weighting

    @property
    def axes(self) -> int:
        """Components of a direction; 0 without."""
        return self.fields.shape[1] - 1 - self.spreads if self.weighting.traces_rays else 0

    @property
    def oblique(self) -> bool:
        """Whether the length of the sum of the directions is a factor."""
        return self.weighting.amplitude != "none"

    @property
    def spreads(self) -> bool:
        """Whether the last field is the spreading."""
        return self.weighting.amplitude == "2.5d"

    @property
    def steepest(self) -> tuple[float, float]:
        """Squared cosine of the dip at which the weight is zero, and by how much it is larger where the taper begins.

        The first is -1 if all dips have the same weight.
        """
        if self.weighting.dip is None:
            return -1.0, 1.0
        full, zero = (math.cos(math.radians(part * self.weighting.dip)) ** 2 for part in (_TAPER, 1.0))
        return zero, full - zero

    @property
    def bound(self) -> float:
        """A number that no weight exceeds."""
        if not len(self.fields):
            return 1.0
        bound = float(self.fields[:, 0].max()) ** 2 * (2.0 if self.oblique else 1.0)
        return bound / math.sqrt(2 * float(self.fields[:, -1].min())) if self.spreads else bound

    @property
    def typical(self) -> float:
        """The order of magnitude of the weights that are not zero."""
        factors = self.fields[:, 0]
        typical = (float(factors.sum()) / max(int((factors != 0).sum()), 1)) ** 2
        return typical / math.sqrt(2 * float(self.fields[:, -1].mean())) if self.spreads and typical else typical

    def on(self, engine: Engine) -> Weights:
        """Return the same weights in the memory of an engine."""
        return replace(self, fields=engine.from_host(self.fields))

    def of_pair(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        """Return the weight of one trace at each point, float64, from the fields of its stations."""
        ours, theirs = ours.astype(float), theirs.astype(float)
        weight = ours[0] * theirs[0]
        if self.axes:
            sums = ours[1 : 1 + self.axes] + theirs[1 : 1 + self.axes]
            squares = (sums**2).sum(axis=0)
            if self.oblique:
                weight *= np.sqrt(squares)
            zero, width = self.steepest
            if zero >= 0:
                weight *= np.clip((sums[-1] ** 2 - zero * squares) / (width * np.maximum(squares, 1e-30)), 0, 1)
        return weight / np.sqrt(ours[-1] + theirs[-1]) if self.spreads else weight


@dataclass(frozen=True)
class Bands:
    """Low-passed wavelets against operator aliasing, and which of them each receiver gets at each point.

    Copies of the traces with different bands, from which the migration chooses by the local slope, are the method of
    [1]_; the filters are the triangles of [2]_.

    References
    ----------
    .. [1] Gray, S. H., "Frequency-selective design of the Kirchhoff migration operator", Geophysical Prospecting,
       40(5), pp. 565-571, 1992.
    .. [2] Lumley, D. E., Claerbout, J. F., and Bevc, D., "Anti-aliased Kirchhoff 3-D migration", SEG Technical Program
       Expanded Abstracts, pp. 1282-1285, 1994.
    """

    lengths: tuple[int, ...]  # of the sides of the triangles in samples; 1 is no filter
    choice: Any  # (rows, nodes), uint8; the nearest node counts
    receivers: np.ndarray  # the row of each receiver

    @classmethod
    def between(
        cls, spreads: Sequence[FixedTables], positions: np.ndarray, spacing: float | None, longest: int
    ) -> list[Bands]:
        """Choose triangles as long as the delay from one receiver to the next, for each of some spreads.

        The slope of a receiver's times along the spread is the largest towards its nearest receivers, two of
        them in 2-D and four in 3-D. It is multiplied by `spacing` in metres, by default the distance to the
        nearest one. `positions` are the coordinates of the stations, (stations, axes), all rows of the same tables; a
        receiver that has the same neighbours in several spreads has one row of choices. No triangle is longer
        than `longest` samples.
        """
        from scipy.spatial import cKDTree

        sizes = np.unique(np.round(2.0 ** (np.arange(1 + 2 * math.ceil(math.log2(max(longest, 2)))) / 2)).astype(int))
        row_of: dict[tuple[int, ...], int] = {}
        choices: list[np.ndarray] = []
        rows: list[list[int]] = []
        for tables in spreads:
            rows.append([])
            unit = 2.0**-tables.scale.fraction_bits
            distinct, first, inverse = np.unique(
                positions[tables.receivers], axis=0, return_index=True, return_inverse=True
            )
            count = max(0, min(2 * (positions.shape[1] - 1), len(distinct) - 1))
            # One more, as the nearest is the receiver itself.
            distances, others = (each.reshape(-1, count + 1) for each in cKDTree(distinct).query(distinct, count + 1))
            for station, place in zip(tables.receivers, inverse.reshape(-1), strict=True):
                near = tables.receivers[first[others[place, 1:]]].tolist()
                key = (int(station), *near)
                if key not in row_of:
                    row_of[key] = len(choices)
                    needed = np.zeros(tables.nodes.size, np.float32)
                    if near:
                        own, gap = _at_nodes(tables, station), distances[place, 1] if spacing is None else spacing
                        for apart, other in zip(distances[place, 1:], near, strict=True):
                            delay = np.abs(own - _at_nodes(tables, other)) * (gap / apart * unit)
                            np.maximum(needed, delay, out=needed)
                    choices.append(np.minimum(np.searchsorted(sizes, needed), sizes.size - 1).astype(np.uint8))
                rows[-1].append(row_of[key])
        choice = np.stack(choices) if choices else np.empty((0, 0), np.uint8)  # of a rank without shots
        used = np.unique(choice)
        choice = np.searchsorted(used, choice).astype(np.uint8)
        lengths = tuple(sizes[used].tolist())
        return [cls(lengths, choice, np.array(each, np.int64)) for each in rows]

    def on(self, engine: Engine) -> Bands:
        """Return the same bands in the memory of an engine."""
        return replace(self, choice=engine.from_host(self.choice))

    def wavelets(self, taps: np.ndarray, center: int) -> tuple[np.ndarray, int]:
        """Return the wavelet convolved with each triangle, (bands, taps), and the index of their time zero."""
        if not self.lengths:
            return taps[np.newaxis], center
        longest = max(self.lengths)
        result = np.zeros((len(self.lengths), taps.size + 2 * (longest - 1)))
        for row, length in zip(result, self.lengths, strict=True):
            triangle = (length - np.abs(np.arange(1 - length, length))) / length**2
            begin = longest - length
            row[begin : row.size - begin] = np.convolve(taps, triangle)
        return result, center + longest - 1


def _at_nodes(tables: FixedTables, row: int) -> np.ndarray:
    """Return the fixed-point times of a station at the nodes."""
    return tables.nodes.coarsen(tables.at(row).reshape(tables.nodes.shape))


def checked_antialias(antialias: Any) -> tuple[bool, float | None]:
    """Return whether to protect against aliasing, and the receivers' spacing in metres if it is given."""
    if isinstance(antialias, bool | np.bool_):
        return bool(antialias), None
    if not _between_zero_and(math.inf, antialias):
        raise InputError(f"antialias must be True, False or the receivers' spacing in metres, not {antialias!r}")
    return True, float(antialias)


def _between_zero_and(limit: float, value: Any) -> bool:
    """Return whether a value is a number between 0 and a limit."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < limit


def _differentiate(taps: Sequence[float] | np.ndarray, center: int, interval: float, order: float) -> tuple[Any, int]:
    """Return the causal derivative of a wavelet of order 1/2 or 1, in 1/s to that power, and its index of time zero.

    The half-derivative has a tail, which is cut off where it stays below _TAIL of the largest tap.
    """
    taps = np.asarray(taps, float)
    before = taps.size
    padded = np.zeros(max(256, 16 * taps.size))
    padded[before : before + taps.size] = taps
    frequencies = 2j * np.pi * np.fft.rfftfreq(padded.size, interval)
    result = np.fft.irfft(np.fft.rfft(padded) * frequencies**order, padded.size)
    heard = np.flatnonzero(np.abs(result) > _TAIL * np.abs(result).max())
    begin, end = min(heard[0], before + center), max(heard[-1], before + center) + 1
    return result[begin:end], before + center - int(begin)
