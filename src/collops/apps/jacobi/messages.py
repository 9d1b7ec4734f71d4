"""Sweep, then exchange halos by messages: the simplest parallel program (`staged`, `mpi`, `nccl`)."""

from __future__ import annotations

from typing import Any

from collops.apps.jacobi.variant import Variant
from collops.profile import mark

__all__ = ["Messages"]


class Messages(Variant):
    """Nothing overlaps: messages wait for the sweep, and the next sweep for the messages."""

    def advance(self, count: int, norms: Any) -> None:
        """Make `count` sweeps."""
        for slot in range(count):
            source, target = self.turns()
            with mark("sweep"):
                self.sweeps.whole(source, target, norms, self.checked(slot))
            with mark("halo"):
                self.halo(target, target)
            self.done += 1
