"""How ranks without MPI find each other: at the address in ``COLLOPS_BOOTSTRAP``, by a secret that they share.

Rank 0 listens at this address and at no other. Every other rank connects to it, listens at the address from which it
reaches rank 0, and learns from rank 0 where the others listen; then it connects to the ranks below its own.

Both ends of a connection prove that they know ``COLLOPS_SECRET``, by an HMAC of two random numbers, one of each end.
Until then only bytes of a fixed number are read. Nothing is pickled, and nothing is encrypted.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from collops.comm.agreement import described, name_ranks, raise_shared
from collops.comm.failure import default_timeout
from collops.errors import CollopsError, CommunicationTimeout, InputError, TransportError

_NAME = b"collops tcp 1\n"
_BYTES = 32  # of a random number, and of a proof
_PLACE = struct.Struct("!IIH")  # rank, number of ranks, and the port where this rank listens
_LENGTH = struct.Struct("!I")
_LEAST_SECRET = 16  # characters: whoever has seen one proof can try out secrets
_STRANGER_SECONDS = 5.0  # for the proof of an end that may be anybody
_GRACE_SECONDS = 10.0  # for ranks that come after a mistake was found, and for what rank 0 sends at its deadline
_NAP_SECONDS = 0.05


def meet(address: tuple[str, int], rank: int, size: int) -> dict[int, socket.socket]:
    """Return the connections of this rank to all others. Collective.

    Raises `InputError` without a secret, or if two processes have one rank or ranks differ in their number;
    `CommunicationTimeout` if ranks are missing at the deadline; `TransportError` if a connection is refused.
    """
    secret = os.environ.get("COLLOPS_SECRET", "").encode()
    if size > 1 and len(secret) < _LEAST_SECRET:
        raise InputError(
            f"COLLOPS_BOOTSTRAP needs COLLOPS_SECRET, {_LEAST_SECRET} characters or more, the same on all ranks and "
            "known to nobody else: export COLLOPS_SECRET=$(openssl rand -hex 32) before starting the ranks"
        )
    meeting = _Meeting(rank, size, secret)
    if size > 1:
        (meeting.follow if rank else meeting.lead)(*address)
    return meeting.links


class _Meeting:
    def __init__(self, rank: int, size: int, secret: bytes) -> None:
        self.rank = rank
        self.size = size
        self.secret = secret
        self.links: dict[int, socket.socket] = {}
        self.timeout = default_timeout() or float("inf")
        self.end = time.monotonic() + self.timeout

    def lead(self, host: str, port: int) -> None:
        """Collect the connections of the other ranks, and tell each where the others listen, or the error."""
        where: dict[int, Any] = {}
        came: list[socket.socket] = []
        error: CollopsError | None = None
        try:
            for connection, rank, size, there in self.arrivals(self.listening(host, port), self.size - 1):
                came.append(connection)
                if size != self.size:
                    error = InputError(f"rank {rank} was started as one of {size} ranks, rank 0 of {self.size}")
                elif rank in where or not 0 < rank < size:
                    error = InputError(f"two processes were started as rank {rank} of {size}")
                else:
                    self.links[rank] = connection
                    where[rank] = connection.getpeername()[0], there
                if error is not None:
                    self.end = min(self.end, time.monotonic() + _GRACE_SECONDS)
        except CommunicationTimeout as late:
            error = error or late
        message = json.dumps([where, described(error)]).encode()
        for connection in came:
            with suppress(OSError):  # a rank that has ended meanwhile is missed later
                connection.sendall(_LENGTH.pack(len(message)) + message)
        if error is not None:
            raise_shared(error, [described(error)])

    def follow(self, host: str, port: int) -> None:
        """Connect to rank 0, and to all others as rank 0 tells."""
        first = self.links[0] = self.dialled(host, port, 0)
        listener = self.listening(first.getsockname()[0], 0)
        self.greet(first, listener, 0)
        try:
            (length,) = _LENGTH.unpack(_read(first, _LENGTH.size, self.end + _GRACE_SECONDS))
            where, report = json.loads(_read(first, length, self.end + _GRACE_SECONDS))
        except OSError as error:
            raise CommunicationTimeout(f"rank {self.rank} lost rank 0 while it waited for the others") from error
        if report is not None:
            raise_shared(None, [report])
        for rank in range(1, self.rank):
            there, its_port = where[str(rank)]
            self.links[rank] = self.dialled(there, its_port, rank)
            self.greet(self.links[rank], listener, rank)
        for connection, rank, *_ in self.arrivals(listener, self.size - 1 - self.rank):
            self.links[rank] = connection

    def listening(self, host: str, port: int) -> socket.socket:
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family, backlog=socket.SOMAXCONN)
        except OSError as error:
            raise TransportError(
                f"rank {self.rank} cannot listen at {host}:{port} ({error.strerror or error}): COLLOPS_BOOTSTRAP needs "
                "an address of the host of rank 0 and a free port"
            ) from error

    def arrivals(self, listener: socket.socket, count: int) -> Iterator[tuple[socket.socket, int, int, int]]:
        """Give so many connections whose other end knows the secret, with its rank, number of ranks and port."""
        refused = 0
        with listener:
            listener.settimeout(_NAP_SECONDS)
            while count:
                if time.monotonic() > self.end:
                    missing = name_ranks([rank for rank in range(self.size) if rank not in {*self.links, self.rank}])
                    here = "rank {} at {}:{}".format(self.rank, *listener.getsockname())
                    strangers = f"; {refused} connections did not prove that they know COLLOPS_SECRET"
                    raise CommunicationTimeout(
                        f"{missing} of {self.size} did not come to {here} within {self.timeout:g} s (COLLOPS_TIMEOUT)"
                        f"{strangers if refused else ''}"
                    )
                try:
                    connection, _ = listener.accept()
                except (TimeoutError, ConnectionError):
                    continue
                try:
                    place = self.prove(connection, listener, False, time.monotonic() + _STRANGER_SECONDS)
                except OSError:
                    connection.close()
                    refused += 1
                else:
                    count -= 1
                    yield connection, *place

    def dialled(self, host: str, port: int, who: int) -> socket.socket:
        """Connect to a rank, as soon as it listens."""
        while True:
            try:
                connection = socket.create_connection((host, port), _STRANGER_SECONDS)
                if connection.getsockname() != connection.getpeername():  # TCP can connect a free port to itself
                    return connection
                problem: object = "nobody listens"
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
        """Prove to a rank that this one knows the secret, and have it do the same."""
        try:
            self.prove(connection, listener, True, self.end)
        except OSError as error:
            raise TransportError(
                f"rank {self.rank} and what listens as rank {who} do not accept each other ({error}): COLLOPS_SECRET "
                "differs, or another program has the port"
            ) from error

    def prove(self, connection: socket.socket, listener: socket.socket, dialled: bool, end: float) -> Any:
        """Return the other end's rank, number of ranks and port; raise `OSError` unless it knows the secret.

        The end that has `dialled` proves it first: what may be anybody's sees no proof.
        """
        mine = secrets.token_bytes(_BYTES) + _PLACE.pack(self.rank, self.size, listener.getsockname()[1])
        connection.sendall(_NAME + mine)
        if _read(connection, len(_NAME), end) != _NAME:
            raise ConnectionError("its greeting is another")
        theirs = _read(connection, len(mine), end)
        both = mine + theirs if dialled else theirs + mine
        proofs = [hmac.digest(self.secret, role + both, "sha256") for role in (b"dial", b"listen")]
        if dialled:
            connection.sendall(proofs[0])
        if not hmac.compare_digest(_read(connection, _BYTES, end), proofs[dialled]):
            raise ConnectionError("its proof is wrong")
        if not dialled:
            connection.sendall(proofs[1])
        return _PLACE.unpack(theirs[_BYTES:])


def _read(connection: socket.socket, count: int, end: float) -> bytes:
    """Return so many bytes; raise `TimeoutError` at `end`, and `ConnectionError` if the other end closes."""
    content = b""
    while len(content) < count:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(None if left == float("inf") else left)
        part = connection.recv(count - len(content))
        if not part:
            raise ConnectionError("it closed the connection")
        content += part
    return content
