"""The reductions that every transport offers, by one set of names and one set of rules.

The rules follow NumPy's reductions on each dtype: on booleans ``sum`` and ``max`` are *or*, ``prod`` and ``min`` are
*and*. What has no meaning is refused here, before a message is sent, so that all transports agree on it.
"""

from __future__ import annotations

from typing import Any

from collops.errors import UnsupportedTypeError

__all__ = ["OPERATIONS", "check_reduction"]

OPERATIONS = ("sum", "prod", "min", "max", "avg", "land", "lor", "lxor")

_NUMERIC_KINDS = "biufcV"  # V: bfloat16 as ml_dtypes registers it


def check_reduction(op: str, dtype: Any) -> None:
    """Refuse a reduction that `dtype` has no meaning for.

    Parameters
    ----------
    op : str
        One of ``OPERATIONS``.
    dtype : dtype
        Of the array to be reduced.

    Raises
    ------
    UnsupportedTypeError
        For an unknown `op`, products and orderings of complex numbers, averages of integers and booleans (they would
        be rounded), logical operations on inexact numbers, and dtypes that are no numbers.
    """
    if op not in OPERATIONS:
        raise UnsupportedTypeError(f"there is no reduction {op!r}; choose one of {', '.join(OPERATIONS)}")
    kind = dtype.kind
    if kind not in _NUMERIC_KINDS or (kind == "V" and dtype.name != "bfloat16"):
        raise UnsupportedTypeError(f"arrays of dtype {dtype} cannot be reduced")
    if kind == "c" and op not in ("sum", "avg"):
        raise UnsupportedTypeError(
            f"{op!r} of complex numbers is not supported across ranks; reduce to real numbers first"
        )
    if op == "avg" and kind in "biu":
        raise UnsupportedTypeError(f"'avg' of {dtype} would be rounded; convert to a floating dtype or use 'sum'")
    if op in ("land", "lor", "lxor") and kind not in "biu":
        raise UnsupportedTypeError(f"{op!r} needs booleans or integers, not {dtype}; compare with zero first")
