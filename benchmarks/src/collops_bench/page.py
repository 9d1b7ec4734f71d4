"""The report: one page with tables and plots of all recorded runs, their peers and the limits of the machine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from collops.apps.page import render
from collops_bench.charts import Chart, by_size, key_of, over_ranks, to_svg
from collops_bench.record import Measurement, Record
from collops_bench.speed import (
    SpeedRow,
    in_words,
    limits_shares,
    place,
    seconds_in_words,
    speed_rows,
    three_digits,
)
from collops_bench.timing import Spread

__all__ = ["report_page"]

_TEMPLATE = Path(__file__).parent / "report.html"
_FEW = 8  # rows up to which a table is open from the start
_SUBJECTS = {
    "limits": "Limits of the machines",
    "startup": "Start-up",
    "collectives": "Messages",
    "arrays": "Arrays",
    "operators": "Operators",
    "cgls": "Solvers",
    "solvers": "Krylov methods",
    "fft": "Fourier transforms of sharded arrays",
    "lsm": "Migration",
    "posterior": "Samples of a posterior",
    "jacobi": "Jacobi's method",
    "starforest": "Star forests",
    "scaling": "Scaling",
    "robustness": "The cost of deadlines and agreements",
    "kill-runs": "Ranks that were killed",
}
_COLUMNS = ("program", "median", "range", "CPU", "device", "paired difference", "ratio to peer", "figures")
_BANDWIDTHS = ("bandwidth", "algorithm_bandwidth", "bus_bandwidth")
_SHARES = ("of_copy", "of_memory_limit", "efficiency")


def report_page(records: Mapping[str, Record]) -> str:
    """Return the page of records, by file name. The same records give the same text."""
    rows = list(speed_rows(list(records.values())))
    shares = limits_shares(records.values())
    kinds = sorted({record.benchmark for record in records.values()}, key=_order)
    sections = {"speed": "Speed and the peers"} if rows else {}
    sections |= {"limits-reached": "Speed and the limits"} if shares else {}
    sections |= {kind: _SUBJECTS.get(kind, kind) for kind in kinds} | {"runs": "The runs"}
    numbers = itertools.count(1)
    return render(
        _TEMPLATE,
        sections=sections,
        facts=_facts(records, rows),
        bars=_bars(rows),
        speed=[[row.work, row.place, row.collops_time, row.peer, _ratio(row.ratio)] for row in rows],
        shares=[
            [share.work, f"{100 * share.share:.0f} %", share.limit, share.program, share.place] for share in shares
        ],
        benchmarks={
            kind: _benchmark(
                {name: record for name, record in records.items() if record.benchmark == kind}, kind, numbers
            )
            for kind in kinds
        },
        runs=[_run(name, record) for name, record in records.items()],
    )


def _order(kind: str) -> tuple[int, str]:
    known = list(_SUBJECTS)
    return (known.index(kind) if kind in known else len(known), kind)


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{three_digits(ratio)}x"


def _facts(records: Mapping[str, Record], rows: Sequence[SpeedRow]) -> list[tuple[str, object]]:
    all_values = [measurement for record in records.values() for measurement in record.measurements]
    ratios = sorted(row.ratio for row in rows if row.ratio is not None)
    facts: list[tuple[str, object]] = [
        ("runs", len(records)),
        ("measurements", len(all_values)),
        ("results checked before timing", sum(len(measurement.checks) for measurement in all_values)),
        ("machines", ", ".join(dict.fromkeys(_machine(record) for record in records.values()))),
        ("last run", max(record.started for record in records.values())[:10]),
    ]
    if ratios:
        middle = ratios[len(ratios) // 2]
        words = f"{three_digits(ratios[0])} to {three_digits(ratios[-1])} times, median {three_digits(middle)}"
        facts.insert(0, ("speed relative to the peers", words))
    return facts


def _machine(record: Record) -> str:
    return record.machine["devices"][0] if record.machine["devices"] else f"{record.machine['cores']} CPU cores"


def _bars(rows: Sequence[SpeedRow]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the bars of each place, that with the most first; lengths are logarithms in per cent of the longest."""
    places: dict[str, list[SpeedRow]] = {}
    for row in rows:
        if row.ratio is not None:
            places.setdefault(row.place, []).append(row)
    longest = max((math.log10(row.ratio) for lines in places.values() for row in lines if row.ratio), default=0.0)

    def bar(row: SpeedRow, ratio: float) -> dict[str, Any]:
        length = 100 * max(0.0, math.log10(ratio)) / longest if longest > 0 else 0.0
        return {"row": row, "ratio": _ratio(ratio), "length": f"{length:.1f}", "slower": ratio < 1}

    ordered = sorted(places.items(), key=lambda item: -len(item[1]))
    return [(where, [bar(row, row.ratio) for row in lines if row.ratio is not None]) for where, lines in ordered]


