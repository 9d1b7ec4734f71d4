"""The plot of star forests: the time of movers and scatters by message size, a line a wire, from one record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collops_bench.speed import bytes_in_words

if TYPE_CHECKING:
    from collops_bench.record import Measurement, Record

__all__ = ["draw_wires", "panels_of"]

_COLUMNS = 4


def panels_of(record: Record) -> list[str]:
    """Return the pieces of work that have several sizes, each of which gets a panel."""
    sized = [measurement.case for measurement in record.measurements if "bytes_per_rank" in measurement.parameters]
    return list(dict.fromkeys(sized))


def draw_wires(figure: Any, record: Record) -> None:
    """Draw a panel for each mover and scatter: microseconds over the bytes of a rank, logarithmic both.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Gets the panels and one legend.
    record : Record
        Of the benchmark of star forests.
    """
    cases = panels_of(record)
    rows = -(-len(cases) // _COLUMNS)
    panels = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
    # Programs keep their colours in all panels.
    programs = list(dict.fromkeys(name for one in record.measurements for name in one.timings))
    for panel, case in zip(panels, cases, strict=False):
        of_case = [one for one in record.measurements if one.case == case]
        _draw_case(panel, case, sorted(of_case, key=lambda one: one.parameters["bytes_per_rank"]), programs)
    for panel in panels[len(cases) :]:
        panel.axis("off")
    lines = {line.get_label(): line for panel in panels for line in panel.get_lines()}
    shown = [name for name in programs if name in lines]
    figure.legend([lines[name] for name in shown], shown, loc="outside lower center", ncols=5, frameon=False)


def _draw_case(panel: Any, case: str, measurements: list[Measurement], programs: list[str]) -> None:
    sizes: list[int] = []
    for number, program in enumerate(programs):
        points = [
            (one.parameters["bytes_per_rank"], one.timings[program].wall)
            for one in measurements
            if program in one.timings
        ]
        if not points:
            continue
        sizes = [size for size, _ in points]
        style = "-" if program.startswith("collops") else "--"
        color = "black" if program == "collops" else f"C{number}"
        panel.plot(sizes, [1e6 * spread.median for _, spread in points], style, color=color, marker=".", label=program)
    panel.set(xscale="log", yscale="log", title=case, xlabel="bytes a rank", ylabel="µs")
    panel.title.set_fontsize(9)
    ticks = sizes[:: max(1, len(sizes) // 4)]
    panel.set_xticks(ticks, [bytes_in_words(size) for size in ticks], fontsize=7)
    panel.minorticks_off()
    panel.grid(alpha=0.3)
