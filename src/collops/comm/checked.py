"""The transport that ``COLLOPS_CHECK`` puts before another: ranks agree on each call before it is run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from collops.comm.call import Call
from collops.comm.call_agreement import RECEIVE, SEND, CallAgreement, Expectation
from collops.comm.transport import FIRST_USER_TAG, Message, Pending, Transport


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
        self.group = inner.group
        self.inspect = inner.inspect
        self._inner = inner
        self._calls = calls
        self._memory = memory
        self.opened: list[_Checked] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # what only some transports have

    def run(self, call: Call) -> None:
        """Run a call once all ranks are about to run the same one."""
        text, facts = call.described(self._memory)
        if call.receive_counts is None:
            self._calls.collective(text, facts)
        else:
            self._calls.collective(text, facts, list(call.counts), list(call.receive_counts))
        self._inner.run(call)

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        """Start messages of a plan, once all ranks have agreed; those of users start when they are waited for."""
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
    """Messages of a user that start when they are waited for: those of a group are agreed upon together."""

    __slots__ = ("_pending", "_receives", "_sends", "_tag", "_transport")

    def __init__(
        self, transport: CheckedTransport, sends: Sequence[Message], receives: Sequence[Message], tag: int
    ) -> None:
        self._transport = transport
        self._sends = sends
        self._receives = receives
        self._tag = tag
        self._pending: list[Pending] = []
        transport.opened.append(self)

    @property
    def text(self) -> str:
        """How errors show the messages."""
        tag = self._tag - FIRST_USER_TAG
        parts = [f"send {array.size} {array.dtype.name} to rank {peer}" for peer, array in self._sends]
        parts += [f"receive {array.size} {array.dtype.name} from rank {peer}" for peer, array in self._receives]
        return f"{' and '.join(parts)}{f', tag {tag}' if tag else ''}"

    def needs(self, memory: str, inner: Transport) -> Iterator[tuple[int, Expectation]]:
        """Yield what the other ranks must do."""
        for kind, messages in ((SEND, self._sends), (RECEIVE, self._receives)):
            for peer, array in messages:
                facts = {"dtype": array.dtype.name, "elements": array.size, "tag": self._tag, "memory": memory}
                ends = ([(peer, array)], []) if kind == SEND else ([], [(peer, array)])
                yield (
                    peer,
                    Expectation(kind, facts, then=partial(self._start, inner, *ends) if memory == "host" else None),
                )

    def start(self, inner: Transport) -> None:
        """Start all messages, which have been agreed upon."""
        self._start(inner, self._sends, self._receives)

    def wait(self) -> None:
        if self in self._transport.opened:
            self._transport.settle()
        for pending in self._pending:
            pending.wait()
        self._pending = []

    def _start(self, inner: Transport, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        self._pending.append(inner.start_exchange(sends, receives, self._tag))


def _peers(nbytes: list[list[int]]) -> str:
    found = [f"{sum(of)} B rank {rank}" for rank, of in enumerate(nbytes) if of]
    return ", ".join(found) if found else "nothing"
