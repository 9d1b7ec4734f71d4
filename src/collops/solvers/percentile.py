"""Percentiles of the absolute values of a distributed array: exact, without moving the values."""

from __future__ import annotations

import math
from typing import Any

from collops.array.dtypes import real_of
from collops.errors import UnsupportedTypeError
from collops.solvers.kernels import step_kernels_for
from collops.solvers.step_sums import joint_plan

__all__ = ["Percentile"]


class Percentile:
    """A percentile of the absolute values, as ``numpy.percentile`` interpolates it.

    The ranks count how often each value of the leading bits occurs, agree on the one that the wanted value has, and go
    on with the bits behind. Nothing waits for the device.

    Parameters
    ----------
    like : DistributedArray or StackedArray
        An array such as those that will be measured. Collective where its layout is new.
    percent : float
        0 to 100.

    Raises
    ------
    UnsupportedTypeError
        If the elements are not of single or double precision, or not all of one type.

    Notes
    -----
    Four allreduces in single and seven in double precision: of 2048 counts each, and the last of one number.
    """

    def __init__(self, like: Any, percent: float) -> None:
        dtypes = {real_of(leaf.dtype) for leaf in like.leaves}
        dtype = dtypes.pop()
        if dtypes or dtype.char not in "fd":
            raise UnsupportedTypeError(f"percentiles are of numbers of single or double precision, not of {like.dtype}")
        self._communicator, (self._counted,) = joint_plan(like)
        self._selection = step_kernels_for(like.engine).Selection(dtype)
        position = (like.size - 1) * (percent / 100) if like.size else 0.0
        self._rank = math.floor(position)
        self._fraction = position - self._rank
        self._empty = like.size == 0

    def __call__(self, x: Any) -> Any:
        """Return the percentile as a 0-d array or scalar of the engine. Collective."""
        if self._empty:
            return x.engine.xp.zeros(())
        selection, communicator = self._selection, self._communicator
        values = [leaf.local_array for leaf, counted in zip(x.leaves, self._counted, strict=True) if counted]
        selection.start(self._rank)
        for number in range(selection.passes):
            selection.clear()
            for array in values:
                selection.count(array, number)
            if communicator is not None:
                communicator.allreduce(selection.counts, out=selection.counts)
            selection.choose(number)
        above = selection.find_next(values)
        if communicator is not None:
            communicator.allreduce(above, "min", out=above)
        return selection.interpolated(self._fraction)
