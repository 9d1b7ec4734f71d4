"""Plots of records: a `Chart` describes one, for the report page as well as for a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from collops.apps.page import COLORS, INK, svg
from collops.errors import InputError
from collops_bench.prediction import STRONG, WEAK, Family, Scaling
from collops_bench.record import Measurement, Record
from collops_bench.speed import bytes_in_words, place, programs_of, seconds_in_words, three_digits

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes

    from collops_bench.timing import Spread

__all__ = ["Chart", "Key", "Line", "Point", "by_size", "draw", "key_of", "over_ranks", "predictions", "sheet", "to_svg"]

_SIZES = ("size", "bytes_per_rank")
_MAX_LINES = 6
_LIMIT = "memory's limit"
_BOUND = -1  # number of the colour of a bound
_MARKERS, _GLYPHS = "osD^v", "●■◆▲▼"  # as many as share no factor with the colours
_MAX_RANKS = 1024  # of a prediction


class Point(NamedTuple):
    """A median with its range over the rounds, and its tooltip."""

    x: float
    y: float
    low: float
    high: float
    words: str


@dataclass(frozen=True)
class Line:
    """The points of one program."""

    name: str  # in the key
    points: Sequence[Point]  # from left to right
    color: int  # number of its colour and marker
    style: str = "-"  # line style of matplotlib; ``""`` draws markers alone
    marked: bool = True  # whether its points have markers


@dataclass(frozen=True)
class Chart:
    """A plot with two logarithmic axes."""

    title: str  # above it
    lines: Sequence[Line]  # at least one of them with a point
    x_label: str  # quantities on the axes
    y_label: str
    x_words: Callable[[float], str]  # write the value at a tick, with its unit
    y_words: Callable[[float], str]
    x_ticks: Sequence[float]  # where the ticks are
    rule: float | None = None  # where a vertical line marks a bound


class Key(NamedTuple):
    """An entry of a key: name, variable of the colour, glyph of the marker, and whether the line is dashed."""

    name: str
    color: str
    glyph: str
    dashed: bool


def key_of(charts: Iterable[Chart]) -> list[Key]:
    """Return the key of several charts, in which each name has one colour."""
    lines = {line.name: line for chart in charts for line in chart.lines}
    return [
        Key(
            line.name,
            "text" if line.color == _BOUND else f"c{line.color % len(COLORS)}",
            _GLYPHS[line.color % len(_GLYPHS)],
            line.style == "--",
        )
        for line in sorted(lines.values(), key=lambda line: (line.color == _BOUND, line.color))
    ]


# Charts of records


def by_size(record: Record) -> list[Chart]:
    """Return a chart for each case with messages or vectors of several sizes."""
    cases: dict[str, list[Measurement]] = {}
    for measurement in record.measurements:
        if _size(measurement) is not None:
            cases.setdefault(measurement.case, []).append(measurement)
    cases = {case: sorted(result, key=_size) for case, result in cases.items() if len(result) > 1}
    programs = programs_of(measurement for result in cases.values() for measurement in result)
    return [_of_sizes(case, result, programs) for case, result in cases.items()]


def _size(measurement: Measurement) -> Any:
    sizes = (measurement.parameters.get(key) for key in _SIZES)
    return next((size for size in sizes if isinstance(size, int)), None)


def _of_sizes(case: str, measurements: Sequence[Measurement], programs: Sequence[str]) -> Chart:
    figures = [result for measurement in measurements for result in measurement.figures.values()]
    named = ("bus_bandwidth", "bandwidth")
    figure = next((name for name in named if any(result.get(name) for result in figures)), None)
    lines = []
    for number, program in enumerate(programs):
        points = [
            _of_size(measurement, program, figure) for measurement in measurements if program in measurement.timings
        ]
        if points := [point for point in points if point.y > 0]:
            is_collops = program.startswith(("collops", "called", "replayed"))
            lines.append(Line(program, points, number, "-" if is_collops else "--"))
    first, last = _size(measurements[0]), _size(measurements[-1])
    ticks = [1 << shift for shift in range(0, 40, 6) if first <= 1 << shift <= last]
    label = "time of a call" if figure is None else f"{figure.replace('_', ' ')}, GB/s"
    words = seconds_in_words if figure is None else three_digits
    return Chart(case, lines, "size", label, lambda size: bytes_in_words(int(size)), words, ticks)


def _of_size(measurement: Measurement, program: str, figure: str | None) -> Point:
    timing, size = measurement.timings[program], _size(measurement)
    words = f"{bytes_in_words(size)}, {_in_words(timing.wall)}"
    if figure is None:
        return Point(size, timing.wall.median, timing.wall.minimum, timing.wall.maximum, words)
    # Bus bandwidths are from the clock of the device, if there is one.
    clock = timing.clocks.get("device", timing.wall) if figure == "bus_bandwidth" else timing.wall
    value = measurement.figures.get(program, {}).get(figure, 0.0) / 1e9
    # The bandwidths of the slowest and of the fastest round.
    return Point(size, value, value * clock.median / clock.maximum, value * clock.median / clock.minimum, words)


def _in_words(spread: Spread) -> str:
    median, low, high = map(seconds_in_words, (spread.median, spread.minimum, spread.maximum))
    return f"{median} ({low} to {high})"


def over_ranks(records: Iterable[Record]) -> dict[str, list[Chart]]:
    """Return charts of the time of an iteration over the ranks, for machines with several numbers of ranks."""
    ordered = sorted(records, key=lambda record: (record.machine_name, record.ranks))
    result = {}
    for _, group in groupby(ordered, key=lambda record: record.machine_name):
        group = list(group)
        if len(group) > 1:
            result[place(group[-1]).split(", ")[0]] = _of_machine(group)
    return result


def _of_machine(records: Sequence[Record]) -> list[Chart]:
    families: dict[str, list[tuple[int, Measurement]]] = {}
    for record in records:
        for measurement in record.measurements:
            families.setdefault(_family(measurement), []).append((record.ranks, measurement))
    families = {name: points for name, points in families.items() if len({ranks for ranks, _ in points}) > 1}
    chosen = {name: _fastest(points) for name, points in families.items()}
    programs = list(dict.fromkeys(program for names in chosen.values() for program in names))
    return [
        _of_ranks(name, points, {program: programs.index(program) for program in chosen[name]})
        for name, points in families.items()
    ]


def _family(measurement: Measurement) -> str:
    """Return the common name of measurements on different numbers of ranks."""
    parameters = measurement.parameters
    if "scaling" not in parameters:
        return measurement.case
    sizes = {key: parameters[key] for key in ("image", "columns") if key in parameters}
    sizes |= {"cube": parameters["cube"][:2]} if "cube" in parameters else {}
    words = ", ".join(
        " x ".join(map(str, size)) if isinstance(size, list) else f"{size} columns" for size in sizes.values()
    )
    return f"{measurement.case}, {words}, {parameters['scaling']} scaling"


def _fastest(points: Sequence[tuple[int, Measurement]]) -> list[str]:
    """Return the fastest programs on the largest number of ranks."""
    _, largest = max(points, key=lambda point: point[0])
    return sorted(largest.timings, key=lambda name: largest.timings[name].wall.median)[:_MAX_LINES]


def _of_ranks(family: str, points: Sequence[tuple[int, Measurement]], programs: dict[str, int]) -> Chart:
    lines = []
    for program, number in programs.items():
        spreads = [
            (ranks, measurement.timings[program].wall)
            for ranks, measurement in points
            if program in measurement.timings
        ]
        line = [
            Point(ranks, item.median, item.minimum, item.maximum, f"{_ranks(ranks)}, {_in_words(item)}")
            for ranks, item in spreads
        ]
        lines.append(Line(program, line, number))
    limits = [
        (ranks, measurement.parameters["memory_limit"])
        for ranks, measurement in points
        if "memory_limit" in measurement.parameters
    ]
    if limits:
        line = [Point(ranks, time, time, time, f"{_ranks(ranks)}, {seconds_in_words(time)}") for ranks, time in limits]
        lines.append(Line(_LIMIT, line, _BOUND, "--"))
    ticks = sorted({ranks for ranks, _ in points})
    return Chart(family, lines, "ranks", "time of an iteration", "{:g}".format, seconds_in_words, ticks)


def _ranks(number: int) -> str:
    return f"{number} rank{'s' if number > 1 else ''}"


def predictions(scaling: Scaling) -> list[Chart]:
    """Return two charts for each kind of work, of strong and of weak scaling: measured and predicted times."""
    result = []
    for kind in scaling.models:
        for sort in (STRONG, WEAK):
            group = [
                family
                for family in (*scaling.families, *scaling.larger)
                if (family.kind, family.scaling) == (kind, sort)
            ]
            lines = [line for number, family in enumerate(group) for line in _of_family(scaling, family, number)]
            network = scaling.machine.network
            result.append(
                Chart(
                    f"{kind}, {sort} scaling",
                    lines,
                    "GPUs",
                    "time of an iteration",
                    "{:g}".format,
                    seconds_in_words,
                    [1 << shift for shift in range(0, _MAX_RANKS.bit_length(), 2)],
                    None if network is None else network.ranks,
                )
            )
    return result


def _of_family(scaling: Scaling, family: Family, number: int) -> list[Line]:
    def points(times: Iterable[tuple[int, float]]) -> list[Point]:
        return [Point(ranks, seconds, seconds, seconds, "") for ranks, seconds in times]

    counts = [1 << shift for shift in range(_MAX_RANKS.bit_length())]
    predicted = points((ranks, scaling.seconds(family, ranks)) for ranks in counts)
    lines = [Line(family.words, predicted, number, "--", marked=False)]
    if family.measured:
        lines.append(Line("", points(sorted(family.measured.items())), number, ""))
    return lines


# Drawing


def draw(axes: Axes, chart: Chart, *, ranges: bool = False) -> dict[str, list[str]]:
    """Draw a chart, with `ranges` as bands; return the tooltips of the points by the ``gid`` of each line."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    for number, line in enumerate(chart.lines):
        x, y, low, high, _ = zip(*line.points, strict=True)
        color = INK if line.color == _BOUND else COLORS[line.color % len(COLORS)]
        marker = _MARKERS[line.color % len(_MARKERS)] if line.marked else None
        axes.plot(
            x,
            y,
            linestyle=line.style,
            color=color,
            marker=marker,
            markersize=4.5,
            markeredgewidth=0,
            label=line.name,
            gid=f"line-{number}",
            clip_on=False,
        )
        if ranges:
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel=chart.x_label, ylabel=chart.y_label)
    if chart.rule is not None:
        axes.axvline(chart.rule, color="0.7", linewidth=0.8)
    axes.xaxis.set(major_locator=FixedLocator(chart.x_ticks), minor_locator=NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: chart.x_words(value)))
    low, high = axes.get_ylim()
    axes.yaxis.set(
        major_locator=LogLocator(subs=(1, 2, 5) if high < 30 * low else (1,), numticks=6), minor_locator=NullLocator()
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: chart.y_words(value)))
    return {f"line-{number}": [point.words for point in line.points] for number, line in enumerate(chart.lines)}


