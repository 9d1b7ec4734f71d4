"""The report of a recording: a table with the tree of labels, on one rank or compared over many."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, TextIO

from collops.profile.communicator import Comm, write_on_root
from collops.profile.marks import Span
from collops.profile.tree import build, flatten, merge

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Report", "Row", "make_report"]


@dataclass(frozen=True)
class Row:
    """One label of the tree, with one entry per rank that has it. Times are in seconds.

    Attributes
    ----------
    path : tuple of str
        The labels from the outermost mark to this one.
    ranks : tuple of int
        The ranks that passed here.
    calls : tuple of int
        Passages.
    total : tuple of float
        Time of all passages: of the device where events tell it, else of the host.
    host : tuple of float
        Time of all passages on the host; less than `total` where work was only enqueued.
    own : tuple of float
        `total` less what the labels inside account for.
    share : float
        Part of the parent's time, summed over ranks; of the whole recording for an outermost label.
    timed_on_device : int
        Passages that the device timed.
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
        """Time of one passage, over all ranks."""
        return sum(self.total) / sum(self.calls)


class Report:
    """What a recording tells, as numbers and as a table.

    Attributes
    ----------
    rows : list of Row
        The tree in depth-first order.
    size : int
        Number of ranks.
    elapsed : tuple of float
        Seconds that the recording lasted on each rank.

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
        """Return the row of the label reached by `path`, outermost first.

        Raises
        ------
        KeyError
            If no rank passed there.
        """
        for row in self.rows:
            if row.path == path:
                return row
        raise KeyError(path)

    def show(self, file: TextIO | None = None) -> None:
        """Print the report on rank 0; styled on a terminal, plain text elsewhere.

        Parameters
        ----------
        file : file, optional
            Where to; standard output by default.
        """
        if self._rank == 0:
            _print(self, file)

    def __str__(self) -> str:
        text = StringIO()
        _print(self, text)
        return text.getvalue().rstrip("\n")

    def __rich__(self) -> Table:
        return _table(self)

    def to_json(self, path: str | os.PathLike[str], comm: Comm | None = None) -> None:
        """Write the numbers as JSON. Collective if a communicator is given; rank 0 writes.

        Parameters
        ----------
        path : path-like
            The file, which is replaced.
        comm : Communicator, optional
            The one that the report was made with.

        Raises
        ------
        InputError
            If the file cannot be written; on every rank.
        """
        write_on_root(path, self._json, comm)

    def _json(self) -> str:
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
        return json.dumps({"ranks": self.size, "elapsed_seconds": self.elapsed, "marks": rows}, indent=1) + "\n"


def make_report(spans: Sequence[Span], begin: int, now: int, comm: Comm | None) -> Report:
    """Build this rank's tree and compare it with the others'. Collective if a communicator is given.

    Parameters
    ----------
    spans : sequence of Span
        What this rank recorded, device times resolved.
    begin, now : int
        From when to when, in nanoseconds of the host's clock.
    comm : Communicator or None
        The ranks to compare.
    """
    mine = [now - begin, flatten(build(spans, now))]
    everyone = [mine] if comm is None else comm.allgather_metadata(mine)
    lasted = sum(nanoseconds for nanoseconds, _ in everyone)
    sums: dict[tuple[str, ...], float] = {(): lasted}
    rows = []
    for path, by_rank in merge([tree for _, tree in everyone]):
        calls, total, host, own, timed_on_device, captured = zip(*by_rank.values(), strict=True)
        sums[path] = sum(total)
        above = sums[path[:-1]]
        rows.append(
            Row(
                path=path,
                ranks=tuple(by_rank),
                calls=calls,
                total=tuple(1e-9 * value for value in total),
                host=tuple(1e-9 * value for value in host),
                own=tuple(1e-9 * value for value in own),
                share=sums[path] / above if above else 0.0,
                timed_on_device=sum(timed_on_device),
                captured=sum(captured),
            )
        )
    return Report(rows, [1e-9 * nanoseconds for nanoseconds, _ in everyone], 0 if comm is None else comm.rank)


def _print(report: Report, file: TextIO | None) -> None:
    from rich.console import Console

    console = Console(file=file)
    if not console.is_terminal:
        console.width = 200  # a file does not wrap; the table is as wide as its text
    console.print(_table(report))


def _table(report: Report) -> Table:
    from rich.table import Table
    from rich.text import Text

    many = report.size > 1
    on_device = any(row.timed_on_device for row in report.rows)
    table = Table(box=None, pad_edge=False, title_justify="left", caption_justify="left")
    table.title = f"{'ranks: ' + str(report.size) + ', ' if many else ''}recorded {_seconds(_mean(report.elapsed))}"
    table.add_column("mark", no_wrap=True)
    totals = ["total min", "mean", "max"] if many else ["total"]
    for name in ["calls", *totals, *(["on host"] if on_device else []), "per call", "of parent", "own"]:
        table.add_column(name, justify="right", no_wrap=True)
    notes = [_note(row, report.size) for row in report.rows]
    if any(notes):
        table.add_column("", no_wrap=True)
    for row, note in zip(report.rows, notes, strict=True):
        few, most = min(row.calls), max(row.calls)
        cells = [str(few) if few == most else f"{few}..{most}"]
        cells += [_seconds(f(row.total)) for f in ((min, _mean, max) if many else (_mean,))]
        cells += [_seconds(_mean(row.host))] if on_device else []
        cells += [
            _seconds(row.mean),
            f"{row.share:.1%}",
            _seconds(_mean(row.own)),
            *([note] if any(notes) else []),
        ]
        # Text, not str: a label may contain what rich would read as markup.
        table.add_row(Text("  " * (len(row.path) - 1) + row.label), *cells)
    return table


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
