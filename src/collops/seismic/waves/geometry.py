"""Sources and receivers anywhere, of pressure or directed: Kaiser-windowed sincs, mirrored at a free surface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from scipy.special import i0, i1

from collops.errors import InputError
from collops.seismic.real_numbers import finite_array
from collops.seismic.waves.grid import RADIUS, Grid, Tile

_KAISER = 6.31  # Hicks (2002), table 1: monopoles, a radius of 4, wavenumbers up to half of Nyquist's
_KAISER_OF_SLOPE = 6.6  # errors of derivatives below 0.9 % with 4 to 16 points per wavelength
_AXES = {1: "z", 2: "xz", 3: "xyz"}


@dataclass(frozen=True, eq=False)
class Geometry:
    r"""The positions of sources and receivers, the wavelets and the time axis.

    Parameters
    ----------
    sources : array
        Coordinates in metres, shape (shots, axes of the grid) for one source in each shot, or (shots, sources, axes)
        for several that are fired together, such as source arrays and blended acquisition.
    receivers : array
        Shape (receivers, axes) for a fixed spread, or (shots, receivers, axes).
    wavelet : array
        Source signature at the time steps, shape (samples,), (shots, samples) or (shots, sources, samples). A shot with
        fewer sources than others repeats one of them with a wavelet of zeros.
    interval : float
        Time step and sampling interval of the data, in seconds. The first sample is at time 0.
    components : str or sequence of str
        What receivers record: ``"p"`` for the pressure (hydrophones), or ``"vx"``, ``"vy"`` or ``"vz"`` for a component
        of the particle velocity (geophones). One for all receivers, or one for each: a node that records several
        components is a receiver for each of them. The last axis is z, the depth; a grid with two axes has no y.
    source_components : str or sequence of str
        Likewise, what sources are: ``"p"``, or ``"fx"``, ``"fy"`` or ``"fz"`` for a force along an axis, in newtons. A
        sequence has one for each source of a shot.

    Raises
    ------
    InputError
        If an argument cannot be used.

    Notes
    -----
    A source or a receiver between grid points is spread over the 8 nearest points along each axis by a sinc with a
    Kaiser window [1]_. At a free surface the points above it are folded to their mirror images, with the opposite sign.

    A component of the particle velocity along the axis a is

    .. math::
        v_a(x_r, t) = -\frac{1}{\rho(x_r)} \int_0^t \partial_a u(x_r, t')\, dt'

    with the derivative of the windowed sinc, and the density of the propagator at the receiver, interpolated linearly;
    without one, a density of 1 kg/m³, so that traces are :math:`\rho v_a`. The integral is of fourth order. A force
    :math:`f(t)` adds the source :math:`-\partial_a (f(t)\, \delta(x - x_s))` to the equation of the pressure u, by the
    same weights. If a pressure source of wavelet w causes the particle velocity :math:`v_a` at a receiver, the force w
    there causes the pressure :math:`u = -\rho_s \partial_t v_a` at the source, where the density is :math:`\rho_s`.

    References
    ----------
    .. [1] Hicks, G. J., "Arbitrary source and receiver positioning in finite-difference schemes using Kaiser windowed
       sinc functions", Geophysics 67(1), 156-165, 2002.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.seismic.waves import Geometry
    >>> Geometry([[100.0, 20.0]], [[300.0, 20.0], [403.5, 20.0]], np.ones(50), 0.002).shape
    (1, 2, 50)
    """

    sources: ArrayLike
    receivers: ArrayLike
    wavelet: ArrayLike
    interval: float
    components: str | Sequence[str] = "p"
    source_components: str | Sequence[str] = "p"

    def __post_init__(self) -> None:
        names = "sources", "receivers", "wavelet", "interval"
        arrays = {name: finite_array(name, getattr(self, name)) for name in names}
        sources, receivers, wavelet, interval = arrays.values()
        if sources.ndim not in (2, 3) or not sources.size:
            raise InputError(
                f"sources must have the shape (shots, axes) or (shots, sources, axes), not {sources.shape}"
            )
        shots, axes = len(sources), sources.shape[-1]
        if receivers.ndim not in (2, 3) or receivers.shape[-1] != axes or not receivers.size:
            raise InputError(f"receivers must have the shape (receivers, {axes}) or ({shots}, receivers, {axes})")
        if receivers.ndim == 3 and len(receivers) != shots:
            raise InputError(f"receivers of {len(receivers)} shots do not fit {shots} sources")
        shapes = [sources.shape[:n] for n in range(sources.ndim)]  # (), (shots,), (shots, sources)
        if not wavelet.ndim or wavelet.shape[:-1] not in shapes or wavelet.shape[-1] < 2:
            words = ["(samples,)", f"({shots}, samples)", f"({shots}, {sources.shape[1]}, samples)"][: sources.ndim]
            raise InputError(f"the wavelet must have the shape {' or '.join(words)}, not {wavelet.shape}")
        if interval.ndim or interval <= 0:
            raise InputError(f"the interval must be a positive number of seconds, not {self.interval!r}")
        for name, values in (arrays | {"interval": float(interval)}).items():
            object.__setattr__(self, name, values)
        for name, letter, count in (
            ("components", "v", receivers.shape[-2]),
            ("source_components", "f", 1 if sources.ndim == 2 else sources.shape[1]),
        ):
            known = ["p", *(letter + axis for axis in _AXES.get(axes, ""))]
            object.__setattr__(self, name, _checked_components(name, getattr(self, name), known, count))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the data: (shots, receivers, samples)."""
        sources, receivers, wavelet = map(np.shape, (self.sources, self.receivers, self.wavelet))
        return sources[0], receivers[-2], wavelet[-1]

    @property
    def receiver_axes(self) -> np.ndarray:
        """The axis of the particle velocity that each receiver records; -1 for the pressure."""
        return self._axes_of(self.components, self.shape[1])

    @property
    def source_axes(self) -> np.ndarray:
        """The axis of each source of a shot that is a force; -1 for others."""
        return self._axes_of(self.source_components, len(self.sources_of(0)))

    def _axes_of(self, components: str | Sequence[str], count: int) -> np.ndarray:
        names = [components] * count if isinstance(components, str) else components
        axes = _AXES[np.shape(self.sources)[-1]]
        return np.array([-1 if name == "p" else axes.index(name[1]) for name in names])

    def receivers_of(self, shot: int) -> np.ndarray:
        """Return the coordinates of the receivers of a shot."""
        receivers = np.asarray(self.receivers)
        return receivers if receivers.ndim == 2 else receivers[shot]

    def sources_of(self, shot: int) -> np.ndarray:
        """Return the coordinates of the sources of a shot, shape (sources, axes)."""
        return np.atleast_2d(np.asarray(self.sources)[shot])

    def wavelets_of(self, shot: int) -> np.ndarray:
        """Return the wavelets of the sources of a shot, shape (sources, samples)."""
        wavelet = np.asarray(self.wavelet)
        own = wavelet if wavelet.ndim == 1 else wavelet[shot]
        return np.broadcast_to(own, (len(self.sources_of(shot)), own.shape[-1]))

    def window(self, shot: int, origin: np.ndarray) -> Geometry:
        """Return the geometry of one shot, in coordinates from another origin."""
        sources, receivers = self.sources_of(shot) - origin, self.receivers_of(shot) - origin
        return replace(
            self, sources=sources[np.newaxis], receivers=receivers, wavelet=self.wavelets_of(shot)[np.newaxis]
        )

    def check_inside(self, grid: Grid) -> None:
        """Raise InputError if a position lies outside the model, or has other coordinates than the grid."""
        ends = (np.array(grid.shape) - 1) * grid.spacing
        for name in ("sources", "receivers"):
            positions = np.asarray(getattr(self, name)).reshape(-1, np.shape(self.sources)[-1])
            if positions.shape[1] != len(ends):
                raise InputError(f"{name} have {positions.shape[1]} coordinates, but the grid has {len(ends)} axes")
            outside = ((positions < -1e-6) | (positions > ends + 1e-6)).any(axis=1)
            if outside.any():
                raise InputError(
                    f"{int(outside.sum())} of the {name} are outside the model, which extends from 0 to "
                    f"{tuple(ends.tolist())} m; the first is at {tuple(positions[outside][0].tolist())}"
                )


def _checked_components(name: str, values: Any, known: list[str], count: int) -> str | tuple[str, ...]:
    components = values.tolist() if isinstance(values, np.ndarray) else values
    if isinstance(components, str) or not isinstance(components, Sequence):
        components = [components]
    if any(value not in known for value in components) or (len(components) != count and not isinstance(values, str)):
        raise InputError(f"{name} must be one of {', '.join(known)}, or a sequence of {count} of them, not {values!r}")
    return values if isinstance(values, str) else tuple(components)


class Stations(NamedTuple):
    """Sources or receivers of a shot: positions, the axis of a derivative of the field or -1, and factors."""

    positions: np.ndarray
    axes: np.ndarray
    factors: np.ndarray


def interpolation(stations: Stations, tile: Tile, dtype: np.dtype) -> csr_array:
    """Return the weights of grid points for stations whose nearest lower point is in a tile.

    Rows are stations; rows of stations in other tiles are empty. Columns are points of the tile with its halo.
    """
    node, lower, inside = _nodes(stations.positions, tile)
    return _weights(stations, node, lower, tile, inside, tile.halo, tile.shape).astype(dtype)


def injection(stations: Stations, tile: Tile, dtype: np.dtype) -> tuple[np.ndarray, csr_array]:
    """Return the points of a tile that stations are spread over, and their weights: the transpose.

    Points are indices into the flat tile without halo. Rows of the matrix are these points, columns are stations.
    """
    node, lower, _ = _nodes(stations.positions, tile)
    weights = _weights(stations, node, lower, tile, np.ones(len(node), bool), (0, 0, 0), tile.inner).tocoo()
    points, rows = np.unique(weights.col, return_inverse=True)
    spread = csr_array((weights.data, (rows, weights.row)), shape=(len(points), len(node)))
    return points, spread.astype(dtype)


def _nodes(positions: np.ndarray, tile: Tile) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return positions as indices of the padded grid, the grid points below them, and whether these are in the tile."""
    node = positions / tile.grid.spacing + [before for before, _ in tile.grid.padding]
    nearest = np.rint(node)
    node = np.where(np.abs(node - nearest) < 1e-6, nearest, node)  # on a grid point, but for rounding
    lower = np.floor(node).astype(np.int64)
    begin = np.array(tile.begin)
    inside = np.all((lower >= begin) & (lower < begin + tile.inner[3 - len(begin) :]), axis=1)
    return node, lower, inside


def _weights(
    stations: Stations,
    node: np.ndarray,
    lower: np.ndarray,
    tile: Tile,
    chosen: np.ndarray,
    shift: tuple[int, ...],
    shape: tuple[int, ...],
) -> csr_array:
    """Return the weights of the points of an array in which the tile begins at the index `shift`."""
    rows, ndim = np.flatnonzero(chosen), node.shape[1]
    values, columns = stations.factors[rows, np.newaxis], np.zeros((len(rows), 1), np.int64)
    for axis in range(ndim):
        points = lower[rows, axis, np.newaxis] + np.arange(1 - RADIUS, RADIUS + 1)
        distance, directed = node[rows, axis, np.newaxis] - points, stations.axes[rows] == axis
        factors = _windowed_sinc(distance)
        factors[directed] = _slope(distance[directed]) / tile.grid.spacing[axis]
        if tile.grid.free_surface and axis == ndim - 1:
            points, factors = np.abs(points), np.where(points < 0, -factors, factors)
        outside = (points < 0) | (points >= tile.grid.padded[axis])
        local = points - tile.begin[axis] + shift[3 - ndim + axis]
        extent = shape[3 - ndim + axis]
        factors = np.where(outside | (local < 0) | (local >= extent), 0.0, factors)
        columns = columns[:, :, np.newaxis] * extent + np.clip(local, 0, extent - 1)[:, np.newaxis, :]
        values = values[:, :, np.newaxis] * factors[:, np.newaxis, :]
        values, columns = (x.reshape(len(rows), (2 * RADIUS) ** (axis + 1)) for x in (values, columns))
    some = values != 0
    entries = values[some], (np.broadcast_to(rows[:, np.newaxis], values.shape)[some], columns[some])
    return csr_array(entries, shape=(len(node), int(np.prod(shape))))  # adds mirrored points to their images


def _windowed_sinc(distance: np.ndarray) -> np.ndarray:
    inside = np.clip(1 - (distance / RADIUS) ** 2, 0, None)
    weights = np.sinc(distance) * np.i0(_KAISER * np.sqrt(inside)) / np.i0(_KAISER)
    return np.where(np.abs(distance) < RADIUS, np.where(np.abs(weights) < 1e-15, 0.0, weights), 0.0)


def _slope(distance: np.ndarray) -> np.ndarray:
    """Return the derivative of a windowed sinc with respect to the distance in grid points."""
    x = _KAISER_OF_SLOPE * np.sqrt(np.clip(1 - (distance / RADIUS) ** 2, 0, None))
    zero, end = distance == 0, x == 0
    sinc = np.where(zero, 0, (np.cos(np.pi * distance) - np.sinc(distance)) / np.where(zero, 1, distance))
    window = -distance * (_KAISER_OF_SLOPE / RADIUS) ** 2 * np.where(end, 0.5, i1(x) / np.where(end, 1, x))
    weights = (sinc * i0(x) + np.sinc(distance) * window) / i0(_KAISER_OF_SLOPE)
    return np.where((np.abs(distance) < RADIUS) & (np.abs(weights) >= 1e-15), weights, 0.0)
