"""Sums over the elements of an array that functions are made of: one allreduce at most, and nobody waits."""

from __future__ import annotations

from typing import Any

from collops.array import dots

__all__ = ["absolute_sum", "combined", "inner", "square"]


def square(x: Any) -> Any:
    """Return the squared norm. Collective."""
    return dots((x, x))[0]


def inner(v: Any, x: Any) -> Any:
    """Return the real part of the inner product. Collective."""
    return dots((v, x))[0].real


def absolute_sum(x: Any) -> Any:
    """Return the sum of absolute values. Collective."""
    return x.norm(1)


def combined(x: Any, parts: Any, op: str = "sum") -> Any:
    """Return the sum, or another combination, of one number for each leaf and rank. Collective: one allreduce.

    Parameters
    ----------
    x : DistributedArray or StackedArray
        Whose leaves the numbers are of.
    parts : sequence of 0-d array
        This rank's, one for each leaf.
    op : str
        ``"sum"``, ``"min"`` or ``"max"``.
    """
    xp, plan = x.engine.xp, x._plan
    counted = [part for part, counts in zip(parts, plan.counted, strict=True) if counts or op != "sum"]
    total = xp.zeros((), "float64")
    if counted:
        total = getattr(xp, op)(xp.stack([xp.asarray(part, dtype="float64") for part in counted]))
    if plan.communicator is not None:
        total = plan.communicator.allreduce(xp.asarray(total), op)
    return total[()]
