"""Collective calls built from point-to-point messages, for arrays that a library can send but not reduce.

All ranks send to all others at once, in one or two rounds, and every rank reduces in memory of its engine. Long
reductions and broadcasts take two rounds, a scatter and a gather of blocks [Thakur, Rabenseifner and Gropp 2005]: no
rank sends more bytes than in a ring, with a latency of two messages. A block is reduced in the order of ranks, by one
rank or identically by all ranks, so that results are bitwise equal on all ranks.

Short calls are dominated by host overhead. Therefore parts of arrays are sent without creating views, and receive
buffers of reductions are cached with their prepared messages.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np

from collops.backend import LocalArray, engine_of
from collops.comm.call import KINDS, Call
from collops.comm.reductions import LOGICAL, OPERATIONS, divide

SHORT_BYTES = 1 << 18
"""Arrays of up to this size are sent to every rank, in one round."""
MAX_CACHED_BYTES, MAX_CACHED_SHAPES = 1 << 20, 16
"""Limits of the cache of receive buffers: bytes for one shape, and number of shapes."""

Part: TypeAlias = tuple[int, Any]
"""The other rank, and memory as :meth:`Messenger.part` returns it."""
Bounds: TypeAlias = tuple[int, int]
"""Start and stop of the elements of a part of an array."""


class Parts(Protocol):
    """Messages of a collective call in flight."""

    def received(self, number: int) -> None:
        """Wait for the message of the receive with this `number`."""

    def sent(self) -> None:
        """Wait until the memory of all sent messages may be overwritten."""


class Messenger(Protocol):
    """Sends and receives the messages of collective calls."""

    def ready(self) -> Hashable:
        """Wait until messages may access the arrays of the current stream; return its handle."""

    def part(self, array: LocalArray, begin: int, end: int) -> object:
        """Return the memory of some elements of a contiguous array, for messages; the array must outlive them."""

    def start_parts(self, kind: str, sends: Sequence[Part], receives: Sequence[Part], memory: object) -> Parts:
        """Start messages of a collective call of some `kind`; after an error, `memory` is kept alive."""
        ...

    def copy(
        self, target: LocalArray, target_bounds: Bounds, source: LocalArray, source_bounds: Bounds, stream: Any
    ) -> None:
        """Copy elements of a contiguous array to another one, on the stream that :meth:`ready` returned."""


class CallsByMessages:
    """Runs collective calls other than barriers between two or more ranks, on contiguous arrays of one engine.

    Attributes
    ----------
    functions : dict
        Cache: for each dtype and reduction, the function of two arrays and ``out`` that combines them.
    """

    def __init__(self, rank: int, size: int, messenger: Messenger) -> None:
        self.functions: dict[tuple[np.dtype, str], Callable[..., object]] = {}
        self._rank = rank
        self._size = size
        self._peers = [peer for peer in range(size) if peer != rank]
        self._nothing: list[Bounds | None] = [None] * size
        self._messenger = messenger
        self._receive_buffers: dict[Hashable, tuple[list[LocalArray], list[Part]]] = {}

    def run(self, call: Call) -> None:
        """Run the call. Collective."""
        _RUN[call.kind](self, call)
        if call.op == "avg" and call.target is not None:
            divide(call.target, self._size)

    def _alltoall(self, call: Call) -> None:
        source, target = call.source, call.target
        leaving, arriving = self._pieces(source, call.counts), self._pieces(target, call.receive_counts)
        self._move(call.kind, source, leaving, target, arriving)

    def _allgather(self, call: Call) -> None:
        source, target = call.source, call.target
        self._move(call.kind, source, [(0, source.size)] * self._size, target, self._pieces(target, call.counts))

    def _gather(self, call: Call) -> None:
        source, target = call.source, call.target
        leaving = self._at_root(call, (0, source.size))
        self._move(call.kind, source, leaving, target, self._pieces(target, call.counts))

    def _scatter(self, call: Call) -> None:
        source, target = call.source, call.target
        arriving = self._at_root(call, (0, target.size))
        self._move(call.kind, source, self._pieces(source, call.counts), target, arriving)

    def _bcast(self, call: Call) -> None:
        source, target = call.source, call.target
        bounds, is_root = (0, target.size), self._rank == call.root
        if self._is_short(target):
            leaving = [bounds] * self._size if is_root else self._nothing
            self._move(call.kind, source, leaving, target, self._at_root(call, bounds))
            return
        blocks = self._blocks(target)
        own_block = blocks[self._rank]
        self._move(call.kind, source, blocks if is_root else self._nothing, target, self._at_root(call, own_block))
        self._move(call.kind, target, [own_block] * self._size, target, blocks)

    def _reduce_scatter(self, call: Call) -> None:
        pieces = self._pieces(call.source, None)
        self._reduced(call, pieces, _view(call.source, pieces[self._rank]), _flat(call.target))

    def _reduce(self, call: Call) -> None:
        source, target = call.source, call.target
        if self._is_short(source):
            if target is None:
                self._move(call.kind, source, self._at_root(call, (0, source.size)), None, self._nothing)
            else:
                self._reduced(call, self._nothing, source, target)
            return
        blocks = self._blocks(source)
        own_block = _view(source, blocks[self._rank])
        block = engine_of(source).empty(own_block.shape, own_block.dtype)
        self._reduced(call, blocks, own_block, block)
        arriving = self._nothing if target is None else blocks
        self._move(call.kind, block, self._at_root(call, (0, block.size)), target, arriving)

    def _allreduce(self, call: Call) -> None:
        source, target = call.source, call.target
        if self._is_short(source):
            self._reduced(call, [(0, source.size)] * self._size, source, target)
            return
        blocks = self._blocks(source)
        own_block = blocks[self._rank]
        self._reduced(call, blocks, _view(source, own_block), _view(target, own_block))
        self._move(call.kind, target, [own_block] * self._size, target, blocks)

    def _reduced(
        self, call: Call, leaving: Sequence[Bounds | None], own_values: LocalArray, target: LocalArray
    ) -> None:
        """Send parts of the source, and reduce `mine` and what arrives into `target`, all of one shape.

        `target` may be memory that is sent.
        """
        rank, shape, dtype, last_rank = self._rank, target.shape, target.dtype, self._size - 1
        combine = call.resolved or self.functions.get((dtype, call.op)) or self._function(target, call.op or "")
        key = self._messenger.ready(), shape, dtype
        # While messages are in flight, and after an error, the buffers are not in the cache.
        landing, receives = buffers = self._receive_buffers.pop(key, None) or self._landing(target)
        sends = self._to_others(call.source, leaving)
        parts = self._messenger.start_parts(call.kind, sends, receives, (call.source, landing))
        if not receives:
            parts.sent()
            return
        operands = [*landing[:rank], own_values, *landing[rank:]]
        total = operands[0]
        if rank:
            parts.received(0)
        for rank_number in range(1, self._size):  # the device combines while later messages arrive
            operand = operands[rank_number]
            if rank_number != rank:
                parts.received(rank_number - (rank_number > rank))
            if rank_number == last_rank:
                parts.sent()
            out = target if rank_number == last_rank else total if rank_number == rank else operand
            combine(total, operand, out=out)
            total = out
        if target.nbytes * last_rank <= MAX_CACHED_BYTES:
            self._receive_buffers[key] = buffers
            if len(self._receive_buffers) > MAX_CACHED_SHAPES:
                del self._receive_buffers[next(iter(self._receive_buffers))]

    def _landing(self, like: LocalArray) -> tuple[list[LocalArray], list[Part]]:
        """Return receive buffers like a contiguous array, one for each other rank, and the receives."""
        empty = engine_of(like).empty
        arrays = [empty(like.shape, like.dtype) for _ in self._peers]
        parts = (self._messenger.part(array, 0, like.size) for array in arrays)
        return arrays, list(zip(self._peers, parts, strict=True)) if like.size else []

    def _function(self, array: LocalArray, op: str) -> Callable[..., object]:
        """Return the function that combines two arrays of this dtype."""
        dtype = array.dtype
        name = LOGICAL.get(op, op) if dtype.kind == "b" else op
        function = getattr(engine_of(array).xp, OPERATIONS[name].ufunc)
        if dtype.kind == "V":  # bfloat16
            function = partial(_combined_in_float32, function)
        self.functions[dtype, op] = function
        return function

    def _move(
        self,
        kind: str,
        source: LocalArray,
        leaving: Sequence[Bounds | None],
        target: LocalArray,
        arriving: Sequence[Bounds | None],
    ) -> None:
        """Send parts of `source` and receive parts of `target`: bounds for each rank, this one included."""
        sends, receives = self._to_others(source, leaving), self._to_others(target, arriving)
        stream = self._messenger.ready()
        parts = self._messenger.start_parts(kind, sends, receives, (source, target))
        sent_to_self, received_from_self = leaving[self._rank], arriving[self._rank]
        if (
            sent_to_self is not None
            and received_from_self is not None
            and (source is not target or sent_to_self != received_from_self)
        ):
            self._messenger.copy(target, received_from_self, source, sent_to_self, stream)
        for number in range(len(receives)):
            parts.received(number)
        parts.sent()

    def _to_others(self, array: LocalArray, bounds: Sequence[Bounds | None]) -> list[Part]:
        """Return the parts of an array that are messages, given the bounds of the elements for each rank."""
        parts: list[Part] = []
        latest = memory = None
        for peer in self._peers:
            part_bounds = bounds[peer]
            if part_bounds is not None and part_bounds[0] < part_bounds[1]:
                if part_bounds is not latest:
                    latest, memory = part_bounds, self._messenger.part(array, *part_bounds)
                parts.append((peer, memory))
        return parts

    def _is_short(self, array: LocalArray) -> bool:
        return self._size == 2 or array.nbytes <= SHORT_BYTES

    def _at_root(self, call: Call, bounds: Bounds | None) -> list[Bounds | None]:
        bounds_by_rank = [*self._nothing]
        bounds_by_rank[call.root] = bounds
        return bounds_by_rank

    def _blocks(self, array: LocalArray) -> list[Bounds]:
        """Return the bounds of one block for each rank."""
        return list(
            pairwise(accumulate(((array.size + number) // self._size for number in range(self._size)), initial=0))
        )

    def _pieces(self, array: LocalArray, counts: Sequence[int] | None) -> Any:
        """Return the bounds of consecutive pieces, by default equal ones; ``None`` for each rank without an array."""
        if array is None:
            return self._nothing
        if counts is None:
            count = array.size // self._size
            return [(count * number, count * (number + 1)) for number in range(self._size)]
        return list(pairwise(accumulate(counts, initial=0)))


def _flat(array: LocalArray) -> LocalArray:
    return array if array.ndim == 1 else array.reshape(-1)


def _view(array: LocalArray, bounds: Bounds) -> LocalArray:
    return _flat(array)[slice(*bounds)]


def _combined_in_float32(
    function: Callable[[LocalArray, LocalArray], LocalArray], a: LocalArray, b: LocalArray, out: LocalArray
) -> None:
    out[...] = function(a.astype("float32"), b.astype("float32")).astype(out.dtype)


_RUN = {kind: getattr(CallsByMessages, f"_{kind.removesuffix('v')}") for kind in KINDS if kind != "barrier"}