def to_svg(chart: Chart, name: str) -> Markup:
    """Return a chart as an element of a page; its name must be unique there."""
    named = [
        replace(line, points=[point._replace(words=f"{line.name}: {point.words}") for point in line.points])
        for line in chart.lines
    ]
    title = f"{chart.title}: {chart.y_label} over {chart.x_label}"
    return svg(lambda axes: draw(axes, replace(chart, lines=named)), name, title)


def sheet(
    charts: Sequence[Chart], title: str, path: Path, *, columns: int = 3, keys: bool = False, ranges: bool = False
) -> Path:
    """Write charts into a PNG file, row by row.

    With `keys`, each chart has a key of its own instead of one for all. With `ranges`, bands show the ranges over the
    rounds.
    """
    rows, columns = -(-len(charts) // columns), min(columns, len(charts))
    picture = new_figure(3.9 * columns, 0.9 + 2.9 * rows)
    panels = picture.subplots(rows, columns, squeeze=False).ravel()
    for panel, chart in zip(panels, charts, strict=False):
        draw(panel, chart, ranges=ranges)
        panel.set_title(chart.title, fontsize=9)
        for axis in (panel.xaxis, panel.yaxis):
            axis.label.set_fontsize(8)
            axis.set_tick_params(labelsize=8)
        panel.grid(alpha=0.3)
        if keys:
            panel.legend(fontsize=7, frameon=False)
    for panel in panels[len(charts) :]:
        panel.axis("off")
    if not keys:
        # The key has the programs of all charts.
        lines = {line.get_label(): line for panel in panels for line in panel.get_lines()}
        shown = [item.name for item in key_of(charts)]
        handles = [lines[name] for name in shown]
        picture.legend(handles, shown, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    picture.suptitle(title)
    return save(picture, path)


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of a size in inches, without pyplot, its display and its global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(picture: Any, path: Path) -> Path:
    """Write a figure, or raise `InputError`."""
    try:
        picture.savefig(path, dpi=120)
    except OSError as problem:
        raise InputError(f"cannot write {path}: {problem.strerror or problem}") from problem
    return path
