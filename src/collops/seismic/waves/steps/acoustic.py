"""The Laplacian in plain NumPy: the reference of the compiled kernels, with the same operations in the same order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collops.seismic.waves.grid import Slab, Tile
from collops.seismic.waves.steps.host import HostSteps

_Window = tuple[tuple[int, int], ...]


class Steps(HostSteps):
    r"""The Laplacian with layers and constant coefficients on a tile, and its transpose.

    The Laplacian of a field u has the memory variables of the layers (see :class:`Layers`). The transpose, applied to
    :math:`\kappa`, is the Laplacian of :math:`\kappa` and, for each layer, :math:`\partial_{xx} t - \partial_x r` with
    :math:`t \gets b t + a \kappa` and :math:`r \gets b r - a \partial_x (\kappa + t)`.

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
    axes : sequence of int, optional
        The axes, of three, along which to differentiate; all by default.
    """

    def __init__(
        self,
        tile: Tile,
        slabs: Sequence[Slab],
        dtype: np.dtype,
        threads: int | None,
        axes: Sequence[int] | None = None,
    ) -> None:
        super().__init__(tile, dtype)
        self._axes = axes = tile.axes if axes is None else axes
        self._slabs = [slab for slab in slabs if slab.axis in axes]
        self._centers, self._seconds, self._firsts = tile.stencils(dtype, axes)
        self._center = self._centers.sum(dtype=dtype)
        self._window = tuple((0, n) for n in tile.inner)

    def laplacian(self, u: np.ndarray, memory: np.ndarray, out: np.ndarray) -> None:
        """Fill `out`, on the tile, with the Laplacian of a field with halo; see :meth:`forward`."""
        self._mirror(u)
        psi, zeta = (self._variables(part) for part in memory)
        for slab, values in zip(self._slabs, psi, strict=True):
            zone, (a, b) = self._zone(slab), self._profile(slab)
            own = values[self._stored(slab, zone)]
            own[...] = b * own + a * self._first(u, zone, self._tile.halo, slab.axis)
        out[...] = self._laplacian(u)
        for slab, first, second in zip(self._slabs, psi, zeta, strict=True):
            zone, (a, b) = self._zone(slab), self._profile(slab)
            change = self._first(first, zone, self._shift(slab), slab.axis)
            own = second[self._stored(slab, zone)]
            own[...] = b * own + a * (self._second(u, zone, self._tile.halo, slab.axis) + change)
            out[_slices(zone)] += change
            out[_slices(zone)] += own

    def transposed(self, u: np.ndarray, memory: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` with the transpose of the Laplacian, applied to a field with halo."""
        self._mirror(u)
        r, t = (self._variables(part) for part in memory)
        for slab, first, second in zip(self._slabs, r, t, strict=True):
            zone, (a, b) = self._zone(slab), self._profile(slab)
            own = second[self._stored(slab, zone)]
            own[...] = b * own + a * u[_slices(zone, self._tile.halo)]
            change = self._first(u, zone, self._tile.halo, slab.axis)
            change += self._first(second, zone, self._shift(slab), slab.axis)
            own = first[self._stored(slab, zone)]
            own[...] = b * own - a * change
        out[...] = self._laplacian(u)
        for slab, first, second in zip(self._slabs, r, t, strict=True):
            zone, shift = self._zone(slab), self._shift(slab)
            change = self._second(second, zone, shift, slab.axis)
            out[_slices(zone)] += change - self._first(first, zone, shift, slab.axis)

    def _mirror(self, u: np.ndarray) -> None:
        """Fill the halo above a free surface."""
        if self._tile.surface and 2 in self._axes:
            half = self._tile.halo[2]
            u[..., :half] = -u[..., 2 * half : half : -1]

    def _laplacian(self, u: np.ndarray) -> np.ndarray:
        total = self._center * u[self._tile.box]
        for number, axis in enumerate(self._axes):
            for k, weight in enumerate(self._seconds[number], 1):
                total += weight * (self._at(u, self._window, axis, k) + self._at(u, self._window, axis, -k))
        return total

    def _second(self, x: np.ndarray, window: _Window, shift: Sequence[int], axis: int) -> np.ndarray:
        """Return the second derivative along an axis in a window; `shift` is the index of its origin in the array."""
        number = self._axes.index(axis)
        total = self._centers[number] * x[_slices(window, shift)]
        for k, weight in enumerate(self._seconds[number], 1):
            total += weight * (self._at(x, window, axis, k, shift) + self._at(x, window, axis, -k, shift))
        return total

    def _first(self, x: np.ndarray, window: _Window, shift: Sequence[int], axis: int) -> np.ndarray:
        number, total = self._axes.index(axis), None
        for k, weight in enumerate(self._firsts[number], 1):
            term = weight * (self._at(x, window, axis, k, shift) - self._at(x, window, axis, -k, shift))
            total = term if total is None else total + term
        assert total is not None
        return total

    def _at(self, x: np.ndarray, window: _Window, axis: int, k: int, shift: Sequence[int] | None = None) -> np.ndarray:
        """Return the values in a window that is moved by k points along an axis."""
        shift = list(self._tile.halo if shift is None else shift)
        shift[axis] += k
        return x[_slices(window, shift)]

    def _zone(self, slab: Slab) -> _Window:
        return tuple(slab.zone if axis == slab.axis else pair for axis, pair in enumerate(self._window))

    def _shift(self, slab: Slab) -> list[int]:
        return [-slab.begin if axis == slab.axis else 0 for axis in range(3)]

    def _stored(self, slab: Slab, window: _Window) -> tuple[slice, ...]:
        return _slices(window, self._shift(slab))

    def _profile(self, slab: Slab) -> list[np.ndarray]:
        own = slice(slab.zone[0] - slab.begin, slab.zone[1] - slab.begin)
        shape = [-1 if axis == slab.axis else 1 for axis in range(3)]
        return [values[own].reshape(shape) for values in (slab.a, slab.b)]

    def _variables(self, memory: np.ndarray) -> list[np.ndarray]:
        """Return one memory variable of each slab, as views."""
        return [memory[s.offset : s.offset + int(np.prod(s.shape))].reshape(s.shape) for s in self._slabs]


def _slices(window: _Window, shift: Sequence[int] = (0, 0, 0)) -> tuple[slice, ...]:
    return tuple(slice(first + by, last + by) for (first, last), by in zip(window, shift, strict=True))
