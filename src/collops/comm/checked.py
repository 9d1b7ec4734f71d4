"""A wire whose every call is agreed upon first: what a communicator gets for its wires under ``COLLOPS_CHECK``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from collops.comm.call_agreement import RECEIVE, SEND, CallAgreement, Expectation
from collops.comm.transport import FIRST_USER_TAG, Message, Pending, Transport

__all__ = ["CheckedTransport"]


class CheckedTransport(Transport):
    """Another transport, behind agreements.

    Parameters
    ----------
    inner : Transport
        Carries the data.
    calls : CallAgreement
        Of the ranks.
    memory : str
        ``"host"`` or ``"device"``: arrays must be in the same memory everywhere.
    """

    def __init__(self, inner: Transport, calls: CallAgreement, memory: str) -> None:
        self.name = inner.name
        self.by_address = inner.by_address
        self._inner = inner
        self._calls = calls
        self._memory = memory
        self.opened: list[_Checked] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # what only this kind of wire has

    def allreduce(self, source: Any, target: Any, op: str) -> None:
        self._agree("allreduce", target, op=op)
        self._inner.allreduce(source, target, op)

    def reduce(self, source: Any, target: Any, op: str, root: int) -> None:
        self._agree("reduce", source, op=op, root=root)
        self._inner.reduce(source, target, op, root)

    def bcast(self, source: Any, target: Any, root: int) -> None:
        self._agree("bcast", target, root=root)
        self._inner.bcast(source, target, root)

    def allgather(self, source: Any, target: Any) -> None:
        self._agree("allgather", source)
        self._inner.allgather(source, target)

    def allgatherv(self, source: Any, target: Any, counts: Sequence[int]) -> None:
        self._agree("allgatherv", source, counts=counts)
        self._inner.allgatherv(source, target, counts)

    def gatherv(self, source: Any, target: Any, counts: Sequence[int], root: int) -> None:
        self._agree("gatherv", source, counts=counts, root=root)
        self._inner.gatherv(source, target, counts, root)

    def scatterv(self, source: Any, target: Any, counts: Sequence[int], root: int) -> None:
        self._agree("scatterv", target, counts=counts, root=root)
        self._inner.scatterv(source, target, counts, root)

    def reduce_scatter(self, source: Any, target: Any, op: str) -> None:
        self._agree("reduce_scatter", target, op=op)
        self._inner.reduce_scatter(source, target, op)

    def alltoallv(self, source: Any, target: Any, send_counts: Sequence[int], receive_counts: Sequence[int]) -> None:
        facts = {"call": "alltoallv", "dtype": source.dtype.name, "memory": self._memory}
        text = f"alltoallv of {source.dtype.name}: {_text(send_counts)} to, {_text(receive_counts)} from each rank"
        self._calls.collective(text, facts, list(send_counts), list(receive_counts))
        self._inner.alltoallv(source, target, send_counts, receive_counts)

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        if tag >= FIRST_USER_TAG:
            return _Checked(self, sends, receives, tag)
        self._agree_on_exchange(
            [(peer, array.nbytes) for peer, array in sends], [(peer, array.nbytes) for peer, array in receives], tag
        )
        return self._inner.start_exchange(sends, receives, tag)

    def start_addresses(
        self, sends: Sequence[tuple[int, int, int]], receives: Sequence[tuple[int, int, int]], on_side_stream: bool
    ) -> Pending:
        """Start messages by address; see :class:`Transport`."""
        self._agree_on_exchange([(peer, n) for peer, _, n in sends], [(peer, n) for peer, _, n in receives], None)
        return self._inner.start_addresses(sends, receives, on_side_stream)  # pyright: ignore[reportAttributeAccessIssue]

    def barrier(self) -> None:
        self._calls.collective("barrier", {"call": "barrier", "memory": self._memory})
        self._inner.barrier()

    @contextmanager
    def group(self) -> Iterator[None]:
        with self._inner.group():
            yield

    def inspect(self) -> None:
        self._inner.inspect()

    def settle(self) -> None:
        """Agree on the messages of users that are open, all at once, and start them.

        On hosts each starts when its own rank has agreed: others may depend on it. On devices they start as one launch.
        """
        opened, self.opened = self.opened, []
        needs: dict[int, list[Expectation]] = {}
        for each in opened:
            for peer, need in each.needs(self._memory, self._inner):
                needs.setdefault(peer, []).append(need)
        self._calls.agree("; ".join(each.text for each in opened), needs)
        if self._memory == "device":
            with self._inner.group():
                for each in opened:
                    each.start(self._inner)

    def _agree(
        self, call: str, array: Any, *, op: str | None = None, root: int | None = None, counts: Any = None
    ) -> None:
        counts = None if counts is None else [int(count) for count in counts]
        # With counts, ranks have different numbers of elements.
        elements = array.size if counts is None else counts
        facts = {
            "call": call,
            "dtype": array.dtype.name,
            "elements": elements,
            "op": op,
            "root": root,
            "memory": self._memory,
        }
        text = f"{call}{'' if op is None else f'({op})'} of {_text(elements)} {array.dtype.name}"
        text += "" if root is None else f", root {root}"
        self._calls.collective(text + (" on the device" if self._memory == "device" else ""), facts)

    def _agree_on_exchange(
        self, sends: list[tuple[int, int]], receives: list[tuple[int, int]], tag: int | None
    ) -> None:
        size = self._calls.size
        gives: list[list[int]] = [[] for _ in range(size)]
        takes: list[list[int]] = [[] for _ in range(size)]
        for peer, nbytes in sends:
            gives[peer].append(nbytes)
        for peer, nbytes in receives:
            takes[peer].append(nbytes)
        text = f"exchange{'' if tag is None else f' of plan {tag}'}: {_peers(gives)} to, {_peers(takes)} from"
        self._calls.collective(text, {"call": "exchange", "tag": tag, "memory": self._memory}, gives, takes)


class _Checked(Pending):
    """Messages of a user that start when somebody waits for them: those of a group are agreed upon together."""

    __slots__ = ("_pending", "_receives", "_sends", "_tag", "_wire")

    def __init__(self, wire: CheckedTransport, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> None:
        self._wire = wire
        self._sends = sends
        self._receives = receives
        self._tag = tag
        self._pending: list[Pending] = []
        wire.opened.append(self)

    @property
    def text(self) -> str:
        """What it is, for errors."""
        tag = self._tag - FIRST_USER_TAG
        parts = [f"send {array.size} {array.dtype.name} to rank {peer}" for peer, array in self._sends]
        parts += [f"receive {array.size} {array.dtype.name} from rank {peer}" for peer, array in self._receives]
        return f"{' and '.join(parts)}{f', tag {tag}' if tag else ''}"

    def needs(self, memory: str, inner: Transport) -> Iterator[tuple[int, Expectation]]:
        """Give what the other ranks must do."""
        for kind, messages in ((SEND, self._sends), (RECEIVE, self._receives)):
            for peer, array in messages:
                facts = {"dtype": array.dtype.name, "elements": array.size, "tag": self._tag, "memory": memory}
                ends = ([(peer, array)], []) if kind == SEND else ([], [(peer, array)])
                yield (
                    peer,
                    Expectation(kind, facts, then=partial(self._start, inner, *ends) if memory == "host" else None),
                )

    def start(self, inner: Transport) -> None:
        """Start what has been agreed upon, all of it."""
        self._start(inner, self._sends, self._receives)

    def wait(self) -> None:
        if self in self._wire.opened:
            self._wire.settle()
        for pending in self._pending:
            pending.wait()
        self._pending = []

    def _start(self, inner: Transport, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        self._pending.append(inner.start_exchange(sends, receives, self._tag))


def _text(numbers: Any) -> str:
    """Return counts shortly: all of a few, or what they add up to."""
    if isinstance(numbers, int):
        return str(numbers)
    return "+".join(map(str, numbers)) if len(numbers) <= 8 else f"{sum(numbers)} ({len(numbers)} counts)"


def _peers(nbytes: list[list[int]]) -> str:
    found = [f"{sum(of)} B rank {rank}" for rank, of in enumerate(nbytes) if of]
    return ", ".join(found) if found else "nothing"