def _benchmark(records: Mapping[str, Record], kind: str, numbers: Iterator[int]) -> dict[str, Any]:
    def plots(title: str, charts: Sequence[Chart]) -> dict[str, Any]:
        drawn = [(chart.title, to_svg(chart, f"chart-{next(numbers)}")) for chart in charts]
        return {"title": title, "key": key_of(charts), "charts": drawn}

    scaled = over_ranks(records.values()) if kind in ("jacobi", "scaling") else {}
    return {
        "scaled": [plots(f"Over the ranks: {where} and fewer", charts) for where, charts in scaled.items()],
        "records": [
            plots(f"{place(record)}, {record.started[:10]}", by_size(record)) | _table(name, record)
            for name, record in records.items()
        ],
    }


def _table(name: str, record: Record) -> dict[str, Any]:
    """Return a table with a group of rows for each measurement and a row for each program, without empty columns."""
    groups = [(in_words(measurement), _rows(measurement)) for measurement in record.measurements]
    all_values = [row for _, rows in groups for row in rows]
    filled = [column for column in range(len(_COLUMNS)) if any(row[column] for row in all_values)]
    return {
        "name": name,
        "caption": f"{record.benchmark} on {place(record)}",
        "few": len(all_values) <= _FEW,
        "count": len(groups),
        "head": [_COLUMNS[column] for column in filled],
        "numbers": [number for number, column in enumerate(filled) if 1 <= column <= 6],
        "groups": [(work, [[row[column] for column in filled] for row in rows]) for work, rows in groups],
    }


def _rows(measurement: Measurement) -> list[list[str]]:
    rows = []
    peer = measurement.timings.get(measurement.peer) if measurement.peer is not None else None
    for program, timing in measurement.timings.items():
        wall, paired = timing.wall, timing.clocks.get("difference")
        cpu, device = (timing.clocks.get(name) for name in ("cpu", "device"))
        ratio = peer.wall.median / wall.median if peer is not None and program != measurement.peer else None
        rows.append(
            [
                program,
                seconds_in_words(wall.median),
                _range(wall),
                "" if cpu is None else seconds_in_words(cpu.median),
                "" if device is None else seconds_in_words(device.median),
                "" if paired is None else f"{seconds_in_words(paired.median)} ({_range(paired)})",
                _ratio(ratio),
                _figures(measurement, program),
            ]
        )
    rows += [[program, "not measured", "", "", "", "", "", why] for program, why in sorted(measurement.missing.items())]
    return rows or [[name, "", "", "", "", "", "", _figures(measurement, name)] for name in measurement.figures]


def _range(spread: Spread) -> str:
    return f"{seconds_in_words(spread.minimum)} to {seconds_in_words(spread.maximum)}"


def _figures(measurement: Measurement, program: str) -> str:
    return ", ".join(_figure(name, value) for name, value in measurement.figures.get(program, {}).items())


def _figure(name: str, value: float) -> str:
    words = name.replace("_", " ")
    if name in _BANDWIDTHS:
        return f"{words} {three_digits(value / 1e9)} GB/s"
    if name == "rate":
        return f"{three_digits(value / 1e9)} GFLOP/s"
    if name in _SHARES:
        return f"{words} {100 * value:.0f} %"
    return f"{words} {three_digits(value)}"


def _run(name: str, record: Record) -> dict[str, Any]:
    """Return the machine, the software and the options of a record."""
    kind = "device arrays:" if record.machine["devices"] else "host arrays:"
    transport = next((line.removeprefix(kind).strip() for line in record.transport if line.startswith(kind)), "")
    versions = {package: f"{package} {version}" for package, version in record.versions.items() if version is not None}
    collops_version = versions.pop("collops", "collops of unknown version")
    commit = "unknown" if record.commit is None else record.commit[:9]
    if record.commit is not None and record.commit.endswith("-dirty"):
        commit += "-dirty"
    changed = [("quick", True, "small sizes"), ("peer", False, "no peer")]
    return {
        "name": name,
        "place": place(record),
        "ranks": record.ranks,
        "transport": transport,
        "transports": "\n".join(record.transport),
        "version": collops_version,
        "others": ", ".join([*versions.values(), record.machine["processor"]]),
        "commit": commit,
        "started": record.started.replace("T", " ").replace("+00:00", " UTC"),
        "options": ", ".join(words for key, value, words in changed if record.options.get(key) is value) or "none",
    }
