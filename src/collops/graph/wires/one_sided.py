"""The kernels of one-sided stores, prepared for what a mover does: its start, its end, and all of it in one launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

from collops.graph.packing import Index, cupy_moves
from collops.graph.packing.launch import Launch
from collops.graph.wires.wire import Motion

__all__ = ["Ends", "adds_in_any_order", "arrival", "exchange", "fill", "put"]

_THREADS = 256
_BLOCKS_PER_PROCESSOR = 2  # of those that fit: blocks wait for other ranks, and several kernels must have room
_WAITING = 32
_SOURCE = Path(__file__).with_name("put.cu")


class Ends(NamedTuple):
    """The two ends of one place of a channel, as the kernels need them.

    Attributes
    ----------
    receivers, senders : int
        Ranks that this one sends to, and gets from.
    stops : array
        Where the receivers' parts of the leaving values end, in points.
    places : array
        Addresses of the receivers' memory.
    read_here, filled_there, filled_here, read_there : array
        Addresses of counters: how often receivers have read and this rank has filled, how often senders have
        filled and this rank has read.
    incoming : array
        What arrives.
    state : array
        How often this rank has sent and read, and how many blocks have done so this time.
    """

    receivers: int
    stops: Any
    places: Any
    read_here: Any
    filled_there: Any
    incoming: Any
    senders: int
    filled_here: Any
    read_there: Any
    state: Any

    @property
    def sending(self) -> tuple[Any, ...]:
        """What kernels that send are given, in their order."""
        return self.receivers, self.stops, self.places, self.read_here, self.filled_there

    @property
    def receiving(self) -> tuple[Any, ...]:
        """What kernels that take are given, in their order."""
        return self.incoming, self.senders, self.filled_here, self.read_there, self.state


def adds_in_any_order(motion: Motion) -> bool:
    """Return whether values are to be added by atomic operations, for which there is no kernel here."""
    return motion.op == "sum" and not motion.deterministic and not (motion.there.unique and motion.arriving.unique)


def put(motion: Motion, ends: Ends) -> Launch | None:
    """Prepare to pack, put, and move what stays, unless its target has points twice; ``None`` if there is neither."""
    staying = motion.here.size if motion.there.unique else 0
    if not (ends.receivers or staying):
        return None
    return _launch(
        "put",
        motion,
        max(motion.leaving.size, staying),
        2,
        *_leaving(motion, ends),
        *(staying, *cupy_moves.described(motion.here), *cupy_moves.described(motion.there)),
        ends.state,
    )


def fill(motion: Motion, ends: Ends) -> Launch | None:
    """Prepare to wait for what arrives and to take it; ``None`` if nothing does."""
    if not ends.senders:
        return None
    if motion.arriving.unique:
        points = motion.arriving.size, *cupy_moves.described(motion.arriving)
        return _launch("fill", motion, motion.arriving.size, 1, *points, *ends.receiving)
    segments = cupy_moves.segments(motion.arriving)
    return _launch("fill_in_turn", motion, len(segments[0]), 1, len(segments[0]), *segments, *ends.receiving)


def exchange(motion: Motion, ends: Ends) -> Launch | None:
    """Prepare all of a mover; ``None`` if this rank has nothing to do."""
    here, there, arriving = motion.here, motion.there, motion.arriving
    most = max(motion.leaving.size, here.size, arriving.size)
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
    return _launch(kind, motion, most, 2, *_leaving(motion, ends), *points, *ends.receiving)


def arrival(ends: Ends, dtype: np.dtype) -> tuple[Launch, Launch] | None:
    """Prepare to wait for what arrives, and to say that it has been read; ``None`` if nothing arrives."""
    if not ends.senders:
        return None
    wait, tell = (cupy_moves.kernel(name, "replace", dtype, _SOURCE) for name in ("arrive", "release"))
    return (
        Launch(wait, 1, _WAITING, 0, ends.senders, ends.filled_here, ends.state),
        Launch(tell, 1, _WAITING, 0, ends.senders, ends.read_there, ends.state),
    )


def _leaving(motion: Motion, ends: Ends) -> tuple[Any, ...]:
    return motion.leaving.size, *cupy_moves.described(motion.leaving), *ends.sending


def _launch(name: str, motion: Motion, points: int, arrays: int, *arguments: Any) -> Launch:
    kernel = cupy_moves.kernel(name, motion.op, motion.dtype, _SOURCE)
    most = _BLOCKS_PER_PROCESSOR * cupy_moves.processors(cupy.cuda.Device().id)
    blocks = max(1, min(-(-points * motion.width // _THREADS), most))
    return Launch(kernel, blocks, _THREADS, arrays, motion.width, *arguments)
