"""A clock that moves when told, and a device that works asynchronously."""

from __future__ import annotations

from collops.profile.device import Stamp


class Clock:
    """Host time in nanoseconds."""

    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now

    def work(self, nanoseconds: int) -> None:
        self.now += nanoseconds


class Device:
    """One stream: work is enqueued in no time and done in order; its own clock has another origin."""

    origin = 5_000_000

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.busy_until = 0
        self.capturing = False
        self.in_use = True
        self.waits = 0

    def enqueue(self, nanoseconds: int) -> None:
        self.busy_until = max(self.busy_until, self.clock.now) + nanoseconds

    def stamp(self) -> Stamp | None:
        if not self.in_use:
            return None
        event = max(self.busy_until, self.clock.now) + self.origin
        return Stamp(7, None if self.capturing else event)

    def wait(self, event: int) -> None:
        self.waits += 1
        self.clock.now = max(self.clock.now, event - self.origin)

    def elapsed(self, begin: int, end: int) -> float:
        assert max(begin, end) <= self.clock.now + self.origin, "asked before it happened"
        return float(end - begin)
