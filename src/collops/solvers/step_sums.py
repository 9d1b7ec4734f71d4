"""The sums of one iteration, over arrays of several layouts, combined on all ranks in one message."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.array import Layout, StackedLayout
from collops.array.plans import reduction_plan
from collops.comm import Communicator
from collops.solvers.kernels import step_kernels_for

__all__ = ["StepSums", "joint_plan"]


def joint_plan(*arrays: Any) -> tuple[Communicator | None, list[tuple[bool, ...]]]:
    """Return with whom to combine what is summed over several arrays, and which leaves of each this rank counts.

    A replicated array is counted on one rank only, so that every rank gets the same numbers to the last bit: a decision
    that hangs on them is taken on all ranks. Collective where the layouts are new.

    Raises
    ------
    LayoutError
        If the masks of the arrays contradict each other.
    """
    comm = arrays[0].comm
    layouts = [array.layout for array in arrays]
    if comm.size > 1:
        # Without a split part every rank would keep its own rounding.
        masks = [leaf.layout.mask for array in arrays for leaf in array.leaves]
        mask = next((mask for mask in masks if mask is not None), None)
        layouts.append(Layout.split((0,), comm.size, mask=mask))
    plan = reduction_plan(StackedLayout(layouts), comm)
    counted = iter(plan.counted)
    return plan.communicator, [tuple(next(counted) for _ in array.leaves) for array in arrays]


class StepSums:
    """Double-precision sums, to which every rank adds what it alone knows; see :func:`joint_plan`.

    Parameters
    ----------
    *arrays : DistributedArray or StackedArray
        What will be summed over, in the order of their numbers. Collective where their layouts are new.
    width : int
        How many sums.
    kept : int
        Numbers beside them that are no sums.

    Attributes
    ----------
    values : array
        `width` sums, then `kept` numbers.
    """

    def __init__(self, *arrays: Any, width: int, kept: int = 0) -> None:
        engine = arrays[0].engine
        self._communicator, self.counted = joint_plan(*arrays)
        self.kernels = step_kernels_for(engine)
        self.scratch = self.kernels.scratch()
        self.values = engine.xp.zeros(width + kept, np.float64)
        self._sums = self.values[:width]

    @property
    def carried(self) -> Any:
        """What one iteration leaves to the next: the sums."""
        return self.values

    def clear(self) -> None:
        """Set the sums to 0."""
        self._sums.fill(0)

    def combine(self) -> None:
        """Add up what the ranks have. Collective: one allreduce, none on one rank."""
        if self._communicator is not None:
            self._communicator.allreduce(self._sums, out=self._sums)

    def contribute(self, place: int, value: Any) -> None:
        """Set a sum to a number that every rank has, rounded in its own way perhaps: to that of the first of them."""
        if self._communicator is None or self._communicator.rank == 0:
            self.values[place : place + 1] = value
