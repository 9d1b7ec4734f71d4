"""The operator of any medium, followed by the relaxation of a viscoacoustic one: a filter in time at each point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from collops.extend.arrays import LocalArray
from collops.seismic.waves.grid import Slab, Tile
from collops.seismic.waves.steps.host import HostSteps


class RelaxationSteps(HostSteps):
    r"""The steps of another medium, with a filter after its operator.

    With the result :math:`q^n` of the operator, the scheme has :math:`w^n = q^n + \sum_l r_l^n` for it, and memory
    variables :math:`r_l \gets d_l r_l + g_l q^n` of the mechanisms. The transposed scheme runs backwards in time: it
    has the same filter before the transposed operator, which therefore takes filtered values from the halo.

    Parameters
    ----------
    tile : Tile
        The tile.
    slabs : sequence of Slab
        Its layers.
    dtype : numpy.dtype
        float32 or float64.
    threads : int
        Ignored: NumPy computes on one thread.
    steps : HostSteps
        Of the medium without attenuation.
    decays : numpy.ndarray
        The coefficients d, one for each mechanism.
    gains : numpy.ndarray
        The coefficients g on the tile with its halo; the mechanisms are the first axis.
    """

    def __init__(
        self,
        tile: Tile,
        slabs: Sequence[Slab],
        dtype: np.dtype,
        threads: int | None,
        steps: Any,
        decays: np.ndarray,
        gains: np.ndarray,
    ) -> None:
        super().__init__(tile, dtype)
        self.fields = steps.fields
        self._steps, self._decays = steps, decays.astype(dtype)
        self._gains = np.ascontiguousarray(gains, dtype)
        self._elements = sum(math.prod(slab.shape) for slab in slabs)

    def laplacian(self, u: np.ndarray, memory: np.ndarray, out: np.ndarray) -> None:
        """Fill `out`, on the tile, with the filtered result of the operator for a field with halo."""
        layers, relaxed = self._parts(memory)
        unfiltered = self._buffer(1)
        self._steps.laplacian(u, layers, unfiltered)
        self.relax(unfiltered, relaxed, self._tile.halo, out)

    def transposed(self, u: np.ndarray, memory: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` with the transpose of the operator, applied to a filtered field with halo."""
        layers, relaxed = self._parts(memory)
        self.relax(u, relaxed, (0, 0, 0), self._filtered)
        self._steps.transposed(self._filtered, layers, out)

    def relax(self, signal: np.ndarray, memory: np.ndarray, begin: Sequence[int], out: np.ndarray) -> None:
        """Fill `out` with a filtered signal on the tile, whose first point is at `begin`; memory variables advance."""
        box = tuple(slice(first, first + n) for first, n in zip(begin, signal.shape[-3:], strict=True))
        total = signal
        for decay, gain, variable in zip(self._decays, self._gains, memory, strict=True):
            own = variable[(..., *box)]
            total = np.add(total, own, out=out)
            own *= decay
            own += gain[box] * signal

    def leap(self, u: np.ndarray, before: np.ndarray, c: np.ndarray, w: np.ndarray) -> None:
        """Replace `before` by the field after `u`, of which `w` is the filtered result."""
        self._steps.leap(u, before, c, w)

    def product(self, c: LocalArray, w: LocalArray) -> LocalArray:
        """Return the product of the coefficients with fields."""
        return self._steps.product(c, w)

    def multiply(self, c: np.ndarray, w: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` with the product of the coefficients with fields."""
        self._steps.multiply(c, w, out)

    def add_product(self, c: np.ndarray, w: np.ndarray, out: np.ndarray) -> None:
        """Add the product of the coefficients with fields to `out`."""
        self._steps.add_product(c, w, out)

    def correlate(self, u: np.ndarray, w: np.ndarray, image: np.ndarray, factor: float = 1.0) -> None:
        """Add the product of fields, the first multiplied by a factor, to an image."""
        self._steps.correlate(u, w, image, factor)

    def combine(self, u: np.ndarray, factor: float, w: np.ndarray) -> None:
        """Replace w by its multiple plus u."""
        self._steps.combine(u, factor, w)

    def column(self, c: LocalArray) -> LocalArray:
        """Return the coefficients by which the last field, where sources and receivers are, changes all fields."""
        return self._steps.column(c)

    @cached_property
    def _filtered(self) -> np.ndarray:
        return np.empty((*self.fields, *self._tile.shape), self._dtype)

    def _parts(self, memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the memory variables of the layers, and of the mechanisms, as views."""
        flat, shape = memory.reshape(-1), (len(self._decays), *self.fields, *self._tile.shape)
        layers, rest = flat[: 2 * self._elements], flat[2 * self._elements :]
        return layers.reshape(2, self._elements), rest[: math.prod(shape)].reshape(shape)
