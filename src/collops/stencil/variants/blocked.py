"""Several sweeps between two passages through memory: past what the memory allows a program that sweeps once."""

from __future__ import annotations

from typing import Any

from collops.stencil.variants.base import OwnGrids

__all__ = ["Blocked"]


class Blocked(OwnGrids):
    """A halo of several rows lasts for several sweeps, which a kernel makes while the values are on the chip.

    Points near the edges of a block and of a warp's strip are computed by both neighbours; the bits are the same.
    """

    width = 8

    def _prepare(self) -> None:
        super()._prepare()
        self._passages = 0

    def advance(self, count: int, norms: Any) -> None:
        """Make `count` sweeps, as many at once as the halo lasts for."""
        made = 0
        while made < count:
            depth = next(depth for depth in self.sweeps.depths if depth <= min(self.width, count - made))
            source, target = self.array, self.grids[1 - self._passages % 2]
            with self.timeline.span(f"{depth} sweeps"):
                self.sweeps.blocked(source, target, depth, self.done, norms, made)
            with self.timeline.span("halo"):
                self.plan(target, target)
            self._passages += 1
            self.done += depth
            made += depth

    @property
    def array(self) -> Any:
        """The grid that was written last."""
        return self.grids[self._passages % 2]
