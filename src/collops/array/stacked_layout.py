"""Stacked layouts: the layouts of the parts of a stacked array, which may be nested."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from collops.array.layout import Layout
from collops.errors import LayoutError

__all__ = ["StackedLayout"]

_interned: weakref.WeakValueDictionary[tuple[Any, ...], StackedLayout] = weakref.WeakValueDictionary()
_interning = threading.Lock()


class StackedLayout:
    """The layouts of the parts of a stacked array; immutable and interned like :class:`Layout`.

    Parameters
    ----------
    layouts : sequence of Layout or StackedLayout
        At least one; all on the same number of ranks.

    Attributes
    ----------
    layouts : tuple of (Layout or StackedLayout)
    ranks : int
    size : int
        Number of elements of all parts.
    leaves : tuple of Layout
        The layouts of all parts in order, without nesting.

    Raises
    ------
    LayoutError
        If there is no part, or the parts are for different numbers of ranks.

    Examples
    --------
    >>> import collops
    >>> both = collops.StackedArray([collops.ones(3), collops.ones((2, 2))])
    >>> both.layout.size, len(both.layout)
    (7, 2)
    """

    __slots__ = ("__weakref__", "layouts", "leaves", "ranks", "size")

    layouts: tuple[Layout | StackedLayout, ...]
    leaves: tuple[Layout, ...]
    ranks: int
    size: int

    def __new__(cls, layouts: Sequence[Layout | StackedLayout]) -> StackedLayout:
        """Return the interned stacked layout of these parts."""
        parts = tuple(layouts)
        if not parts:
            raise LayoutError("a stacked layout needs at least one part")
        if any(not isinstance(part, Layout | StackedLayout) for part in parts):
            raise LayoutError("the parts of a stacked layout must be layouts")
        if len({part.ranks for part in parts}) != 1:
            counts = ", ".join(str(part.ranks) for part in parts)
            raise LayoutError(f"all parts must be on the same ranks, but they are on {counts}")
        with _interning:
            stacked = _interned.get(parts)
            if stacked is None:
                stacked = object.__new__(cls)
                stacked.layouts = parts
                stacked.ranks = parts[0].ranks
                stacked.size = sum(part.size for part in parts)
                stacked.leaves = tuple(
                    leaf for part in parts for leaf in ((part,) if isinstance(part, Layout) else part.leaves)
                )
                _interned[parts] = stacked
        return stacked

    @property
    def is_replicated(self) -> bool:
        """Whether every rank holds all of every part."""
        return all(leaf.is_replicated for leaf in self.leaves)

    def local_size(self, rank: int) -> int:
        """Return the number of elements of all parts that `rank` holds."""
        return sum(leaf.local_size(rank) for leaf in self.leaves)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, name):
            raise AttributeError(f"layouts are immutable: cannot set {name!r}; make a new layout")
        object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return StackedLayout, (self.layouts,)

    def __copy__(self) -> StackedLayout:
        return self

    def __len__(self) -> int:
        return len(self.layouts)

    def __iter__(self) -> Iterator[Layout | StackedLayout]:
        return iter(self.layouts)

    def __getitem__(self, index: int) -> Layout | StackedLayout:
        return self.layouts[index]

    def __str__(self) -> str:
        return "[" + "; ".join(str(part) for part in self.layouts) + "]"

    def __repr__(self) -> str:
        return f"<StackedLayout {self}>"
