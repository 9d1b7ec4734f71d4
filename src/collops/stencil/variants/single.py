"""One rank alone: a kernel that sweeps and fills its own halo. What all others are measured against."""

from __future__ import annotations

from typing import Any

from collops.stencil.variants.base import Sweeping

__all__ = ["Single"]


class Single(Sweeping):
    """The sweep by itself."""

    def _step(self, source: Any, target: Any, norms: Any, slot: int) -> None:
        with self.timeline.span("sweep"):
            self.sweeps.wrapped(source, target, norms, slot)
