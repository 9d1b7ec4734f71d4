"""The report: one page with tables and plots of all recorded runs, beside the peers and the limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collops_bench.page_figures import by_size, limits_shares, over_ranks
from collops_bench.page_tables import measurement_table, record_table
from collops_bench.record import Record
from collops_bench.speed import SpeedRow, place, speed_rows, three_digits
from collops.pages import Markup, Section, bars, document, facts, fold, join, table, tag

__all__ = ["report_page"]

_FEW = 8  # rows of a table that is shown without being asked for
_SUBJECTS = {
    "limits": "What the machines can do",
    "collectives": "Messages",
    "arrays": "Arrays",
    "operators": "Operators",
    "cgls": "Solvers",
    "lsm": "Migration",
    "jacobi": "Jacobi's method",
    "starforest": "Star forests",
    "scaling": "Scaling",
    "kill-runs": "Ranks that were killed",
}


def report_page(records: Mapping[str, Record]) -> str:
    """Return the text of the page.

    Parameters
    ----------
    records : mapping of str to Record
        By the names of their files; the same records give the same text.
    """
    rows = list(speed_rows(list(records.values())))
    kinds = sorted({record.benchmark for record in records.values()}, key=_order)
    sections = [_speed(rows)] if rows else []
    sections += [_limits(records)] if limits_shares(records.values()) else []
    sections += [
        _benchmark(kind, {name: one for name, one in records.items() if one.benchmark == kind}) for kind in kinds
    ]
    sections.append(Section("runs", "The runs", record_table(records)))
    return document("collops: what was measured", _lead(records, rows), sections)


def _order(kind: str) -> tuple[int, str]:
    known = list(_SUBJECTS)
    return (known.index(kind) if kind in known else len(known), kind)


def _lead(records: Mapping[str, Record], rows: Sequence[SpeedRow]) -> Markup:
    every = [measurement for record in records.values() for measurement in record.measurements]
    ratios = sorted(row.ratio for row in rows if row.ratio is not None)
    said: list[tuple[str, object]] = [
        ("runs", len(records)),
        ("measurements", len(every)),
        ("answers checked before they were timed", sum(len(one.checks) for one in every)),
        ("machines", ", ".join(dict.fromkeys(_machine(record) for record in records.values()))),
        ("last run", max(record.started for record in records.values())[:10]),
    ]
    if ratios:
        middle = ratios[len(ratios) // 2]
        words = f"{three_digits(ratios[0])} to {three_digits(ratios[-1])} times, median {three_digits(middle)}"
        said.insert(0, ("as fast as the peers", words))
    text = (
        "Every figure on this page comes from the records of benchmark runs; nothing was typed in. Programs that are "
        "compared did the same work on the same data in the same run, in turns, after their answers had been checked. "
        "Times are medians over rounds, of the slowest rank; lines in plots are medians, and a pointer shows the range."
    )
    return join([tag("p", text), facts(said)])


def _machine(record: Record) -> str:
    return record.machine["devices"][0] if record.machine["devices"] else f"{record.machine['cores']} CPU cores"


def _speed(rows: Sequence[SpeedRow]) -> Section:
    """Return the bars of everything in the README's table, and that table."""
    parts: list[Markup] = []
    places: dict[str, list[tuple[str, float, str]]] = {}
    for row in rows:
        if row.ratio is not None:
            places.setdefault(row.place, []).append((row.work, row.ratio, f"{row.ours}; {row.peer}"))
    longest = max((factor for lines in places.values() for _, factor, _ in lines), default=None)
    for where, lines in sorted(places.items(), key=lambda each: -len(each[1])):
        parts += [tag("h3", where), bars(lines, f"Times as fast as the peer on {where}", longest)]
    cells = [
        [row.work, row.place, row.ours, row.peer, "" if row.ratio is None else f"{three_digits(row.ratio)}x"]
        for row in rows
    ]
    head = ["work", "machine", "collops", "peer", "ratio"]
    parts.append(fold("The same as a table", table(head, cells, numbers=(2, 4), caption="Median wall times")))
    note = tag("p", "How many times as fast as the peer; the lengths of bars are logarithms.", class_="soft")
    return Section("speed", "Beside the peers", join([note, *parts]))


def _limits(records: Mapping[str, Record]) -> Section:
    cells = [
        [one.work, f"{100 * one.share:.0f} %", one.limit, one.program, tag("span", one.place, class_="whole")]
        for one in limits_shares(records.values())
    ]
    head = ["work", "reached", "limit", "program", "machine"]
    text = (
        "What the machine allows, measured in the same run: the time to copy the same vectors or grids, the wire's raw "
        "library, or the same products and messages alone. What passes through memory less often than a copy does may "
        "exceed its limit."
    )
    shares = table(head, cells, numbers=(1,))
    return Section("limits-reached", "Beside the limits", join([tag("p", text, class_="soft"), shares]))


def _benchmark(kind: str, records: Mapping[str, Record]) -> Section:
    parts: list[Markup] = []
    if kind in ("jacobi", "scaling"):
        parts += over_ranks(records.values())
    for name, record in records.items():
        title = f"{place(record)}, {record.started[:10]}"
        parts += [tag("h3", title), *by_size(record)]
        measured = measurement_table(record)
        few = sum(len(one.timings) + len(one.missing) for one in record.measurements) <= _FEW
        parts.append(measured if few else fold(f"All {len(record.measurements)} measurements ({name})", measured))
    return Section(kind, _SUBJECTS.get(kind, kind), join(parts))
