"""Sweep, then exchange the halo by messages: the plainest parallel program, over whatever wire."""

from __future__ import annotations

from typing import Any

from collops.stencil.variants.base import Sweeping

__all__ = ["Messages"]


class Messages(Sweeping):
    """Nothing overlaps: each waits for the other."""

    def _step(self, source: Any, target: Any, norms: Any, slot: int) -> None:
        with self.timeline.span("sweep"):
            self.sweeps.whole(source, target, norms, slot)
        with self.timeline.span("halo"):
            self.plan(target, target)
