"""The report of a recording: a tree of labels with their times, for one rank or compared over several."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from collops.errors import InputError
from collops.profile.marks import Span

if TYPE_CHECKING:
    from rich.table import Table

AnyCommunicator: TypeAlias = Any
"""A communicator of collops, which imports this package, or ``None`` for this rank alone."""


@dataclass(frozen=True)
class Row:
    """One label of the tree. Tuples have one entry for each rank in `ranks`; times are in seconds.

    Attributes
    ----------
    path : tuple of str
        The labels from the outermost mark to this one.
    ranks : tuple of int
        The ranks that recorded this label.
    calls : tuple of int
        Number of executions.
    total : tuple of float
        Time of all executions: measured by device events if there are any, else by the host's clock.
    host : tuple of float
        Time of all executions on the host; less than `total` if work was only enqueued.
    own : tuple of float
        `total` without the time of nested labels.
    share : float
        Fraction of the parent's time (of the recording's for an outermost label), summed over ranks.
    timed_on_device : int
        Passages timed by device events.
    captured : int
        Passages without a device time because a stream was being captured.

    Examples
    --------
    >>> from collops import profile
    >>> with profile.record() as recording, profile.mark("work"):
    ...     pass
    >>> row = recording.report().rows[0]
    >>> row.label, row.ranks, row.mean >= 0
    ('work', (0,), True)
    """

    path: tuple[str, ...]
    ranks: tuple[int, ...]
    calls: tuple[int, ...]
    total: tuple[float, ...]
    host: tuple[float, ...]
    own: tuple[float, ...]
    share: float
    timed_on_device: int
    captured: int

    @property
    def label(self) -> str:
        """The mark's label."""
        return self.path[-1]

    @property
    def mean(self) -> float:
        """Mean time of an execution over all ranks."""
        return sum(self.total) / sum(self.calls)


class Report:
    """The times of a recording, as numbers and as a table.

    Attributes
    ----------
    rows : list of Row
        The tree in depth-first order.
    size : int
        Number of ranks.
    elapsed : tuple of float
        Duration of the recording on each rank, in seconds.

    Examples
    --------
    >>> from collops import profile
    >>> with profile.record() as recording:
    ...     for _ in range(3):
    ...         with profile.mark("work"):
    ...             pass
    >>> recording.report().row("work").calls
    (3,)
    """

    def __init__(self, rows: Sequence[Row], elapsed: Sequence[float], rank: int = 0) -> None:
        self.rows = list(rows)
        self.elapsed = tuple(elapsed)
        self.size = len(self.elapsed)
        self._rank = rank

    def row(self, *path: str) -> Row:
        """Return the row at `path`, the labels from the outermost one inwards.

        Raises
        ------
        KeyError
            If no rank recorded it.
        """
        for row in self.rows:
            if row.path == path:
                return row
        raise KeyError(path)

    def show(self, file: TextIO | None = None) -> None:
        """Print the report on rank 0, to standard output or `file`; styled on a terminal, plain text elsewhere."""
        if self._rank == 0:
            self._print(file)

    def __str__(self) -> str:
        text = StringIO()
        self._print(text)
        return text.getvalue().rstrip("\n")

    def _print(self, file: TextIO | None) -> None:
        from rich.console import Console

        console = Console(file=file)
        if not console.is_terminal:
            console.width = 200  # a file does not wrap; the table is as wide as its text
        console.print(self)

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        several = self.size > 1
        on_device = any(row.timed_on_device for row in self.rows)
        table = Table(box=None, pad_edge=False, title_justify="left", caption_justify="left")
        table.title = f"{f'ranks: {self.size}, ' if several else ''}recorded {_seconds(_mean(self.elapsed))}"
        table.add_column("mark", no_wrap=True)
        totals = ["total min", "mean", "max"] if several else ["total"]
        for name in ["calls", *totals, *(["on host"] if on_device else []), "per call", "of parent", "own"]:
            table.add_column(name, justify="right", no_wrap=True)
        notes = [_note(row, self.size) for row in self.rows]
        if any(notes):
            table.add_column("", no_wrap=True)
        for row, note in zip(self.rows, notes, strict=True):
            fewest, most = min(row.calls), max(row.calls)
            cells = [str(fewest) if fewest == most else f"{fewest}..{most}"]
            cells += [_seconds(f(row.total)) for f in ((min, _mean, max) if several else (_mean,))]
            cells += [_seconds(_mean(row.host))] if on_device else []
            cells += [_seconds(row.mean), f"{row.share:.1%}", _seconds(_mean(row.own)), *([note] if any(notes) else [])]
            # Text, not str: rich would interpret markup in a label.
            table.add_row(Text("  " * (len(row.path) - 1) + row.label), *cells)
        return table

    def to_json(self, path: str | os.PathLike[str], comm: AnyCommunicator = None) -> None:
        """Write the numbers as JSON; `comm` is the communicator of the report. See `Recording.to_json`."""
        rows = [
            {
                "path": row.path,
                "ranks": row.ranks,
                "calls": row.calls,
                "total_seconds": row.total,
                "host_seconds": row.host,
                "own_seconds": row.own,
                "share_of_parent": row.share,
                "timed_on_device": row.timed_on_device,
                "captured": row.captured,
            }
            for row in self.rows
        ]
        content = {"ranks": self.size, "elapsed_seconds": self.elapsed, "marks": rows}
        write_on_root(path, lambda: json.dumps(content, indent=1) + "\n", comm)


