"""The plot of Jacobi's method: the time of an iteration by programming model and number of ranks, from all records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from collops_bench.scaling_plot import microseconds_upwards

if TYPE_CHECKING:
    from collops_bench.record import Measurement, Record

__all__ = ["draw_scaling"]

_LIMIT = "memory's limit"
_BEST = 5  # variants in a panel, the fastest at the largest number of ranks


def draw_scaling(figure: Any, records: Sequence[Record]) -> None:
    """Draw a panel for each family of grids, with a line a variant over the ranks, and the limit of the memory.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Gets the panels.
    records : sequence of Record
        Of one machine, with different numbers of ranks.
    """
    records = sorted(records, key=lambda record: record.ranks)
    families = list(dict.fromkeys(measurement.case for record in records for measurement in record.measurements))
    panels = figure.subplots(1, len(families), squeeze=False)[0]
    grids = {family: _points(records, family) for family in families}
    # Variants keep their colours in all panels.
    shown = list(dict.fromkeys(name for points in grids.values() for name in _fastest(points)))
    for panel, (family, points) in zip(panels, grids.items(), strict=True):
        _draw_family(panel, family, points, shown)
    lines = {line.get_label(): line for panel in panels for line in panel.get_lines()}
    ordered = [*shown, _LIMIT]
    figure.legend(
        [lines[name] for name in ordered], ordered, loc="outside lower center", ncols=len(ordered), frameon=False
    )


def _points(records: Sequence[Record], family: str) -> list[tuple[int, Measurement]]:
    return [(record.ranks, one) for record in records for one in record.measurements if one.case == family]


def _fastest(points: Sequence[tuple[int, Measurement]]) -> list[str]:
    largest = points[-1][1]
    return sorted(largest.timings, key=lambda name: largest.timings[name].wall.median)[:_BEST]


def _draw_family(panel: Any, family: str, points: Sequence[tuple[int, Measurement]], shown: Sequence[str]) -> None:
    largest = points[-1][1]
    for name in _fastest(points):
        line = [(ranks, 1e6 * one.timings[name].wall.median) for ranks, one in points if name in one.timings]
        panel.plot(*zip(*line, strict=True), marker="o", markersize=4, label=name, color=f"C{shown.index(name)}")
    limits = [(ranks, 1e6 * one.parameters["memory_limit"]) for ranks, one in points]
    panel.plot(*zip(*limits, strict=True), color="black", linestyle="--", linewidth=1, label=_LIMIT)
    ranks = [number for number, _ in points]
    panel.set_xscale("log", base=2)
    panel.set_xticks(ranks, [str(number) for number in ranks])
    panel.minorticks_off()
    microseconds_upwards(panel)
    panel.set_title(f"{family}\n{largest.parameters['nx']} x {largest.parameters['ny']} on {ranks[-1]}", fontsize=9)
    panel.set_xlabel("ranks")
    panel.set_ylabel("µs an iteration")
    panel.grid(alpha=0.3, which="both")
