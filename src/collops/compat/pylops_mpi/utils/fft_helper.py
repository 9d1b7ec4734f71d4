"""PyLops-MPI's shifts of spectra along any axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from collops.errors import InputError

__all__ = ["fftshift_nd", "ifftshift_nd"]


def fftshift_nd(x: Any, axes: int | Sequence[int] | None = None) -> Any:
    """Return `x` with the zero frequency in the middle. Collective where the split axis is shifted: one exchange.

    Parameters
    ----------
    x : DistributedArray
        With two axes at least. Overwritten, as there, along axes that are not split.
    axes : int or sequence of int, optional
        Which to shift; all by default.

    Returns
    -------
    DistributedArray
        Perhaps split along another axis.

    Raises
    ------
    ValueError
        If there is one axis only.
    """
    return _shifted(x, axes, lambda xp, local, axis: xp.fft.fftshift(local, axes=axis))


def ifftshift_nd(x: Any, axes: int | Sequence[int] | None = None) -> Any:
    """Undo :func:`fftshift_nd`; arguments and result are the same."""
    return _shifted(x, axes, lambda xp, local, axis: xp.fft.ifftshift(local, axes=axis))


def _shifted(x: Any, axes: int | Sequence[int] | None, shift: Callable[[Any, Any, int], Any]) -> Any:
    if x.ndim < 2:
        raise InputError("shifts along the axis that is split need another one to split instead")
    chosen = range(x.ndim) if axes is None else [axes] if isinstance(axes, int) else axes
    for axis in sorted({axis % x.ndim for axis in chosen}, key=lambda axis: axis == x.axis):
        if axis == x.axis:
            x = x.redistribute(0 if axis else 1)
        x.native.local_array[...] = shift(x.native.engine.xp, x.local_array, axis)
    return x