def write_on_root(path: str | os.PathLike[str], text: Callable[[], str], comm: AnyCommunicator) -> None:
    """Write a file on rank 0; raise `InputError` on every rank if that fails. Collective if `comm` is not None."""
    error = None
    if comm is None or comm.rank == 0:
        try:
            Path(path).write_text(text(), encoding="utf-8")
        except OSError as failure:
            error = InputError(f"cannot write the profile to {os.fspath(path)}: {failure.strerror}")
    check(error, comm)


def check(error: InputError | None, comm: AnyCommunicator) -> None:
    """Raise an error on every rank of `comm`, or on this one if `comm` is None."""
    if comm is not None:
        comm.check(error)
    elif error is not None:
        raise error


def make_report(spans: Sequence[Span], begin: int, now: int, comm: AnyCommunicator) -> Report:
    """Sum this rank's spans and compare them with the other ranks'. Collective if `comm` is not None.

    Spans have their device times, and parents precede their children. The recording lasted from `begin` to `now`, in
    nanoseconds of the host's clock; open spans end at `now`.
    """
    local = [now - begin, _sums(spans, now)]
    everyone = [local] if comm is None else comm.allgather_metadata(local)
    elapsed = [nanoseconds for nanoseconds, _ in everyone]
    rows = _rows([sums for _, sums in everyone], sum(elapsed))
    return Report(rows, [1e-9 * duration for duration in elapsed], 0 if comm is None else comm.rank)


def _sums(spans: Sequence[Span], now: int) -> list[list[int | str]]:
    """Sum the spans of one label inside one parent.

    A row holds the number of the parent's row (-1 for none), the label, calls, captured calls, calls timed on the
    device, and the total time and the time on the host, in nanoseconds.
    """
    indices: dict[tuple[int, str], int] = {}
    sums: list[list[int]] = []
    labels: list[str] = []
    index_of: dict[Span, int] = {}
    for span in spans:
        parent = -1 if span.parent is None else index_of.get(span.parent, -1)
        # A recursive function is one row: its inner executions are counted, but their time only once.
        recursive = parent >= 0 and labels[parent] == span.label
        index = index_of[span] = parent if recursive else indices.setdefault((parent, span.label), len(sums))
        if index == len(sums):
            sums.append([0] * 5)
            labels.append(span.label)
        row = sums[index]
        row[0] += 1
        row[1] += span.captured
        if not recursive:
            host = (now if span.end is None else span.end) - span.begin
            timed = span.device_times
            row[2] += timed is not None
            row[3] += host if timed is None else timed[1] - timed[0]
            row[4] += host
    return [[*key, *numbers] for key, numbers in zip(indices, sums, strict=True)]


def _rows(ranks: Sequence[list[list[Any]]], elapsed: float) -> list[Row]:
    """Merge the trees of all ranks, each from `_sums`; return the rows in depth-first order."""
    by_path: dict[tuple[str, ...], dict[int, list[int]]] = {}
    children: dict[tuple[str, ...], list[tuple[str, ...]]] = {(): []}
    for rank, sums in enumerate(ranks):
        paths: list[tuple[str, ...]] = []
        for parent, label, *numbers in sums:
            above = paths[parent] if parent >= 0 else ()
            paths.append((*above, label))
            if paths[-1] not in by_path:
                by_path[paths[-1]], children[paths[-1]] = {}, []
                children[above].append(paths[-1])
            by_path[paths[-1]][rank] = numbers
    sums_over_ranks: dict[tuple[str, ...], float] = {
        path: sum(total for *_, total, _ in ranks.values()) for path, ranks in by_path.items()
    }
    sums_over_ranks[()] = elapsed
    rows = []
    waiting = children[()][::-1]
    while waiting:
        path = waiting.pop()
        waiting.extend(children[path][::-1])
        calls, captured, timed, totals, hosts = zip(*by_path[path].values(), strict=True)
        inside = [
            sum(by_path[child][rank][3] for child in children[path] if rank in by_path[child]) for rank in by_path[path]
        ]
        rows.append(
            Row(
                path,
                ranks=tuple(by_path[path]),
                calls=calls,
                total=tuple(1e-9 * total for total in totals),
                host=tuple(1e-9 * host for host in hosts),
                # Children can outlast their parent, or be timed by another clock.
                own=tuple(1e-9 * max(0, total - part) for total, part in zip(totals, inside, strict=True)),
                share=sums_over_ranks[path] / sums_over_ranks[path[:-1]] if sums_over_ranks[path[:-1]] else 0.0,
                timed_on_device=sum(timed),
                captured=sum(captured),
            )
        )
    return rows


def _note(row: Row, size: int) -> str:
    notes = []
    if len(row.ranks) < size:
        notes.append(f"{len(row.ranks)} of {size} ranks")
    if row.captured:
        notes.append(f"{row.captured} in a stream capture, host time")
    return "; ".join(notes)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _seconds(value: float) -> str:
    if value == 0:
        return "0"
    factor, unit = (1, "s") if value >= 1 else (1e3, "ms") if value >= 1e-3 else (1e6, "us")
    return f"{value * factor:.4g} {unit}"
