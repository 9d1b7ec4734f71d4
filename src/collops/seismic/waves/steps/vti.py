"""The operator of VTI media: Laplacians along the horizontal axes and along the vertical one, of two coupled fields."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from collops.extend.arrays import LocalArray
from collops.seismic.waves.grid import Tile
from collops.seismic.waves.steps.host import HostSteps


class VTISteps(HostSteps):
    """The steps of VTI media, in the kernels of constant density for some of the axes.

    Coefficients are the elements (0, 0), (0, 1) and (1, 1) of a symmetric matrix at each point.

    Parameters
    ----------
    tile : Tile
        The tile.
    dtype : numpy.dtype
        float32 or float64.
    horizontal, vertical : Steps
        With the derivatives of the first and of the second field. Their layers have their own part of the memory of all
        layers.
    """

    fields = (2,)
    matrix = ((0, 1), (1, 2))

    def __init__(self, tile: Tile, dtype: np.dtype, horizontal: Any, vertical: Any) -> None:
        super().__init__(tile, dtype)
        self._parts = horizontal, vertical

    def laplacian(self, u: np.ndarray, memory: np.ndarray, out: np.ndarray) -> None:
        """Fill `out`, on the tile, with the derivatives of both fields."""
        for part, field, own in zip(self._parts, u, out, strict=True):
            part.laplacian(field, memory, own)

    def transposed(self, u: np.ndarray, memory: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` with the transpose of the derivatives."""
        for part, field, own in zip(self._parts, u, out, strict=True):
            part.transposed(field, memory, own)

    def product(self, c: LocalArray, w: LocalArray) -> LocalArray:
        """Return the products of the matrices with fields."""
        return self._stacked([c[0] * w[0] + c[1] * w[1], c[1] * w[0] + c[2] * w[1]])

    def multiply(self, c: np.ndarray, w: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` with the products of the matrices with fields."""
        for row, own in enumerate(out):
            np.multiply(c[row], w[0], out=own)
            np.multiply(c[row + 1], w[1], out=self._part)
            own += self._part

    def correlate(self, u: np.ndarray, w: np.ndarray, image: np.ndarray, factor: float = 1.0) -> None:
        """Add the inner products of fields, the first multiplied by a factor, to an image."""
        for one, two in zip(u if factor == 1 else factor * u, w, strict=True):
            np.multiply(one, two, out=self._part)
            image += self._part

    def column(self, c: LocalArray) -> LocalArray:
        """Return the second columns of the matrices."""
        return c[1:]

    @cached_property
    def _part(self) -> np.ndarray:
        return np.empty(self._tile.inner, self._dtype)

    def _stacked(self, fields: list[LocalArray]) -> LocalArray:
        return np.stack(fields)
