"""The transport of host arrays without MPI, over TCP, between ranks that met at an address (`collops.comm.meeting`).

Every two ranks have a connection. Messages through one rank would need half as many, but a rank that computes forwards
nothing, and the others would wait for it. For the same reason collective calls send from each rank straight to those
that need the values, and reduce in the order of ranks, so that all get the same bits: right for the control of GPUs and
for a few hosts, slower than MPI with many ranks.

A message is a header (context, tag and size) and its bytes; between two ranks, those of one context and tag arrive in
order. There is no thread: whoever waits moves all messages of the process. What arrives before its receive is kept in
memory.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, islice, pairwise
from selectors import EVENT_READ, DefaultSelector
from typing import Any, NoReturn, TypeAlias

import numpy as np

from collops.comm.call import Call
from collops.comm.failure import Failures, default_timeout
from collops.comm.launcher import local_rank
from collops.comm.meeting import meet
from collops.comm.mpi import CALL_TAG, FAILURE_TAG, Requests
from collops.comm.reductions import HALF, LOGICAL, divide
from collops.comm.transport import Message, Pending, Transport
from collops.errors import TransportError

__all__ = ["ControlChannel", "Group", "TcpTransport"]

_HEADER = struct.Struct("!IiQ")
_PIECES = 16  # buffers that one call of the system sends
_SPLIT_BYTES = 1 << 16  # longer arrays are reduced in parts, one on each rank
# Arrays have tags from 0 on; those of the channels are the negatives of what they have over MPI.
_SETUP, _BARRIER, _SETUP_FAILURE = -CALL_TAG - 1, -CALL_TAG - 2, CALL_TAG + 3
_UFUNCS = {
    **{"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum},
    **{"land": np.logical_and, "lor": np.logical_or, "lxor": np.logical_xor},
}
_FROM_ROOT, _TO_ROOT = ("bcast", "scatter", "scatterv"), ("gather", "gatherv", "reduce")
_Key: TypeAlias = tuple[int, int, int]  # the other rank, context and tag


class TcpError(Exception):
    """What went wrong with one message."""


class _Transfer:
    """A message that leaves from the bytes in `view`, or arrives there."""

    __slots__ = ("done", "error", "mesh", "view")

    def __init__(self, mesh: Mesh, view: memoryview) -> None:
        self.mesh = mesh
        self.view = view
        self.done = False
        self.error = ""

    def Test(self) -> bool:
        if not self.finished():
            self.mesh.progress()
        return self.finished()

    def finished(self) -> bool:
        if self.error:
            raise TcpError(self.error)
        return self.done


class _All:
    """Several messages as one request."""

    def __init__(self, transfers: Sequence[_Transfer]) -> None:
        self._left = transfers

    def Test(self) -> bool:
        if self._left:
            self._left[0].mesh.progress()
            self._left = [each for each in self._left if not each.finished()]
        return not self._left


class _Link:
    """The connection to another rank, what waits to be sent there, and what is arriving from there."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.leaving: deque[tuple[memoryview, _Transfer | None]] = deque()
        self.header = bytearray(_HEADER.size)
        self.missing = memoryview(self.header)
        self.key: _Key | None = None  # of the message whose header has arrived
        self.data = self.missing
        self.transfer: _Transfer | None = None


