"""A shot on a tile: its source and receivers as weights of grid points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.ndimage import map_coordinates
from scipy.sparse import csr_array

from collops.seismic.waves.geometry import Geometry, Stations, injection, interpolation
from collops.seismic.waves.grid import Tile


@dataclass(frozen=True)
class Shot:
    """Sources and receivers of a shot as weights of grid points; points are indices into the flat tile.

    Attributes
    ----------
    source_points : numpy.ndarray
        The points that the sources are spread over.
    source : numpy.ndarray
        The sum of the sources at these points per volume of a cell, shape (samples, points).
    receivers : csr_array
        From an array with halo to the receivers of this tile.
    receiver_points : numpy.ndarray
        The points of the tile that any receiver reads.
    spread : csr_array
        From all receivers to these points.
    """

    source_points: np.ndarray
    source: np.ndarray
    receivers: csr_array
    receiver_points: np.ndarray
    spread: csr_array

    @classmethod
    def create(
        cls, geometry: Geometry, number: int, tile: Tile, dtype: np.dtype, density: np.ndarray | None = None
    ) -> Shot:
        """Return a shot of a geometry; `density` is on the grid, by which the medium divides the source."""
        positions, axes = geometry.receivers_of(number), geometry.receiver_axes
        factors = np.where(axes < 0, 1.0, -geometry.interval / _density_at(positions, axes, tile, density))
        receivers = Stations(positions, axes, factors)
        positions, axes = geometry.sources_of(number), geometry.source_axes
        sources = Stations(positions, axes, np.ones(len(axes)))
        points, weights = injection(sources, tile, np.dtype(np.float64))
        if density is not None and (axes >= 0).any():
            # A force is divided by the density at its position.
            ratios = _density_of(points, tile, density)[:, np.newaxis] / _density_at(positions, axes, tile, density)
            weights = weights.multiply(np.where(axes < 0, 1.0, ratios)).tocsr()
        # A sparse product adds the sources of a point in their order, on any tiles.
        signal = (weights @ geometry.wavelets_of(number)).T / np.prod(tile.grid.spacing)
        read, spread = interpolation(receivers, tile, dtype), injection(receivers, tile, dtype)
        return cls(points, signal.astype(dtype, order="C"), read, *spread)


def _density_at(positions: np.ndarray, axes: np.ndarray, tile: Tile, density: np.ndarray | None) -> np.ndarray:
    """Return the densities at positions, interpolated linearly; 1 without densities, or where they do not matter."""
    values = np.ones(len(positions))
    if density is not None and (directed := axes >= 0).any():
        values[directed] = map_coordinates(
            density, (positions[directed] / tile.grid.spacing).T, order=1, mode="nearest"
        )
    return values


def _density_of(points: np.ndarray, tile: Tile, density: np.ndarray) -> np.ndarray:
    """Return the densities at points of a tile."""
    first = 3 - density.ndim
    index = np.unravel_index(points, tile.inner)[first:]
    before = [begin - padding[0] for begin, padding in zip(tile.begin, tile.grid.padding, strict=True)]
    return density[
        tuple(np.clip(i + begin, 0, n - 1) for i, begin, n in zip(index, before, density.shape, strict=True))
    ]
