"""Work on a device that is recorded once and replayed: its launches then take far less time than Python's."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from collops.extend.communication import HIGHEST_PRIORITY

_USE_NODE_PRIORITY = 8  # CU_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY


def recorded(work: Callable[[], None]) -> Callable[[], None]:
    """Return work on the current stream as a CUDA graph, to be launched on the stream that is then current.

    Memory that the work allocates and frees stays the graph's.
    """
    import cupy

    current, stream, pool = cupy.cuda.get_current_stream(), cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
    stream.wait_event(current.record())
    with stream, cupy.cuda.using_allocator(pool.malloc):
        stream.begin_capture()
        try:
            work()
        except BaseException:
            with suppress(cupy.cuda.runtime.CUDARuntimeError):
                stream.end_capture()
            raise
        graph = (
            stream.end_capture() if cupy.cuda.runtime.is_hip else _Graph(cupy.cuda.runtime.streamEndCapture(stream.ptr))
        )
    return partial(_launch, graph, pool)


def _launch(graph: Any, pool: Any) -> None:
    """Launch a graph, which uses the memory of `pool`."""
    import cupy

    graph.launch(cupy.cuda.get_current_stream())


class _Graph:
    """A CUDA graph whose kernels have the priorities of the streams that they were recorded on.

    CuPy makes graphs whose kernels all have the priority of the stream that they are launched on: work of
    :func:`side_streams` then starts when the other work has started, and ends after it.

    Parameters
    ----------
    graph : int
        The address of a recorded graph, which is destroyed.
    """

    def __init__(self, graph: int) -> None:
        import cupy

        self._runtime, executable = cupy.cuda.runtime, ctypes.c_void_p()
        instantiate = ctypes.CDLL("libcuda.so.1").cuGraphInstantiateWithFlags
        error = instantiate(ctypes.byref(executable), ctypes.c_void_p(graph), ctypes.c_ulonglong(_USE_NODE_PRIORITY))
        self._runtime.graphDestroy(graph)
        if error:
            raise cupy.cuda.driver.CUDADriverError(error)
        self._executable = executable.value
        weakref.finalize(self, self._runtime.graphExecDestroy, self._executable)

    def launch(self, stream: Any) -> None:
        """Launch it on a stream."""
        self._runtime.graphLaunch(self._executable, stream.ptr)


def side_streams(count: int) -> list[Any]:
    """Return streams for :func:`side_by_side`, whose work starts before the work of other streams."""
    import cupy

    return [cupy.cuda.Stream(non_blocking=True, priority=HIGHEST_PRIORITY) for _ in range(count)]


def side_by_side(first: Callable[[], None], others: Sequence[Callable[[], None]], sides: Sequence[Any]) -> None:
    """Launch work on the current stream, and other work on a stream of `sides` each; what follows waits for all."""
    import cupy

    current = cupy.cuda.get_current_stream()
    start = current.record()
    done = []
    for work, side in zip(others, sides, strict=True):
        side.wait_event(start)
        with side:
            work()
            done.append(side.record())
    first()
    for event in done:
        current.wait_event(event)