class Mesh:
    """The connections of this rank to all others, by rank.

    Attributes
    ----------
    lost : set of int
        Ranks whose connection has broken.
    next_context : int
        The first context that this rank knows to be unused.
    """

    def __init__(self, rank: int, connections: dict[int, socket.socket]) -> None:
        self.rank = rank
        self.size = len(connections) + 1
        self.lost: set[int] = set()
        self.next_context = 2
        self._lock = threading.RLock()  # programs of JAX wait on other threads
        self._links = {peer: _Link(connection) for peer, connection in connections.items()}
        self._selector = DefaultSelector()
        self._posted: dict[_Key, deque[_Transfer]] = defaultdict(deque)
        self._arrived: dict[_Key, deque[memoryview]] = defaultdict(deque)
        self._oldest: dict[int, int] = {}
        for peer, connection in connections.items():
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, EVENT_READ, peer)

    def send(self, peer: int, context: int, tag: int, view: memoryview) -> _Transfer:
        transfer = _Transfer(self, view)
        with self._lock:
            if peer == self.rank:
                self._complete((peer, context, tag), None, memoryview(bytes(view)))
                transfer.done = True
            elif peer in self.lost:
                transfer.done = True  # whoever waits for an answer learns of it
            else:
                link = self._links[peer]
                link.leaving.append((memoryview(_HEADER.pack(context, tag, view.nbytes)), None))
                link.leaving.append((view, transfer))
                self._flush(peer, link)
        return transfer

    def receive(self, peer: int, context: int, tag: int, view: memoryview) -> _Transfer:
        transfer, key = _Transfer(self, view), (peer, context, tag)
        with self._lock:
            if self._arrived[key]:
                self._complete(key, transfer, self._arrived[key].popleft())
            else:
                self._posted[key].append(transfer)
        return transfer

    def take(self, peer: int, context: int, tag: int) -> bytes | None:
        """Return a whole message of any size that has arrived."""
        with self._lock:
            found = self._arrived[peer, context, tag]
            return bytes(found.popleft()) if found else None

    def forget(self, context: int, before: int) -> None:
        """Drop what arrives in a context with lower tags, now and later, and all receives of it."""
        with self._lock:
            self._oldest[context] = before
            for waiting in (self._posted, self._arrived):
                for key in [key for key in waiting if key[1] == context and key[2] < before]:
                    del waiting[key]

    def progress(self) -> None:
        """Send and receive what the connections can take and have."""
        with self._lock:
            for peer, link in self._links.items():
                if link.leaving:
                    self._flush(peer, link)
            for key, _ in self._selector.select(0):
                self._arrive(key.data)

    def close(self) -> None:
        """Close the connections, once the others have received what was sent."""
        with self._lock:
            for link in self._links.values():
                with suppress(OSError):
                    # Closed with something unread, a connection loses what is on its way to the other end.
                    link.connection.shutdown(socket.SHUT_WR)
            for _ in range(200):
                self.progress()
                if len(self.lost) == len(self._links):
                    return
                self._selector.select(0.01)

    def _flush(self, peer: int, link: _Link) -> None:
        leaving = link.leaving
        try:
            while leaving:
                count = link.connection.sendmsg([view for view, _ in islice(leaving, _PIECES)])
                while leaving and leaving[0][0].nbytes <= count:
                    view, transfer = leaving.popleft()
                    count -= view.nbytes
                    if transfer is not None:
                        transfer.done = True
                if count:
                    view, transfer = leaving[0]
                    leaving[0] = view[count:], transfer
        except BlockingIOError:
            pass
        except OSError:
            for _, transfer in leaving:
                if transfer is not None:
                    transfer.done = True
            leaving.clear()
            self._arrive(peer)  # what the other end sent before it closed the connection

    def _arrive(self, peer: int) -> None:
        link = self._links[peer]
        try:
            while count := link.connection.recv_into(link.missing):
                link.missing = link.missing[count:]
                while not link.missing:
                    self._next(peer, link)
        except BlockingIOError:
            return
        except OSError:
            pass
        self._lose(peer)

    def _next(self, peer: int, link: _Link) -> None:
        """Continue with the bytes of a message after its header, and with the next header after them."""
        if link.key is None:
            context, tag, size = _HEADER.unpack(link.header)
            link.key = key = peer, context, tag
            link.transfer = transfer = self._posted[key].popleft() if self._posted[key] else None
            if transfer is not None and size <= transfer.view.nbytes:
                link.data = transfer.view[:size]
            else:
                link.data = memoryview(bytearray(size))
            link.missing = link.data
        else:
            key, link.key = link.key, None
            self._complete(key, link.transfer, link.data)
            link.missing = memoryview(link.header)

    def _complete(self, key: _Key, transfer: _Transfer | None, data: memoryview) -> None:
        """Give a message to the receive that waits for it, or keep it."""
        if transfer is None and self._posted[key]:
            transfer = self._posted[key].popleft()
        if transfer is None:
            if key[2] >= self._oldest.get(key[1], key[2]):
                self._arrived[key].append(data)
        elif data.nbytes > transfer.view.nbytes:
            transfer.error = f"Message truncated: {data.nbytes} bytes have arrived for {transfer.view.nbytes}"
        else:
            if data.obj is not transfer.view.obj:
                transfer.view[: data.nbytes] = data
            transfer.done = True

    def _lose(self, peer: int) -> None:
        self.lost.add(peer)
        self._selector.unregister(self._links[peer].connection)
        self._links[peer].connection.close()


