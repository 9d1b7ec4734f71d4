"""Element types: checks, and the dtypes of accumulators, real parts and linear combinations."""

from __future__ import annotations

import importlib
from functools import lru_cache

import numpy as np
from numpy.typing import DTypeLike

from collops.errors import InputError, UnsupportedTypeError

__all__ = [
    "accumulator",
    "as_dtype",
    "check_byte_order",
    "combined",
    "is_half",
    "norm_dtype",
    "real_of",
    "significant_bytes",
]

_X87_MANTISSA_BITS, _X87_BYTES = 63, 10  # of long double on x86, which is padded to 12 or 16 bytes


def as_dtype(dtype: DTypeLike) -> np.dtype:
    """Return the NumPy dtype called `dtype`, in this machine's byte order; raise InputError if there is none.

    The package ml_dtypes defines ``"bfloat16"``.
    """
    if isinstance(dtype, str) and dtype == "bfloat16":
        try:
            return np.dtype(importlib.import_module("ml_dtypes").bfloat16)
        except ModuleNotFoundError:
            raise InputError("dtype bfloat16 needs the package ml_dtypes, which is not installed") from None
    try:
        result = np.dtype(dtype)
    except TypeError as error:
        raise InputError(f"there is no dtype {dtype!r}: {error}") from None
    if result.kind not in "biufc" and result.name != "bfloat16":
        raise InputError(f"elements of arrays must be booleans, integers, real or complex numbers, not {result}")
    return result if result.isnative else result.newbyteorder("=")


def check_byte_order(dtype: np.dtype) -> None:
    """Raise :class:`UnsupportedTypeError` for another byte order, which BLAS and transports would misread."""
    if not dtype.isnative:
        native = dtype.newbyteorder("=")
        raise UnsupportedTypeError(f"dtype {dtype} is not in this machine's byte order: use astype({native.name!r})")


@lru_cache(maxsize=64)
def is_half(dtype: np.dtype) -> bool:
    """Return whether `dtype` is float16 or bfloat16."""
    return dtype.itemsize == 2 and (dtype.kind == "f" or dtype.name == "bfloat16")


@lru_cache(maxsize=64)
def accumulator(dtype: np.dtype) -> np.dtype:
    """Return the dtype of sums of products of `dtype`: float32 for half precision, else `dtype`."""
    return np.dtype(np.float32) if is_half(dtype) else dtype


@lru_cache(maxsize=64)
def real_of(dtype: np.dtype) -> np.dtype:
    """Return the dtype of the real part."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def significant_bytes(numbers: np.ndarray) -> memoryview:
    """Return the bytes of numbers in C order, without the padding of long double, whose contents vary."""
    numbers = np.ascontiguousarray(numbers).reshape(-1)
    numbers = numbers.view(real_of(numbers.dtype))
    octets = numbers.view(np.uint8)
    if numbers.dtype.char != "g" or np.finfo(numbers.dtype).nmant != _X87_MANTISSA_BITS:
        return octets.data
    return np.ascontiguousarray(octets.reshape(numbers.size, numbers.itemsize)[:, :_X87_BYTES]).reshape(-1).data


@lru_cache(maxsize=64)
def norm_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of norms: real, float64 for integers and float32 for half precision."""
    return np.dtype(np.float64) if dtype.kind in "biu" else accumulator(real_of(dtype))


@lru_cache(maxsize=256)
def combined(x: np.dtype, y: np.dtype, kind: type) -> np.dtype:
    """Return the dtype of a linear combination of two arrays, with coefficients of the Python type `kind`.

    Coefficients promote like Python's numbers: the kind, never the precision. NumPy does not do so for bfloat16.
    """
    dtype = np.result_type(x, y)
    return dtype if dtype.kind == "c" or (is_half(dtype) and kind is not complex) else np.result_type(dtype, kind(0))
