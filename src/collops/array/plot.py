"""Plots of distributed arrays, with the boundaries between ranks."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.array.dtypes import is_half
from collops.backend import LocalArray
from collops.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from collops.array.distributed import DistributedArray


def plot(x: DistributedArray, ax: Axes | None = None, **options: Any) -> Axes | None:
    """Plot a vector as a line or a matrix as an image, with thin lines at the boundaries between ranks. Collective.

    Parameters
    ----------
    x : DistributedArray
        With one or two axes. For complex numbers, lines show both parts and an image shows the absolute value.
    ax : matplotlib.axes.Axes, optional
        By default a new figure's axes.
    **options
        For :meth:`matplotlib.axes.Axes.plot` or :meth:`~matplotlib.axes.Axes.imshow`.

    Returns
    -------
    Axes or None
        The axes on rank 0; None on other ranks.

    Raises
    ------
    InputError
        If `x` has more than two axes.
    """
    if x.ndim not in (1, 2):
        raise InputError(f"plot needs an array with one or two axes, not {x.ndim}")
    gathered = x.gather(0)
    if x.comm.rank != 0:
        return None
    import matplotlib.pyplot as plt

    values: LocalArray = x.engine.to_host(gathered)
    if is_half(values.dtype):
        values = values.astype(np.float32)
    axes: Any = plt.subplots()[1] if ax is None else ax
    if x.ndim > 1:
        axes.imshow(np.abs(values) if values.dtype.kind == "c" else values, **({"aspect": "auto"} | options))
    elif values.dtype.kind == "c":
        axes.plot(values.real, **({"label": "real"} | options))
        axes.plot(values.imag, **({"label": "imaginary"} | options))
        axes.legend()
    else:
        axes.plot(values, **options)
    for axis, draw in enumerate((axes.axvline,) if x.ndim == 1 else (axes.axhline, axes.axvline)):
        for end in {*accumulate(x.layout.sizes[axis][:-1])} - {0, x.shape[axis]}:
            draw(end - 0.5, color="0.5", linewidth=0.8, linestyle="--")
    return axes