class Group:
    """Some of the ranks of a world without MPI, in the order of `members`, and their messages: a control plane.

    It has what this library uses of mpi4py's communicators, under the same names; values are what JSON can carry.
    """

    def __init__(self, mesh: Mesh, members: Sequence[int], context: int) -> None:
        self.mesh = mesh
        self.members = list(members)
        self.rank = self.members.index(mesh.rank)
        self.size = len(self.members)
        self.context = context  # and the next one, of collective calls
        self.values: dict[str, Any] = {}
        mesh.next_context = max(mesh.next_context, context + 2)
        self._failures = Failures(ControlChannel(self, _SETUP_FAILURE), default_timeout(), crowded=True)

    def start(
        self, sends: Sequence[tuple[int, Any]], receives: Sequence[tuple[int, Any]], tag: int, context: int = 0
    ) -> list[_Transfer]:
        """Start messages between contiguous arrays, the receives first."""
        mesh, context = self.mesh, self.context + context
        started = [mesh.receive(self.members[peer], context, tag, _bytes_of(array)) for peer, array in receives]
        return started + [mesh.send(self.members[peer], context, tag, _bytes_of(array)) for peer, array in sends]

    def allgather(self, value: Any) -> list[Any]:
        """Return the value of every rank. Collective."""
        text = memoryview(json.dumps(value).encode())
        sent = _All([self.mesh.send(member, self.context, _SETUP, text) for member in self.members])
        found: dict[int, Any] = {}

        def done() -> bool:
            self.mesh.progress()
            for rank, member in enumerate(self.members):
                if rank not in found and (content := self.mesh.take(member, self.context, _SETUP)) is not None:
                    found[rank] = json.loads(content)
            return len(found) == self.size and sent.Test()

        self._failures.until(done, "setting up a communicator", [rank for rank in range(self.size)])
        return [found[rank] for rank in range(self.size)]

    def bcast(self, value: Any, root: int = 0) -> Any:
        """Return the value of `root`. Collective."""
        return self.allgather(value if self.rank == root else None)[root]

    def Ibarrier(self) -> _All:
        """Return a request that is complete when all ranks have called this. Collective."""
        everyone = [(rank, np.empty(0)) for rank in range(self.size)]
        return _All(self.start(everyone, everyone, _BARRIER))

    def Dup(self) -> Group:
        """Return a group of the same ranks with messages of its own. Collective."""
        return Group(self.mesh, self.members, max(self.allgather(self.mesh.next_context)))

    def Abort(self, code: int) -> NoReturn:
        """End this process. The other ranks lose their connections to it, and raise where they need it."""
        os._exit(code)


_worlds: list[Group] = []


def join() -> Group | None:
    """Return the group of all ranks, which this process belongs to until it ends; ``None`` with one rank. Collective.

    Raises as :func:`collops.comm.meeting.meet` does.
    """
    if not _worlds and (met := meet()) is not None:
        mesh = Mesh(*met)
        atexit.register(mesh.close)
        _worlds.append(Group(mesh, range(mesh.size), 0))
    return all_processes()


def all_processes() -> Any:
    """Return the group of all ranks; ``None`` if this process has not joined any."""
    return _worlds[0] if _worlds else None


def duplicate(comm: Group) -> Group:
    """Return a duplicate of a group, whose wait has a deadline. Collective."""
    return comm.Dup()


def on_node(comm: Group, value: Any = None) -> tuple[int, list[Any]]:
    """Return this rank's number among the ranks of its host, and the `value` of each of them. Collective."""
    rows = comm.allgather([_host(), local_rank(), value])
    host = rows[comm.rank][0]
    # In the order that the launcher gives, where it gives one.
    order = sorted((-1 if row[1] is None else row[1], rank) for rank, row in enumerate(rows) if row[0] == host)
    ranks = [rank for _, rank in order]
    return ranks.index(comm.rank), [rows[rank][2] for rank in ranks]


