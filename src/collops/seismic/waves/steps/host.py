"""One step of the leapfrog scheme on a tile of a host, and its transpose, by the Laplacian of any medium."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.extend.arrays import LocalArray
from collops.seismic.waves.grid import Tile


class HostSteps:
    r"""The scheme :math:`u^{n+1} = 2 u^n - u^{n-1} + C w^n` with :math:`w^n = L u^n`, and its transpose.

    The transposed scheme is propagated multiplied by C: :math:`\kappa = C \lambda`, with the adjoint field
    :math:`\lambda`, follows :math:`\kappa^n = 2 \kappa^{n+1} - \kappa^{n+2} + C L^T \kappa^{n+1}`. A medium adds
    `laplacian` and `transposed`; coefficients C are one number for each point, unless it overrides `product`.

    Attributes
    ----------
    fields : tuple of int
        As for :class:`Medium`.
    matrix : tuple of tuple of int
        Which coefficient is each element of the symmetric matrix C of a point, -1 for zeros.
    """

    fields: tuple[int, ...] = ()
    matrix: tuple[tuple[int, ...], ...] = ((0,),)
    _xp: Any = np  # of the arrays
    laplacian: Any  # (u, memory, out): fill `out` with L u; memory variables of the layers advance
    transposed: Any  # likewise with the transpose of L

    def __init__(self, tile: Tile, dtype: np.dtype) -> None:
        self._tile, self._dtype, self._box = tile, dtype, (..., *tile.box)
        self._buffers: dict[int, np.ndarray] = {}  # kept: new memory would take longer than the work on it

    def forward(
        self,
        u: np.ndarray,
        before: np.ndarray,
        memory: np.ndarray,
        c: np.ndarray,
        stored: np.ndarray | None = None,
        scatter: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        """Replace the field `before` by the field after `u`.

        Parameters
        ----------
        u, before : numpy.ndarray
            Fields with halos; the halo of `u` is filled.
        memory : numpy.ndarray
            The memory variables of all slabs, shape (2, elements).
        c : numpy.ndarray
            Coefficients on the tile.
        stored : numpy.ndarray, optional
            On the tile; receives the Laplacian with layers.
        scatter : pair of numpy.ndarray, optional
            On the tile: a perturbation of c, and the Laplacian that it multiplies.
        """
        w = self._buffer(0) if stored is None else stored
        self.laplacian(u, memory, w)
        self.leap(u, before, c, w)
        if scatter is not None:
            self.add_product(*scatter, before[self._box])

    def adjoint(
        self, u: np.ndarray, before: np.ndarray, memory: np.ndarray, c: np.ndarray, w: np.ndarray, image: np.ndarray
    ) -> None:
        """Replace `before` by the adjoint field at the time before `u`, and add the product of `u` and `w` to `image`.

        Both fields are multiplied by c. Parameters as for :meth:`forward`; `w` is the Laplacian that it stored.
        """
        self.correlate(u[self._box], w, image)
        total = self._buffer(0)
        self.transposed(u, memory, total)
        self.leap(u, before, c, total)

    def leap(self, u: np.ndarray, before: np.ndarray, c: np.ndarray, w: np.ndarray) -> None:
        """Replace `before` by the field after `u`, of which `w` is the Laplacian."""
        own, moved, change = before[self._box], self._buffer(1), self._buffer(2)
        np.multiply(u[self._box], 2, out=moved)
        moved -= own
        self.multiply(c, w, change)
        np.add(moved, change, out=own)

    def product(self, c: LocalArray, w: LocalArray) -> LocalArray:
        """Return the product of the coefficients with fields."""
        return c * w

    def multiply(self, c: np.ndarray, w: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` with the product of the coefficients with fields."""
        np.multiply(c, w, out=out)

    def add_product(self, c: np.ndarray, w: np.ndarray, out: np.ndarray) -> None:
        """Add the product of the coefficients with fields to `out`."""
        out += self.product(c, w)

    def correlate(self, u: np.ndarray, w: np.ndarray, image: np.ndarray, factor: float = 1.0) -> None:
        """Add the product of fields, the first multiplied by a factor, to an image."""
        image += (u if factor == 1 else factor * u) * w

    def combine(self, u: np.ndarray, factor: float, w: np.ndarray) -> None:
        """Replace w by its multiple plus u."""
        w *= factor
        w += u

    def column(self, c: LocalArray) -> LocalArray:
        """Return the coefficients by which the last field, where sources and receivers are, changes all fields."""
        return c

    def _buffer(self, number: int) -> np.ndarray:
        """Return one of several arrays of fields on the tile."""
        if number not in self._buffers:
            self._buffers[number] = self._xp.empty((*self.fields, *self._tile.inner), self._dtype)
        return self._buffers[number]
