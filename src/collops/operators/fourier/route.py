"""The layouts that an array passes through during several transforms. Pure arithmetic.

A transform needs its axis whole. If an axis is split, the array is redistributed first; the choice of the layout
determines what is sent. One search finds slabs, pencils, and copies where nothing else is possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from operator import itemgetter
from typing import NamedTuple

from collops.array import Layout
from collops.errors import LayoutError

_MESSAGE = 1 << 13
"""How many elements travel in the time that a message takes to begin."""

_RANKS_SEEN = 64
"""Ranks whose parts are counted; of more, evenly chosen ones."""


class Stage(NamedTuple):
    """The layout of an array before `axes` are transformed, in this order."""

    layout: Layout
    axes: tuple[int, ...]


def find_route(
    domain: Layout, extents: Mapping[int, int], *, first: int | None = None, target: Layout | None = None
) -> tuple[list[Stage], Layout]:
    """Return the stages of a transform, and the layout that the result is left in or brought to.

    The way of least cost is taken. The cost counts the elements that the busiest rank receives and transforms, and a
    constant for each message. `extents` are the axes to transform, in the order of those that are whole, and their
    extents afterwards; the axis `first` is transformed before all others. The result has the layout `target`, by
    default that in which the last transform leaves it; LayoutError is raised for another shape or number of ranks.
    """
    shape = alike(domain, extents).shape
    if target is not None and (target.shape != shape or target.ranks != domain.ranks):
        raise LayoutError(f"a result of shape {shape} on {domain.ranks} ranks cannot have the layout {target}")

    def transformable(layout: Layout, remaining: tuple[int, ...]) -> tuple[int, ...]:
        whole = tuple(axis for axis in remaining if axis not in layout.split_axes)
        if first in remaining:
            # Nothing goes before the first; with it, all others that are whole may follow.
            return (first, *(a for a in whole if a != first)) if first in whole else ()
        return whole

    @cache
    def best(layout: Layout, remaining: tuple[int, ...]) -> tuple[float, list[Stage], Layout]:
        """Return cost, stages and final layout of the cheapest way to transform the remaining axes."""
        now = transformable(layout, remaining)
        after, work = layout, 0.0
        for axis in now:
            larger = max(after.shape[axis], extents[axis])
            after = alike(after, {axis: extents[axis]})
            work += math.prod(map(max, after.sizes)) * larger / max(1, after.shape[axis])
        stages = [Stage(layout, now)] if now else []
        rest = tuple(axis for axis in remaining if axis not in now)
        if not rest:
            # Copies were needed on the way only: by default every rank keeps its own part, without a message.
            final = target or (alike(domain, extents) if after.is_replicated else after)
            return work + _cost_of_move(after, final), stages, final
        ways = []
        for candidate in _candidates(after):  # copies of everything on every rank are always among them
            if transformable(candidate, rest):
                cost, further, final = best(candidate, rest)
                ways.append((cost + work + _cost_of_move(after, candidate), stages + further, final))
        return min(ways, key=itemgetter(0))

    return best(domain, tuple(extents))[1:]


def alike(layout: Layout, extents: Mapping[int, int]) -> Layout:
    """Return `layout` with other extents along some axes, split likewise; equal extents keep their blocks."""
    shape = [extents.get(axis, n) for axis, n in enumerate(layout.shape)]
    sizes = [blocks if sum(blocks) == n else None for blocks, n in zip(layout.sizes, shape, strict=True)]
    return Layout(shape, layout.ranks, layout.process_grid, layout.axes, sizes, layout.mask)


def _candidates(layout: Layout) -> Iterator[Layout]:
    """Yield the layouts to which an array may be brought.

    These are all ways to split axes over the same process grid, or fewer of them, with copies, and to split one axis
    over all ranks.
    """
    axes = range(layout.ndim)
    grid_axes = [layout.axes[a] for a in layout.split_axes]
    seen = set()
    for places in product((*axes, None), repeat=len(grid_axes)):
        taken = [place for place in places if place is not None]
        if len(set(taken)) != len(taken):
            continue
        split_by = dict(zip(places, grid_axes, strict=True))
        chosen = [split_by.get(a) for a in axes]
        sizes = [layout.sizes[a] if chosen[a] == layout.axes[a] else None for a in axes]
        try:
            candidate = Layout(layout.shape, layout.ranks, layout.process_grid, chosen, sizes, layout.mask)
        except LayoutError:  # a mask that would cut through copies
            continue
        if candidate not in seen:
            seen.add(candidate)
            yield candidate
    if len(grid_axes) > 1 and math.prod(len(layout.sizes[a]) for a in layout.split_axes) == layout.ranks:
        for axis in axes:
            yield Layout.split(layout.shape, layout.ranks, axis, mask=layout.mask)


def _cost_of_move(source: Layout, target: Layout) -> float:
    """Return what the busiest rank receives, in elements, and the message itself; nothing where nothing is sent."""
    if source is target:
        return 0.0
    ranks = range(0, source.ranks, -(-source.ranks // _RANKS_SEEN))
    received = max(_received(source, target, rank) for rank in ranks)
    return _MESSAGE + received if received else 0.0


def _received(source: Layout, target: Layout, rank: int) -> int:
    have, need = source.block(rank), target.block(rank)
    kept = math.prod(
        max(0, min(h.stop, n.stop) - max(h.start, n.start)) for h, n in zip(have.slices, need.slices, strict=True)
    )
    return math.prod(need.shape) - kept
