"""Shrinkage steps, sums that measure them in one message, and thresholds by size or percentile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from collops.array import Array, DistributedArray, Layout, StackedLayout
from collops.array.dtypes import real_of
from collops.array.operands import agree_on_numbers, check_alike
from collops.array.plans import reduction_plan
from collops.backend import Engine, LocalArray
from collops.comm import Communicator
from collops.errors import InputError, UnsupportedTypeError
from collops.operators.memory import new_array
from collops.solvers.kernels import HALF_CUT, Rule, step_kernels_for
from collops.solvers.problem import mask_of
from collops.solvers.state import CONSTANT, SCRATCH, Scalar

__all__ = ["Percentile", "StepSums", "advance", "find_threshold", "shrink"]

_NOWHERE = (-1, -1, -1)


def joint_plan(*arrays: Array) -> tuple[Communicator | None, list[tuple[bool, ...]]]:
    """Return the ranks that combine sums over several arrays, and which leaves of each array this rank counts.

    A replicated array is counted on one rank only, so that every rank gets bitwise equal numbers and takes the same
    decisions. Collective for new layouts.
    """
    comm = arrays[0].comm
    layouts = [array.layout for array in arrays]
    if comm.size > 1:
        # Without a split part, rounding could differ between ranks.
        layouts.append(Layout.split((0,), comm.size, mask=mask_of(*arrays)))
    plan = reduction_plan(StackedLayout(layouts), comm)
    counted = iter(plan.counted)
    return plan.communicator, [tuple(next(counted) for _ in array.leaves) for array in arrays]


@dataclass(eq=False)
class StepSums:
    """Double-precision sums of an iteration, which the ranks combine in one message. A part of a state."""

    values: LocalArray  # `width` sums, then other numbers
    width: int = field(metadata=CONSTANT)
    counted: list[tuple[bool, ...]] = field(metadata=CONSTANT)  # for each array, the leaves that this rank counts
    engine: Engine = field(metadata=CONSTANT)
    communicator: Communicator | None = field(metadata=CONSTANT)
    memory: Any = field(metadata=SCRATCH)

    @classmethod
    def over(cls, *arrays: Array, width: int, extra: int = 0) -> StepSums:
        """Return `width` sums over arrays and `extra` other numbers, all 0. Collective for new layouts."""
        engine = arrays[0].engine
        communicator, counted = joint_plan(*arrays)
        values = engine.xp.zeros(width + extra, dtype=engine.dtype(np.float64))
        return cls(values, width, counted, engine, communicator, step_kernels_for(engine).scratch())

    def put(self, index: int | slice, value: LocalArray) -> None:
        """Set one of the numbers, or several."""
        index = slice(index, index + 1) if isinstance(index, int) else index
        self.values = self.engine.put(self.values, index, value)

    def clear(self) -> None:
        """Set the sums to 0."""
        self.put(slice(self.width), 0)

    def combine(self) -> None:
        """Add the sums of all ranks. Collective: one allreduce, none on one rank."""
        if self.communicator is not None:
            sums = self.values[: self.width]
            total = self.communicator.allreduce(sums, out=sums)
            if total is not sums:
                self.put(slice(self.width), total)

    def contribute(self, index: int, value: Scalar) -> None:
        """Set a sum to the first rank's value of a number that may be rounded differently on other ranks."""
        if self.communicator is None or self.communicator.rank == 0:
            self.put(index, value)


def advance(
    sums: StepSums,
    number: int,
    current: Array,
    *,
    base: Array | None = None,
    alpha: float = 1.0,
    gradient: Array | None = None,
    rule: Rule = Rule.KEEP,
    threshold: Scalar = 0.0,
    ahead: Array | None = None,
    momentum: Scalar | None = None,
    update: int = -1,
    absolute: int = -1,
    square: int = -1,
    keep: bool = False,
) -> tuple[Array, Any]:
    r"""Return a shrunk step :math:`v = T(\mathrm{base} + \alpha\, \mathrm{gradient})`, and measure it. No messages.

    `current`, the result of the previous step and number `number` among the arrays of `sums`, is overwritten by
    :math:`v`, and `ahead` by :math:`v + \mathrm{momentum} (v - \mathrm{current})`; both are returned. One of `base`,
    which may be `ahead`, and `gradient` may be missing. `rule` and `threshold` define :math:`T`. `update`, `absolute`
    and `square` are the indices of the sums of :math:`\|v - \mathrm{current}\|_2^2`, :math:`\|v\|_1` and
    :math:`\|v\|_2^2`; -1 for none. With `keep`, elements of `current` are unchanged where :math:`v` is not finite,
    which the sums show. Numbers may be 0-d arrays of the engine.
    """
    leaves, kernel = current.leaves, step_kernels_for(current.engine).advance
    bases, gradients, aheads = _parts(base, leaves), _parts(gradient, leaves), _parts(ahead, leaves)
    for leaf, (now, counted) in enumerate(zip(leaves, sums.counted[number], strict=True)):
        before, indices = now.local_array, (update, absolute, square) if counted else _NOWHERE
        step = rule, threshold, bases[leaf], alpha, gradients[leaf], before, aheads[leaf], momentum
        now.local_array, extrapolated, sums.values = kernel(*step, sums.values, indices, sums.memory, keep)
        if ahead is not None:
            ahead.leaves[leaf].local_array = extrapolated
    return current, ahead


