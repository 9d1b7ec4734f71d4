"""Layouts and values that the tests of this room share, on any number of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collops.array import Layout

INEXACT = ["float32", "float64", "complex64", "complex128"]
HALF = ["float16", "bfloat16"]
WHOLE = ["bool", "int8", "uint16", "int32", "int64"]


def dtype_of(name: str) -> np.dtype:
    if name == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes").bfloat16)
    return np.dtype(name)


def values(shape: Any, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    """The same numbers on every rank; small whole ones for integers."""
    generator = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        return generator.integers(0, 5, shape).astype(dtype)
    real = generator.standard_normal(shape)
    if dtype.kind == "c":
        real = real + 1j * generator.standard_normal(shape)
    return real.astype(dtype)


def tolerance(dtype: Any) -> dict[str, float]:
    dtype = np.dtype(dtype)
    if dtype.itemsize == 2:
        return {"rtol": 2e-2, "atol": 2e-2}
    single = dtype in (np.dtype("float32"), np.dtype("complex64"))
    return {"rtol": 2e-5, "atol": 1e-5} if single else {"rtol": 1e-12, "atol": 1e-12}


def layouts(shape: tuple[int, ...], ranks: int) -> list[Layout]:
    """One layout of each sort that this number of ranks allows."""
    ndim = len(shape)
    found = [Layout.split(shape, ranks, axis) for axis in range(ndim)]
    found.append(Layout.replicated(shape, ranks))
    found.append(Layout.split(shape, ranks, 0, sizes=uneven(shape[0], ranks)))
    if ndim >= 2:
        for first in range(1, ranks + 1):
            if ranks % first == 0:
                grid = (first, ranks // first)
                rest = ndim - 2
                found.append(Layout.grid(shape, grid + (1,) * rest))
                # One axis split, copies along the other; and the grid's axes exchanged.
                found.append(Layout(shape, ranks, grid, (0, None) + (None,) * rest))
                found.append(Layout(shape, ranks, grid, (None, 0) + (None,) * rest))
                found.append(Layout(shape, ranks, grid, (1, 0) + (None,) * rest))
    return list(dict.fromkeys(found))


def uneven(extent: int, ranks: int) -> list[int]:
    """Sizes of which the first is 0 and the last is largest."""
    sizes = [0] + [1] * (ranks - 1) if extent >= ranks - 1 else [0] * ranks
    sizes[-1] += extent - sum(sizes)
    return sizes


def masks(ranks: int) -> list[tuple[int, ...]]:
    """Groupings of the ranks."""
    found = [tuple(rank % 2 for rank in range(ranks)), tuple(rank // 2 for rank in range(ranks)), tuple(range(ranks))]
    return list(dict.fromkeys(mask for mask in found if max(mask) > 0))
