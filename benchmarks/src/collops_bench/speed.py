"""The table of speed for the README, plots and pages; numbers, sizes and places as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from collops.errors import InputError
from collops_bench.record import Measurement, Record

__all__ = [
    "BEGIN",
    "END",
    "NOT_MEASURED",
    "Share",
    "SpeedRow",
    "bytes_in_words",
    "in_words",
    "label",
    "limits_shares",
    "longest",
    "markdown",
    "place",
    "programs_of",
    "replace_between",
    "seconds_in_words",
    "speed_rows",
    "speed_summary",
    "speed_table",
    "three_digits",
    "time_in_words",
    "update_readme",
]

NOT_MEASURED = "not measured"
BEGIN, END = "<!-- speed table: begin -->", "<!-- speed table: end -->"
# The benchmarks in the README's table, each on GPUs (True) or on hosts.
_SUMMARISED = (("operators", True), ("lsm", True), ("collectives", True), ("lsm", False), ("solvers", False))
_NOT_SHOWN = ("operations", "bytes", "messages", "memory_limit", "iterations")  # of the parameters, in a description
# The limits to which figures are relative.
_LIMITS = {
    "of_copy": "a copy of the vectors",
    "of_memory_limit": "a copy of the grid",
    "of_parts": "its products and messages alone",
}
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


class SpeedRow(NamedTuple):
    """One piece of work, with the times of collops and its peer."""

    work: str  # the work, and the machine
    place: str
    collops_time: str  # the times in words; the time of the peer with its name, or the reason why it is missing
    peer: str
    peer_name: str | None  # the peer, where it was measured
    ratio: float | None  # how many times as fast as the peer; ``None`` where it was not measured
    kind: tuple[str, bool]  # the benchmark, and whether GPUs did the work
    weight: tuple[int, str]  # how many GPUs worked, 0 on hosts, and when GPUs began
    seconds: float  # the time of ours


def speed_rows(records: Sequence[Record]) -> Iterator[SpeedRow]:
    """Yield a row for every measurement that has a headline; the times are medians on the clock ``wall``."""
    for record in records:
        for measurement in record.measurements:
            if measurement.headline is not None and measurement.ours in measurement.timings:
                yield _row(record, measurement)


def _row(record: Record, measurement: Measurement) -> SpeedRow:
    peer, name = "none", None
    if measurement.peer is not None:
        name = measurement.peer if measurement.peer in measurement.timings else None
        peer = f"{measurement.peer}: {time_in_words(measurement, measurement.peer)}"
    seconds = measurement.timings[measurement.ours].wall.median
    devices = record.machine["devices"]
    kind = record.benchmark, bool(devices)
    weight = len(devices), record.started if devices else ""
    times = seconds_in_words(seconds), peer, name, measurement.speedup
    return SpeedRow(label(measurement), place(record), *times, kind, weight, seconds)


def label(measurement: Measurement) -> str:
    """Return the headline, and the shape if it lacks it, since some operators are measured in several sizes."""
    headline = str(measurement.headline)
    shape = " x ".join(map(str, measurement.parameters.get("shape", ())))
    return headline if shape in headline else f"{headline}, {shape}"


def place(record: Record) -> str:
    """Return the GPUs of a record and what they may not do, or else its cores and ranks."""
    devices = record.machine["devices"]
    if devices:
        return f"{len(devices)} x {devices[0]}{'' if record.p2p else ', NCCL without P2P'}"
    return f"{record.machine['cores']} CPU cores, {record.ranks} rank{'s' if record.ranks > 1 else ''}"


def longest(rows: Iterable[SpeedRow]) -> list[SpeedRow]:
    """Return the row with our longest time in each benchmark of the summary; of GPUs, in the newest record of the most.

    Ratios do not affect the choice.
    """
    result: dict[tuple[str, bool], SpeedRow] = {}
    for row in rows:
        best = result.get(row.kind)
        if best is None or (row.weight, row.seconds) > (best.weight, best.seconds):
            result[row.kind] = row
    return [result[kind] for kind in _SUMMARISED if kind in result]


def speed_table(records: Sequence[Record]) -> str:
    """Return the table of speed in Markdown, for all work with a time of the peer."""
    return _table(speed_rows(records))


def speed_summary(records: Sequence[Record]) -> str:
    """Return the table of speed with the rows that `longest` chooses, and the number of all rows."""
    rows = [row for row in speed_rows(records) if row.ratio is not None]
    source = (
        f"Median wall times; both programs ran alternately in one run. Of {len(rows)} measurements, the table shows "
        "the one that takes collops longest in each of five benchmarks: operators, migration and collectives in "
        "the newest record of the most GPUs, migration and sparse solvers on hosts. Written by `collops bench plot`."
    )
    return f"{_table(longest(rows))}\n\n{source}"


def _table(rows: Iterable[SpeedRow]) -> str:
    cells = [
        [row.work, row.place, row.collops_time, row.peer, f"{three_digits(row.ratio)}x"]
        for row in rows
        if row.ratio is not None
    ]
    return markdown(["work", "machine", "collops", "peer", "ratio"], cells, words=2)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Return a table in Markdown whose first `words` columns are text and the others numbers."""
    ruler = ["---"] * words + ["---:"] * (len(head) - words)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ruler, *rows))


