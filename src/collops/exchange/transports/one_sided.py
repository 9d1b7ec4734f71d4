"""The kernels of one-sided stores: for the start of a move, for its end, and for all of it in one launch.

Kernels that wait for other ranks have few blocks, so that a device can hold several of them. Large moves use kernels
that fill the device, between two small ones that wait and signal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

from collops.exchange.exchange import LocalWork
from collops.exchange.packing import Index, cupy_moves
from collops.exchange.packing.launch import Launch

_THREADS = 256
_BLOCKS_PER_PROCESSOR = 2  # of those that fit
_BLOCKS_TO_FILL_IT = 6  # for which put.cu keeps registers
_MOST_AT_ONCE = 6 << 20  # bytes, from where launches cost less than empty places on the device
_WAITING = 32
_SOURCE = Path(__file__).with_name("put.cu")
_NOTHING = Index.run(0)


class Ends(NamedTuple):
    """The two ends of one place of an exchange, as the kernels need them.

    Attributes
    ----------
    sending : tuple
        The number of receivers; where their parts of the leaving values end, in points; the addresses of their memory,
        of counters of how often they have read, and of counters there of how often this rank has filled.
    receiving : tuple
        What arrives; the number of senders; the addresses of counters of how often they have filled, and of counters
        there of how often this rank has read; and `state`, how often this rank has sent and read, and how many blocks
        have done so in this turn.
    """

    sending: tuple[int, Any, Any, Any, Any]
    receiving: tuple[Any, int, Any, Any, Any]

    @property
    def receivers(self) -> int:
        return self.sending[0]

    @property
    def senders(self) -> int:
        return self.receiving[1]

    @property
    def state(self) -> Any:
        return self.receiving[-1]


def takes_itself(work: LocalWork) -> bool:
    """Return whether the kernel that waits also unpacks: few values, and no sums by atomic operations."""
    if work.op == "sum" and not work.deterministic and not (work.there.unique and work.arriving.unique):
        return False
    points = max(work.leaving.size, work.here.size, work.arriving.size)
    return points * work.width * work.dtype.itemsize <= _MOST_AT_ONCE


def put(work: LocalWork, ends: Ends, staying: bool) -> Launch | None:
    """Prepare to pack and store, and with `staying` to move local values; ``None`` if there is nothing to do."""
    here, there = work.there.ascending(work.here) if staying else (_NOTHING, _NOTHING)
    if not (ends.receivers or here.size):
        return None
    few = takes_itself(work)
    return _launch(
        "put",
        work,
        max(work.leaving.size, here.size),
        _BLOCKS_PER_PROCESSOR if few else _BLOCKS_TO_FILL_IT,
        2,
        *_leaving(work, ends),
        *(here.size, *cupy_moves.described(here), *cupy_moves.described(there)),
        ends.state,
        not few,
    )


def fill(work: LocalWork, ends: Ends) -> Launch | None:
    """Prepare to wait for values and to unpack them; ``None`` if none arrive."""
    if not ends.senders:
        return None
    if work.arriving.unique:
        points = work.arriving.size, *cupy_moves.described(work.arriving)
        return _launch("fill", work, work.arriving.size, _BLOCKS_PER_PROCESSOR, 1, *points, *ends.receiving)
    segments = cupy_moves.segments(work.arriving)
    count = len(segments[0])
    return _launch("fill_in_turn", work, count, _BLOCKS_PER_PROCESSOR, 1, count, *segments, *ends.receiving)


def exchange(work: LocalWork, ends: Ends) -> Launch | None:
    """Prepare a whole move; ``None`` if this rank has nothing to do."""
    here, there, arriving = work.here, work.there, work.arriving
    most = max(work.leaving.size, here.size, arriving.size)
    if not (ends.receivers or ends.senders or here.size):
        return None
    meet = np.intersect1d(there.points, arriving.points).size > 0
    if meet or not (there.unique and arriving.unique):
        # This rank's own values come before those of others.
        segments = cupy_moves.segments(Index(np.concatenate([there.points, arriving.points])))
        staying = here.size, *cupy_moves.described(here)
        kind, points = "exchange_in_turn", (*staying, len(segments[0]), *segments)
    else:
        staying = here.size, *cupy_moves.described(here), *cupy_moves.described(there)
        kind, points = "exchange", (*staying, arriving.size, *cupy_moves.described(arriving))
    return _launch(kind, work, most, _BLOCKS_PER_PROCESSOR, 2, *_leaving(work, ends), *points, *ends.receiving)


def arrival(ends: Ends, dtype: np.dtype) -> tuple[Launch, Launch] | None:
    """Prepare to wait for values, and to signal that they have been read; ``None`` if none arrive."""
    if not ends.senders:
        return None
    _, senders, filled_here, read_there, state = ends.receiving
    wait, tell = (cupy_moves.kernel(name, "replace", dtype, _SOURCE) for name in ("arrive", "release"))
    return (
        Launch(wait, 1, _WAITING, 0, senders, filled_here, state),
        Launch(tell, 1, _WAITING, 0, senders, read_there, state),
    )


def _leaving(work: LocalWork, ends: Ends) -> tuple[Any, ...]:
    return work.leaving.size, *cupy_moves.described(work.leaving), *ends.sending


def _launch(name: str, work: LocalWork, points: int, per_processor: int, arrays: int, *arguments: Any) -> Launch:
    kernel = cupy_moves.kernel(name, work.op, work.dtype, _SOURCE)
    most = per_processor * cupy_moves.processors(cupy.cuda.Device().id)
    blocks = max(1, min(-(-points * work.width // _THREADS), most))
    return Launch(kernel, blocks, _THREADS, arrays, work.width, *arguments)
