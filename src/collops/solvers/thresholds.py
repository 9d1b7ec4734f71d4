"""Thresholds: which values an iteration shrinks or drops, by a fixed size or by their share of all values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

from collops.array.dtypes import real_of
from collops.errors import InputError, UnsupportedTypeError
from collops.solvers.kernels import HALF_CUT, Rule, step_kernels_for
from collops.solvers.shrinkage import joint_plan

__all__ = ["Percentile", "Rule", "Threshold", "find_threshold"]


@dataclass(frozen=True)
class Threshold:
    """A rule, and whether its threshold is a size, or the percentile of all sizes at which it cuts.

    Attributes
    ----------
    rule : Rule
        SOFT, HARD or HALF; of a percentile SOFT, HARD_AT or HALF_AT.
    percentile : float, optional
        Of the absolute values, 0 to 100: values up to it become 0.
    """

    rule: Rule
    percentile: float | None = None

    def parameter(self, cut: Any) -> Any:
        """Return the rule's threshold for which elements of an absolute value up to `cut` become 0."""
        if self.rule is Rule.HARD:
            return 0.5 * cut * cut
        if self.rule is Rule.HALF:
            return (cut / HALF_CUT) ** 1.5
        return cut


_RULES = {"soft": Rule.SOFT, "hard": Rule.HARD, "half": Rule.HALF}
_AT = {"soft": Rule.SOFT, "hard": Rule.HARD_AT, "half": Rule.HALF_AT}
_SUFFIX = "-percentile"


def find_threshold(threshkind: Any, perc: Any) -> Threshold:
    """Return the threshold that PyLops calls `threshkind`.

    Parameters
    ----------
    threshkind : str
        ``"soft"``, ``"hard"``, ``"half"``, or one of these with ``"-percentile"`` behind it.
    perc : float, optional
        For a percentile: how many percent of the values are kept.

    Raises
    ------
    InputError
        If there is no such threshold, or `perc` is missing, not wanted or no percentage.
    """
    name = threshkind.removesuffix(_SUFFIX) if isinstance(threshkind, str) else ""
    if name not in _RULES:
        kinds = ", ".join([*_RULES, *(kind + _SUFFIX for kind in _RULES)])
        raise InputError(f"threshkind must be one of {kinds}, not {threshkind!r}")
    if name == threshkind:
        if perc is not None:
            raise InputError(f"perc is for percentiles: threshkind must be {name + _SUFFIX!r}, not {threshkind!r}")
        return Threshold(_RULES[name])
    if isinstance(perc, bool) or not isinstance(perc, Real) or not 0 <= float(perc) <= 100:
        raise InputError(f"{threshkind} keeps perc percent of the values: give 0 to 100, not {perc!r}")
    return Threshold(_AT[name], 100 - float(perc))


class Percentile:
    """A percentile of the absolute values, as ``numpy.percentile`` interpolates it.

    The ranks count how often each pattern of the leading bits occurs, find the one that the wanted value has, and
    continue with the next bits. Exact, without moving the elements, and without synchronising with the device.

    Parameters
    ----------
    like : DistributedArray or StackedArray
        An array of the layout and dtype that will be measured. Collective where the layout is new.
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