def split(comm: Group, color: int | None, key: int) -> Group | None:
    """Return the group of the ranks that pass the same `color`, or ``None`` without one. Collective."""
    rows = comm.allgather([color, key, comm.mesh.next_context])
    context = max(row[2] for row in rows)
    chosen = sorted((row[1], rank) for rank, row in enumerate(rows) if row[0] == color)
    if color is None:
        comm.mesh.next_context = context
        return None
    return Group(comm.mesh, [comm.members[rank] for _, rank in chosen], context)


def values_kept_with(comm: Any) -> dict[str, Any]:
    """Return a dictionary that lives as long as a group."""
    return comm.values


def check_mpi(control: Any, what: str) -> None:
    """Raise `TransportError` if the ranks of a control plane run without MPI, which `what` needs."""
    if isinstance(control, Group):
        error = TransportError(f"{what} needs MPI, but COLLOPS_BOOTSTRAP has started these ranks without it")
        error.on_all_ranks = True
        raise error


class ControlChannel:
    """Sends JSON between the ranks of a group; the twin of that over MPI."""

    name = "TCP"
    error = TcpError

    def __init__(self, comm: Group, tag: int = FAILURE_TAG) -> None:
        self.rank = comm.rank
        self.size = comm.size
        self._group = comm
        self._tag = -tag
        self._sends: list[_Transfer] = []

    @property
    def lost(self) -> set[int]:
        """Ranks that cannot be reached any more."""
        members, lost = self._group.members, self._group.mesh.lost
        return {rank for rank, member in enumerate(members) if member in lost} if lost else set()

    def send(self, message: Any, ranks: Collection[int] | None = None) -> None:
        """Send what JSON can carry to `ranks`, by default to all other ranks. Not collective."""
        content = np.frombuffer(json.dumps(message).encode(), np.uint8)
        targets = [rank for rank in range(self.size) if rank != self.rank] if ranks is None else ranks
        self.delivered()
        self._sends += self._group.start([(rank, content) for rank in targets], [], self._tag)

    def delivered(self) -> bool:
        """Return whether everything that was sent has left this process. Not collective."""
        self._sends = [each for each in self._sends if not each.Test()]
        return not self._sends

    def receive(self) -> Iterator[tuple[int, Any]]:
        """Give the messages that have arrived, each with its sender. Not collective."""
        group = self._group
        group.mesh.progress()
        for rank, member in enumerate(group.members):
            while (content := group.mesh.take(member, group.context, self._tag)) is not None:
                yield rank, json.loads(content)

    def barrier(self) -> Callable[[], bool]:
        """Enter a barrier, and return a function that tells whether all ranks have entered it. Collective."""
        return self._group.Ibarrier().Test


