"""The processor cores that this process may use: waits and threads are shared out by them."""

from __future__ import annotations

import os
from collections.abc import Iterable

__all__ = ["available_cores", "share_of_cores"]


def available_cores() -> frozenset[int]:
    """Return the numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def share_of_cores(others: Iterable[frozenset[int]]) -> float:
    """Return how many cores this process has for itself, beside other processes of this machine.

    Parameters
    ----------
    others : iterable of frozenset of int
        The cores that each of the others may run on. A core that k processes may run on counts as 1/k, which is right
        both for ranks that a launcher bound to cores of their own and for ranks that share all cores.
    """
    others = tuple(others)
    return sum(1.0 / (1 + sum(core in cores for cores in others)) for core in available_cores())
