"""The dtypes and reductions of messages: their meaning, and their names in MPI and NCCL.

The rules follow NumPy's reductions on each dtype: on booleans ``sum`` and ``max`` are *or*, ``prod`` and ``min`` are
*and*; ``min`` and ``max`` of floating numbers are NaN if any operand is. On one rank every reduction returns the values
unchanged; on several, logical operations on integers return truth values, 0 and 1. An undefined reduction raises an
error here, before a message is sent, so that all transports behave alike.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import numpy as np

from collops.backend import LocalArray
from collops.errors import UnsupportedTypeError

__all__ = [
    "DTYPES",
    "LOGICAL",
    "MOVED_BY_MPI",
    "OPERATIONS",
    "as_integers",
    "check_reduction",
    "library_loses_nan",
    "nccl_reduction",
    "sortable",
    "unsorted",
]


class Dtype(NamedTuple):
    """How libraries reduce elements of a dtype.

    Attributes
    ----------
    mpi : str
        Name of MPI's datatype. MPI has no half types: user-defined operations reduce them as 16-bit words.
    nccl : int or None
        Number of NCCL's datatype; ``None`` if NCCL lacks it, so that elements are reduced as 32-bit integers.
    width : int
        Count of NCCL's datatype in one element.
    """

    mpi: str
    nccl: int | None = None
    width: int = 1


DTYPES = {  # the native library numbers them in this order
    "bool": Dtype("C_BOOL"),
    "int8": Dtype("INT8_T", 0),
    "int16": Dtype("INT16_T"),
    "int32": Dtype("INT32_T", 2),
    "int64": Dtype("INT64_T", 4),
    "uint8": Dtype("UINT8_T", 1),
    "uint16": Dtype("UINT16_T"),
    "uint32": Dtype("UINT32_T", 3),
    "uint64": Dtype("UINT64_T", 5),
    "float16": Dtype("UINT16_T", 6),
    "bfloat16": Dtype("UINT16_T", 9),
    "float32": Dtype("FLOAT", 7),
    "float64": Dtype("DOUBLE", 8),
    "complex64": Dtype("C_FLOAT_COMPLEX", 7, 2),
    "complex128": Dtype("C_DOUBLE_COMPLEX", 8, 2),
}
HALF = ("float16", "bfloat16")
LONG_DTYPES = {  # on hosts only, and named by their width; if it equals the width of float64, the name above is used
    np.dtype(np.longdouble).name: Dtype("LONG_DOUBLE"),
    np.dtype(np.clongdouble).name: Dtype("C_LONG_DOUBLE_COMPLEX"),
}
MOVED_BY_MPI = {
    1: "BYTE",
    2: "UINT16_T",
    4: "UINT32_T",
    8: "UINT64_T",
    16: "C_DOUBLE_COMPLEX",
    32: "C_LONG_DOUBLE_COMPLEX",
}
"""MPI's datatype, by element size in bytes, for elements that are moved but not reduced."""


class Operation(NamedTuple):
    """A reduction by the names of libraries (an average is a sum there): MPI's name, and the name in array namespaces.

    `nccl` is NCCL's number where it has one.
    """

    mpi: str
    ufunc: str
    nccl: int | None = None


OPERATIONS = {  # the native library numbers them in this order, without the average
    "sum": Operation("SUM", "add", 0),
    "prod": Operation("PROD", "multiply", 1),
    "min": Operation("MIN", "minimum", 3),
    "max": Operation("MAX", "maximum", 2),
    "avg": Operation("SUM", "add", 4),
    "land": Operation("LAND", "logical_and"),
    "lor": Operation("LOR", "logical_or"),
    "lxor": Operation("LXOR", "logical_xor"),
}
LOGICAL = {"sum": "lor", "max": "lor", "prod": "land", "min": "land"}
"""The reductions of booleans by their logical names."""
_OF_ZEROS_AND_ONES = {"lor": "max", "land": "min", "lxor": "sum"}


def check_dtype(dtype: np.dtype) -> None:
    """Raise `UnsupportedTypeError` for objects, texts, dates, records, and numbers of another byte order."""
    if dtype.kind not in "biufc" and dtype.name != "bfloat16":
        raise UnsupportedTypeError(f"messages carry booleans, integers, real and complex numbers, not {dtype}")
    if not dtype.isnative:
        raise UnsupportedTypeError(f"arrays of dtype {dtype} have another byte order than this machine: convert them")


