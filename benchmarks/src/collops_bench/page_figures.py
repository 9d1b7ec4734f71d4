"""The report's plots: times and bandwidths over sizes, iterations over ranks, and shares of what a machine allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from collops_bench.page_tables import in_words
from collops_bench.record import Measurement, Record
from collops_bench.speed import bytes_in_words, label, place, seconds_in_words, three_digits
from collops_bench.timing import Timing
from collops.pages import LIMIT, Axis, Markup, Point, Series, figure_grid, legend, line_chart, tag

__all__ = ["by_size", "limits_shares", "over_ranks"]

_SIZES = ("size", "bytes_per_rank")
_MOST_LINES = 6
_LIMIT = "memory's limit"
# What a figure is a share of.
_LIMITS = {
    "of_copy": "a copy of the vectors",
    "of_memory_limit": "a copy of the grid",
    "of_parts": "its products and messages alone",
}


class Share(NamedTuple):
    """How much of a limit a program reaches."""

    work: str
    place: str
    program: str
    limit: str
    share: float


def limits_shares(records: Iterable[Record]) -> list[Share]:
    """Return what share of the limits this package's programs reach, wherever a limit was measured beside them."""
    shares = []
    for record in records:
        for measurement in record.measurements:
            work = in_words(measurement) if measurement.headline is None else label(measurement)
            where = place(record), measurement.ours
            for name, value in measurement.figures.get(measurement.ours, {}).items():
                if name in _LIMITS:
                    share = 1 / value if name == "of_parts" else value  # the one is a time, the others are speeds
                    shares.append(Share(_titled(record, work), *where, _LIMITS[name], share))
            if record.benchmark == "collectives" and measurement.speedup is not None and measurement.headline:
                shares.append(Share(work, *where, f"{measurement.peer} itself", measurement.speedup))
    return shares


def _titled(record: Record, work: str) -> str:
    """Say which method it is where the name of the case does not."""
    return f"Jacobi's method, {work}" if record.benchmark == "jacobi" else work


def by_size(record: Record) -> list[Markup]:
    """Return a plot for each case that was measured with messages or vectors of several sizes, and their legend."""
    cases = {}
    for case, measurements in groupby(record.measurements, key=lambda one: one.case):
        cases.setdefault(case, []).extend(one for one in measurements if _size(one) is not None)
    cases = {case: found for case, found in cases.items() if len(found) > 1}
    if not cases:
        return []
    programs = list(dict.fromkeys(name for found in cases.values() for one in found for name in one.timings))
    figures = [_size_chart(case, found, programs) for case, found in cases.items()]
    lines = [(name, number, not _ours(name)) for number, name in enumerate(programs)]
    return [legend(lines), figure_grid(*figures)]


def _size(measurement: Measurement) -> int | None:
    sizes = (measurement.parameters.get(key) for key in _SIZES)
    return next((size for size in sizes if isinstance(size, int)), None)


def _ours(program: str) -> bool:
    return program.startswith(("collops", "called", "replayed"))


def _size_chart(case: str, measurements: Sequence[Measurement], programs: Sequence[str]) -> Markup:
    figures = {name for one in measurements for figure in one.figures.values() for name in figure}
    figure = next((name for name in ("bus_bandwidth", "bandwidth") if name in figures), None)
    figure = None if not any(_value(one, name, figure) for one in measurements for name in one.timings) else figure
    lines = []
    for number, program in enumerate(programs):
        points = [
            Point(_size(one) or 0, value, _words(one, program))
            for one in measurements
            if program in one.timings and (value := _value(one, program, figure))
        ]
        if points:
            lines.append(Series(program, points, number, dashed=not _ours(program)))
    sizes = sorted({_size(one) or 0 for one in measurements})
    ticks = [1 << shift for shift in range(0, 40, 6) if sizes[0] <= 1 << shift <= sizes[-1]]
    x = Axis("size", lambda size: bytes_in_words(int(size)), log=True, ticks=ticks)
    if figure is None:
        return line_chart(case, lines, x, Axis("time of a call", seconds_in_words, log=True))
    upwards = "bus bandwidth, GB/s" if figure == "bus_bandwidth" else "bandwidth, GB/s"
    return line_chart(case, lines, x, Axis(upwards, three_digits, log=True))


