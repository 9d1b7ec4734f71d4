"""Steps of sparse and proximal methods on JAX: expressions that XLA fuses, of what the variables hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from collops.array.dtypes import real_of
from collops.errors import UnsupportedTypeError
from collops.jax_engine import Variable, value_of
from collops.solvers.thresholds import HALF_CUT, Rule

__all__ = ["Selection", "advance", "group_norms", "group_shrink", "scratch", "shrink"]


def scratch() -> None:
    """Return what :func:`advance` needs besides: nothing."""


def advance(
    rule: Rule,
    threshold: Any,
    base: Any,
    alpha: float,
    gradient: Any,
    current: Variable,
    extrapolated: Any,
    momentum: Any,
    sums: Variable,
    places: tuple[int, int, int],
    scratch: None,
    keep: bool,
) -> None:
    """Take a step, remember where it led, look ahead, and add up how far it went; see :func:`shrinkage.advance`."""
    real = real_of(current.dtype)
    value = 0 if gradient is None else _real(alpha, real) * gradient.value
    if base is not None:
        value = value + base.value
    value = _shrunk(rule, value, _real(threshold, real), _real(threshold, real)).astype(current.dtype)
    moved = value - current.value
    totals = (_square(moved), jnp.sum(jnp.abs(value)), _square(value))
    for place, total in zip(places, totals, strict=True):
        if place >= 0:
            sums[place : place + 1] += total.astype(sums.dtype)
    if extrapolated is not None:
        extrapolated[...] = value + _real(0.0 if momentum is None else momentum, real) * moved
    current[...] = jnp.where(jnp.isfinite(value), value, current.value) if keep else value


def shrink(rule: Rule, threshold: Any, upper: Any, weights: Any, a: float, x: Any, b: float, y: Any, out: Any) -> None:
    """Set `out`, which may be `x` or `y`, to the shrunk ``a * x + b * y``; see :func:`shrinkage.shrink`."""
    real = real_of(out.dtype)
    value = x.value if a == 1 else _real(a, real) * x.value
    if y is not None and b != 0:
        value = value + _real(b, real) * y.value
    threshold = _real(threshold, real)
    if weights is not None:
        threshold = threshold * weights.value.astype(real)
    out[...] = _shrunk(rule, value, threshold, _real(upper, real))


def group_norms(parts: Sequence[Any]) -> Any:
    """Return the Euclidean norms of the vectors that have one element in each part."""
    return Variable(jnp.sqrt(sum(jnp.abs(part.value) ** 2 for part in parts)))


def group_shrink(rule: Rule, threshold: float, parts: Sequence[Any], outs: Sequence[Any]) -> None:
    """Shrink the length of the vectors that have one element in each part."""
    norms = group_norms(parts).value
    factor = _factor(rule, norms, _real(threshold, norms.dtype))
    for value, out in zip([part.value * factor for part in parts], outs, strict=True):
        out[...] = value


class Selection:
    """Percentiles of distributed values, which JAX has not: their passes look at the numbers of the one before.

    Raises
    ------
    UnsupportedTypeError
        Always.
    """

    def __init__(self, dtype: np.dtype) -> None:
        raise UnsupportedTypeError(
            "thresholds by percentile cannot be traced by JAX: use threshkind 'soft', 'hard' or 'half', "
            "or arrays of the engines numpy or cupy"
        )


def _shrunk(rule: Rule, u: Any, t: Any, upper: Any) -> Any:
    if rule is Rule.KEEP:
        return u
    if rule is Rule.CLIP:
        return jnp.clip(u, t, upper)
    if rule is Rule.SOFT and not jnp.iscomplexobj(u):
        return u - jnp.clip(u, -t, t)
    if rule is Rule.PROJECT and not jnp.iscomplexobj(u):
        return jnp.clip(u, -t, t)
    return u * _factor(rule, jnp.abs(u), t)


def _factor(rule: Rule, size: Any, t: Any) -> Any:
    """Return what values of an absolute size are multiplied by; 0 for those that are cut off."""
    if rule is Rule.HARD_AT:
        return (~(size <= t)).astype(size.dtype)
    if rule is Rule.HARD:
        return (~(size <= jnp.sqrt(2 * t))).astype(size.dtype)
    cut = t
    # Where the value is cut off, a size of 1 keeps derivatives finite.
    if rule is Rule.PROJECT:
        return jnp.where(size <= t, 1, t / jnp.where(size <= t, 1, size))
    if rule is Rule.HALF_AT:
        t = (cut / HALF_CUT) ** 1.5
    elif rule is Rule.HALF:
        cut = HALF_CUT * t ** (2 / 3)
    kept = ~(size <= cut)
    safe = jnp.where(kept, size, 1)
    if rule is Rule.SOFT:
        return jnp.where(kept, 1 - t / safe, 0)
    angle = jnp.arccos(jnp.minimum((t / 8) * (safe / 3) ** -1.5, 1))
    return jnp.where(kept, (2 / 3) * (1 + jnp.cos(2 * math.pi / 3 - (2 / 3) * angle)), 0)


def _square(v: Any) -> Any:
    return jnp.sum(v.real**2 + v.imag**2) if jnp.iscomplexobj(v) else jnp.sum(v * v)


def _real(value: Any, dtype: np.dtype) -> Any:
    return jnp.asarray(value_of(value), dtype)