def check_reduction(op: str, dtype: np.dtype) -> None:
    """Raise `UnsupportedTypeError` unless a reduction is defined for a dtype.

    Undefined are unknown operations, products and orderings of complex numbers, averages of integers and booleans
    (they would be rounded), logical operations on inexact numbers, and non-numeric dtypes.
    """
    if not isinstance(op, str) or op not in OPERATIONS:
        raise UnsupportedTypeError(f"there is no reduction {op!r}; choose one of {', '.join(OPERATIONS)}")
    check_dtype(dtype)
    kind = dtype.kind
    if kind == "c" and op not in ("sum", "avg"):
        raise UnsupportedTypeError(
            f"{op!r} of complex numbers is not supported across ranks; reduce to real numbers first"
        )
    if op == "avg" and kind in "biu":
        raise UnsupportedTypeError(f"'avg' of {dtype} would be rounded; convert to a floating dtype or use 'sum'")
    if op in ("land", "lor", "lxor") and kind not in "biu":
        raise UnsupportedTypeError(f"{op!r} needs booleans or integers, not {dtype}; compare with zero first")


def nccl_reduction(op: str, dtype: np.dtype) -> tuple[int, int, int] | None:
    """Return NCCL's numbers of the datatype and the operation, and the datatype's count in one element.

    ``None`` if NCCL has no such datatype or operation, so that the reduction must be :func:`widened`. Raises
    `UnsupportedTypeError` if the dtype is not in ``DTYPES``.
    """
    known, operation = DTYPES.get(dtype.name), OPERATIONS[op].nccl
    if known is None:
        raise UnsupportedTypeError(f"arrays of dtype {dtype} cannot be reduced by NCCL")
    return None if known.nccl is None or operation is None else (known.nccl, operation, known.width)


def library_loses_nan(op: str | None, dtype: np.dtype) -> bool:
    """Return whether MPI and NCCL may ignore a NaN in this reduction, differently on each rank.

    Both compare floating numbers, and every comparison with NaN is false.
    """
    return op in ("min", "max") and dtype.kind in "fV"


def as_integers(x: LocalArray, op: str, xp: ModuleType) -> tuple[LocalArray, str, Callable[[LocalArray], LocalArray]]:
    """Return integers to reduce in place of `x`, the operation, and a function that converts the result.

    `xp` is the array namespace of `x`. These are the reductions that NCCL does not have, or in which it loses NaN.
    """
    dtype = x.dtype
    if library_loses_nan(op, dtype):
        return sortable(x, op, xp), op, lambda keys: unsorted(keys, dtype, xp)
    named = LOGICAL.get(op, op) if dtype.kind == "b" else op
    values = (x != 0 if named in _OF_ZEROS_AND_ONES else x).astype(xp.int32)
    last_bit = named == "lxor"  # of a sum of zeros and ones
    return values, _OF_ZEROS_AND_ONES.get(named, named), lambda y: (y & 1 if last_bit else y).astype(dtype)


def sortable(x: LocalArray, op: str, xp: ModuleType) -> LocalArray:
    """Return integers that `op`, min or max, reduces as NumPy reduces the floating numbers `x`: any NaN is the result.

    Read as integers, the bits of positive numbers have the order of the numbers, and the bits of negative numbers have
    it once all bits but the sign are inverted. A NaN becomes the extreme integer. Half types are widened to 32
    bits. :func:`unsorted` is the inverse.
    """
    widened = x if x.dtype.itemsize > 2 else x.astype(xp.float32)
    bits = widened.view(_integer_like(widened.dtype))
    limits = np.iinfo(bits.dtype)
    keys = xp.where(bits < 0, bits ^ limits.max, bits)
    return xp.where(widened != widened, limits.max if op == "max" else limits.min, keys).astype(bits.dtype)


def unsorted(keys: LocalArray, dtype: np.dtype, xp: ModuleType) -> LocalArray:
    """Return the floating numbers of `dtype` that :func:`sortable` has turned into these integers."""
    bits = xp.where(keys < 0, keys ^ np.iinfo(keys.dtype).max, keys).astype(keys.dtype)
    return bits.view(np.float32 if dtype.itemsize <= 4 else np.float64).astype(dtype)


def _integer_like(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.int32 if dtype.itemsize == 4 else np.int64)


def divide(array: LocalArray, size: int) -> None:
    """Turn a sum into an average in the array's own dtype (bfloat16 has no in-place division by an int)."""
    # NumPy divides complex numbers through a reciprocal, which rounds once more.
    for part in (array.real, array.imag) if array.dtype.kind == "c" else (array,):
        part[...] = (part / size).astype(part.dtype)
