"""Programs captured as CUDA graphs, to be timed without the host's launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from collops_bench.timing import Timing

__all__ = ["Captured"]


class Captured:
    """Several calls of a program, captured once.

    Parameters
    ----------
    xp : module
        CuPy.
    program : callable
        What to capture, called once before that.
    calls : int
        How many of its calls one replay makes.
    """

    def __init__(self, xp: Any, program: Callable[[], Any], calls: int) -> None:
        program()
        xp.cuda.Device().synchronize()
        self.calls = calls
        stream = xp.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            for _ in range(calls):
                program()
            self._graph = stream.end_capture()

    def replay(self) -> None:
        """Launch all of the calls on the current stream."""
        self._graph.launch()

    def of_one_call(self, timing: Timing) -> Timing:
        """Return the timing of one of the calls from that of replays."""
        clocks = {
            name: replace(
                spread,
                median=spread.median / self.calls,
                minimum=spread.minimum / self.calls,
                maximum=spread.maximum / self.calls,
            )
            for name, spread in timing.clocks.items()
        }
        return Timing(timing.calls * self.calls, clocks)
