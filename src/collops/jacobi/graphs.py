"""The overlapped program recorded as CUDA graphs: many sweeps and their messages in one launch (`nccl_graphs`)."""

from __future__ import annotations

from typing import Any

from collops.extend.arrays import LocalArray
from collops.jacobi.overlap import Overlap
from collops.profile import mark


class Graphs(Overlap):
    """Records the launches of `Overlap.advance`, and replays them.

    A recording can be replayed for stretches of the same length that begin with the same grid and at the same distance
    from the next check.
    """

    def prepare(self) -> None:
        super().prepare()
        import cupy

        self._cupy = cupy
        self._stream = cupy.cuda.Stream(non_blocking=False)
        self._pool = cupy.cuda.MemoryPool()  # keeps memory allocated during a recording as long as the recordings
        self._recorded: dict[tuple[int, int, int], tuple[Any, LocalArray]] = {}

    def advance(self, count: int, norms: LocalArray) -> None:
        self.record(count)
        graph, sums = self._recorded[self._key(count)]
        with mark(f"{count} sweeps"):
            graph.launch(self._cupy.cuda.get_current_stream())
            norms[:count] += sums
        self.done += count

    def record(self, count: int) -> None:
        key = self._key(count)
        if key not in self._recorded:
            self._recorded[key] = self._record(count)

    def _key(self, count: int) -> tuple[int, int, int]:
        return count, self.done % 2, self.done % self.problem.check

    def _record(self, count: int) -> tuple[Any, LocalArray]:
        """Return a graph of `count` sweeps, and the array to which it writes the norms."""
        stream, began = self._stream, self.done
        sums = self._cupy.zeros(count, "float64")
        self._cupy.cuda.Device().synchronize()
        with stream, self._cupy.cuda.using_allocator(self._pool.malloc):
            stream.begin_capture()
            try:
                sums.fill(0)
                super().advance(count, sums)
            finally:
                graph = stream.end_capture()
        self.done = began
        return graph, sums