def _value(measurement: Measurement, program: str, figure: str | None) -> float:
    if figure is None:
        return measurement.timings[program].wall.median
    return measurement.figures.get(program, {}).get(figure, 0.0) / 1e9


def _words(measurement: Measurement, program: str) -> str:
    return f"{bytes_in_words(_size(measurement) or 0)}, {_spread(measurement.timings[program])}"


def _spread(timing: Timing) -> str:
    wall = timing.wall
    return f"{seconds_in_words(wall.median)} ({seconds_in_words(wall.minimum)} to {seconds_in_words(wall.maximum)})"


def over_ranks(records: Iterable[Record]) -> list[Markup]:
    """Return plots of an iteration's time over the ranks, for each machine with records of several numbers of them."""
    parts: list[Markup] = []
    ordered = sorted(records, key=lambda record: (record.machine_name, record.ranks))
    for _, group in groupby(ordered, key=lambda record: record.machine_name):
        there = list(group)
        if len(there) > 1:
            parts += _machine(there)
    return parts


def _machine(records: Sequence[Record]) -> list[Markup]:
    families: dict[str, list[tuple[int, Measurement]]] = {}
    for record in records:
        for measurement in record.measurements:
            families.setdefault(_family(measurement), []).append((record.ranks, measurement))
    families = {name: points for name, points in families.items() if len({ranks for ranks, _ in points}) > 1}
    chosen = {name: _fastest(points) for name, points in families.items()}
    programs = list(dict.fromkeys(program for names in chosen.values() for program in names))
    figures = [_rank_chart(name, points, chosen[name], programs) for name, points in families.items()]
    lines = [(name, number, False) for number, name in enumerate(programs)]
    if any("memory_limit" in one.parameters for points in families.values() for _, one in points):
        lines.append((_LIMIT, LIMIT, True))
    head = tag("h3", f"Over the ranks: {place(records[-1]).split(', ')[0]} and fewer")
    return [head, legend(lines), figure_grid(*figures)]


def _family(measurement: Measurement) -> str:
    """Return what measurements on different numbers of ranks have in common."""
    parameters = measurement.parameters
    if "scaling" not in parameters:
        return measurement.case
    sizes = {key: parameters[key] for key in ("image", "columns") if key in parameters}
    sizes |= {"cube": parameters["cube"][:2]} if "cube" in parameters else {}
    words = ", ".join(
        " x ".join(map(str, one)) if isinstance(one, list) else f"{one} columns" for one in sizes.values()
    )
    return f"{measurement.case}, {words}, {parameters['scaling']} scaling"


def _fastest(points: Sequence[tuple[int, Measurement]]) -> list[str]:
    """Return the programs that are fastest on the most ranks."""
    _, largest = max(points, key=lambda point: point[0])
    ranked = sorted(largest.timings, key=lambda name: largest.timings[name].wall.median)
    return ranked[:_MOST_LINES]


def _rank_chart(
    family: str, points: Sequence[tuple[int, Measurement]], programs: Sequence[str], names: Sequence[str]
) -> Markup:
    lines = []
    for program in programs:
        found = [(ranks, one.timings[program]) for ranks, one in points if program in one.timings]
        line = [Point(ranks, each.wall.median, f"{_ranks(ranks)}, {_spread(each)}") for ranks, each in found]
        lines.append(Series(program, line, names.index(program)))
    limits = [(ranks, float(limit)) for ranks, one in points if (limit := _limit(one)) is not None]
    if limits:
        line = [Point(ranks, limit, f"{_ranks(ranks)}, {seconds_in_words(limit)}") for ranks, limit in limits]
        lines.append(Series(_LIMIT, line, LIMIT, dashed=True))
    ticks = sorted({float(ranks) for ranks, _ in points})
    x = Axis("ranks", "{:g}".format, log=True, ticks=ticks)
    return line_chart(family, lines, x, Axis("time of an iteration", seconds_in_words, log=True))


def _limit(measurement: Measurement) -> Any:
    return measurement.parameters.get("memory_limit")


def _ranks(number: int) -> str:
    return f"{number} rank{'s' if number > 1 else ''}"
