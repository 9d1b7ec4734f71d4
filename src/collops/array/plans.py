"""Plans of communication that are kept for the next use.

A reduction plan is made with the array: it has the communicators of all reductions that its layout can need. They are
new, and messages are sent, only when a process grid or a mask is used for the first time; no operation makes one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import combinations
from typing import Any, TypeVar

from collops.array.layout import Layout, StackedLayout
from collops.array.layout_arguments import Shape
from collops.comm import Communicator
from collops.comm.arguments import checked_communicator
from collops.errors import LayoutError

__all__ = ["PLANS_KEPT", "as_layout", "reduction_plan"]

PLANS_KEPT = 128
"""Number of plans of one kind that are kept for each communicator."""
Plan = TypeVar("Plan")
_NOTHING: dict[Any, Any] = {}


def recent_plans(make: Callable[..., Plan]) -> Callable[..., Plan]:
    """Return ``make(comm, *key)``, a collective function, with its latest results kept for each communicator.

    The ranks of a communicator use them in the same order and so forget the same ones.
    """

    def plan(comm: Communicator, *key: Hashable) -> Plan:
        cached = comm.cache.get(make)
        if cached is None:
            cached = comm.cache[make] = lru_cache(PLANS_KEPT)(partial(make, comm))
        return cached(*key)

    return plan


@dataclass(frozen=True, eq=False, slots=True)
class ReductionPlan:
    """How the arrays of one layout are reduced on one communicator.

    `communicator` has the ranks whose partial results are combined, ``None`` where this rank knows the result.
    """

    communicator: Communicator | None  # of a full reduction
    counted: tuple[bool, ...] = (True,)  # for each leaf, whether this rank's part of it counts in a sum
    by_axes: Mapping[tuple[int, ...], Communicator | None] = field(default_factory=dict)  # of some of the split axes


def as_layout(layout: Layout | Shape, comm: Communicator) -> Layout:
    """Return a layout as it is, and a shape as a layout split along axis 0; raise LayoutError if the ranks differ."""
    if not isinstance(layout, Layout):
        return Layout.split(layout, comm.size)
    check_ranks(layout, comm)
    return layout


def check_ranks(layout: Layout | StackedLayout, comm: Communicator) -> None:
    """Raise LayoutError unless a layout is for as many ranks as `comm` has."""
    if layout.ranks != comm.size:
        raise LayoutError(f"a layout for {layout.ranks} ranks does not fit a communicator of {comm.size}")


def reduction_plan(layout: Layout | StackedLayout, comm: Communicator) -> ReductionPlan:
    """Return the plan for arrays of `layout`. Collective: the first use of a process grid or mask makes communicators.

    Raises LayoutError for another number of ranks, or if the masks of stacked parts contradict each other, and
    UnsupportedTypeError if `comm` is not a communicator.
    """
    if not isinstance(layout, Layout | StackedLayout):
        raise LayoutError(f"an array needs a layout, not {type(layout).__qualname__}")
    plans = getattr(comm, "cache", _NOTHING).get(ReductionPlan)
    if plans is None:
        plans = checked_communicator(comm).cache[ReductionPlan] = weakref.WeakKeyDictionary()
    plan = plans.get(layout)
    if plan is None:
        check_ranks(layout, comm)
        plan = plans[layout] = _plan(layout, comm)
    return plan


def _plan(layout: Layout | StackedLayout, comm: Communicator) -> ReductionPlan:
    if isinstance(layout, StackedLayout):
        return _stacked(layout, comm)
    subsets = (axes for count in range(len(layout.split_axes) + 1) for axes in combinations(layout.split_axes, count))
    by_axes = {axes: _communicator(layout.reduction_groups(axes), comm) for axes in subsets}
    return ReductionPlan(by_axes[layout.split_axes], (True,), by_axes)


def _stacked(layout: StackedLayout, comm: Communicator) -> ReductionPlan:
    leaves = layout.leaves
    groups = {leaf.reduction_groups() for leaf in leaves if not leaf.is_replicated}
    communicator = None
    if groups:
        mask = _common_mask(leaves)
        # Parts with copies in different places: all ranks of a group take part, and one copy of each block counts.
        communicator = _communicator(next(iter(groups)) if len(groups) == 1 else mask or (0,) * comm.size, comm)
    if communicator is None:
        return ReductionPlan(None, (True,) * len(leaves))
    counted = tuple(
        communicator.rank == 0 if leaf.is_replicated else len(groups) == 1 or leaf.representative(comm.rank)
        for leaf in leaves
    )
    return ReductionPlan(communicator, counted)


def _common_mask(leaves: Iterable[Layout]) -> tuple[int, ...] | None:
    """Return the mask of the split parts. A copy without a mask is the same for every group, and fits any."""
    split = {leaf.mask for leaf in leaves if not leaf.is_replicated}
    masks = split | {leaf.mask for leaf in leaves if leaf.mask is not None}
    if len(masks) > 1:
        raise LayoutError(
            f"the parts of a stacked array must share one mask, but they have {', '.join(map(str, masks))}"
        )
    return next(iter(split))


def _communicator(groups: tuple[int, ...] | None, comm: Communicator) -> Communicator | None:
    communicator = None if groups is None else comm.subgroup(groups)
    return communicator if communicator is not None and communicator.size > 1 else None
