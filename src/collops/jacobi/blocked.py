"""Several sweeps per pass over memory, faster than the memory limit of single sweeps (`blocked`)."""

from __future__ import annotations

from collops.extend.arrays import LocalArray
from collops.jacobi.variant import Variant
from collops.profile import mark


class Blocked(Variant):
    """A halo of several rows suffices for several sweeps, which a kernel makes while the values are in registers.

    Both neighbours compute the points near the edge between two blocks or strips, with bitwise equal results.
    """

    width = 8

    def prepare(self) -> None:
        super().prepare()
        self._passages = 0

    def advance(self, count: int, norms: LocalArray) -> None:
        made = 0
        while made < count:
            depth = next(depth for depth in self.sweeps.depths if depth <= min(self.width, count - made))
            source, target = self.array, self.grids[1 - self._passages % 2]
            with mark(f"{depth} sweeps"):
                self.sweeps.blocked(source, target, depth, self.done, norms, made)
            with mark("halo"):
                self.halo(target, target)
            self._passages += 1
            self.done += depth
            made += depth

    @property
    def array(self) -> LocalArray:
        return self.grids[self._passages % 2]
