"""Halos: blocks of a layout extended by their neighbours' values, all of them in one exchange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from collops.array.layout import Layout
from collops.array.layout_arguments import integers
from collops.array.plans import RecentPlans
from collops.array.regions import Region, transfers
from collops.backend import engine_of
from collops.errors import InputError
from collops.exchange import Box, ExchangePlan

if TYPE_CHECKING:
    from collops.array.operands import Operand
    from collops.comm import Communicator

__all__ = ["HaloPlan", "extended_array", "halo_widths"]


def halo_widths(halo: SupportsIndex | Sequence[SupportsIndex], ndim: int) -> tuple[tuple[int, int], ...]:
    """Return the widths before and after the block, per axis.

    Parameters
    ----------
    halo : int or sequence of int
        One width for all sides; or one per axis; or before and after for every axis in turn, ``2 * ndim`` numbers.
    ndim : int
        Number of axes.

    Raises
    ------
    InputError
        If there is another number of widths, or one is negative.
    """
    widths = integers(halo)
    if len(widths) == 1:
        widths *= 2 * ndim
    elif len(widths) == ndim:
        widths = tuple(width for width in widths for _ in range(2))
    if len(widths) != 2 * ndim or any(width < 0 for width in widths):
        raise InputError(
            f"halo={halo!r}: an array with {ndim} axes has one width, {ndim} (one per axis) or {2 * ndim} "
            "(before and after, per axis), none of them negative"
        )
    return tuple(zip(widths[::2], widths[1::2], strict=True))


class HaloPlan:
    """How the blocks of a layout are extended on all sides. Collective: all ranks make it, in the same order.

    Parameters
    ----------
    layout : Layout
        Of the arrays without halo.
    widths : sequence of (int, int)
        Number of elements before and after the block, per axis; wider than a neighbour's block if need be.
    comm : Communicator
        The ranks.
    periodic : bool
        Whether the array wraps around; otherwise there are zeros beyond its ends.

    Attributes
    ----------
    layout, widths, comm
        As given.
    extended : Layout
        Of the arrays with halo: the same process grid, every block larger by the widths. Also a block without elements
        has its halo.
    inner : Box
        Where this rank's own block is in its extended one.
    """

    def __init__(
        self, layout: Layout, widths: Sequence[tuple[int, int]], comm: Communicator, *, periodic: bool = False
    ) -> None:
        self.layout = layout
        self.comm = comm
        self.widths = tuple(widths)
        self.extended = Layout(
            [extent + sum(pair) * len(sizes) for extent, sizes, pair in self._per_axis()],
            layout.ranks,
            layout.process_grid,
            layout.axes,
            [[size + sum(pair) for size in sizes] for _, sizes, pair in self._per_axis()],
            layout.mask,
        )
        block = layout.block(comm.rank)
        self.inner: Box = tuple(
            slice(before, before + n) for n, (before, _) in zip(block.shape, self.widths, strict=True)
        )
        moves = transfers(layout, comm.rank, self._wanted, periodic=periodic)
        sends, receives = ([(peer, box) for peer, _, box in side] for side in moves[:2])
        self._fill = ExchangePlan(comm, sends, receives, travels=moves.travels)
        self._return = ExchangePlan(comm, receives, sends, travels=moves.travels)
        self._outside = [] if periodic else self._beyond_the_ends(block)

    def fill(self, source: Any, target: Any) -> Any:
        """Return the local array `target`, which has a halo, filled from `source`, which has none.

        Collective: one exchange.
        """
        engine = engine_of(target)
        exchange = self._fill.start(source, target)
        for box in self._outside:
            target = engine.put(target, box, 0)
        return exchange.finish(target)

    def add_back(self, source: Any, target: Any) -> Any:
        """Return the local array `target`, each element the sum of its copies in halos: the adjoint of :meth:`fill`.

        Collective: one exchange.
        """
        return self._return(source, engine_of(target).put(target, ..., 0), op="sum")

    def _per_axis(self) -> Iterator[tuple[int, tuple[int, ...], tuple[int, int]]]:
        return zip(self.layout.shape, self.layout.sizes, self.widths, strict=True)

    def _wanted(self, rank: int) -> list[Region]:
        block = self.layout.block(rank)
        return [
            tuple(
                (offset - before, offset + extent + after)
                for offset, extent, (before, after) in zip(block.offset, block.shape, self.widths, strict=True)
            )
        ]

    def _beyond_the_ends(self, block: Any) -> list[Box]:
        """Return the boxes of the extended block that no element of the global array fills."""
        whole = self.extended.local_shape(self.comm.rank)
        boxes = []
        for axis, (before, _) in enumerate(self.widths):
            # Of the extended block, the array fills the indices from `low` to `high`.
            start = block.offset[axis] - before
            low = min(max(0, -start), whole[axis])
            high = max(low, min(whole[axis], self.layout.shape[axis] - start))
            for begin, end in ((0, low), (high, whole[axis])):
                if begin < end:
                    boxes.append(tuple(slice(begin, end) if a == axis else slice(0, n) for a, n in enumerate(whole)))
        return boxes


_plans = RecentPlans()


def extended_array(
    x: Operand, halo: SupportsIndex | Sequence[SupportsIndex], boundary: str = "zero"
) -> tuple[Layout, Any]:
    """Return the layout with halos, and this rank's block of `x` in it, as a new array. Collective: one exchange.

    Parameters
    ----------
    x : DistributedArray
        Without halo.
    halo : int or sequence of int
        See :func:`halo_widths`.
    boundary : str
        Values beyond the ends of the array: ``"zero"``, or ``"periodic"`` to wrap around.

    Raises
    ------
    InputError
        If `halo` or `boundary` is none of these.
    """
    if boundary not in ("zero", "periodic"):
        raise InputError(f"boundary must be 'zero' or 'periodic', not {boundary!r}")
    widths = halo_widths(halo, x.layout.ndim)
    plan = _plans.get(
        x.comm,
        (x.layout, widths, boundary),
        lambda: HaloPlan(x.layout, widths, x.comm, periodic=boundary == "periodic"),
    )
    target = x.engine.xp.empty(plan.extended.local_shape(x.comm.rank), x.dtype)
    return plan.extended, plan.fill(x.local_array, target)
