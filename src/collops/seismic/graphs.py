"""Work on a device that is recorded once and replayed: its launches then take far less time than Python's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def recorded(work: Callable[[], None]) -> Callable[[], None]:
    """Return work on the current stream as a CUDA graph, to be launched on the stream that is then current."""
    import cupy

    current, stream = cupy.cuda.get_current_stream(), cupy.cuda.Stream(non_blocking=True)
    stream.wait_event(current.record())
    with stream:
        stream.begin_capture()
        work()
        graph = stream.end_capture()
    return lambda: graph.launch(cupy.cuda.get_current_stream())


def side_stream() -> Any:
    """Return a stream for :func:`side_by_side`."""
    import cupy

    return cupy.cuda.Stream(non_blocking=True)


def side_by_side(first: Callable[[], None], second: Callable[[], None], side: Any) -> None:
    """Launch work on the current stream, and other work on the stream `side`; what follows waits for both."""
    import cupy

    current = cupy.cuda.get_current_stream()
    side.wait_event(current.record())
    with side:
        second()
        done = side.record()
    first()
    current.wait_event(done)
