"""The layouts that an array passes through during several transforms. Pure arithmetic.

A transform needs an axis that is not split. A split array is redistributed first; the layout chosen determines the
messages. One search covers slabs, pencils, and replication as the last resort.
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
"""Latency of a message, expressed as a number of elements."""

_RANKS_SEEN = 64
"""Maximum number of ranks whose parts are counted; of more ranks, an even sample is used."""


class Stage(NamedTuple):
    """The layout of an array before `axes` are transformed, in this order."""

    layout: Layout
    axes: tuple[int, ...]


def find_route(
    domain: Layout, extents: Mapping[int, int], *, first: int | None = None, target: Layout | None = None
) -> tuple[list[Stage], Layout]:
    """Return the stages of a transform with the lowest cost, and the layout of the result.

    The cost is the number of elements that the busiest rank receives and transforms, plus a constant for each message.
    `extents` maps the axes to transform, in preferred order, to their extents afterwards; the axis `first` is
    transformed before all others. The result has the layout `target`, by default the layout of the last transform;
    LayoutError is raised if `target` has another shape or number of ranks.
    """
    shape = alike(domain, extents).shape
    if target is not None and (target.shape != shape or target.ranks != domain.ranks):
        raise LayoutError(f"a result of shape {shape} on {domain.ranks} ranks cannot have the layout {target}")

    def transformable(layout: Layout, remaining: tuple[int, ...]) -> tuple[int, ...]:
        unsplit = tuple(axis for axis in remaining if axis not in layout.split_axes)
        if first in remaining:
            # The first axis alone comes first; all other unsplit axes may follow in the same stage.
            return (first, *(a for a in unsplit if a != first)) if first in unsplit else ()
        return unsplit

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
        later = tuple(axis for axis in remaining if axis not in now)
        if not later:
            # Replicas were needed for the transform only: by default every rank keeps its part, without a message.
            final = target or (alike(domain, extents) if after.is_replicated else after)
            return work + _cost_of_move(after, final), stages, final
        ways = []
        for candidate in _candidates(after):  # replication on every rank is always a candidate
            if transformable(candidate, later):
                cost, further, final = best(candidate, later)
                ways.append((cost + work + _cost_of_move(after, candidate), stages + further, final))
        return min(ways, key=itemgetter(0))

    return best(domain, tuple(extents))[1:]


def alike(layout: Layout, extents: Mapping[int, int]) -> Layout:
    """Return `layout` with other extents along some axes, split likewise; equal extents keep their blocks."""
    shape = [extents.get(axis, n) for axis, n in enumerate(layout.shape)]
    sizes = [blocks if sum(blocks) == n else None for blocks, n in zip(layout.sizes, shape, strict=True)]
    return Layout(shape, layout.ranks, layout.process_grid, layout.axes, sizes, layout.mask)


def _candidates(layout: Layout) -> Iterator[Layout]:
    """Yield the candidate layouts for a redistribution.

    These split axes over the same process grid, or over some of its axes with replicas, or split one axis over all
    ranks.
    """
    axes = range(layout.ndim)
    grid_axes = [layout.axes[a] for a in layout.split_axes]
    seen = set()
    for assignment in product((*axes, None), repeat=len(grid_axes)):
        assigned = [axis for axis in assignment if axis is not None]
        if len(set(assigned)) != len(assigned):
            continue
        split_by = dict(zip(assignment, grid_axes, strict=True))
        chosen = [split_by.get(a) for a in axes]
        sizes = [layout.sizes[a] if chosen[a] == layout.axes[a] else None for a in axes]
        try:
            candidate = Layout(layout.shape, layout.ranks, layout.process_grid, chosen, sizes, layout.mask)
        except LayoutError:  # a mask that would separate replicas
            continue
        if candidate not in seen:
            seen.add(candidate)
            yield candidate
    if len(grid_axes) > 1 and math.prod(len(layout.sizes[a]) for a in layout.split_axes) == layout.ranks:
        for axis in axes:
            yield Layout.split(layout.shape, layout.ranks, axis, mask=layout.mask)


def _cost_of_move(source: Layout, target: Layout) -> float:
    """Return the cost of a move: the elements that the busiest rank receives plus the latency; 0 without messages."""
    if source is target:
        return 0.0
    ranks = range(0, source.ranks, -(-source.ranks // _RANKS_SEEN))
    received = max(_received(source, target, rank) for rank in ranks)
    return _MESSAGE + received if received else 0.0


def _received(source: Layout, target: Layout, rank: int) -> int:
    have, need = source.block(rank), target.block(rank)
    overlap = math.prod(
        max(0, min(h.stop, n.stop) - max(h.start, n.start)) for h, n in zip(have.slices, need.slices, strict=True)
    )
    return math.prod(need.shape) - overlap
