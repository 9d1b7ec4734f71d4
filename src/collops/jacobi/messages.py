"""Sweep, then exchange halos by messages: the simplest parallel program (`staged`, `mpi`, `nccl`)."""

from __future__ import annotations

from collops.extend.arrays import LocalArray
from collops.jacobi.variant import Variant
from collops.profile import mark


class Messages(Variant):
    """Nothing overlaps: messages wait for the sweep, and the next sweep for the messages."""

    def step(self, source: LocalArray, target: LocalArray, norms: LocalArray, slot: int) -> None:
        with mark("sweep"):
            self.sweeps.full(source, target, norms, slot)
        with mark("halo"):
            self.halo(target, target)
