"""Add spans up into a tree of labels, and put the trees of several ranks together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from collops.profile.marks import Span

__all__ = ["Node", "build", "flatten", "merge"]


class Node:
    """All passages through one label inside one parent.

    Attributes
    ----------
    label : str
        The mark's label.
    calls : int
        Number of passages.
    total : float
        Their time in nanoseconds: of the device where events tell it, else of the host.
    host : float
        Their time on the host.
    timed_on_device, captured : int
        Passages with a device time, and passages without one because their stream was being captured.
    children : dict
        The nodes inside, by label, in the order of first entry.
    """

    __slots__ = ("calls", "captured", "children", "host", "label", "timed_on_device", "total")

    def __init__(self, label: str) -> None:
        self.label = label
        self.calls = 0
        self.total = 0.0
        self.host = 0.0
        self.timed_on_device = 0
        self.captured = 0
        self.children: dict[str, Node] = {}

    @property
    def own(self) -> float:
        """Time that no child accounts for; zero where children outlast their parent or ran on another clock."""
        return max(0.0, self.total - sum(child.total for child in self.children.values()))


def build(spans: Sequence[Span], now: int) -> Node:
    """Add up `spans`.

    Parameters
    ----------
    spans : sequence of Span
        Parents before their children.
    now : int
        Where spans that are still open are taken to end, in nanoseconds of the host's clock.

    Returns
    -------
    Node
        A root without times of its own.
    """
    root = Node("")
    nodes: dict[Span, Node] = {}
    for span in spans:
        parent = root if span.parent is None else nodes.get(span.parent, root)
        # A function that calls itself stays one line: its inner passages are counted, their time is there already.
        recursive = parent is not root and parent.label == span.label
        node = parent if recursive else parent.children.setdefault(span.label, Node(span.label))
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


def flatten(root: Node) -> list[list[Any]]:
    """Write a tree as JSON-able rows, in depth-first order: depth, label, and the numbers of `Node`."""
    return [
        [depth, node.label, node.calls, node.total, node.host, node.own, node.timed_on_device, node.captured]
        for depth, node in _walk(root)
    ]


def _walk(root: Node) -> Iterator[tuple[int, Node]]:
    waiting = [(0, child) for child in reversed(root.children.values())]
    while waiting:
        depth, node = waiting.pop()
        yield depth, node
        waiting.extend((depth + 1, child) for child in reversed(node.children.values()))


def merge(trees: Sequence[list[list[Any]]]) -> list[tuple[tuple[str, ...], dict[int, list[Any]]]]:
    """Put the rows of several ranks' trees together.

    Parameters
    ----------
    trees : sequence of lists
        What `flatten` made on every rank.

    Returns
    -------
    list of tuple
        The path of every label that any rank has, in depth-first order, and the numbers (from calls on) of the ranks
        that have it.
    """
    found: dict[tuple[str, ...], dict[int, list[Any]]] = {}
    children: dict[tuple[str, ...], list[tuple[str, ...]]] = {(): []}
    for rank, rows in enumerate(trees):
        path: tuple[str, ...] = ()
        for depth, label, *numbers in rows:
            above = path[:depth]
            path = (*above, label)
            if path not in found:
                found[path] = {}
                children[path] = []
                children[above].append(path)
            found[path][rank] = numbers
    merged = []
    waiting = children[()][::-1]
    while waiting:
        path = waiting.pop()
        merged.append((path, found[path]))
        waiting.extend(children[path][::-1])
    return merged