class TcpTransport(Transport):
    """TCP on host arrays, between the ranks of a group. `failures` waits for the messages."""

    name = "tcp"

    def __init__(self, comm: Group, failures: Failures) -> None:
        self._group = comm
        self._failures = failures
        self._ranks = range(comm.size)
        self._generation = 0

    def renew(self) -> None:
        """Number collective calls anew, whatever is under way of the ones before. Collective, but without a message."""
        self._generation += 1
        self._group.mesh.forget(self._group.context + 1, self._generation)

    def run(self, call: Call) -> None:
        """Start the messages of the call, and wait for them."""
        if call.op is None:
            self._exchange(call.kind, *self._moves(call))
        elif call.kind == "allreduce" and call.source.nbytes > _SPLIT_BYTES:
            sizes = [self._shares(call.source.size)[rank] for rank in self._ranks]
            mine = np.empty(sizes[self._group.rank], call.source.dtype)
            self._reduce(call, _pieces(call.source, sizes), mine)
            self._exchange(call.kind, [mine for _ in self._ranks], _pieces(call.target, sizes))
        elif call.kind == "reduce_scatter":
            self._reduce(call, _pieces(call.source, [call.target.size for _ in self._ranks]), call.target)
        else:
            wanted = (call.root,) if call.kind == "reduce" else self._ranks
            gives = [call.source if rank in wanted else None for rank in self._ranks]
            self._reduce(call, gives, call.target)

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        """Start the messages."""
        requests = self._group.start(sends, receives, tag)
        return Requests(requests, self._failures, [peer for peer, _ in receives], [peer for peer, _ in sends])

    def persistent(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> RepeatedMessages:
        """Return messages between fixed arrays, to be started any number of times."""
        return RepeatedMessages(self._group, sends, receives, tag)

    def _shares(self, count: int) -> list[int]:
        ends = [count * rank // len(self._ranks) for rank in range(len(self._ranks) + 1)]
        return [stop - start for start, stop in pairwise(ends)]

    def _moves(self, call: Call) -> tuple[list[Any], list[Any]]:
        """Return what a call that does not reduce gives to each rank, and what it gets from each."""
        kind, source, target = call.kind, call.source, call.target
        counts = call.counts
        if kind == "barrier":
            source = target = np.empty(0)
        if kind.startswith(("scatter", "alltoall")):
            gives = _pieces(source, counts or self._shares(0 if source is None else source.size))
        else:
            gives = [source for _ in self._ranks]
        if kind.startswith(("gather", "allgather", "alltoall")):
            taken = call.receive_counts or counts or self._shares(0 if target is None else target.size)
            takes = _pieces(target, taken)
        else:
            takes = [target for _ in self._ranks]
        if kind in _FROM_ROOT:
            takes = [each if rank == call.root else None for rank, each in enumerate(takes)]
            gives = gives if self._group.rank == call.root else [None for _ in self._ranks]
        elif kind in _TO_ROOT:
            gives = [each if rank == call.root else None for rank, each in enumerate(gives)]
        return gives, takes

    def _exchange(self, kind: str, gives: Sequence[Any], takes: Sequence[Any]) -> None:
        """Give arrays to other ranks and get arrays from them, ``None`` for nothing, and wait."""
        me = self._group.rank
        given, taken = gives[me], takes[me]
        if given is not None and taken is not None and taken is not given:
            taken[...] = given.reshape(taken.shape)
        sends, receives = (
            [(rank, array) for rank, array in enumerate(part) if array is not None and rank != me]
            for part in (gives, takes)
        )
        self._failures.wait(_All(self._group.start(sends, receives, self._generation, 1)), kind)

    def _reduce(self, call: Call, gives: Sequence[Any], target: Any) -> None:
        """Reduce into `target` what all ranks give to this one; ``None`` where nobody gives anything."""
        dtype, op = call.source.dtype, str(call.op)
        if target is None:
            self._exchange(call.kind, gives, [None for _ in self._ranks])
            return
        parts = np.empty((len(self._ranks), target.size), dtype)
        self._exchange(call.kind, gives, list(parts))
        combine = _UFUNCS[LOGICAL.get(op, op) if dtype.kind == "b" else op]
        # Half types are rounded once, at the end.
        total = parts[0].astype(np.float32) if dtype.name in HALF else parts[0]
        for part in parts[1:]:
            combine(total, part.astype(total.dtype, copy=False), out=total)
        target[...] = total.reshape(target.shape)
        if op == "avg":
            divide(target, len(self._ranks))


class RepeatedMessages:
    """Messages between fixed arrays: `start()` starts all of them, and `done()` tells whether they are complete."""

    def __init__(self, group: Group, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> None:
        self._arguments = group, sends, receives, tag
        self.done: Callable[[], bool] = _All([]).Test

    def start(self) -> None:
        group, sends, receives, tag = self._arguments
        self.done = _All(group.start(sends, receives, tag)).Test


def _bytes_of(array: Any) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))


def _pieces(array: Any, counts: Sequence[int]) -> list[Any]:
    """Return consecutive flat pieces of an array, or ``None`` for each if there is no array."""
    if array is None:
        return [None for _ in counts]
    flat = array.reshape(-1)
    return [flat[start:stop] for start, stop in pairwise(accumulate(counts, initial=0))]


def _host() -> str:
    """Return a name of this host that no other has, also where hosts are named alike."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{socket.gethostname()} {file.read().strip()}"
    except OSError:  # not Linux
        return socket.gethostname()
