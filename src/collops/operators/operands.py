"""What kernels read: an operator's input, of the type that its result has, and in C order."""

from __future__ import annotations

from typing import Any

from collops.errors import UnsupportedTypeError

__all__ = ["operand"]


def operand(x: Any, dtype: Any) -> Any:
    """Return the local array of `x` as a contiguous array of `dtype`; itself where it is that already.

    Raises
    ------
    UnsupportedTypeError
        If `x` is complex and `dtype` is not.
    """
    local = x.local_array
    if local.dtype == dtype:
        return local if local.flags.c_contiguous else x.engine.xp.ascontiguousarray(local)
    if local.dtype.kind == "c" and dtype.kind != "c":
        raise UnsupportedTypeError(f"a result of {local.dtype} does not fit into {dtype}")
    return local.astype(dtype, order="C")
