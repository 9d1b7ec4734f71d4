"""Steps of sparse and proximal methods in the array API: expressions that can be traced and differentiated.

Each function returns new arrays and ignores memory passed for results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType

import numpy as np

from collops.array.dtypes import real_of
from collops.backend import LocalArray, engine_of
from collops.errors import UnsupportedTypeError
from collops.solvers.kernels import HALF_CUT, Rule
from collops.solvers.state import Scalar

__all__ = ["Selection", "advance", "factor", "group_norms", "group_shrink", "launch_lsqr", "scratch", "shrink"]

launch_lsqr = None  # LSQR computes with its scalars itself


def scratch() -> None:
    """Return the memory that :func:`advance` needs: none."""


def advance(
    rule, threshold, base, alpha, gradient, current, extrapolated, momentum, sums, indices, scratch, keep
) -> tuple[LocalArray, LocalArray | None, LocalArray]:
    """Return the next array, the extrapolated one or ``None``, and the sums; see :func:`shrinkage.advance`."""
    engine, real = engine_of(current), real_of(current.dtype)
    xp = engine.xp
    value = 0 if gradient is None else xp.asarray(alpha, dtype=real) * gradient
    if base is not None:
        value = value + base
    threshold = xp.asarray(threshold, dtype=real)
    value = _shrunk(xp, rule, value, threshold, threshold).astype(current.dtype)
    moved = value - current
    measures = (lambda: _square(xp, moved), lambda: xp.sum(xp.abs(value)), lambda: _square(xp, value))
    for index, measure in zip(indices, measures, strict=True):
        if index >= 0:
            sums = engine.add(sums, slice(index, index + 1), measure().astype(sums.dtype))
    ahead = None
    if extrapolated is not None:
        ahead = value + xp.asarray(0.0 if momentum is None else momentum, dtype=real) * moved
    return xp.where(xp.isfinite(value), value, current) if keep else value, ahead, sums


def shrink(
    rule: Rule,
    threshold: Scalar,
    upper: Scalar,
    weights: LocalArray,
    a: float,
    x: LocalArray,
    b: float,
    y: LocalArray,
    out: LocalArray,
) -> LocalArray:
    """Return the shrunk ``a * x + b * y`` in the dtype of `out`; see :func:`shrinkage.shrink`."""
    xp, real = engine_of(x).xp, real_of(out.dtype)
    value = x if a == 1 else xp.asarray(a, dtype=real) * x
    if y is not None and b != 0:
        value = value + xp.asarray(b, dtype=real) * y
    threshold = xp.asarray(threshold, dtype=real)
    if weights is not None:
        threshold = threshold * weights.astype(real)
    return _shrunk(xp, rule, value, threshold, xp.asarray(upper, dtype=real)).astype(out.dtype)


def group_norms(parts: Sequence[LocalArray]) -> LocalArray:
    """Return the Euclidean norms of the vectors that have one element in each part."""
    xp = engine_of(parts[0]).xp
    return xp.sqrt(sum(xp.abs(part) ** 2 for part in parts))


def group_shrink(
    rule: Rule, threshold: float, parts: Sequence[LocalArray], outs: Sequence[LocalArray]
) -> list[LocalArray]:
    """Return the parts of the vectors that have one element in each part, with their lengths shrunk."""
    norms = group_norms(parts)
    xp = engine_of(norms).xp
    scale = factor(xp, rule, norms, xp.asarray(threshold, dtype=norms.dtype))
    return [part * scale for part in parts]


class Selection:
    """Percentiles of distributed values, which JAX cannot trace: each pass reads the counts of the previous pass."""

    def __init__(self, dtype: np.dtype) -> None:
        raise UnsupportedTypeError(
            "thresholds by percentile cannot be traced by JAX: use threshkind 'soft', 'hard' or 'half', "
            "or arrays of the engines numpy or cupy"
        )


def factor(xp: ModuleType, rule: Rule, size: LocalArray, t: Scalar) -> LocalArray:
    """Return the factor of a rule for values of an absolute size; 0 for values that it sets to 0."""
    if rule is Rule.HARD_AT:
        return (~(size <= t)).astype(size.dtype)
    if rule is Rule.HARD:
        return (~(size <= xp.sqrt(2 * t))).astype(size.dtype)
    # Replacing irrelevant sizes by 1 keeps quotients and their derivatives finite.
    if rule is Rule.PROJECT:
        within = size <= t
        return xp.where(within, 1, t / xp.where(within, 1, size))
    cut = t
    if rule is Rule.HALF_AT:
        t = (cut / HALF_CUT) ** 1.5
    elif rule is Rule.HALF:
        cut = HALF_CUT * t ** (2 / 3)
    nonzero = ~(size <= cut)
    safe = xp.where(nonzero, size, 1)
    if rule is Rule.SOFT:
        return xp.where(nonzero, 1 - t / safe, 0)
    angle = xp.arccos(xp.minimum((t / 8) * (safe / 3) ** -1.5, 1))
    return xp.where(nonzero, (2 / 3) * (1 + xp.cos(2 * math.pi / 3 - (2 / 3) * angle)), 0)


def _shrunk(xp: ModuleType, rule: Rule, u: LocalArray, t: Scalar, upper: Scalar) -> LocalArray:
    if rule is Rule.KEEP:
        return u
    if rule is Rule.CLIP:
        return xp.clip(u, t, upper)
    if u.dtype.kind != "c" and rule is Rule.SOFT:
        return u - xp.clip(u, -t, t)
    if u.dtype.kind != "c" and rule is Rule.PROJECT:
        return xp.clip(u, -t, t)
    return u * factor(xp, rule, xp.abs(u), t)


def _square(xp: ModuleType, v: LocalArray) -> LocalArray:
    return xp.sum(v.real**2 + v.imag**2) if v.dtype.kind == "c" else xp.sum(v * v)
