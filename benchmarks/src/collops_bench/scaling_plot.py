"""The plot of how work scales: what was measured, and the model carried on to a thousand ranks."""

from __future__ import annotations

import math
from typing import Any

from collops_bench.prediction import STRONG, WEAK, Family, Scaling

__all__ = ["draw_predictions", "microseconds_upwards"]

_MOST = 1024


def draw_predictions(figure: Any, scaling: Scaling) -> None:
    """Draw a row of panels for each kind of work, strong scaling beside weak.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Gets the panels.
    scaling : Scaling
        What was measured and fitted.
    """
    kinds = list(scaling.models)
    panels = figure.subplots(len(kinds), 2, squeeze=False)
    for row, kind in enumerate(kinds):
        for column, sort in enumerate((STRONG, WEAK)):
            families = [
                each for each in (*scaling.families, *scaling.larger) if (each.kind, each.scaling) == (kind, sort)
            ]
            _draw(panels[row][column], scaling, families)
            panels[row][column].set_title(f"{kind}, {sort} scaling", fontsize=10)
    for panel in panels[-1]:
        panel.set_xlabel("GPUs")
    for row in panels:
        row[0].set_ylabel("µs an iteration")


def _draw(panel: Any, scaling: Scaling, families: list[Family]) -> None:
    counts = [1 << shift for shift in range(_MOST.bit_length())]
    for number, family in enumerate(families):
        predicted = [1e6 * scaling.seconds(family, count) for count in counts]
        panel.plot(counts, predicted, "--", color=f"C{number}", linewidth=1)
        if family.measured:
            ranks = sorted(family.measured)
            panel.plot(ranks, [1e6 * family.measured[n] for n in ranks], "o", color=f"C{number}", markersize=4)
        panel.plot([], [], "o--", color=f"C{number}", label=family.words, markersize=4, linewidth=1)
    if scaling.machine.network is not None:
        panel.axvline(scaling.machine.network.ranks, color="0.7", linewidth=0.8)
    panel.set_xscale("log", base=2)
    panel.set_xticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1024"])
    microseconds_upwards(panel)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8, frameon=False)


def microseconds_upwards(panel: Any) -> None:
    """Make the upward axis of a panel with lines logarithmic, with numbers that are read at a glance."""
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter(_microseconds)
    panel.yaxis.set_minor_formatter(_microseconds if _decades(panel) < 1.5 else "")


def _decades(panel: Any) -> float:
    """Return how many powers of ten an axis spans: ticks between them need numbers where there are hardly any."""
    least, most = panel.get_ylim()
    return math.log10(most / least)


def _microseconds(value: float, position: int | None) -> str:
    """Return a tick's number, at the first digits 1, 2 and 5 only."""
    return f"{value:,.0f}" if f"{value:e}"[0] in "125" else ""
