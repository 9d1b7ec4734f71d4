"""Messages between processes with pairwise TCP connections, matched by context and tag.

A message consists of frames; a frame is a header (context, tag, size, and whether more frames of the message follow)
and its bytes. The size of frames is limited: a corrupt header breaks the connection, without allocating memory. Between
two ranks, messages with the same context and tag arrive in order. There are no threads: every wait advances all
messages of the process, and unexpected messages are stored in memory.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import NoReturn, TypeAlias, TypeVar

NAP_SECONDS = 1e-4
_HEADER = struct.Struct("!QqI?")  # context, tag, bytes, more
MAX_FRAME_BYTES = 1 << 28
_CODE = struct.Struct("!i")
_SHORT = 1 << 12  # bytes: shorter messages are copied, to be sent together with their header
_GOODBYE, _ABORT = -1, -2  # tags in context 0
_LAST_SECONDS = 2.0  # for the other ranks to receive this rank's last messages
_Key: TypeAlias = tuple[int, int, int]  # the other rank, context and tag
_Item = TypeVar("_Item")


class TcpError(Exception):
    """A message failed."""

    library = "TCP"

    def Get_error_string(self) -> str:
        """Return the text, as mpi4py's exception does."""
        return str(self)


class Request:
    """A message that is sent from, or received into, the bytes in `view`."""

    def __init__(self, mesh: Mesh, view: memoryview) -> None:
        self.mesh = mesh
        self.view = view
        self.done = False
        self.error = ""

    def Test(self) -> bool:
        """Return whether the message is complete; raise `TcpError` if it is too long."""
        if not self.done:
            self.mesh.progress()
        if self.error:
            raise TcpError(self.error)
        return self.done

    def fill(self, data: bytearray) -> None:
        """Store the received message."""
        if len(data) > len(self.view):
            self.error = f"Message truncated: {len(data)} bytes have arrived for {len(self.view)}"
        else:
            self.view[: len(data)] = data
        self.done = True


