"""Collective calls made of messages between two ranks, for arrays that a library only carries and cannot reduce.

All ranks send to all others at once, in one round or two, and every rank reduces in memory of its own engine. Long
reductions and broadcasts go in two rounds, as a scatter and a gather of blocks [Thakur, Rabenseifner and Gropp 2005]:
no rank sends more bytes than in a ring, and only two messages follow each other. A block is reduced in the order of
ranks, by one rank or by all alike, so that all ranks get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from collops.backend import engine_of
from collops.comm.call import Call
from collops.comm.reductions import LOGICAL, OPERATIONS, divide
from collops.comm.transport import Message, Pending

SHORT_BYTES = 1 << 18
"""Arrays up to this length are sent whole to every rank, in one round."""
Start: TypeAlias = Callable[[Sequence[Message], Sequence[Message]], tuple[list[Pending], Pending]]


def run_by_messages(call: Call, rank: int, size: int, start: Start) -> None:
    """Run a collective call other than a barrier between two or more ranks. Collective.

    ``start(sends, receives)`` starts messages from and to contiguous arrays, once the arrays may be read and written by
    the host. It returns what waits for each message to arrive, and what waits for all that were sent.
    """
    _Run(call, rank, size, start).run()


class _Run:
    def __init__(self, call: Call, rank: int, size: int, start: Start) -> None:
        self.call = call
        self.rank = rank
        self.size = size
        self.start = start
        self.op = call.op or ""
        self.xp = engine_of(call.array).xp
        self.short = size == 2 or call.array.nbytes <= SHORT_BYTES

    def run(self) -> None:
        call = self.call
        source, target = (None if array is None else array.reshape(-1) for array in (call.source, call.target))
        if call.source is call.target:
            target = source
        getattr(self, f"_{call.kind.removesuffix('v')}")(source, target)
        if call.op == "avg" and call.target is not None:
            divide(call.target, self.size)

    def _alltoall(self, source: Any, target: Any) -> None:
        leaving = self._pieces(source, self.call.counts)
        self._move(leaving, self._pieces(target, self.call.receive_counts))

    def _allgather(self, source: Any, target: Any) -> None:
        self._move([source] * self.size, self._pieces(target, self.call.counts))

    def _gather(self, source: Any, target: Any) -> None:
        self._move(self._at_root(source), self._pieces(target, self.call.counts))

    def _scatter(self, source: Any, target: Any) -> None:
        self._move(self._pieces(source, self.call.counts), self._at_root(target))

    def _bcast(self, source: Any, target: Any) -> None:
        here = self.rank == self.call.root
        if self.short:
            self._move([source if here else None] * self.size, self._at_root(target))
            return
        counts = self._blocks(target.size)
        blocks = self._pieces(target, counts)
        self._move(self._pieces(source if here else None, counts), self._at_root(blocks[self.rank]))
        self._move([blocks[self.rank]] * self.size, blocks)

    def _reduce_scatter(self, source: Any, target: Any) -> None:
        self._reduced_block(self._pieces(source, None), target)

    def _reduce(self, source: Any, target: Any) -> None:
        root = self.call.root
        whole = [source.size if of == root else 0 for of in range(self.size)]
        counts = whole if self.short else self._blocks(source.size)
        mine = self.xp.empty(counts[self.rank], source.dtype)
        self._reduced_block(self._pieces(source, counts), mine)
        self._move(self._at_root(mine), self._pieces(target, counts))

    def _allreduce(self, source: Any, target: Any) -> None:
        if self.short:
            self._reduced_block([source] * self.size, target)
            return
        counts = self._blocks(source.size)
        blocks = self._pieces(target, counts)
        self._reduced_block(self._pieces(source, counts), blocks[self.rank])
        self._move([blocks[self.rank]] * self.size, blocks)

    def _reduced_block(self, leaving: list[Any], target: Any) -> None:
        """Reduce what all ranks send to this one into `target`, which may be an array that is sent."""
        arriving = [leaving[of] if of == self.rank else self.xp.empty_like(target) for of in range(self.size)]
        waits, sent = self._start(leaving, arriving)
        total, last = arriving[0], self.size - 1
        for of, array in enumerate(arriving):  # the device adds while later messages arrive
            if of in waits:
                waits[of].wait()
            if of == last:
                sent.wait()
            if of:
                self._combine(total, array, target if of == last else total if of == self.rank else array)
                total = total if of == self.rank else array

    def _combine(self, a: Any, b: Any, out: Any) -> None:
        op = LOGICAL.get(self.op, self.op) if a.dtype.kind == "b" else self.op
        ufunc = getattr(self.xp, OPERATIONS[op].ufunc)
        if a.dtype.kind == "V":  # bfloat16
            out[...] = ufunc(a.astype("float32"), b.astype("float32")).astype(out.dtype)
        else:
            ufunc(a, b, out=out)

    def _move(self, leaving: list[Any], arriving: list[Any]) -> None:
        """Send `leaving` and receive `arriving`: an array or ``None`` for each rank, this one included."""
        waits, sent = self._start(leaving, arriving)
        given, own = leaving[self.rank], arriving[self.rank]
        if own is not None and own is not given:
            own[...] = given
        for pending in (*waits.values(), sent):
            pending.wait()

    def _start(self, leaving: list[Any], arriving: list[Any]) -> tuple[dict[int, Pending], Pending]:
        sends, receives = (
            [
                (peer, array)
                for peer, array in enumerate(arrays)
                if peer != self.rank and array is not None and array.size
            ]
            for arrays in (leaving, arriving)
        )
        waits, sent = self.start(sends, receives)
        return dict(zip((peer for peer, _ in receives), waits, strict=True)), sent

    def _at_root(self, array: Any) -> list[Any]:
        return [array if of == self.call.root else None for of in range(self.size)]

    def _blocks(self, length: int) -> list[int]:
        """Return the lengths of as many blocks as there are ranks."""
        return [(length + of) // self.size for of in range(self.size)]

    def _pieces(self, array: Any, counts: Sequence[int] | None) -> list[Any]:
        """Return consecutive pieces of an array, by default equal ones; or ``None`` for each rank without an array."""
        if array is None:
            return [None] * self.size
        ends = list(accumulate(counts or [array.size // self.size] * self.size))
        return [array[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
