"""Ranks in one process: programs that run in turns on a simulated clock, with messages and collectives in memory."""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, Self

import pytest

from collops.comm import failure
from collops.comm.failure import Failures
from collops.errors import LayoutError

STEP_SECONDS = 0.004  # that the clock advances when each rank has slept once
MAX_SECONDS = 150.0


class TransportBroken(Exception):
    """What the simulated requests raise in place of MPI's exception."""

    def Get_error_string(self) -> str:
        return str(self)


class Channel:
    """A control channel in memory. `sent` has every message with its sender, of all ranks."""

    error = TransportBroken
    lost = ()

    def __init__(self, rank: int, inboxes: list[deque[tuple[int, Any]]], sent: list[tuple[int, Any]]) -> None:
        self.rank = rank
        self.size = len(inboxes)
        self._inboxes = inboxes
        self._sent = sent

    def send(self, message: Any) -> None:
        text = json.dumps(message)
        self._sent.append((self.rank, json.loads(text)))
        for rank, inbox in enumerate(self._inboxes):
            if rank != self.rank:
                inbox.append((self.rank, json.loads(text)))

    def receive(self) -> Any:
        inbox = self._inboxes[self.rank]
        while inbox:
            yield inbox.popleft()


class Request:
    """A request of MPI that is complete when `done` says so."""

    def __init__(self, done: Any) -> None:
        self.Test = done


class Rank:
    """One rank: its failure protocol, and a communicator and an MPI that know just enough to disagree."""

    def __init__(self, world: World, number: int) -> None:
        self.rank = number
        channel = Channel(number, world.inboxes, world.sent)
        self.failures = Failures(channel, world.timeout, oversubscribed=True, hosts=world.hosts)
        self.failures.renew = self.renew
        self.baton = threading.Semaphore(0)
        self.error: BaseException | None = None
        self.transport = 0
        self._world = world
        self._counts: dict[Any, int] = defaultdict(int)

    def reject(self, name: str) -> None:
        """Raise instead of making the collective call `name`."""
        error = LayoutError(f"bad {name}")
        self.failures.reject(name, error)
        raise error

    def call(self, name: str, root: int | None = None) -> None:
        """Make a collective call, in which all ranks need all, or only the `root`."""
        if self.failures.attention:
            self.failures.attend()
        self.failures.number += 1
        self.failures.wait(self._post(self.transport, name, root), name)

    def start(self, name: str) -> Callable[[], None]:
        """Begin a collective call, and return the function that waits for it."""
        self.failures.number += 1
        number, request = self.failures.number, self._post(self.transport, name, None)
        return lambda: self.failures.wait(request, name, number=number)

    def renew(self) -> None:
        self.failures.wait(self._post("renew", "renew", None), "renew", range(self._world.size))
        self.transport += 1

    def sleep(self, seconds: float) -> None:
        end = self._world.now + seconds
        while self._world.now < end:
            self._world.sleep(seconds)

    def _post(self, transport: Any, name: str, root: int | None) -> Request:
        """Post a call, which MPI pairs with those of other ranks by its order on the transport."""
        posted = self._world.posted[transport, self._counts[transport]]
        self._counts[transport] += 1
        posted[self.rank] = name
        needed = range(self._world.size) if root is None else [root]

        def done() -> bool:
            if any(rank not in posted for rank in needed):
                return False
            self._world.mispaired += [] if len(set(posted.values())) == 1 else [dict(posted)]
            return True

        return Request(done)


class World:
    """Several ranks. One runs at a time, until it sleeps: programs have the same outcome every time."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, size: int, timeout: float | None = 5.0, hosts: Sequence[str] = ()
    ) -> None:
        self.size = size
        self.hosts = hosts
        self.timeout = timeout
        self.now = 0.0
        self.inboxes: list[deque[tuple[int, Any]]] = [deque() for _ in range(size)]
        self.sent: list[tuple[int, Any]] = []
        self.posted: Any = defaultdict(dict)
        self.mispaired: list[dict[int, str]] = []
        self.ranks = [Rank(self, number) for number in range(size)]
        self._running = self.ranks[0]
        self._alive: list[Rank] = []
        self._over = threading.Semaphore(0)
        monkeypatch.setattr(failure, "time", self)
        monkeypatch.setattr(failure, "_YIELDS", 0)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _seconds: float) -> None:
        """Let the next rank run; the time passes when all have."""
        assert self.now < MAX_SECONDS, "a rank waits for ever"
        current = self._running
        self.now += STEP_SECONDS / len(self._alive)
        following = self._alive[(self._alive.index(current) + 1) % len(self._alive)]
        if following is not current:
            self._running = following
            following.baton.release()
            current.baton.acquire()

    def run(self, *programs: Any) -> Self:
        """Run a program on each rank, until all have ended; a rank's `error` is what its program raised."""
        self._alive = list(self.ranks)
        threads = [
            threading.Thread(target=self._main, args=pair, daemon=True)
            for pair in zip(self.ranks, programs, strict=True)
        ]
        for thread in threads:
            thread.start()
        self._running = self.ranks[0]
        self._running.baton.release()
        assert self._over.acquire(timeout=60), "the simulated ranks hang"
        return self

    def _main(self, rank: Rank, program: Any) -> None:
        rank.baton.acquire()
        rank.error = None
        try:
            program(rank)
        except BaseException as error:
            rank.error = error
        following = self._alive[(self._alive.index(rank) + 1) % len(self._alive)]
        self._alive.remove(rank)
        if self._alive:
            self._running = following
            following.baton.release()
        else:
            self._over.release()
