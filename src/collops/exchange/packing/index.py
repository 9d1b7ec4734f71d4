"""Points of an array: a nested arithmetic progression where possible, else an index array.

Runs, strided runs and boxes need no index array and are copied as views. Repeated points are found once, when an
exchange is prepared, since only they need care when values are combined.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Affine", "Index", "Segments"]

_MOST_AXES = 3


class Affine(NamedTuple):
    """A nested arithmetic progression: ``start + i * strides[0] + j * strides[1] + ...``, the last axis fastest.

    Attributes
    ----------
    start : int
    extents, strides : tuple of int
        One of each per axis; one axis with stride 1 is a contiguous run.
    """

    start: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def contiguous(self) -> bool:
        """Whether the points follow each other."""
        return len(self.extents) == 1 and (self.strides[0] == 1 or self.extents[0] <= 1)


class Segments(NamedTuple):
    """An index sorted by point, equal points staying in their order.

    Attributes
    ----------
    points : numpy.ndarray
        The different points, ascending.
    starts : numpy.ndarray
        Where the entries of each begin in `order`; one more than there are points.
    order : numpy.ndarray
        Positions in the index.
    """

    points: np.ndarray
    starts: np.ndarray
    order: np.ndarray


class Index:
    """Some points of an array along its first axis, in a fixed order, possibly with repetitions.

    Parameters
    ----------
    points : array of int, 1-D
        Non-negative.

    Attributes
    ----------
    points : numpy.ndarray
        64-bit, as the host addresses memory.
    size : int
        Number of points.
    affine : Affine or None
        The progression, if it is one.
    """

    def __init__(self, points: Any) -> None:
        self.points = np.ascontiguousarray(points, np.int64).reshape(-1)
        self.points.flags.writeable = False
        self.size = len(self.points)
        self.affine = _affine(self.points)
        self._on_engine: dict[Any, Any] = {}

    @classmethod
    def run(cls, size: int) -> Index:
        """Return the points ``0 .. size - 1``."""
        return cls(np.arange(size))

    @cached_property
    def unique(self) -> bool:
        """Whether no point is repeated."""
        if self.affine is not None and len(self.affine.extents) == 1:
            return self.affine.strides[0] != 0 or self.size < 2
        return len(self.segments.points) == self.size

    @cached_property
    def segments(self) -> Segments:
        """The index sorted by point."""
        order = np.argsort(self.points, kind="stable")
        points, starts = np.unique(self.points[order], return_index=True)
        return Segments(points, np.append(starts, self.size).astype(np.int64), order)

    @cached_property
    def rounds(self) -> list[np.ndarray]:
        """Positions grouped by how often their point occurs before, so that no group repeats a point."""
        _, starts, order = self.segments
        turn = np.empty(self.size, np.int64)
        turn[order] = np.arange(self.size) - np.repeat(starts[:-1], np.diff(starts))
        sorted_by_turn = np.argsort(turn, kind="stable")
        return np.split(sorted_by_turn, np.cumsum(np.bincount(turn))[:-1]) if self.size else []

    def last(self) -> tuple[Index, Index]:
        """Return the last position of each point, and the points: the result of one write after the other."""
        points, starts, order = self.segments
        return Index(order[starts[1:] - 1]), Index(points)

    def ascending(self, source: Index) -> tuple[Index, Index]:
        """Return source and this target of a move, ordered by target unless it is a progression."""
        if self.affine is not None or (self.points[1:] > self.points[:-1]).all():
            return source, self

        def ordered() -> tuple[Index, Index]:
            points, _, order = self.segments
            return Index(source.points[order]), Index(points)

        # Equal patterns are one key: moves by other operations and of other dtypes use the same pairs.
        return self.kept(source if source.affine is None else source.affine, ordered)

    def piece(self, start: int, stop: int) -> Index:
        """Return the points at the positions ``start .. stop - 1``."""
        return self if (start, stop) == (0, self.size) else Index(self.points[start:stop])

    def kept(self, key: Any, make: Any) -> Any:
        """Return ``make()``, called once for each `key` (an engine, or the other end of a move)."""
        try:
            return self._on_engine[key]
        except KeyError:
            return self._on_engine.setdefault(key, make())

    def __repr__(self) -> str:
        return f"<Index of {self.size} points, {self.affine or 'irregular'}>"


def _affine(points: np.ndarray) -> Affine | None:
    """Recognise a nested arithmetic progression of at most three axes."""
    if not len(points):
        return Affine(0, (0,), (1,))
    start, extents, strides = int(points[0]), [], []
    while len(points) > 1:
        if len(extents) == _MOST_AXES:
            return None
        steps = np.diff(points)
        other = np.flatnonzero(steps != steps[0])
        run = int(other[0]) + 1 if len(other) else len(points)
        if len(points) % run or (run == 1 and len(other)):
            return None
        rows = points.reshape(-1, run)
        if len(other) and (rows != rows[:, :1] + steps[0] * np.arange(run)).any():
            return None
        extents.insert(0, run)
        strides.insert(0, int(steps[0]))
        points = rows[:, 0]
    return Affine(start, tuple(extents) or (1,), tuple(strides) or (1,))
