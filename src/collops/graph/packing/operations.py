"""How a value that arrives is combined with the one that is there: names, and what each dtype allows.

``replace`` takes the new value. The others are those of :mod:`collops.comm.reductions` without the average; on booleans
``sum`` and ``max`` are *or*, ``prod`` and ``min`` are *and*. Nothing crosses the wire combined, so products of complex
numbers are allowed here.
"""

from __future__ import annotations

from typing import Any

from collops.comm.reductions import check_reduction
from collops.errors import UnsupportedTypeError

__all__ = ["OPERATIONS", "check_operation"]

OPERATIONS = ("replace", "sum", "prod", "min", "max", "land", "lor", "lxor")


def check_operation(op: str, dtype: Any) -> None:
    """Refuse an operation that a dtype has no meaning for.

    Raises
    ------
    UnsupportedTypeError
        For an unknown `op`, orderings of complex numbers, and logical operations on inexact numbers.
    """
    if op not in OPERATIONS:
        raise UnsupportedTypeError(f"there is no operation {op!r}; choose one of {', '.join(OPERATIONS)}")
    if op != "replace" and not (op == "prod" and dtype.kind == "c"):
        check_reduction(op, dtype)