class Mesh:
    """The connections of this rank to all others, by rank; `lost` has the ranks whose connection has broken."""

    def __init__(self, rank: int, connections: dict[int, socket.socket]) -> None:
        self.rank = rank
        self.lost: set[int] = set()
        self.arrived: dict[_Key, deque[bytearray]] = {}  # with an entry where there is a message
        self._posted: dict[_Key, deque[Request]] = {}
        self._lock = threading.RLock()
        self._connections = dict(connections)
        self._leaving: dict[int, deque[tuple[memoryview, Request | None]]] = {peer: deque() for peer in connections}
        self._reading = {peer: self._messages_of(peer) for peer in connections}
        self._missing = {peer: next(reader) for peer, reader in self._reading.items()}
        self._poll = select.poll()
        self._peers: dict[int, int] = {}  # by file descriptor
        for peer, connection in connections.items():
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[connection.fileno()] = peer
            self._poll.register(connection, select.POLLIN)

    def send(self, peer: int, context: int, tag: int, view: memoryview) -> Request:
        """Start a message to a rank; `view` must not change until it is complete."""
        request = Request(self, view)
        with self._lock:
            if peer not in self._connections:
                if peer == self.rank:  # otherwise the peer is lost, which is detected when waiting for its answer
                    self._deliver((peer, context, tag), bytearray(view))
                request.done = True
                return request
            leaving = self._leaving[peer]
            remaining = memoryview(view)
            while len(remaining) > MAX_FRAME_BYTES:
                frame, remaining = remaining[:MAX_FRAME_BYTES], remaining[MAX_FRAME_BYTES:]
                leaving += (memoryview(_HEADER.pack(context, tag, len(frame), True)), None), (frame, None)
            header = _HEADER.pack(context, tag, len(remaining), False)
            if len(remaining) <= _SHORT:
                leaving.append((memoryview(header + remaining), request))
            else:
                leaving += (memoryview(header), None), (remaining, request)
            self._flush(peer)
        return request

    def receive(self, peer: int, context: int, tag: int, view: memoryview) -> Request:
        """Start to receive a message of at most the length of `view`."""
        request, key = Request(self, view), (peer, context, tag)
        with self._lock:
            if (content := _pop_first(self.arrived, key)) is not None:
                request.fill(content)
            else:
                self._posted.setdefault(key, deque()).append(request)
        return request

    def take(self, peer: int, context: int, tag: int) -> bytearray | None:
        """Return a received message of any length, or ``None``."""
        with self._lock:
            return _pop_first(self.arrived, (peer, context, tag))

    def progress(self) -> None:
        """Send and receive on all connections without blocking."""
        with self._lock:
            for peer, leaving in self._leaving.items():
                if leaving:
                    self._flush(peer)
            for descriptor, _ in self._poll.poll(0):
                self._read(self._peers[descriptor])

    def abort(self, code: int) -> NoReturn:
        """End this process with an exit code, and the others at their next wait or send."""
        self.close(_ABORT, code)
        os._exit(code)

    def close(self, tag: int = _GOODBYE, code: int = 0) -> None:
        """Notify the other ranks that this rank leaves, and disconnect when they have received everything."""
        for peer in list(self._connections):
            self.send(peer, 0, tag, memoryview(_CODE.pack(code)))
        end = time.monotonic() + _LAST_SECONDS
        while any(self._leaving.values()) and time.monotonic() < end:
            self.progress()
        for connection in self._connections.values():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        # Closing a connection with unread data would discard data in flight to the other end.
        while self._connections and time.monotonic() < end:
            self.progress()
            time.sleep(NAP_SECONDS)

    def leave(self) -> None:
        """Close this process's copies of the connections in a forked child, without notifying the other ranks."""
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self._poll = select.poll()
        self._leaving.clear()
        while self._connections:
            self._connections.popitem()[1].close()

    def _flush(self, peer: int) -> None:
        leaving = self._leaving[peer]
        with suppress(OSError):  # reads detect broken connections
            while leaving:
                view, request = leaving[0]
                count = self._connections[peer].send(view)
                if count < len(view):
                    leaving[0] = view[count:], request
                    continue
                leaving.popleft()
                if request is not None:
                    request.done = True

    def _read(self, peer: int) -> None:
        connection = self._connections[peer]
        try:
            while count := connection.recv_into(self._missing[peer]):
                self._missing[peer] = self._missing[peer][count:]
                while not self._missing[peer]:
                    self._missing[peer] = next(self._reading[peer])
        except BlockingIOError:
            return
        except OSError:
            pass
        if (peer, 0, _GOODBYE) not in self.arrived:
            self.lost.add(peer)
        self._poll.unregister(connection)
        self._connections.pop(peer).close()
        for _, request in self._leaving.pop(peer):
            if request is not None:
                request.done = True

    def _messages_of(self, peer: int) -> Iterator[memoryview]:
        """Yield the memory to be filled next, of a header or its data.

        Raises `ConnectionError` if a header is invalid.
        """
        frames: list[bytearray] = []
        header = bytearray(_HEADER.size)
        while True:
            yield memoryview(header)
            context, tag, size, unfinished = _HEADER.unpack(header)
            if size > MAX_FRAME_BYTES:
                raise ConnectionError(f"a frame of {size} bytes")
            frames.append(bytearray(size))
            yield memoryview(frames[-1])
            if not unfinished:
                content = frames[0] if len(frames) == 1 else bytearray().join(frames)
                frames = []
                self._deliver((peer, context, tag), content)

    def _deliver(self, key: _Key, content: bytearray) -> None:
        if key[1:] == (0, _ABORT):
            os._exit(*_CODE.unpack(content))
        if (request := _pop_first(self._posted, key)) is not None:
            request.fill(content)
        else:
            self.arrived.setdefault(key, deque()).append(content)


def _pop_first(queues: dict[_Key, deque[_Item]], key: _Key) -> _Item | None:
    """Remove and return the first item of a queue; ``None`` if it is empty."""
    queue = queues.get(key)
    if queue is None:
        return None
    item = queue.popleft()
    if not queue:
        del queues[key]
    return item
