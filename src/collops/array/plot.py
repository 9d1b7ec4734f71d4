"""Plots of distributed arrays, with the boundaries between ranks."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.array.redistribute import gathered as gathered_values
from collops.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from collops.array.operands import Operand

_LINE, _IMAGE = 1, 2  # numbers of axes


def plot(x: Operand, ax: Axes | None = None, **options: Any) -> Axes | None:
    """Plot a vector as a line or a matrix as an image, with thin lines at the boundaries between ranks. Collective.

    Parameters
    ----------
    x : DistributedArray
        With one or two axes. For complex numbers, lines show both parts and an image shows the absolute value.
    ax : matplotlib.axes.Axes, optional
        By default those of a new figure.
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
    if x.ndim not in (_LINE, _IMAGE):
        raise InputError(f"plot needs an array with one or two axes, not {x.ndim}")
    gathered = gathered_values(x, 0)
    if x.comm.rank != 0:
        return None
    values: Any = x.engine.to_host(gathered)
    if values.dtype.name in ("float16", "bfloat16"):
        values = values.astype(np.float32)
    axes = _new_axes() if ax is None else ax
    complex_valued = np.iscomplexobj(values)
    if x.ndim == _IMAGE:
        settings: dict[str, Any] = {"aspect": "auto", **options}
        axes.imshow(np.abs(values) if complex_valued else values, **settings)
        across, down = _boundaries(x, 1), _boundaries(x, 0)
    else:
        for part, label in ((values.real, "real"), (values.imag, "imaginary")) if complex_valued else ((values, None),):
            settings = {"label": label, **options}
            axes.plot(part, **settings)
        if complex_valued:
            axes.legend()
        across, down = _boundaries(x, 0), []
    for position in across:
        axes.axvline(position, color="0.5", linewidth=0.8, linestyle="--")
    for position in down:
        axes.axhline(position, color="0.5", linewidth=0.8, linestyle="--")
    return axes


def _new_axes() -> Axes:
    import matplotlib.pyplot as plt

    return plt.subplots()[1]


def _boundaries(x: Operand, axis: int) -> list[float]:
    """Return the positions of the boundaries between ranks along an axis."""
    return [end - 0.5 for end in accumulate(x.layout.sizes[axis][:-1]) if 0 < end < x.shape[axis]]