def update_readme(path: str | Path, records: Sequence[Record]) -> None:
    """Replace the text between the two markers in a Markdown file by the summary of speed."""
    replace_between(path, BEGIN, END, speed_summary(records))


def replace_between(path: str | Path, begin: str, end: str, content: str) -> None:
    """Replace the text between two markers in a Markdown file.

    Raises
    ------
    InputError
        If the file cannot be read or written, or does not have both markers once and in order.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
            raise InputError(f"{path} needs the lines {begin} and {end}, once and in this order")
        before, _, remaining = text.partition(begin)
        after = remaining.partition(end)[2]
        path.write_text(f"{before}{begin}\n{content}\n{end}{after}", encoding="utf-8")
    except OSError as problem:
        raise InputError(f"cannot rewrite {path}: {problem.strerror or problem}") from problem


class Share(NamedTuple):
    """The speed of a program, relative to a limit."""

    work: str
    place: str
    program: str
    limit: str
    share: float


def limits_shares(records: Iterable[Record]) -> list[Share]:
    """Return the speeds of our programs relative to limits that were measured in the same run."""
    shares = []
    for record in records:
        for measurement in record.measurements:
            work = in_words(measurement) if measurement.headline is None else label(measurement)
            titled = f"Jacobi's method, {work}" if record.benchmark == "jacobi" else work
            for name, value in measurement.figures.get(measurement.ours, {}).items():
                if name in _LIMITS:
                    share = 1 / value if name == "of_parts" else value  # a ratio of times; the others are of speeds
                    shares.append(Share(titled, place(record), measurement.ours, _LIMITS[name], share))
            if record.benchmark == "collectives" and measurement.speedup is not None and measurement.headline:
                limit = f"{measurement.peer} alone"
                shares.append(Share(work, place(record), measurement.ours, limit, measurement.speedup))
    return shares


def in_words(measurement: Measurement) -> str:
    """Return the case of a measurement with its sizes."""
    words = []
    for key, value in measurement.parameters.items():
        name = key.replace("_", " ")
        if key in _NOT_SHOWN:
            continue
        if key == "size" and isinstance(value, int):
            words.append(bytes_in_words(value))
        elif isinstance(value, list):
            words.append(f"{name} {' x '.join(map(str, value))}")
        else:
            words.append(str(value) if key in ("dtype", "size", "scaling") else f"{name} {value}")
    return f"{measurement.case} ({', '.join(words)})" if words else measurement.case


def programs_of(measurements: Iterable[Measurement]) -> list[str]:
    """Return the names of all programs with a time, in the order in which they are met."""
    return list(dict.fromkeys(name for measurement in measurements for name in measurement.timings))


def time_in_words(measurement: Measurement, program: str) -> str:
    """Write the median time of a program, or that it was not measured."""
    timing = measurement.timings.get(program)
    return NOT_MEASURED if timing is None else seconds_in_words(timing.wall.median)


def seconds_in_words(seconds: float) -> str:
    """Write a time with three digits in the unit that suits it."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= factor or unit == "µs":
            return f"{three_digits(seconds / factor)} {unit}"
    raise AssertionError("every time has a unit")


def three_digits(value: float) -> str:
    """Write a number with three digits."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def bytes_in_words(size: int) -> str:
    """Write a number of bytes in the largest unit that it fills."""
    factor, unit = next((factor, unit) for factor, unit in _UNITS if size >= factor)
    return f"{size // factor} {unit}"
