"""How large the arrays of the operators are, and how long each size is measured."""

from __future__ import annotations

from typing import NamedTuple

from collops_bench.registry import Context
from collops_bench.timing import Plan

__all__ = ["Size", "sizes_of"]

_SMALL, _LARGE = 2000, 10_000_000


class Size(NamedTuple):
    """Elements that a rank holds, of what type, and how much to measure."""

    elements: int
    dtype: str
    plan: Plan


def sizes_of(context: Context) -> list[Size]:
    """Return the sizes to measure, the small one first."""
    if context.options.quick:
        return [Size(_SMALL, "float64", Plan(rounds=3, seconds=0.01))]
    if context.engine.memory == "device":
        plan = Plan(rounds=5, seconds=0.03)
        return [Size(_SMALL, "float32", plan), Size(_LARGE, "float32", plan)]
    # The bound keeps the whole within minutes, although some of the peer's calls take seconds.
    return [
        Size(_SMALL, "float64", Plan(seconds=0.05)),
        Size(_LARGE, "float64", Plan(rounds=5, seconds=0.3, bound=2.0)),
    ]
