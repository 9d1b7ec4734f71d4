"""Points of an array: a slice where that is possible, else an index array.

Repeated points are found once, when an exchange is prepared, since only they need care when values are combined.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")


class Segments(NamedTuple):
    """An index sorted by point, equal points staying in their order."""

    points: np.ndarray  # the different points, ascending
    starts: np.ndarray  # where the entries of each begin in `order`; one more than there are points
    order: np.ndarray  # positions in the index


class Index:
    """Points of an array along its first axis, in a fixed order, possibly with repetitions.

    `slice` selects the same points if their stride is constant and positive; otherwise it is ``None``.
    """

    def __init__(self, points: Sequence[int] | np.ndarray) -> None:
        self.points = np.ascontiguousarray(points, np.int64).reshape(-1)
        self.points.flags.writeable = False
        self.size = len(self.points)
        self.slice = _slice(self.points)
        self._cache: dict[Hashable, Any] = {}

    @classmethod
    def run(cls, size: int) -> Index:
        """Return the points ``0 .. size - 1``."""
        return cls(np.arange(size))

    @property
    def contiguous(self) -> bool:
        """Whether the points are consecutive."""
        return self.slice is not None and self.slice.step == 1

    @cached_property
    def unique(self) -> bool:
        """Whether no point is repeated."""
        return self.slice is not None or len(self.segments.points) == self.size

    @cached_property
    def segments(self) -> Segments:
        """The index sorted by point."""
        order = np.argsort(self.points, kind="stable")
        points, starts = np.unique(self.points[order], return_index=True)
        return Segments(points, np.append(starts, self.size).astype(np.int64), order)

    @cached_property
    def rounds(self) -> list[np.ndarray]:
        """Positions grouped by the number of earlier occurrences of their point, so that groups have unique points."""
        _, starts, order = self.segments
        turn = np.empty(self.size, np.int64)
        turn[order] = np.arange(self.size) - np.repeat(starts[:-1], np.diff(starts))
        sorted_by_turn = np.argsort(turn, kind="stable")
        return np.split(sorted_by_turn, np.cumsum(np.bincount(turn))[:-1]) if self.size else []

    def last_writes(self, source: Index) -> tuple[Index, Index]:
        """Return source and this target of a move without values that later ones of the same point overwrite."""
        if self.unique:
            return source, self
        points, starts, order = self.segments
        return Index(source.points[order[starts[1:] - 1]]), Index(points)

    def ascending(self, source: Index) -> tuple[Index, Index]:
        """Return source and this target of a move with unique points, sorted by target."""
        if self.slice is not None or (self.points[1:] > self.points[:-1]).all():
            return source, self
        # Equal slices have the same key: moves with other operations and dtypes use the same pairs.
        key = source if source.slice is None else (source.slice.start, source.slice.step)
        return self.cached(key, lambda: (Index(source.points[self.segments.order]), Index(self.segments.points)))

    def piece(self, start: int, stop: int) -> Index:
        """Return the points at the positions ``start .. stop - 1``."""
        return self if (start, stop) == (0, self.size) else Index(self.points[start:stop])

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return ``make()``, called once for each `key`."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def __repr__(self) -> str:
        return f"<Index of {self.size} points, {self.slice or 'irregular'}>"


def _slice(points: np.ndarray) -> slice | None:
    if len(points) < 2:
        first = int(points[0]) if len(points) else 0
        return slice(first, first + len(points), 1)
    step = int(points[1] - points[0])
    regular = step > 0 and (np.diff(points) == step).all()
    return slice(int(points[0]), int(points[-1]) + 1, step) if regular else None
