"""Sources and receivers anywhere: Kaiser-windowed sincs, mirrored at a free surface."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from collops.errors import InputError
from collops.seismic.real_numbers import finite_array
from collops.seismic.waves.grid import RADIUS, Grid, Tile

_KAISER = 6.31  # Hicks (2002), table 1: monopoles, a radius of 4, wavenumbers up to half of Nyquist's


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

    Raises
    ------
    InputError
        If an argument cannot be used.

    Notes
    -----
    A source or a receiver between grid points is spread over the 8 nearest points along each axis by a sinc with a
    Kaiser window [1]_. At a free surface the points above it are folded to their mirror images, with the opposite sign.

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

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the data: (shots, receivers, samples)."""
        sources, receivers, wavelet = map(np.shape, (self.sources, self.receivers, self.wavelet))
        return sources[0], receivers[-2], wavelet[-1]

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


def interpolation(positions: np.ndarray, tile: Tile, dtype: np.dtype) -> csr_array:
    """Return the weights of grid points for positions whose nearest lower point is in a tile.

    Rows are positions; rows of positions in other tiles are empty. Columns are points of the tile with its halo.
    """
    node, lower, inside = _nodes(positions, tile)
    return _weights(node, lower, tile, inside, tile.halo, tile.shape).astype(dtype)


def injection(positions: np.ndarray, tile: Tile, dtype: np.dtype) -> tuple[np.ndarray, csr_array]:
    """Return the points of a tile that positions are spread over, and their weights: the transpose.

    Points are indices into the flat tile without halo. Rows of the matrix are these points, columns are positions.
    """
    node, lower, _ = _nodes(positions, tile)
    weights = _weights(node, lower, tile, np.ones(len(node), bool), (0, 0, 0), tile.inner).tocoo()
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
    node: np.ndarray,
    lower: np.ndarray,
    tile: Tile,
    chosen: np.ndarray,
    shift: tuple[int, ...],
    shape: tuple[int, ...],
) -> csr_array:
    """Return the weights of the points of an array in which the tile begins at the index `shift`."""
    rows, ndim = np.flatnonzero(chosen), node.shape[1]
    values, columns = np.ones((len(rows), 1)), np.zeros((len(rows), 1), np.int64)
    for axis in range(ndim):
        points = lower[rows, axis, np.newaxis] + np.arange(1 - RADIUS, RADIUS + 1)
        factors = _windowed_sinc(node[rows, axis, np.newaxis] - points)
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
