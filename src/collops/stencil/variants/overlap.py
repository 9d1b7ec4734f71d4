"""Sweep what neighbours need first, and the rest while it is under way: communication hides behind computation."""

from __future__ import annotations

from typing import Any

from collops.stencil.kernels import lanes_of
from collops.stencil.variants.base import Sweeping

__all__ = ["Overlap"]


class Overlap(Sweeping):
    """The boundary and its messages go on a lane of their own, which comes first."""

    def _prepare(self) -> None:
        super()._prepare()
        self._lanes = lanes_of(self.engine)

    def _step(self, source: Any, target: Any, norms: Any, slot: int) -> None:
        with self._lanes.aside():
            with self.timeline.span("boundary", lane=1):
                self.sweeps.boundary(source, target, norms, slot)
            with self.timeline.span("halo", lane=1):
                exchange = self.plan.start(target, target)
        with self.timeline.span("inner"):
            self.sweeps.inner(source, target, norms, slot)
        with self._lanes.aside(), self.timeline.span("halo", lane=1):
            exchange.finish()
        self._lanes.join()
