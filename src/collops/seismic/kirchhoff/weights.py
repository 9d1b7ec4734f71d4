"""Weights of arrivals in the kernels (spreading, obliquity, apertures), and the wavelets of arrivals.

A weight depends on a source, a receiver and an image point. Each station has tables of the separable factor and of
the ray directions; the kernels compute the weights from them, which avoids a table for each pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal

import numpy as np

from collops.errors import InputError
from collops.extend.arrays import LocalArray
from collops.extend.engines import Engine
from collops.seismic.kirchhoff.fixed_point import FixedTables
from collops.seismic.kirchhoff.geometry import ImageGrid
from collops.seismic.kirchhoff.rays import trace_rays

Amplitude = Literal["none", "2d", "2.5d", "3d"]

_AXES = {"2d": 2, "2.5d": 2, "3d": 3}
_TAPER = 0.8  # fraction of an aperture at which the taper to zero begins
_TAIL = 1e-4  # of the largest tap: the differentiated wavelet is cut off below it


@dataclass(frozen=True)
class Weighting:
    """The weighting of arrivals; without arguments, all arrivals have the same weight.

    Parameters
    ----------
    amplitude : {"none", "2d", "2.5d", "3d"}
        ``"none"`` models travel times only. The others model the amplitudes of reflected waves (see
        :class:`KirchhoffOperator`): ``"2d"`` from line sources, ``"2.5d"`` from point sources above a medium that does
        not vary in y, both for 2-D images, and ``"3d"`` for 3-D images.
    aperture : float, optional
        Maximum horizontal distance in metres from the source and from the receiver. Weights taper to zero from 80 % of
        it. By default there is no limit.
    dip : float, optional
        Maximum dip in degrees, below 90, of the reflector that would reflect one ray into the other. Weights taper to
        zero from 80 % of it. By default there is no limit.

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
        """Raise InputError if the amplitude does not suit an image with this number of axes."""
        if _AXES.get(self.amplitude, axes) != axes:
            fit = "'3d'" if axes == 3 else "'2d' (line sources) or '2.5d' (point sources)"
            raise InputError(f"amplitude {self.amplitude!r} does not suit a {axes}-D image: use {fit}")

    @property
    def none(self) -> bool:
        """Whether all arrivals have the same weight."""
        return self.amplitude == "none" and self.aperture is None and self.dip is None

    @property
    def traces_rays(self) -> bool:
        """Whether the weights depend on the directions of the rays."""
        return self.amplitude != "none" or self.dip is not None

    def wavelet(self, taps: np.ndarray, center: int, interval: float) -> tuple[np.ndarray, int]:
        """Return the wavelet for the amplitude: its derivative of order 1 (3-D), 1/2 (2-D, 2.5-D) or 0 (none)."""
        order = {"none": 0.0, "3d": 1.0}.get(self.amplitude, 0.5)
        return _differentiate(taps, center, interval, order) if order else (taps, center)

    def fields(self, axes: int) -> int:
        """Return the number of fields of a station, for an image with this number of axes."""
        return 0 if self.none else 1 + axes * self.traces_rays + (self.amplitude == "2.5d")

    def fields_of(self, times: np.ndarray, grid: ImageGrid, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Compute a station's fields for `Weights`, ``(fields, *grid.shape)``, from its travel times in seconds."""
        weight = np.ones(grid.shape)
        parts: list[np.ndarray] = []
        if self.traces_rays:
            rays = trace_rays(times, grid, position, velocity)
            parts = [*rays.direction]
            if self.amplitude != "none":
                # The factor of the image point is divided between the two stations of a trace.
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
    """The weights of one rank's traces, in the form that the kernels read.

    A station has these fields at each point: its factor; if rays are traced, the components of the ray direction,
    depth last; in 2.5-D its spreading. The weight of a trace is the product of the two factors. With an amplitude it is
    multiplied by the length of q, the sum of the two directions (the obliquity); in 2.5-D it is divided by the square
    root of the sum of the spreadings; with a dip limit it is multiplied by a taper of the dip of q.
    """

    fields: LocalArray  # (stations, fields, nodes): the rows of FixedTables
    weighting: Weighting

    @property
    def axes(self) -> int:
        """Number of components of a direction; 0 without ray tracing."""
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
        """Squared cosine of the maximum dip, and its increase to the dip where the taper begins.

        The first is -1 if the dip is not limited.
        """
        if self.weighting.dip is None:
            return -1.0, 1.0
        full, zero = (math.cos(math.radians(part * self.weighting.dip)) ** 2 for part in (_TAPER, 1.0))
        return zero, full - zero

    @property
    def bound(self) -> float:
        """Upper bound of the weights."""
        if not len(self.fields):
            return 1.0
        bound = float(self.fields[:, 0].max()) ** 2 * (2.0 if self.oblique else 1.0)
        return bound / math.sqrt(2 * float(self.fields[:, -1].min())) if self.spreads else bound

    @property
    def typical(self) -> float:
        """Order of magnitude of the nonzero weights."""
        factors = self.fields[:, 0]
        typical = (float(factors.sum()) / max(int((factors != 0).sum()), 1)) ** 2
        return typical / math.sqrt(2 * float(self.fields[:, -1].mean())) if self.spreads and typical else typical

    def to_engine(self, engine: Engine) -> Weights:
        """Return the same weights in the memory of an engine."""
        return replace(self, fields=engine.from_host(self.fields))

    def pair_weight(self, source: np.ndarray, receiver: np.ndarray) -> np.ndarray:
        """Return the weight of one trace at each point, float64, from the fields of its stations."""
        source, receiver = source.astype(float), receiver.astype(float)
        weight = source[0] * receiver[0]
        if self.axes:
            sums = source[1 : 1 + self.axes] + receiver[1 : 1 + self.axes]
            squares = (sums**2).sum(axis=0)
            if self.oblique:
                weight *= np.sqrt(squares)
            zero, width = self.steepest
            if zero >= 0:
                weight *= np.clip((sums[-1] ** 2 - zero * squares) / (width * np.maximum(squares, 1e-30)), 0, 1)
        return weight / np.sqrt(source[-1] + receiver[-1]) if self.spreads else weight


@dataclass(frozen=True)
class Bands:
    """Low-pass filtered wavelets against operator aliasing, and the choice for each receiver and image point.

    The migration chooses between differently filtered copies of the traces by the local slope, as in [1]_; the filters
    are the triangles of [2]_.

    References
    ----------
    .. [1] Gray, S. H., "Frequency-selective design of the Kirchhoff migration operator", Geophysical Prospecting,
       40(5), pp. 565-571, 1992.
    .. [2] Lumley, D. E., Claerbout, J. F., and Bevc, D., "Anti-aliased Kirchhoff 3-D migration", SEG Technical Program
       Expanded Abstracts, pp. 1282-1285, 1994.
    """

    lengths: tuple[int, ...]  # of the sides of the triangles in samples; 1 leaves traces unfiltered
    choice: LocalArray  # (rows, nodes), uint8; the nearest node counts
    receivers: np.ndarray  # the row of each receiver

    @classmethod
    def between(
        cls, spreads: Sequence[FixedTables], positions: np.ndarray, spacing: float | None, longest: int
    ) -> list[Bands]:
        """Choose triangles as long as the delay between neighbouring receivers, for each spread.

        The delay is the largest slope of the times towards the nearest receivers, two in 2-D and four in 3-D, times
        `spacing` in metres, by default the distance to the nearest receiver. `positions` are the coordinates of the
        stations, (stations, axes); all spreads are rows of the same tables. A receiver with the same neighbours in
        several spreads has one row of choices. Triangles have at most `longest` samples.
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
            # Query one more: the nearest is the receiver itself.
            distances, neighbours = (
                array.reshape(-1, count + 1) for array in cKDTree(distinct).query(distinct, count + 1)
            )
            for station, index in zip(tables.receivers, inverse.reshape(-1), strict=True):
                near = tables.receivers[first[neighbours[index, 1:]]].tolist()
                key = (int(station), *near)
                if key not in row_of:
                    row_of[key] = len(choices)
                    needed = np.zeros(tables.nodes.size, np.float32)
                    if near:
                        times, gap = _at_nodes(tables, station), distances[index, 1] if spacing is None else spacing
                        for distance, neighbour in zip(distances[index, 1:], near, strict=True):
                            delay = np.abs(times - _at_nodes(tables, neighbour)) * (gap / distance * unit)
                            np.maximum(needed, delay, out=needed)
                    choices.append(np.minimum(np.searchsorted(sizes, needed), sizes.size - 1).astype(np.uint8))
                rows[-1].append(row_of[key])
        choice = np.stack(choices) if choices else np.empty((0, 0), np.uint8)  # empty on a rank without shots
        used = np.unique(choice)
        choice = np.searchsorted(used, choice).astype(np.uint8)
        lengths = tuple(sizes[used].tolist())
        return [cls(lengths, choice, np.array(array, np.int64)) for array in rows]

    def to_engine(self, engine: Engine) -> Bands:
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
    return tables.nodes.coarsen(tables.station_times(row).reshape(tables.nodes.shape))


def checked_antialias(antialias: bool | float) -> tuple[bool, float | None]:
    """Return whether to filter against aliasing, and the receivers' spacing in metres or None."""
    if isinstance(antialias, bool | np.bool_):
        return bool(antialias), None
    if not _between_zero_and(math.inf, antialias):
        raise InputError(f"antialias must be True, False or the receivers' spacing in metres, not {antialias!r}")
    return True, float(antialias)


def _between_zero_and(limit: float, value: object) -> bool:
    """Return whether a value is a number between 0 and a limit."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < limit


def _differentiate(
    taps: Sequence[float] | np.ndarray, center: int, interval: float, order: float
) -> tuple[np.ndarray, int]:
    """Return the causal derivative of a wavelet, of order 1/2 or 1 in seconds, and its index of time zero.

    The half-derivative has a tail, which is cut off where it stays below _TAIL of the largest tap.
    """
    taps = np.asarray(taps, float)
    before = taps.size
    padded = np.zeros(max(256, 16 * taps.size))
    padded[before : before + taps.size] = taps
    frequencies = 2j * np.pi * np.fft.rfftfreq(padded.size, interval)
    result = np.fft.irfft(np.fft.rfft(padded) * frequencies**order, padded.size)
    significant = np.flatnonzero(np.abs(result) > _TAIL * np.abs(result).max())
    begin, end = min(significant[0], before + center), max(significant[-1], before + center) + 1
    return result[begin:end], before + center - int(begin)
