"""Element types: names that NumPy lacks, and the types in which half-precision numbers are accumulated."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

import numpy as np

from collops.errors import InputError, UnsupportedTypeError

__all__ = ["accumulator", "as_dtype", "check_byte_order", "combined", "is_half", "real_of"]


def as_dtype(dtype: Any) -> np.dtype:
    """Return the NumPy dtype called `dtype`, in this machine's byte order; ``"bfloat16"`` is the one of ml_dtypes.

    Raises
    ------
    InputError
        If there is no such dtype, or ml_dtypes is needed and not installed.
    """
    if isinstance(dtype, str) and dtype == "bfloat16":
        try:
            return np.dtype(importlib.import_module("ml_dtypes").bfloat16)
        except ModuleNotFoundError:
            raise InputError("dtype bfloat16 needs the package ml_dtypes, which is not installed") from None
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise InputError(f"{dtype!r} is no dtype: {error}") from None
    if found.kind not in "biufc" and found.name != "bfloat16":
        raise InputError(f"arrays hold booleans, integers, real or complex numbers, not {found}")
    return found if found.isnative else found.newbyteorder("=")


def check_byte_order(dtype: np.dtype) -> None:
    """Raise for numbers in another byte order, which BLAS and transports would misread.

    Raises
    ------
    UnsupportedTypeError
        If their byte order is not this machine's.
    """
    if not dtype.isnative:
        native = dtype.newbyteorder("=")
        raise UnsupportedTypeError(f"an array of dtype {dtype} has another byte order: make it astype({native.name!r})")


@lru_cache(maxsize=64)
def is_half(dtype: np.dtype) -> bool:
    """Return whether `dtype` is float16 or bfloat16."""
    return dtype.itemsize == 2 and (dtype.kind == "f" or dtype.name == "bfloat16")


@lru_cache(maxsize=64)
def accumulator(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which sums of products of `dtype` are kept: float32 for half types, else `dtype`."""
    return np.dtype(np.float32) if is_half(dtype) else dtype


@lru_cache(maxsize=64)
def real_of(dtype: np.dtype) -> np.dtype:
    """Return the dtype of the real part."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


@lru_cache(maxsize=256)
def combined(x: np.dtype, y: np.dtype, kind: type) -> np.dtype:
    """Return the dtype of a combination of two arrays whose coefficients are numbers of `kind` at most.

    Coefficients promote as Python's numbers do: kinds, never precisions. NumPy itself does not follow that rule for
    bfloat16.
    """
    dtype = np.result_type(x, y)
    return dtype if dtype.kind == "c" or (is_half(dtype) and kind is not complex) else np.result_type(dtype, kind(0))
