"""A shot on a tile: its source and receivers as weights of grid points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from collops.seismic.waves.geometry import Geometry, injection, interpolation
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
    def create(cls, geometry: Geometry, number: int, tile: Tile, dtype: np.dtype) -> Shot:
        """Return a shot of a geometry."""
        positions = geometry.receivers_of(number)
        points, weights = injection(geometry.sources_of(number), tile, np.dtype(np.float64))
        # A sparse product adds the sources of a point in their order, on any tiles.
        signal = (weights @ geometry.wavelets_of(number)).T / np.prod(tile.grid.spacing)
        receivers = interpolation(positions, tile, dtype)
        return cls(points, signal.astype(dtype, order="C"), receivers, *injection(positions, tile, dtype))
