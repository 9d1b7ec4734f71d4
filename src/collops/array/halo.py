"""Halos: blocks of a layout extended by their neighbours' values, all of them in one exchange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from collops.array.layout import Layout
from collops.array.layout_arguments import Shape, integers
from collops.array.plans import recent_plans
from collops.array.regions import Region, transfers
from collops.backend import LocalArray, engine_of
from collops.comm import Communicator
from collops.errors import InputError
from collops.exchange import Box, ExchangePlan

__all__ = ["HaloPlan", "halo_widths"]


def halo_widths(halo: Shape, ndim: int) -> tuple[tuple[int, int], ...]:
    """Return the widths before and after the block, per axis; raise InputError for another count or negative widths.

    `halo` is one width for all sides, one per axis, or two per axis (before and after).
    """
    widths = integers(halo)
    if len(widths) == 1:
        widths *= 2 * ndim
    elif len(widths) == ndim:
        widths = [width for width in widths for _ in range(2)]
    if len(widths) != 2 * ndim or min(widths) < 0:
        raise InputError(
            f"halo={halo!r}: an array with {ndim} axes has one width, {ndim} (one per axis) or {2 * ndim} "
            "(before and after, per axis), none of them negative"
        )
    return tuple(zip(widths[::2], widths[1::2], strict=True))


class HaloPlan:
    """The extension of the blocks of a layout on all sides. Collective: all ranks make it, in the same order.

    `layout` describes the arrays without halo; `widths` are the numbers of elements before and after the block, per
    axis, which may exceed a neighbour's block. Unless the array is `periodic`, there are zeros beyond its ends. Arrays
    with halo have the layout ``extended``: the same process grid, and every block, even an empty one, larger by the
    widths. The extended block of this rank has the ``shape``, and contains the original block at ``inner``.
    """

    def __init__(
        self, layout: Layout, widths: Sequence[tuple[int, int]], comm: Communicator, *, periodic: bool = False
    ) -> None:
        self.layout = layout
        self.comm = comm
        self.widths = tuple(widths)
        sizes = [[size + sum(pair) for size in sizes] for sizes, pair in zip(layout.sizes, self.widths, strict=True)]
        self.extended = Layout(
            list(map(sum, sizes)), layout.ranks, layout.process_grid, layout.axes, sizes, layout.mask
        )
        self.shape = self.extended.local_shape(comm.rank)
        block = layout.block(comm.rank)
        self.inner: Box = tuple(
            slice(before, before + n) for n, (before, _) in zip(block.shape, self.widths, strict=True)
        )
        moves = transfers(layout, comm.rank, self._regions, periodic=periodic)
        sends, receives = ([(peer, box) for peer, _, box in side] for side in moves[:2])
        self._fill = ExchangePlan(comm, sends, receives, travels=moves.travels)
        # The adjoint copies the block itself, and adds the contributions of other ranks.
        local_number = (
            [box for peer, box in receives if peer == comm.rank].index(self.inner) if prod(block.shape) else None
        )
        back, home = (_without(side, comm.rank, local_number) for side in (receives, sends))
        self._return = ExchangePlan(comm, back, home, travels=moves.travels)
        self._outside = [] if periodic else list(self._beyond_the_ends())

    def fill(self, source: LocalArray, target: LocalArray) -> LocalArray:
        """Return the local array `target`, with a halo, filled from `source`, without one.

        Collective: one exchange.
        """
        engine = engine_of(target)
        if engine.traced and self._outside and self.comm.size == 1:  # a compiler keeps the sharding
            return engine.embedded(source, self.inner, target)
        exchange = self._fill.start(source, target)
        for box in self._outside:
            target = engine.put(target, box, 0)
        return exchange.finish(target)

    def add_back(self, source: LocalArray, target: LocalArray) -> LocalArray:
        """Return the local array `target`, each element the sum of its copies in halos: the adjoint of :meth:`fill`.

        Collective: one exchange.
        """
        engine = engine_of(target)
        return self._return(source, engine.put(target, ..., engine.sliced(source, self.inner)), op="sum")

    def _regions(self, rank: int) -> list[Region]:
        slices = self.layout.slices(rank)
        return [
            tuple((s.start - before, s.stop + after) for s, (before, after) in zip(slices, self.widths, strict=True))
        ]

    def _beyond_the_ends(self) -> Iterator[Box]:
        """Yield the boxes of the extended block outside the global array."""
        (region,) = self._regions(self.comm.rank)
        extent_box = tuple(slice(0, stop - start) for start, stop in region)
        for axis, (start, stop) in enumerate(region):
            # The array fills the indices from `low` to `high` of the extended block.
            low, high = max(start, 0) - start, min(stop, self.layout.shape[axis]) - start
            for begin, end in ((0, low), (high, stop - start)):
                if begin < end:
                    yield (*extent_box[:axis], slice(begin, end), *extent_box[axis + 1 :])


def _without(boxes: list[tuple[int, Box]], rank: int, number: int | None) -> list[tuple[int, Box]]:
    """Return the boxes without box `number` of `rank`."""
    indices = [index for index, (peer, _) in enumerate(boxes) if peer == rank]
    return [pair for index, pair in enumerate(boxes) if number is None or index != indices[number]]


@recent_plans
def halo_plan(comm: Communicator, layout: Layout, widths: tuple[tuple[int, int], ...], boundary: str) -> HaloPlan:
    """Return a plan for the boundaries of :meth:`DistributedArray.halo`. Collective."""
    if boundary not in ("zero", "periodic"):
        raise InputError(f"boundary must be 'zero' or 'periodic', not {boundary!r}")
    return HaloPlan(layout, widths, comm, periodic=boundary == "periodic")
