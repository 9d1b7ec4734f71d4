"""The time integral that makes particle velocities from derivatives of the pressure, and its transpose."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.extend.arrays import LocalArray
from collops.extend.engines import engine_of

# The integral over a time step of the polynomial through its two ends and the two samples before (Adams and Moulton).
_WEIGHTS = 9 / 24, 19 / 24, -5 / 24, 1 / 24


def integrated(traces: LocalArray, receivers: np.ndarray) -> LocalArray:
    """Return traces of which some are integrated over time, in units of the time step; before, they are zero.

    Parameters
    ----------
    traces : array
        Shape (shots, receivers, samples).
    receivers : numpy.ndarray
        Which receivers have traces to integrate, bool.
    """
    return _replaced(traces, receivers, _integral)


def integrated_transposed(traces: LocalArray, receivers: np.ndarray) -> LocalArray:
    """Apply the transpose of :func:`integrated`."""
    return _replaced(traces, receivers, _transposed)


def _replaced(traces: LocalArray, receivers: np.ndarray, operation: Any) -> LocalArray:
    if not receivers.any():
        return traces
    xp: Any = engine_of(traces).xp
    return xp.where(xp.asarray(receivers)[:, np.newaxis], operation(traces, xp), traces)


def _integral(traces: LocalArray, xp: Any) -> LocalArray:
    samples, last = traces.shape[-1], len(_WEIGHTS) - 1
    padded = xp.pad(traces, ((0, 0), (0, 0), (last, 0)))
    parts = sum(weight * padded[..., last - k : last - k + samples] for k, weight in enumerate(_WEIGHTS))
    return xp.cumsum(parts, axis=-1)


def _transposed(traces: LocalArray, xp: Any) -> LocalArray:
    samples = traces.shape[-1]
    sums = xp.cumsum(traces[..., ::-1], axis=-1)[..., ::-1]
    padded = xp.pad(sums, ((0, 0), (0, 0), (0, len(_WEIGHTS) - 1)))
    return sum(weight * padded[..., k : k + samples] for k, weight in enumerate(_WEIGHTS))
