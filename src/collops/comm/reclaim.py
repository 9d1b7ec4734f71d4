"""Frees windows, communicators and device memory that nothing refers to any more, on all of their ranks together.

Freeing such a resource is collective, while Python finds garbage on each rank at a time of its own. A rank therefore
only notes which of its resources have become unreachable. When ranks next create one together, they add their notes to
a message that the creation sends anyway (:func:`unreachable`), and free what is unreachable on every rank that has it
(:func:`reclaim`), in one order. Nothing is sent for this alone, and nothing that a rank can still reach is freed.

A resource is identified by its ranks and a count: ranks that have a resource in common have made all that they have in
common in the same order.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from collops._forks import at_fork

__all__ = ["own"]

_MIN_COLLECTED = 64  # resources from where a garbage collection is worth its time


class Resource(NamedTuple):
    """What `ranks` of the world free together by calling `releases`; `settle` ends this rank's own use of it."""

    ranks: tuple[int, ...]
    releases: list[Callable[[], None]]
    settle: Callable[[], None] | None
    comm: Any


_resources: dict[str, Resource] = {}  # in the order of their creation
_dropped: deque[str] = deque()  # appended to by the garbage collector, at any time
_noted: dict[str, None] = {}  # taken from there, until they are freed
_made: Counter[str] = Counter()
_collect_at = _MIN_COLLECTED


def own(
    owner: Any,
    ranks: Sequence[int],
    releases: list[Callable[[], None]],
    *,
    settle: Callable[[], None] | None = None,
    comm: Any = None,
) -> str:
    """Have a resource freed after `owner` has become unreachable on all `ranks`, and return its key. Collective.

    Neither `releases`, which may grow later, nor `settle`, called before this rank tells that it needs the resource no
    longer, may refer to `owner`. Memory that must be freed at the end of the program has a `comm`. `ranks` are those in
    the world; resources of ranks outside it are never freed.
    """
    group = blake2b(",".join(map(str, ranks)).encode(), digest_size=8).hexdigest()
    _made[group] += 1
    key = f"{group}/{_made[group]}"
    _resources[key] = Resource(tuple(ranks), releases, settle, comm)
    weakref.finalize(owner, _dropped.append, key).atexit = False
    return key


def is_owned(key: str) -> bool:
    """Return whether a resource has not been freed, and is not the resource of a forked child's parent."""
    return key in _resources


def free(key: str) -> None:
    """Free a resource. Collective."""
    for release in _resources.pop(key).releases:
        release()


def owned() -> list[tuple[str, Resource]]:
    """Return all resources with their keys, the newest first."""
    return list(reversed(_resources.items()))


def in_use() -> int:
    """Return how many windows and communicators this process has."""
    return sum(len(resource.releases) for resource in _resources.values())


def unreachable(ranks: Collection[int]) -> list[str]:
    """Return the resources of some of these ranks of the world that this rank can no longer reach. Not collective."""
    global _collect_at  # noqa: PLW0603 - the state of the process
    if len(_resources) >= _collect_at:
        gc.collect()  # what refers to itself
        _collect_at = max(_MIN_COLLECTED, 2 * (len(_resources) - len(_dropped)))
    while _dropped:
        _noted[_dropped.popleft()] = None
    for key in [key for key in _noted if key not in _resources]:  # freed by their users
        del _noted[key]
    everyone = set(ranks)
    found = [key for key in _noted if everyone.issuperset(_resources[key].ranks)]
    for key in found:
        if (settle := _resources[key].settle) is not None:
            settle()
    return found


def reclaim(ranks: Sequence[int], notes: Sequence[Collection[str]]) -> None:
    """Free what is unreachable on all of its ranks. Collective. `notes` come from these `ranks` of the world."""
    noted = {rank: set(keys) for rank, keys in zip(ranks, notes, strict=True)}
    for key in sorted(set().union(*noted.values())):
        resource = _resources.get(key)
        if resource is not None and all(key in noted[rank] for rank in resource.ranks):
            free(key)


def _forget() -> None:
    for each in (_resources, _dropped, _noted):
        each.clear()


at_fork(_forget)  # they are the parent's
