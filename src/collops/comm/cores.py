"""The processor cores that this process may use: waits and threads are shared out by them."""

from __future__ import annotations

import os

__all__ = ["available_cores"]


def available_cores() -> frozenset[int]:
    """Return the numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))
