"""Plots of the geometry of a survey, in which wrong coordinates stand out: map, fold, offsets, azimuths, arrivals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from collops.extend.applications import COLORS, svg

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes

_MAX_POINTS = 150  # of a kind in a plot: a point takes about 60 bytes of the page
_BINS = 40
_SECTOR = 15  # degrees of azimuth


def geometry_charts(fields: Mapping[str, np.ndarray], speed: float) -> list[tuple[str, Markup]]:
    """Return the titles and the plots of the geometry of the traces in ``result.zarr``.

    `speed` is the mean velocity at the surface in m/s, for the time of the direct wave.
    """
    source, group = (np.stack([fields[f"{kind}_coord_{axis}"] for axis in "xy"]) for kind in ("source", "group"))
    offset, azimuth = np.hypot(*(group - source)), np.degrees(np.arctan2(*(group - source))) % 360
    parts: list[tuple[str, Callable[[Axes], None]]] = [
        ("Map of sources and receivers", lambda axes: _map(axes, source, group)),
        ("Fold: traces by the position of their midpoints", lambda axes: _fold(axes, (source + group) / 2)),
        ("Traces by offset", lambda axes: _histogram(axes, offset, _BINS, "offset, m")),
        (
            "Traces by azimuth from source to receiver",
            lambda axes: _histogram(axes, azimuth[offset > 0], np.arange(0, 361, _SECTOR), "degrees from north"),
        ),
    ]
    if np.isfinite(arrival := fields["first_arrival"]).any():
        title = f"First arrivals, and the direct wave at {speed:.0f} m/s: they differ by the factor of a wrong scalar"
        parts.append((title, lambda axes: _arrivals(axes, offset, arrival, speed)))
    return [
        (title, svg(_without_marks(draw), f"geometry-{number}", title)) for number, (title, draw) in enumerate(parts)
    ]


def _without_marks(draw: Callable[[Axes], None]) -> Callable[[Axes], dict[str, list[str]]]:
    """Return the function that `svg` takes: these plots have no tooltips."""

    def drawn(axes: Axes) -> dict[str, list[str]]:
        draw(axes)
        return {}

    return drawn


def _thinned(points: np.ndarray) -> np.ndarray:
    """Return the distinct columns of an array, or every n-th of them."""
    distinct = np.unique(points, axis=1)
    return distinct[:, :: -(-distinct.shape[1] // _MAX_POINTS) or 1]


def _map(axes: Axes, source: np.ndarray, group: np.ndarray) -> None:
    for positions, color, marker, label in ((group, COLORS[1], ".", "receivers"), (source, COLORS[0], "x", "sources")):
        shown = _thinned(positions) / 1000
        axes.plot(*shown, linestyle="", marker=marker, markersize=4, color=color, label=label)
    axes.margins(0.05)
    if np.ptp(np.concatenate([source, group], axis=1)[1]) > 0:
        axes.set_aspect("equal", adjustable="datalim")
    axes.ticklabel_format(useOffset=False)
    axes.set(xlabel="easting, km", ylabel="northing, km")
    axes.legend(frameon=False)


def _fold(axes: Axes, midpoint: np.ndarray) -> None:
    """Plot the number of traces along the coordinate in which midpoints differ most."""
    widest = int(np.ptp(midpoint, axis=1).argmax())
    _histogram(axes, midpoint[widest] / 1000, _BINS, ("easting, km", "northing, km")[widest])
    axes.ticklabel_format(axis="x", useOffset=False)


def _histogram(axes: Axes, values: np.ndarray, bins: int | np.ndarray, label: str) -> None:
    counts, edges = np.histogram(values, bins)
    axes.stairs(counts, edges, color=COLORS[1], linewidth=1.6)
    axes.set(xlabel=label, ylabel="traces", ylim=(0, max(1, 1.05 * counts.max())))


def _arrivals(axes: Axes, offset: np.ndarray, arrival: np.ndarray, speed: float) -> None:
    known = np.isfinite(arrival)
    shown = _thinned(np.round(np.stack([offset[known], arrival[known]]), 4))
    axes.plot(*shown, linestyle="", marker=".", markersize=4, color=COLORS[1], label="first arrivals")
    end = np.array([0.0, offset.max()])
    axes.plot(end, end / speed, color=COLORS[0], linewidth=1.6, label="offset / velocity at the surface")
    axes.set(xlabel="offset, m", ylabel="time, s", ylim=(0, max(float(shown[1].max()), 1.2 * end[1] / speed)))
    axes.legend(frameon=False)
