"""Parts of symmetric memory: small exchanges share pieces of it, because making and freeing a piece is collective.

The ranks of a communicator take and return parts in the same order, so that each of them computes the same offsets
without messages. Large parts have pieces of their own, so that small ones do not keep their memory. A part is returned
by :meth:`Part.free`, or like other collective resources (see :mod:`collops.comm.reclaim`) when these ranks next make a
piece or a communicator, after no rank refers to it. A piece is freed with its last part.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np

from collops.backend import LocalArray
from collops.comm.agreement import AnyCommunicator
from collops.comm.reclaim import free, free_when_unreachable, is_owned
from collops.comm.symmetric import Symmetric

_ALIGNMENT = 256
_PIECE = 1 << 20  # bytes of a piece that parts share
_SHARED = _PIECE // 8  # bytes of a part that shares one, at most


class _Piece(NamedTuple):
    """Symmetric memory, and where its parts end, by where they start."""

    memory: Symmetric
    ends: dict[int, int]

    def start_for(self, nbytes: int) -> int | None:
        """Return the first offset at which so many bytes are free."""
        start = 0
        for begin, end in sorted(self.ends.items()):
            if begin - start >= nbytes:
                return start
            start = end
        return start if self.memory.local.nbytes - start >= nbytes else None


class Part:
    """Bytes on every rank of a communicator that all of them can address, zeros at first. Collective.

    Parameters
    ----------
    comm : Communicator
    nbytes : int
        The same on all ranks.
    engine : str
        As for :meth:`Communicator.symmetric`, which also lists the errors.

    Attributes
    ----------
    local : array
        This rank's bytes. It must not be used after this object.
    fence : callable
        :meth:`Symmetric.fence` of the memory.
    """

    def __init__(self, comm: AnyCommunicator, nbytes: int, engine: str) -> None:
        pieces: list[_Piece] = comm.cache.setdefault((Part, engine), [])
        size = -(-max(nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
        places = ((piece, piece.start_for(size)) for piece in pieces if size <= _SHARED)
        piece, start = next(((piece, start) for piece, start in places if start is not None), (None, 0))
        if piece is None:
            piece = _Piece(_symmetric(comm, size, engine), {})
            pieces.append(piece)
        piece.ends[start] = start + size
        self._comm, self._memory, self._bytes = comm, piece.memory, slice(start, start + nbytes)
        releases = [partial(_return_part, pieces, piece, start)]
        settle = partial(piece.memory._wait, "a part of symmetric memory that nothing refers to")
        self._key = free_when_unreachable(self, comm.ranks, releases, settle=settle, limited=False)
        self.fence = piece.memory.fence
        self.local = piece.memory.local[self._bytes]
        self.local[...] = 0
        piece.memory.barrier()

    def peer(self, rank: int) -> LocalArray:
        """Return the bytes of `rank`, as :meth:`Symmetric.peer` does. Not collective."""
        return self._memory.peer(rank)[self._bytes]

    def free(self) -> None:
        """Return the part, whose bytes must not be used any more. Collective. Does nothing the second time."""
        if is_owned(self._key):
            self._memory._wait("returning a part of symmetric memory")
            self._comm.barrier()
            free(self._key)


def _symmetric(comm: AnyCommunicator, size: int, engine: str) -> Symmetric:
    """Return memory for a piece whose first part has `size` bytes. Collective."""
    if size <= _SHARED:
        with suppress(MemoryError):  # on all ranks, which then try the part alone
            return comm.symmetric(_PIECE, np.uint8, engine=engine)
    return comm.symmetric(size, np.uint8, engine=engine)


def _return_part(pieces: list[_Piece], piece: _Piece, start: int) -> None:
    """Return a part, and free its piece with the last part. Collective."""
    del piece.ends[start]
    if not piece.ends:
        pieces[:] = [other for other in pieces if other is not piece]
        piece.memory.free()
