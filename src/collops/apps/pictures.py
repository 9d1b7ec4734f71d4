"""The figures of all applications: style, panels of images, and convergence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collops.apps.files import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from collops.comm import Communicator

__all__ = ["Panel", "balanced", "draw_panels", "figure", "gather_rows", "symmetric_limit"]

_INK = "#26323d"
_STYLE: Any = {
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.8,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.direction": "out",
    "ytick.direction": "out",
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.dpi": 160,
}


@contextmanager
def figure(path: Path, panels: int, size: tuple[float, float]) -> Iterator[tuple[Figure, Sequence[Axes]]]:
    """Yield a figure with axes in one row, and write it to `path` after the body.

    It needs neither a window system nor global state of matplotlib, so that it works in batch jobs and other programs.

    Parameters
    ----------
    path : pathlib.Path
        The file; its suffix determines the format.
    panels : int
        Number of axes.
    size : (float, float)
        Width and height in inches.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from collops.extend.applications import figure
    >>> path = Path(tempfile.mkdtemp()) / "image.png"
    >>> with figure(path, 1, (4.0, 3.0)) as (_, (axes,)):
    ...     lines = axes.plot([1, 2], [3, 4])
    >>> path.exists()
    True
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        drawing = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(drawing)
        axes = drawing.subplots(1, panels, squeeze=False)[0]
        yield drawing, list(axes)
        with atomic(path) as temporary:
            drawing.savefig(temporary)


def gather_rows(local: np.ndarray, comm: Communicator) -> np.ndarray:
    """Return the rows of all ranks on the first rank, and an empty array on the others. Collective."""
    counts = [int(count) for count in comm.allgather(np.array(len(local)))]
    together = comm.gatherv(np.ascontiguousarray(local), counts, root=0)
    return local[:0] if together is None else together


def symmetric_limit(image: np.ndarray, percent: float = 99.0) -> float:
    """Return the percentile of the absolute amplitudes; 1 for an image of zeros."""
    limit = float(np.percentile(np.abs(image), percent))
    return limit or float(np.abs(image).max()) or 1.0


def balanced(image: np.ndarray) -> np.ndarray:
    """Return an image divided by its local amplitude, which makes its weak parts visible.

    The amplitude is the root mean square under a Gaussian with a standard deviation of a tenth of the image, plus a
    twentieth of its maximum.
    """
    from scipy.ndimage import gaussian_filter

    power = gaussian_filter(image.astype(np.float64) ** 2, [0.1 * size for size in image.shape])
    amplitude = np.sqrt(np.maximum(power, 0))
    floor = 0.05 * amplitude.max()
    return image / (amplitude + floor) if floor else image


class Panel(NamedTuple):
    """An image of shape ``(columns, rows)``; the first axis points to the right, the second one downwards."""

    image: np.ndarray
    title: str
    extent: tuple[float, float, float, float]  # first and last position along both axes, at the centres of cells
    labels: tuple[str, str]  # of both axes
    limits: float | tuple[float, float]  # values of the first and the last colour; a number v means (-v, v)
    unit: str = ""  # label of the colour bar, which is omitted without a unit
    to_scale: bool = False  # whether both axes have the same scale


def draw_panels(path: Path, panels: Sequence[Panel], size: tuple[float, float]) -> Path:
    """Draw panels in one row; only the first panel has labels along its second axis. Return the path."""
    with figure(path, len(panels), (size[0] * len(panels), size[1])) as (drawing, all_axes):
        for axes, panel in zip(all_axes, panels, strict=True):
            limits = panel.limits if isinstance(panel.limits, tuple) else (-panel.limits, panel.limits)
            left, right, top, bottom = panel.extent
            half_across, half_down = (
                (last - first) / (cells - 1) / 2 if cells > 1 else 0.5
                for first, last, cells in zip((left, top), (right, bottom), panel.image.shape, strict=True)
            )
            drawn = axes.imshow(
                panel.image.T,
                cmap="viridis" if panel.unit else "gray",
                vmin=limits[0],
                vmax=limits[1],
                extent=(left - half_across, right + half_across, bottom + half_down, top - half_down),
                aspect="equal" if panel.to_scale else "auto",
                interpolation="bilinear",
            )
            axes.set(title=panel.title, xlabel=panel.labels[0])
            if axes is all_axes[0]:
                axes.set_ylabel(panel.labels[1])
            else:
                axes.tick_params(left=False, labelleft=False)
            if panel.unit:
                bar = drawing.colorbar(drawn, ax=axes, shrink=0.85, pad=0.02, label=panel.unit)
                bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return path


def convergence(path: Path, residuals: np.ndarray, title: str, noise_norm: float | None) -> Path:
    """Draw the residual norm, relative to the norm before the first iteration; return the path.

    A dashed line shows `noise_norm`, the residual norm of the true model.
    """
    noise_level = noise_norm / residuals[0] if noise_norm and residuals[0] else None
    relative = residuals / residuals[0] if residuals[0] else residuals
    from matplotlib.ticker import LogLocator, NullFormatter

    with figure(path, 1, (6.4, 4.0)) as (_, (axes,)):
        axes.semilogy(np.arange(len(relative)), np.maximum(relative, np.finfo(float).tiny), color="#0b6e99", lw=2)
        axes.plot(len(relative) - 1, relative[-1], "o", color="#0b6e99", ms=6)
        axes.annotate(
            f"{relative[-1]:.3g}",
            (len(relative) - 1, relative[-1]),
            xytext=(-4, 8),
            textcoords="offset points",
            ha="right",
            va="bottom",
        )
        if noise_level:
            axes.axhline(noise_level, color="#c8553d", lw=1.2, ls=(0, (5, 3)))
            axes.annotate(
                "noise in the data",
                (0, noise_level),
                xytext=(4, 4),
                textcoords="offset points",
                color="#c8553d",
                va="bottom",
            )
        axes.set(xlabel="iteration", ylabel="residual norm, relative to the data", title=title)
        axes.set_xlim(0, max(len(relative) - 1, 1) * 1.02)
        axes.grid(True, which="both", color="#d7dde2", lw=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        whole_numbers: Any = axes.xaxis.get_major_locator()
        whole_numbers.set_params(integer=True)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    return path
