"""Which ranks' partial results a reduction over a layout combines, and whose copies count."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from collops.array.layout_arguments import numbered
from collops.array.layout_blocks import Blocks
from collops.errors import LayoutError

__all__ = ["Groups"]


class Groups(Blocks):
    """The groups of ranks of a :class:`collops.array.Layout`, between which reductions send messages."""

    __slots__ = ()

    def reduction_groups(self, axes: Iterable[int] | None = None) -> tuple[int, ...] | None:
        """Return which ranks' partial results must be combined.

        Ranks of one group hold every element once between them, so that each takes part with all that it holds.

        Parameters
        ----------
        axes : iterable of int, optional
            The axes of the array that are reduced; all by default.

        Returns
        -------
        tuple of int or None
            One group number per rank, counted from 0 in the order of first appearance; ``None`` where no message is
            needed.
        """
        chosen = self.split_axes if axes is None else tuple(a for a in self.split_axes if a in set(axes))
        try:
            return self._groups[chosen]
        except KeyError:
            pass
        reduced = {self.axes[a] for a in chosen}
        groups = None
        if reduced:
            kept = [axis for axis in range(len(self.process_grid)) if axis not in reduced]
            places = [self.coordinates(rank) for rank in range(self.ranks)]
            mask = self.mask or (0,) * self.ranks
            groups = numbered((mask[rank], *(places[rank][axis] for axis in kept)) for rank in range(self.ranks))
        self._groups[chosen] = groups
        return groups

    def reduction_count(self, rank: int, axes: Iterable[int] | None = None) -> int:
        """Return how many elements a reduction over `axes` combines into each result on `rank`."""
        self.coordinates(rank)
        reduced = range(self.ndim) if axes is None else tuple(axes)
        groups = self.reduction_groups(reduced)
        members = [rank] if groups is None else [r for r in range(self.ranks) if groups[r] == groups[rank]]
        return sum(math.prod(self.block(member).shape[a] for a in reduced) for member in members)

    def representative(self, rank: int) -> bool:
        """Return whether the part of `rank` is the one that counts among copies: the lowest rank's of each group."""
        self.coordinates(rank)
        if self._representatives is None:
            mask = self.mask or (0,) * self.ranks
            first: dict[Any, int] = {}
            for other in range(self.ranks):
                first.setdefault((mask[other], self._block_number(other)), other)
            self._representatives = frozenset(first.values())
        return rank in self._representatives

    def _check_mask(self) -> None:
        """Refuse masks that would let a reduction within a group see one element twice or never."""
        copies = self.reduction_groups()
        if self.mask is None or copies is None:
            return
        held: dict[int, set[tuple[int, ...]]] = {}
        held_by_copy: dict[tuple[int, int], set[tuple[int, ...]]] = {}
        for rank in range(self.ranks):
            number = self._block_number(rank)
            held.setdefault(self.mask[rank], set()).add(number)
            held_by_copy.setdefault((self.mask[rank], copies[rank]), set()).add(number)
        if any(blocks != held[group] for (group, _), blocks in held_by_copy.items()):
            raise LayoutError(
                f"the mask {self.mask} cuts through the copies of a partially replicated layout; "
                "give all or none of a copy's ranks to each group"
            )
