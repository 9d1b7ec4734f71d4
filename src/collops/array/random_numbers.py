"""Random numbers that depend on the seed and the global index alone, not on ranks, layout or engine.

Element *i* is a hash of *i*: the output function of SplitMix64 [1]_ applied to a counter, computed by the same array
operations on all engines. Numbers are computed in double precision and then rounded to their dtype.

References
----------
.. [1] Steele, G. L., Lea, D., and Flood, C. H. (2014). Fast splittable pseudorandom number generators. ACM SIGPLAN
   Notices 49(10), 453-472.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from types import ModuleType

import numpy as np

from collops.array.dtypes import real_of
from collops.array.layout import Layout
from collops.backend import Engine, LocalArray
from collops.backend import engine as find_engine
from collops.errors import InputError, UnsupportedTypeError

_WORD = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # the golden ratio's odd fraction of 2**64
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
_PIECE = {"host": 1 << 14, "device": 1 << 22}
_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}


def fill_random(engine: Engine, layout: Layout, rank: int, dtype: np.dtype, kind: str, seed: int) -> LocalArray:
    """Return one rank's part of a random array.

    Parameters and exceptions as for :func:`collops.random`; `seed` is any integer.
    """
    if kind not in ("normal", "uniform"):
        raise InputError(f"kind of random numbers must be 'normal' or 'uniform', not {kind!r}")
    real = real_of(dtype)
    if real.name not in _BITS:
        raise UnsupportedTypeError(f"random numbers must be of a real or complex dtype, not {dtype}")
    xp = engine.xp
    # JAX cannot compute the hash without jax_enable_x64, and in host memory it would compile some 20 small programs for
    # each number of elements, one for each operation below.
    if engine.dtype(np.uint64) != np.uint64 or (engine.memory == "host" and not engine.mutable):
        return engine.from_host(fill_random(find_engine("numpy"), layout, rank, dtype, kind, seed))
    state = _mixed(_word(seed))
    count = layout.local_size(rank)
    dtype = engine.dtype(dtype)
    result = xp.empty(count, dtype)
    start = 0
    for index in _global_indices(xp, layout, rank, _PIECE[engine.memory]):
        first, second = (_hashed(index, state, part) for part in (0, 1))
        if kind == "uniform":
            parts = [_uniform(word, _BITS[real.name]) for word in (first, second)]
        else:
            # The Box-Muller transform of two uniform numbers. 1 - u is never 0.
            radius = xp.sqrt(-2.0 * xp.log(1.0 - _uniform(first, 53)))
            angle = (2.0 * math.pi) * _uniform(second, 53)
            parts = [radius * wave(angle) for wave in ((xp.cos, xp.sin) if dtype.kind == "c" else (xp.cos,))]
        values = parts[0] + 1j * parts[1] if dtype.kind == "c" else parts[0]
        result = engine.put(result, slice(start, start + values.size), values.astype(dtype))
        start += values.size
    return result.reshape(layout.local_shape(rank))


def child_seed(seed: int, number: int) -> int:
    """Return the seed for part `number` of a stacked array."""
    return _mixed((_mixed(_word(seed)) + number + 1) & _WORD)


def _word(seed: int) -> int:
    # Integers of NumPy have 64 bits with a sign, which hold no mask of 64 ones.
    try:
        return operator.index(seed) & _WORD
    except TypeError:
        raise InputError(f"seed must be an integer, not {seed!r}") from None


def _global_indices(xp: ModuleType, layout: Layout, rank: int, piece: int) -> Iterator[LocalArray]:
    """Yield the flat global indices of a block in C order, in pieces."""
    block = layout.block(rank)
    # Whole axes are merged with the axis before them, which saves divisions.
    merged: list[tuple[int, int, int]] = []
    for local, extent, offset in zip(block.shape, layout.shape, block.offset, strict=True):
        if merged and local == extent:
            n, m, o = merged.pop()
            merged.append((n * extent, m * extent, o * extent))
        else:
            merged.append((local, extent, offset))
    count = math.prod(block.shape)
    for start in range(0, count, piece):
        remaining = xp.arange(start, min(start + piece, count), dtype=np.int64)
        index, stride = None, 1
        for number, (local, extent, offset) in enumerate(reversed(merged)):
            last = number == len(merged) - 1
            local_index = (remaining if last else remaining % local) + offset
            remaining = remaining if last else remaining // local
            index = local_index * stride if index is None else index + local_index * stride
            stride *= extent
        yield index.astype(np.uint64)  # pyright: ignore[reportOptionalMemberAccess] - there is always an axis


def _hashed(index: LocalArray, state: int, part: int) -> LocalArray:
    """Return 64 random bits for each index; `part` selects one of the two words of an element."""
    word = (index * np.uint64(2) + np.uint64(part + 1)) * np.uint64(_STEP) + np.uint64(state)
    for shift, factor in _MIX:
        word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor)
    return word


def _mixed(word: int) -> int:
    word = (word + _STEP) & _WORD
    for shift, factor in _MIX:
        word = (word ^ (word >> shift)) * factor & _WORD
    return word


def _uniform(word: LocalArray, bits: int) -> LocalArray:
    """Return doubles in [0, 1) from the upper `bits` bits, as many as the final dtype has, so that none rounds to 1."""
    return (word >> np.uint64(64 - bits)).astype(np.float64) * 2.0**-bits
