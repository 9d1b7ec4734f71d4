"""Steps that end with a shrinkage: one pass over memory for whole distributed and stacked arrays."""

from __future__ import annotations

from typing import Any

from collops.array.elementwise import check_alike
from collops.errors import UnsupportedTypeError
from collops.operators.base import new_array
from collops.solvers.kernels import step_kernels_for
from collops.solvers.step_sums import StepSums
from collops.solvers.thresholds import Rule

__all__ = ["advance", "shrink"]

_NOWHERE = (-1, -1, -1)


def advance(
    sums: StepSums,
    number: int,
    current: Any,
    *,
    base: Any = None,
    alpha: float = 1.0,
    gradient: Any = None,
    rule: Rule = Rule.KEEP,
    threshold: Any = 0.0,
    ahead: Any = None,
    momentum: Any = None,
    update: int = -1,
    absolute: int = -1,
    square: int = -1,
    keep: bool = False,
) -> None:
    r"""Take a step from where an array is, shrunk by a rule, and measure it. No messages.

    Parameters
    ----------
    sums : StepSums
        Gets what is measured.
    number : int
        Which of its arrays `current` is.
    current : DistributedArray or StackedArray
        Where the step before led; gets :math:`v = T(\mathrm{base} + \alpha\, \mathrm{gradient})`.
    base, gradient : DistributedArray or StackedArray, optional
        Like `current`; one of them at least.
    alpha : float
        Step size.
    rule, threshold
        What :math:`T` is; the threshold may be a 0-d array of the engine.
    ahead : DistributedArray or StackedArray, optional
        Gets :math:`v + \mathrm{momentum} (v - \mathrm{current})`; may be `base`.
    momentum : number or 0-d array, optional
        For `ahead`.
    update, absolute, square : int
        Which sums get :math:`\|v - \mathrm{current}\|_2^2`, :math:`\|v\|_1` and :math:`\|v\|_2^2`; -1 for none.
    keep : bool
        Whether elements of `current` stay where :math:`v` is not finite; the sums show that it was not.
    """
    none = [None] * len(current.leaves)
    columns = [none if array is None else array.leaves for array in (base, gradient, ahead)]
    for now, counted, v_base, v_gradient, v_ahead in zip(current.leaves, sums.counted[number], *columns, strict=True):
        sums.kernels.advance(
            rule,
            threshold,
            None if v_base is None else v_base.local_array,
            alpha,
            None if v_gradient is None else v_gradient.local_array,
            now.local_array,
            None if v_ahead is None else v_ahead.local_array,
            momentum,
            sums.values,
            (update, absolute, square) if counted else _NOWHERE,
            sums.scratch,
            keep,
        )


def shrink(
    rule: Rule,
    threshold: Any,
    x: Any,
    *,
    a: float = 1.0,
    y: Any = None,
    b: float = 0.0,
    upper: Any = 0.0,
    weights: Any = None,
    out: Any = None,
) -> Any:
    """Return ``a * x + b * y``, shrunk by a rule element by element. No messages.

    Parameters
    ----------
    rule : Rule
        What becomes of each value.
    threshold : number, 0-d array or array
        The rule's parameter; the lower bound of `CLIP`.
    x, y : DistributedArray or StackedArray
        Of one layout; `y` may be missing.
    a, b : float
        Coefficients.
    upper : number
        The upper bound of `CLIP`.
    weights : DistributedArray or StackedArray, optional
        Real; each value has its own multiple of the threshold.
    out : DistributedArray or StackedArray, optional
        Gets the result; may be `x` or `y`.

    Raises
    ------
    LayoutError
        If layouts differ.
    UnsupportedTypeError
        If engines differ, or complex values shall be clipped.
    """
    for other in (y, weights, out):
        if other is not None and (other.layout is not x.layout or other.engine is not x.engine):
            check_alike(x, other)
    if rule is Rule.CLIP and x.dtype.kind == "c":
        raise UnsupportedTypeError("complex numbers have no order, so they cannot be clipped")
    if out is None:
        out = new_array(x.layout, x, x.dtype)
    kernels = step_kernels_for(x.engine)
    none = [None] * len(x.leaves)
    columns = [none if array is None else array.leaves for array in (y, weights)]
    for v_out, v_x, v_y, v_weights in zip(out.leaves, x.leaves, *columns, strict=True):
        kernels.shrink(
            rule,
            threshold,
            upper,
            None if v_weights is None else v_weights.local_array,
            a,
            v_x.local_array,
            b,
            None if v_y is None else v_y.local_array,
            v_out.local_array,
        )
    return out
