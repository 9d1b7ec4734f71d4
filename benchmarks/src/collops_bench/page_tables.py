"""The report's tables: every time of a record, and where and with what the records were made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collops_bench.record import Measurement, Record
from collops_bench.speed import bytes_in_words, place, seconds_in_words, three_digits
from collops.pages import Markup, fold, table, tag

__all__ = ["in_words", "measurement_table", "record_table"]

_BANDWIDTHS = ("bandwidth", "algorithm_bandwidth", "bus_bandwidth")
_SHARES = ("of_copy", "of_memory_limit", "efficiency")
_WORK = ("operations", "bytes", "messages")  # what predictions are fitted to


def in_words(measurement: Measurement) -> str:
    """Return what was measured, with its sizes."""
    said = []
    for key, value in measurement.parameters.items():
        if key in _WORK or key in ("memory_limit", "iterations"):
            continue
        if key == "size" and isinstance(value, int):
            said.append(bytes_in_words(value))
        elif isinstance(value, list):
            said.append(f"{key.replace('_', ' ')} {' x '.join(map(str, value))}")
        else:
            said.append(str(value) if key in ("dtype", "size", "scaling") else f"{key.replace('_', ' ')} {value}")
    return f"{measurement.case} ({', '.join(said)})" if said else measurement.case


def measurement_table(record: Record) -> Markup:
    """Return a row for every program of every measurement."""
    rows: list[list[object]] = []
    for measurement in record.measurements:
        rows += _rows(measurement)
    head = ["work", "program", "median", "least to greatest", "device", "ratio to peer", "figures"]
    filled = [column for column in range(len(head)) if any(row[column] != "" for row in rows)]
    return table(
        [head[column] for column in filled],
        [[row[column] for column in filled] for row in rows],
        numbers=[number for number, column in enumerate(filled) if 2 <= column <= 5],
        caption=f"{record.benchmark} on {place(record)}",
    )


def _rows(measurement: Measurement) -> list[list[object]]:
    rows: list[list[object]] = []
    work = in_words(measurement)
    peer = measurement.timings.get(measurement.peer) if measurement.peer is not None else None
    for program, timing in measurement.timings.items():
        wall, device = timing.wall, timing.clocks.get("device")
        compared = peer is not None and program != measurement.peer
        figures = [_figure(name, value) for name, value in measurement.figures.get(program, {}).items()]
        rows.append(
            [
                work,
                program,
                seconds_in_words(wall.median),
                f"{seconds_in_words(wall.minimum)} to {seconds_in_words(wall.maximum)}",
                "" if device is None else seconds_in_words(device.median),
                f"{three_digits(peer.wall.median / wall.median)}x" if compared and peer is not None else "",
                tag("span", ", ".join(figures), class_="wide") if figures else "",
            ]
        )
    for program, reason in sorted(measurement.missing.items()):
        rows.append([work, program, "not measured", "", "", "", tag("span", reason, class_="wide")])
    return rows


def _figure(name: str, value: float) -> str:
    words = name.replace("_", " ")
    if name in _BANDWIDTHS:
        return f"{words} {three_digits(value / 1e9)} GB/s"
    if name == "rate":
        return f"{three_digits(value / 1e9)} GFLOP/s"
    if name in _SHARES:
        return f"{words} {100 * value:.0f} %"
    return f"{words} {three_digits(value)}"


def record_table(records: Mapping[str, Record]) -> Markup:
    """Return a row for every record: machine, wires, versions, commit."""
    rows = [
        [
            tag("code", name, class_="whole"),
            tag("span", place(record), class_="whole"),
            record.ranks,
            tag("span", _wires(record), title="\n".join(record.transport)),
            _versions(record),
            tag("code", _commit(record.commit), class_="whole"),
            tag("span", record.started.replace("T", " ").replace("+00:00", " UTC"), class_="whole"),
            _options(record.options),
        ]
        for name, record in records.items()
    ]
    head = ["record", "machine", "ranks", "messages by", "versions, processor", "commit", "begun", "options"]
    return table(head, rows, numbers=(2,), caption="Where and with what the records were made")


def _versions(record: Record) -> Markup:
    """Return this package's version, which unfolds to those of all others and to the processor."""
    said = {package: f"{package} {version}" for package, version in record.versions.items() if version is not None}
    first = said.get("collops", "collops of unknown version")
    rest = [words for package, words in said.items() if package != "collops"]
    return fold(first, tag("span", ", ".join([*rest, record.machine["processor"]])))


def _wires(record: Record) -> str:
    kind = "device arrays:" if record.machine["devices"] else "host arrays:"
    return next((line.removeprefix(kind).strip() for line in record.transport if line.startswith(kind)), "")


def _commit(commit: str | None) -> str:
    if commit is None:
        return "not known"
    return commit[:9] + ("-dirty" if commit.endswith("-dirty") else "")


def _options(options: Mapping[str, Any]) -> str:
    asked = {"quick": True, "peer": False}  # what changes a result
    said = [("quick", "small sizes"), ("peer", "no peer")]
    return ", ".join(words for key, words in said if options.get(key) is asked[key]) or "none"
