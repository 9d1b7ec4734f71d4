"""The report of a recording: a tree of labels with their times, for one rank or compared over several."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from collops.errors import InputError
from collops.profile.marks import Span

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Report", "Row"]


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
        Number of passages.
    total : tuple of float
        Time of all passages: measured by device events where there are any, else by the host's clock.
    host : tuple of float
        Time of all passages on the host; less than `total` if work was only enqueued.
    own : tuple of float
        `total` without the time of the labels inside.
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
        """Mean time of a passage over all ranks."""
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
        """Print the report on rank 0; styled on a terminal, plain text elsewhere.

        Parameters
        ----------
        file : file, optional
            By default standard output.
        """
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
            # Text, not str: a label may contain what rich would read as markup.
            table.add_row(Text("  " * (len(row.path) - 1) + row.label), *cells)
        return table

    def to_json(self, path: str | os.PathLike[str], comm: Any = None) -> None:
        """Write the numbers as JSON on rank 0, replacing the file. Collective if a communicator is given.

        Parameters
        ----------
        path : path-like
            The file.
        comm : Communicator, optional
            The communicator that the report was made with.

        Raises
        ------
        InputError
            On every rank, if the file cannot be written.
        """
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


def write_on_root(path: str | os.PathLike[str], text: Callable[[], str], comm: Any) -> None:
    """Write a file on rank 0. Collective if `comm` is not None.

    Raises
    ------
    InputError
        On every rank, if the file cannot be written.
    """
    error = None
    if comm is None or comm.rank == 0:
        try:
            Path(path).write_text(text(), encoding="utf-8")
        except OSError as failure:
            error = InputError(f"cannot write the profile to {os.fspath(path)}: {failure.strerror}")
    if comm is not None:
        comm.check(error)
    elif error is not None:
        raise error


class _Node:
    """All passages through one label inside one parent; times in nanoseconds."""

    __slots__ = ("calls", "captured", "children", "host", "label", "timed_on_device", "total")

    def __init__(self, label: str) -> None:
        self.label = label
        self.calls = 0
        self.total = 0.0
        self.host = 0.0
        self.timed_on_device = 0
        self.captured = 0
        self.children: dict[str, _Node] = {}

    @property
    def own(self) -> float:
        """Time outside all children; zero if they outlast their parent or were timed by another clock."""
        return max(0.0, self.total - sum(child.total for child in self.children.values()))


def make_report(spans: Sequence[Span], begin: int, now: int, comm: Any) -> Report:
    """Add up this rank's spans and compare them with the other ranks'. Collective if `comm` is not None.

    Parameters
    ----------
    spans : sequence of Span
        The spans of this rank with their device times, parents before their children.
    begin, now : int
        Begin and end of the recording, in nanoseconds of the host's clock; spans still open end at `now`.
    comm : Communicator or None
        The ranks to compare.
    """
    tree = _tree(spans, now)
    numbers = [
        [depth, node.label, node.calls, node.total, node.host, node.own, node.timed_on_device, node.captured]
        for depth, node in _depth_first(tree)
    ]
    mine = [now - begin, numbers]
    everyone = [mine] if comm is None else comm.allgather_metadata(mine)
    sums: dict[tuple[str, ...], float] = {(): sum(nanoseconds for nanoseconds, _ in everyone)}
    rows = []
    for path, by_rank in _merged([numbers for _, numbers in everyone]):
        calls, total, host, own, timed_on_device, captured = zip(*by_rank.values(), strict=True)
        sums[path] = sum(total)
        parent = sums[path[:-1]]
        rows.append(
            Row(
                path=path,
                ranks=tuple(by_rank),
                calls=calls,
                total=tuple(1e-9 * value for value in total),
                host=tuple(1e-9 * value for value in host),
                own=tuple(1e-9 * value for value in own),
                share=sums[path] / parent if parent else 0.0,
                timed_on_device=sum(timed_on_device),
                captured=sum(captured),
            )
        )
    return Report(rows, [1e-9 * nanoseconds for nanoseconds, _ in everyone], 0 if comm is None else comm.rank)


def _tree(spans: Sequence[Span], now: int) -> _Node:
    root = _Node("")
    nodes: dict[Span, _Node] = {}
    for span in spans:
        parent = root if span.parent is None else nodes.get(span.parent, root)
        # A function that calls itself stays one row: its inner passages are counted, but their time only once.
        recursive = parent is not root and parent.label == span.label
        node = parent if recursive else parent.children.setdefault(span.label, _Node(span.label))
        nodes[span] = node
        node.calls += 1
        node.captured += span.captured
        if recursive:
            continue
        host = (now if span.end is None else span.end) - span.begin
        node.host += host
        if span.device_times is None:
            node.total += host
        else:
            node.timed_on_device += 1
            node.total += span.device_times[1] - span.device_times[0]
    return root


def _depth_first(root: _Node) -> Iterator[tuple[int, _Node]]:
    waiting = [(0, child) for child in reversed(root.children.values())]
    while waiting:
        depth, node = waiting.pop()
        yield depth, node
        waiting.extend((depth + 1, child) for child in reversed(node.children.values()))


def _merged(trees: Sequence[list[list[Any]]]) -> list[tuple[tuple[str, ...], dict[int, list[Any]]]]:
    """Return the paths of all ranks' trees in depth-first order, each with the numbers of the ranks that have it."""
    found: dict[tuple[str, ...], dict[int, list[Any]]] = {}
    children: dict[tuple[str, ...], list[tuple[str, ...]]] = {(): []}
    for rank, rows in enumerate(trees):
        path: tuple[str, ...] = ()
        for depth, label, *numbers in rows:
            parent = path[:depth]
            path = (*parent, label)
            if path not in found:
                found[path] = {}
                children[path] = []
                children[parent].append(path)
            found[path][rank] = numbers
    merged = []
    waiting = children[()][::-1]
    while waiting:
        path = waiting.pop()
        merged.append((path, found[path]))
        waiting.extend(children[path][::-1])
    return merged


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
