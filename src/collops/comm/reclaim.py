"""Collective garbage collection of windows, communicators and device memory.

Freeing such a resource is collective, while Python collects garbage on each rank at a different time. A rank therefore
only records which of its resources have become unreachable. When ranks next create a resource, they add these records
to a message of the creation (:func:`unreachable`), and free the resources that are unreachable on all of their ranks
(:func:`reclaim`), in the same order. No additional message is sent, and no reachable resource is freed.

A resource is identified by its ranks and a count: ranks create their common resources in the same order.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from typing import NamedTuple

from collops._forks import at_fork
from collops.comm.agreement import AnyCommunicator

__all__ = ["free_when_unreachable"]

_MIN_COLLECTED = 64  # number of limited resources that triggers a garbage collection


class Resource(NamedTuple):
    """A resource of `ranks` of the world, freed by `releases`; `settle` completes this rank's use of it.

    `limited` if a process can have only a limited number of them.
    """

    ranks: tuple[int, ...]
    releases: list[Callable[[], None]]
    settle: Callable[[], None] | None
    comm: AnyCommunicator
    limited: bool


_resources: dict[str, Resource] = {}  # in the order of their creation
_dropped: deque[str] = deque()  # appended to by the garbage collector, at any time
_noted: dict[str, None] = {}  # keys from _dropped, until they are freed
_made: Counter[str] = Counter()
_collect_at = _MIN_COLLECTED


def free_when_unreachable(
    owner: object,
    ranks: Sequence[int],
    releases: list[Callable[[], None]],
    *,
    settle: Callable[[], None] | None = None,
    comm: AnyCommunicator = None,
    limited: bool = True,
) -> str:
    """Register a resource to be freed after `owner` has become unreachable on all `ranks`; return its key. Collective.

    Neither `releases`, which may grow later, nor `settle`, called before this rank reports the resource as unreachable,
    may refer to `owner`. Memory that must be freed at the end of the program has a `comm`. `ranks` are numbers in the
    world; resources of ranks outside it are never freed. Only `limited` resources, windows, communicators and device
    memory, are counted.
    """
    group = blake2b(",".join(map(str, ranks)).encode(), digest_size=8).hexdigest()
    _made[group] += 1
    key = f"{group}/{_made[group]}"
    _resources[key] = Resource(tuple(ranks), releases, settle, comm, limited)
    weakref.finalize(owner, _dropped.append, key).atexit = False
    return key


def is_owned(key: str) -> bool:
    """Return whether a resource has not been freed, and does not belong to the parent of a forked child."""
    return key in _resources


def free(key: str) -> None:
    """Free a resource. Collective."""
    for release in _resources.pop(key).releases:
        release()


def owned() -> list[tuple[str, Resource]]:
    """Return all resources with their keys, the newest first."""
    return list(reversed(_resources.items()))


def in_use() -> int:
    """Return the number of windows and communicators of this process."""
    return sum(len(resource.releases) for resource in _resources.values() if resource.limited)


def unreachable(ranks: Collection[int]) -> list[str]:
    """Return the resources of some of these ranks of the world that this rank can no longer reach. Not collective."""
    global _collect_at  # noqa: PLW0603 - the state of the process
    many = sum(resource.limited for resource in _resources.values()) >= _collect_at
    if many:
        gc.collect()  # reference cycles
    while _dropped:
        _noted[_dropped.popleft()] = None
    for key in [key for key in _noted if key not in _resources]:  # already freed by users
        del _noted[key]
    if many:
        reachable = sum(resource.limited for key, resource in _resources.items() if key not in _noted)
        _collect_at = max(_MIN_COLLECTED, 2 * reachable)
    everyone = set(ranks)
    keys = [key for key in _noted if everyone.issuperset(_resources[key].ranks)]
    for key in keys:
        if (settle := _resources[key].settle) is not None:
            settle()
    return keys


def reclaim(ranks: Sequence[int], notes: Sequence[Collection[str]]) -> None:
    """Free the resources that are unreachable on all of their ranks; `notes` are from these `ranks`. Collective."""
    noted = {rank: set(keys) for rank, keys in zip(ranks, notes, strict=True)}
    for key in sorted(set().union(*noted.values())):
        resource = _resources.get(key)
        if resource is not None and all(key in noted[rank] for rank in resource.ranks):
            free(key)


def _forget() -> None:
    for collection in (_resources, _dropped, _noted):
        collection.clear()


at_fork(_forget)  # they are the parent's
