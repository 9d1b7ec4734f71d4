"""Sweep, then exchange halos by messages: the simplest parallel program (`staged`, `mpi`, `nccl`); one rank alone."""

from __future__ import annotations

from typing import Any

from collops.apps.jacobi.variant import Variant

__all__ = ["Messages", "Single"]


class Single(Variant):
    """The kernel sweeps and fills the halo of its own block: all other variants are measured against it."""

    def advance(self, count: int, norms: Any) -> None:
        """Make `count` sweeps."""
        for slot in range(count):
            source, target = self.turns()
            with self.span("sweep"):
                self.sweeps.wrapped(source, target, norms, self.checked(slot))
            self.done += 1


class Messages(Variant):
    """Nothing overlaps: messages wait for the sweep, and the next sweep for the messages."""

    def advance(self, count: int, norms: Any) -> None:
        """Make `count` sweeps."""
        for slot in range(count):
            source, target = self.turns()
            with self.span("sweep"):
                self.sweeps.whole(source, target, norms, self.checked(slot))
            with self.span("halo"):
                self.halo(target, target)
            self.done += 1
