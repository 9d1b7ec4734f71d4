"""TCP bootstrap: ranks without MPI connect at the address in ``COLLOPS_BOOTSTRAP``, authenticated by a shared secret.

Rank 0 listens at this address only. Every other rank connects to it, listens at the address from which it reaches rank
0, and receives the addresses of the other ranks from rank 0; then it connects to the ranks below its own.

Both ends of a connection prove that they know ``COLLOPS_SECRET``, by an HMAC of two random numbers, one from each end.
Until then only a fixed number of bytes is read. A listener checks the proofs of many connections concurrently, each
within a few seconds, so that connections of other programs do not delay the ranks. Nothing is pickled, and nothing is
encrypted.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from typing import TypeAlias

from collops.comm.agreement import described, name_ranks, raise_shared
from collops.comm.failure import default_timeout
from collops.errors import CollopsError, CommunicationTimeout, InputError, TransportError

_NAME = b"collops tcp 2\n"
_BYTES = 32  # of a random number, and of a proof
_PLACE = struct.Struct("!IIH")  # rank, number of ranks, and the port where this rank listens
_LENGTH = struct.Struct("!I")
_MIN_SECRET = 16  # characters: an observed proof allows a brute-force search
MAX_ADDRESS_BYTES = 1 << 26  # of the message of rank 0 with the addresses of all ranks
MAX_STRANGERS = 128
"""Maximum number of pending proofs, in addition to one for every missing rank."""
_STRANGER_SECONDS = 5.0  # for the proof of an unauthenticated peer
_GRACE_SECONDS = 10.0  # for ranks that connect after an error, and for the message of rank 0 at its deadline
_NAP_SECONDS = 0.05
_Place: TypeAlias = tuple[int, int, int]  # rank, number of ranks and port of the other end
_Proof: TypeAlias = Generator[int, bytes, _Place]
"""Yields the number of bytes to read from the other end, repeatedly, and returns its rank, size and port."""


def connect_ranks(address: tuple[str, int], rank: int, size: int) -> dict[int, socket.socket]:
    """Return the connections of this rank to all others. Collective.

    Raises `InputError` without a secret, or if two processes have one rank or ranks differ in their number;
    `CommunicationTimeout` if ranks are missing at the deadline; `TransportError` if a connection is refused.
    """
    secret = os.environ.get("COLLOPS_SECRET", "").encode()
    if size > 1 and len(secret) < _MIN_SECRET:
        raise InputError(
            f"COLLOPS_BOOTSTRAP needs COLLOPS_SECRET, at least {_MIN_SECRET} secret characters, the same on all ranks: "
            "export COLLOPS_SECRET=$(openssl rand -hex 32) before starting the ranks"
        )
    bootstrap = _Bootstrap(rank, size, secret)
    try:
        if size > 1:
            (bootstrap.follow if rank else bootstrap.lead)(*address)
    except BaseException:
        for connection in bootstrap.opened:
            connection.close()
        raise
    return bootstrap.links


class _Bootstrap:
    def __init__(self, rank: int, size: int, secret: bytes) -> None:
        self.rank = rank
        self.size = size
        self.secret = secret
        self.links: dict[int, socket.socket] = {}
        self.opened: list[socket.socket] = []  # closed after an error
        self.timeout = default_timeout() or float("inf")
        self.end = time.monotonic() + self.timeout

    def lead(self, host: str, port: int) -> None:
        """Accept the connections of the other ranks, and send to each the addresses of all ranks, or an error."""
        addresses: dict[int, tuple[str, int]] = {}
        connections: list[socket.socket] = []
        error: CollopsError | None = None
        try:
            for connection, rank, size, listening_port in self.arrivals(self.listening(host, port), self.size - 1):
                connections.append(connection)
                if size != self.size:
                    error = InputError(f"rank {rank} was started as one of {size} ranks, rank 0 of {self.size}")
                elif rank in addresses or not 0 < rank < size:
                    error = InputError(f"two processes were started as rank {rank} of {size}")
                else:
                    self.links[rank] = connection
                    addresses[rank] = connection.getpeername()[0], listening_port
                if error is not None:
                    self.end = min(self.end, time.monotonic() + _GRACE_SECONDS)
        except CommunicationTimeout as timeout:
            error = error or timeout
        message = json.dumps([addresses, described(error)]).encode()
        for connection in connections:
            connection.settimeout(_GRACE_SECONDS)
            with suppress(OSError):  # a rank that has ended is detected later
                connection.sendall(_LENGTH.pack(len(message)) + message)
        if error is not None:
            raise_shared(error, [described(error)])

    def follow(self, host: str, port: int) -> None:
        """Connect to rank 0, and to all other ranks at the addresses from rank 0."""
        root = self.links[0] = self.dialled(host, port, 0)
        listener = self.listening(root.getsockname()[0], 0)
        self.greet(root, listener, 0)
        try:
            (length,) = _LENGTH.unpack(_read(root, _LENGTH.size, self.end + _GRACE_SECONDS))
            if length > MAX_ADDRESS_BYTES:
                raise ConnectionError(f"it announced {length} bytes")
            addresses, report = json.loads(_read(root, length, self.end + _GRACE_SECONDS))
        except OSError as error:
            raise CommunicationTimeout(f"rank {self.rank} lost rank 0 while it waited for the others") from error
        if report is not None:
            raise_shared(None, [report])
        for rank in range(1, self.rank):
            host_of_rank, port_of_rank = addresses[str(rank)]
            self.links[rank] = self.dialled(host_of_rank, port_of_rank, rank)
            self.greet(self.links[rank], listener, rank)
        for connection, rank, *_ in self.arrivals(listener, self.size - 1 - self.rank):
            self.links[rank] = connection

    def listening(self, host: str, port: int) -> socket.socket:
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self.opened.append(socket.create_server(address[:2], family=family, backlog=socket.SOMAXCONN))
            return self.opened[-1]
        except OSError as error:
            raise TransportError(
                f"rank {self.rank} cannot listen at {host}:{port} ({error.strerror or error}): COLLOPS_BOOTSTRAP needs "
                "an address of the host of rank 0 and a free port"
            ) from error

    def arrivals(self, listener: socket.socket, count: int) -> Iterator[tuple[socket.socket, int, int, int]]:
        """Yield `count` authenticated connections with the rank, number of ranks and port of the other end."""
        with closing(_Listener(listener, self)) as arriving:
            while count:
                if time.monotonic() > self.end:
                    missing = name_ranks([rank for rank in range(self.size) if rank not in {*self.links, self.rank}])
                    listener_name = "rank {} at {}:{}".format(self.rank, *listener.getsockname())
                    strangers = f"; {arriving.refused} connections did not prove that they know COLLOPS_SECRET"
                    raise CommunicationTimeout(
                        f"{missing} of {self.size} did not connect to {listener_name} "
                        f"within {self.timeout:g} s (COLLOPS_TIMEOUT){strangers if arriving.refused else ''}"
                    )
                for proven in arriving.proven(MAX_STRANGERS + count):
                    self.opened.append(proven[0])
                    yield proven
                    count -= 1
                    if not count:
                        break

    def dialled(self, host: str, port: int, who: int) -> socket.socket:
        """Connect to a rank, as soon as it listens."""
        while True:
            try:
                connection = socket.create_connection((host, port), _STRANGER_SECONDS)
                if connection.getsockname() != connection.getpeername():  # TCP can connect a free port to itself
                    self.opened.append(connection)
                    return connection
                problem: object = "no process listens"
                connection.close()
            except OSError as error:
                problem = error.strerror or error
            if time.monotonic() > self.end:
                raise CommunicationTimeout(
                    f"rank {self.rank} did not reach rank {who} at {host}:{port} within {self.timeout:g} s "
                    f"(COLLOPS_TIMEOUT): {problem}"
                )
            time.sleep(_NAP_SECONDS)

    def greet(self, connection: socket.socket, listener: socket.socket, who: int) -> None:
        """Authenticate with a rank in both directions."""
        try:
            proof = self.proof(connection, listener, True)
            needed = next(proof)
            while True:
                needed = proof.send(_read(connection, needed, self.end))
        except StopIteration:
            return
        except OSError as error:
            raise TransportError(
                f"rank {self.rank} and the process at the address of rank {who} do not accept each other ({error}): "
                "COLLOPS_SECRET differs, or another program uses the port"
            ) from error

    def proof(self, connection: socket.socket, listener: socket.socket, dialled: bool) -> _Proof:
        """Authenticate the other end, and return its rank, size and port; raise `OSError` unless it knows the secret.

        The end that has `dialled` sends its proof first, so that an unauthenticated client never receives a proof. All
        data fit into the buffer of a new connection.
        """
        own_greeting = secrets.token_bytes(_BYTES) + _PLACE.pack(self.rank, self.size, listener.getsockname()[1])
        connection.sendall(_NAME + own_greeting)
        if (yield len(_NAME)) != _NAME:
            raise ConnectionError("its greeting differs")
        peer_greeting = yield len(own_greeting)
        greetings = own_greeting + peer_greeting if dialled else peer_greeting + own_greeting
        proofs = [hmac.digest(self.secret, role + greetings, "sha256") for role in (b"dial", b"listen")]
        if dialled:
            connection.sendall(proofs[0])
        if not hmac.compare_digest((yield _BYTES), proofs[dialled]):
            raise ConnectionError("its proof is wrong")
        if not dialled:
            connection.sendall(proofs[1])
        return _PLACE.unpack(peer_greeting[_BYTES:])


class _Candidate:
    """An unauthenticated connection, with the received part of its proof and the deadline for the rest."""

    def __init__(self, connection: socket.socket, proof: _Proof) -> None:
        self.connection = connection
        self.end = time.monotonic() + _STRANGER_SECONDS
        self._proof = proof
        self._content = b""
        self._needed = next(proof)

    def advance(self) -> _Place | None:
        """Read received data; return rank, size and port of the other end if the proof is complete, else ``None``."""
        part = self.connection.recv(self._needed - len(self._content))
        if not part:
            raise ConnectionError("it closed the connection")
        self._content += part
        if len(self._content) == self._needed:
            try:
                self._needed, self._content = self._proof.send(self._content), b""
            except StopIteration as complete:
                return complete.value
        return None


class _Listener:
    """Accepts connections and checks many proofs concurrently; `refused` counts failed ones."""

    def __init__(self, listener: socket.socket, bootstrap: _Bootstrap) -> None:
        self.refused = 0
        self._listener = listener
        self._bootstrap = bootstrap
        self._candidates: dict[int, _Candidate] = {}  # by file descriptor, the oldest first
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        listener.setblocking(False)

    def close(self) -> None:
        """Close the listener, and all unauthenticated connections."""
        self._listener.close()
        for candidate in self._candidates.values():
            candidate.connection.close()

    def proven(self, limit: int) -> Iterator[tuple[socket.socket, int, int, int]]:
        """Wait briefly; yield the connections with complete proofs. At most `limit` others are kept."""
        for descriptor, _ in self._poll.poll(1000 * _NAP_SECONDS):
            if descriptor == self._listener.fileno():
                self._accept(limit)
            elif (candidate := self._candidates.get(descriptor)) is not None:
                try:
                    peer_address = candidate.advance()
                except BlockingIOError:
                    continue
                except OSError:
                    self._refuse(descriptor)
                    continue
                if peer_address is not None:
                    self._poll.unregister(descriptor)
                    del self._candidates[descriptor]
                    candidate.connection.setblocking(True)
                    yield candidate.connection, *peer_address
        now = time.monotonic()
        for descriptor in [number for number, candidate in self._candidates.items() if candidate.end < now]:
            self._refuse(descriptor)

    def _accept(self, limit: int) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # no free file descriptor
            self._refuse_oldest()
            return
        connection.setblocking(False)
        try:
            candidate = _Candidate(connection, self._bootstrap.proof(connection, self._listener, False))
        except OSError:
            connection.close()
            self.refused += 1
            return
        # Ranks send their proof at once: with so many newer connections, the oldest one is not a rank.
        if len(self._candidates) == limit:
            self._refuse_oldest()
        self._candidates[connection.fileno()] = candidate
        self._poll.register(connection, select.POLLIN)

    def _refuse_oldest(self) -> None:
        if self._candidates:
            self._refuse(next(iter(self._candidates)))
        else:
            time.sleep(_NAP_SECONDS)

    def _refuse(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        self._candidates.pop(descriptor).connection.close()
        self.refused += 1


def _read(connection: socket.socket, count: int, end: float) -> bytes:
    """Return `count` bytes; raise `TimeoutError` at `end`, and `ConnectionError` if the other end closes."""
    content = b""
    while len(content) < count:
        remaining = end - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(None if remaining == float("inf") else remaining)
        part = connection.recv(count - len(content))
        if not part:
            raise ConnectionError("it closed the connection")
        content += part
    return content