def shrink(
    rule: Rule,
    threshold: Scalar,
    x: Array,
    *,
    a: float = 1.0,
    y: Array | None = None,
    b: float = 0.0,
    upper: Scalar = 0.0,
    weights: Array | None = None,
    out: Array | None = None,
) -> Array:
    """Return ``a * x + b * y``, shrunk by a rule element by element; `y` may be missing. No messages.

    `threshold` is a number or 0-d array, and the lower bound of `CLIP`, whose upper bound is `upper`. The real array
    `weights` multiplies the threshold of each value. `out` is memory for the result; it may be `x` or `y`.
    """
    for other in (y, weights, out):
        if other is not None and (other.layout is not x.layout or other.engine is not x.engine):
            check_alike(x, other)
    if rule is Rule.CLIP and x.dtype.kind == "c":
        raise UnsupportedTypeError("bounds need real arrays, not complex ones")
    agree_on_numbers(x, threshold, upper, a, b)
    if out is None:
        out = new_array(x.layout, x, x.dtype)
    leaves, kernel = x.leaves, step_kernels_for(x.engine).shrink
    for target, part, other, weight in zip(out.leaves, leaves, _parts(y, leaves), _parts(weights, leaves), strict=True):
        values = a, part.local_array, b, other, target.local_array
        target.local_array = kernel(rule, threshold, upper, weight, *values)
    return out


def _parts(array: Array | None, leaves: Sequence[DistributedArray]) -> list[LocalArray]:
    """Return this rank's part of each leaf of an array, or ``None`` for each of `leaves` if the array is ``None``."""
    return [None] * len(leaves) if array is None else [leaf.local_array for leaf in array.leaves]


@dataclass(frozen=True)
class Threshold:
    """A rule, and whether its threshold is a size or a percentile of all sizes."""

    rule: Rule  # SOFT, HARD or HALF; for a percentile SOFT, HARD_AT or HALF_AT
    percentile: float | None = None  # percentile of the absolute values, 0 to 100: values up to it become 0

    def parameter(self, cut: Scalar) -> Scalar:
        """Return the rule's threshold at which elements of an absolute value up to `cut` become 0."""
        if self.rule is Rule.HARD:
            return 0.5 * cut * cut
        if self.rule is Rule.HALF:
            return (cut / HALF_CUT) ** 1.5
        return cut


_RULES = {"soft": Rule.SOFT, "hard": Rule.HARD, "half": Rule.HALF}
_AT = {"soft": Rule.SOFT, "hard": Rule.HARD_AT, "half": Rule.HALF_AT}
_SUFFIX = "-percentile"


def find_threshold(threshkind: str, perc: float | None) -> Threshold:
    """Return the threshold of PyLops's option `threshkind`; raise InputError if it or `perc` is invalid."""
    name = threshkind.removesuffix(_SUFFIX) if isinstance(threshkind, str) else ""
    if name not in _RULES:
        kinds = ", ".join([*_RULES, *(kind + _SUFFIX for kind in _RULES)])
        raise InputError(f"threshkind must be one of {kinds}, not {threshkind!r}")
    if name == threshkind:
        if perc is not None:
            raise InputError(f"perc is for percentiles: threshkind must be {name + _SUFFIX!r}, not {threshkind!r}")
        return Threshold(_RULES[name])
    if isinstance(perc, bool) or not isinstance(perc, Real) or not 0 <= float(perc) <= 100:
        raise InputError(f"{threshkind} needs perc, the percentage of values to keep, from 0 to 100, not {perc!r}")
    return Threshold(_AT[name], 100 - float(perc))


class Percentile:
    """A percentile, 0 to 100, of the absolute values, as ``numpy.percentile`` interpolates it.

    It applies to arrays like `like`, of single or double precision. Ranks count the patterns of the leading bits,
    select the pattern of the value at this position, and continue with the next bits (radix selection): exact, without
    moving elements or synchronising with the device. This takes four allreduces in single and seven in double
    precision: of 2048 counts each, and the last of one number. Collective for new layouts.
    """

    def __init__(self, like: Any, percent: float) -> None:
        dtypes = {real_of(leaf.dtype) for leaf in like.leaves}
        dtype = dtypes.pop()
        if dtypes or dtype.char not in "fd":
            raise UnsupportedTypeError(f"percentiles need numbers of single or double precision, not {like.dtype}")
        self._communicator, (self._counted,) = joint_plan(like)
        self._selection = step_kernels_for(like.engine).Selection(dtype)
        position = (like.size - 1) * (percent / 100) if like.size else 0.0
        self._rank = math.floor(position)
        self._fraction = position - self._rank
        self._empty = like.size == 0

    def __call__(self, x: Array) -> Scalar:
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
