"""Collective calls made of messages between two ranks, for arrays that a library only carries and cannot reduce.

All ranks send to all others at once, in one round or two, and every rank reduces in memory of its own engine. Long
reductions and broadcasts go in two rounds, as a scatter and a gather of blocks [Thakur, Rabenseifner and Gropp 2005]:
no rank sends more bytes than in a ring, and only two messages follow each other. A block is reduced in the order of
ranks, by one rank or by all alike, so that all ranks get the same bits.

Short calls spend most of their time on the host. So parts of arrays are sent without views of them, and memory for
what arrives in a reduction is kept from call to call, with what the messages need to know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Protocol, TypeAlias

from collops.backend import engine_of
from collops.comm.call import KINDS, Call
from collops.comm.reductions import LOGICAL, OPERATIONS, divide

SHORT_BYTES = 1 << 18
"""Arrays up to this length are sent whole to every rank, in one round."""
KEPT_BYTES, KEPT_SETS = 1 << 20, 16
"""Memory for arrays that arrive in a reduction is kept: up to this length for one shape, and for so many shapes."""

Part: TypeAlias = tuple[int, Any]
"""The other rank, and memory as :meth:`Messenger.part` returns it."""
Bounds: TypeAlias = tuple[int, int]
"""The first element of a part of an array, and the one after its last."""


class Parts(Protocol):
    """Messages of a collective call that are under way."""

    def received(self, number: int) -> None:
        """Return once the message has arrived for which the receive of this `number` was started."""

    def sent(self) -> None:
        """Return once the memory of all messages that were sent may be written again."""


class Messenger(Protocol):
    """Carries the messages of collective calls."""

    def ready(self) -> Hashable:
        """Return the handle of the current stream, once messages may read and write its arrays."""

    def part(self, array: Any, begin: int, end: int) -> Any:
        """Return the memory of some elements of a contiguous array, for messages; the array must outlive these."""

    def start_parts(self, kind: str, sends: Sequence[Part], receives: Sequence[Part], memory: object) -> Parts:
        """Start messages that are parts of a collective call of some `kind`; after an error, `memory` is kept."""
        ...

    def copy(self, target: Any, there: Bounds, source: Any, here: Bounds, stream: Any) -> None:
        """Copy elements of a contiguous array to another one, on the stream that :meth:`ready` returned."""


class CallsByMessages:
    """Runs collective calls other than barriers between two or more ranks, on contiguous arrays of one engine.

    Attributes
    ----------
    functions : dict
        For each dtype and reduction that a call had, the function of two arrays and ``out`` that combines them.
    """

    def __init__(self, rank: int, size: int, messenger: Messenger) -> None:
        self.functions: dict[tuple[Any, str], Callable[..., Any]] = {}
        self._rank = rank
        self._size = size
        self._others = [peer for peer in range(size) if peer != rank]
        self._nothing: list[Bounds | None] = [None] * size
        self._messenger = messenger
        self._kept: dict[Hashable, tuple[list[Any], list[Part]]] = {}

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
        whole, here = (0, target.size), self._rank == call.root
        if self._is_short(target):
            leaving = [whole] * self._size if here else self._nothing
            self._move(call.kind, source, leaving, target, self._at_root(call, whole))
            return
        blocks = self._blocks(target)
        own = blocks[self._rank]
        self._move(call.kind, source, blocks if here else self._nothing, target, self._at_root(call, own))
        self._move(call.kind, target, [own] * self._size, target, blocks)

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
        mine = _view(source, blocks[self._rank])
        block = engine_of(source).empty(mine.shape, mine.dtype)
        self._reduced(call, blocks, mine, block)
        arriving = self._nothing if target is None else blocks
        self._move(call.kind, block, self._at_root(call, (0, block.size)), target, arriving)

    def _allreduce(self, call: Call) -> None:
        source, target = call.source, call.target
        if self._is_short(source):
            self._reduced(call, [(0, source.size)] * self._size, source, target)
            return
        blocks = self._blocks(source)
        own = blocks[self._rank]
        self._reduced(call, blocks, _view(source, own), _view(target, own))
        self._move(call.kind, target, [own] * self._size, target, blocks)

    def _reduced(self, call: Call, leaving: Sequence[Bounds | None], mine: Any, target: Any) -> None:
        """Send parts of the source, and reduce `mine` and what arrives into `target`, all of one shape.

        `target` may be memory that is sent.
        """
        rank, shape, dtype, last = self._rank, target.shape, target.dtype, self._size - 1
        combine = call.resolved or self.functions.get((dtype, call.op)) or self._function(target, call.op or "")
        key = self._messenger.ready(), shape, dtype
        # While messages are under way, and after an error, this memory is not among what is kept.
        landing, receives = kept = self._kept.pop(key, None) or self._landing(target)
        sends = self._to_others(call.source, leaving)
        parts = self._messenger.start_parts(call.kind, sends, receives, (call.source, landing))
        if not receives:
            parts.sent()
            return
        operands = [*landing[:rank], mine, *landing[rank:]]
        total = operands[0]
        if rank:
            parts.received(0)
        for of in range(1, self._size):  # the device combines while later messages arrive
            operand = operands[of]
            if of != rank:
                parts.received(of - (of > rank))
            if of == last:
                parts.sent()
            out = target if of == last else total if of == rank else operand
            combine(total, operand, out=out)
            total = out
        if target.nbytes * last <= KEPT_BYTES:
            self._kept[key] = kept
            if len(self._kept) > KEPT_SETS:
                del self._kept[next(iter(self._kept))]

    def _landing(self, like: Any) -> tuple[list[Any], list[Part]]:
        """Return an array like a contiguous one for what each other rank sends, and the receives."""
        empty = engine_of(like).empty
        arrays = [empty(like.shape, like.dtype) for _ in self._others]
        parts = (self._messenger.part(array, 0, like.size) for array in arrays)
        return arrays, list(zip(self._others, parts, strict=True)) if like.size else []

    def _function(self, array: Any, op: str) -> Callable[..., Any]:
        """Return the function that combines two arrays of this dtype."""
        dtype = array.dtype
        name = LOGICAL.get(op, op) if dtype.kind == "b" else op
        function = getattr(engine_of(array).xp, OPERATIONS[name].ufunc)
        if dtype.kind == "V":  # bfloat16
            function = partial(_combined_in_float32, function)
        self.functions[dtype, op] = function
        return function

    def _move(
        self, kind: str, source: Any, leaving: Sequence[Bounds | None], target: Any, arriving: Sequence[Bounds | None]
    ) -> None:
        """Send parts of `source` and receive parts of `target`: bounds for each rank, this one included."""
        sends, receives = self._to_others(source, leaving), self._to_others(target, arriving)
        stream = self._messenger.ready()
        parts = self._messenger.start_parts(kind, sends, receives, (source, target))
        given, own = leaving[self._rank], arriving[self._rank]
        if given is not None and own is not None and (source is not target or given != own):
            self._messenger.copy(target, own, source, given, stream)
        for number in range(len(receives)):
            parts.received(number)
        parts.sent()

    def _to_others(self, array: Any, bounds: Sequence[Bounds | None]) -> list[Part]:
        """Return the parts of an array that are messages, given the bounds of the elements for each rank."""
        parts: list[Part] = []
        latest = memory = None
        for peer in self._others:
            wanted = bounds[peer]
            if wanted is not None and wanted[0] < wanted[1]:
                if wanted is not latest:
                    latest, memory = wanted, self._messenger.part(array, *wanted)
                parts.append((peer, memory))
        return parts

    def _is_short(self, array: Any) -> bool:
        return self._size == 2 or array.nbytes <= SHORT_BYTES

    def _at_root(self, call: Call, bounds: Bounds | None) -> list[Bounds | None]:
        every = [*self._nothing]
        every[call.root] = bounds
        return every

    def _blocks(self, array: Any) -> list[Bounds]:
        """Return the bounds of as many blocks as there are ranks."""
        return list(pairwise(accumulate(((array.size + of) // self._size for of in range(self._size)), initial=0)))

    def _pieces(self, array: Any, counts: Sequence[int] | None) -> Any:
        """Return the bounds of consecutive pieces, by default equal ones; ``None`` for each rank without an array."""
        if array is None:
            return self._nothing
        if counts is None:
            count = array.size // self._size
            return [(count * of, count * (of + 1)) for of in range(self._size)]
        return list(pairwise(accumulate(counts, initial=0)))


def _flat(array: Any) -> Any:
    return array if array.ndim == 1 else array.reshape(-1)


def _view(array: Any, bounds: Bounds) -> Any:
    return _flat(array)[slice(*bounds)]


def _combined_in_float32(function: Callable[[Any, Any], Any], a: Any, b: Any, out: Any) -> None:
    out[...] = function(a.astype("float32"), b.astype("float32")).astype(out.dtype)


_RUN = {kind: getattr(CallsByMessages, f"_{kind.removesuffix('v')}") for kind in KINDS if kind != "barrier"}
