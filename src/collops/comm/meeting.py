"""How ranks without MPI meet: at the address in ``COLLOPS_BOOTSTRAP``, by a secret that they share.

Rank 0 listens there and at no other address. Every other rank connects to it, listens on the address by which it
reaches rank 0, and learns from it where the rest listens; then each connects to the ranks below its own. Rank 0 hears
from all ranks whether they have all their connections, and tells all of them the outcome, so that one error is raised
everywhere.

Both ends of a connection first prove that they know ``COLLOPS_SECRET``, by its HMAC of two random numbers, one from
each end. Until then nothing is read that needs interpreting. Who proves nothing within ten seconds is dropped and holds
up nobody. Nothing is pickled, and nothing is encrypted: as for MPI and NCCL, the network must be one's own.
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
from contextlib import ExitStack, suppress
from selectors import EVENT_READ, DefaultSelector
from typing import Any, NamedTuple

from collops.comm.agreement import described, name_ranks, shared_error
from collops.comm.failure import default_timeout
from collops.comm.launcher import bootstrap_address, started
from collops.errors import CollopsError, CommunicationTimeout, InputError, TransportError

__all__ = ["meet"]

_GREETING = struct.Struct("!14s32s")  # the name of this protocol, and a random number
_NAME = b"collops tcp 1\n"
_CLAIM = struct.Struct("!32s32s10s")  # a random number, the proof, and the place
_PLACE = struct.Struct("!IIH")  # rank, number of ranks, port where this rank listens
_LENGTH = struct.Struct("!I")
_RANDOM_BYTES, _PROOF_BYTES = 32, 32
_LEAST_SECRET = 16  # characters; a secret that can be guessed can be found from one proof
_STRANGER_SECONDS = 10.0
_LOOK_SECONDS = 0.1
_DIAL_SECONDS = 5.0
_GRACE_SECONDS = 10.0  # in which rank 0, whose deadline may be later, tells the outcome


class _Deadline:
    """The end of all waits of a start."""

    def __init__(self) -> None:
        self.seconds = default_timeout()
        self._end = None if self.seconds is None else time.monotonic() + self.seconds

    def __str__(self) -> str:
        return f"within {self.seconds:g} s (COLLOPS_TIMEOUT)"

    def shorten(self) -> None:
        """End in ten seconds at the latest."""
        soon = time.monotonic() + _GRACE_SECONDS
        self._end = soon if self._end is None else min(self._end, soon)

    def left(self, grace: float = 0.0) -> float | None:
        """Return the seconds that are left, ``None`` without a deadline; raise `TimeoutError` if there are none."""
        if self._end is None:
            return None
        left = self._end + grace - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _Arrival(NamedTuple):
    connection: socket.socket
    rank: int
    size: int
    port: int


def meet() -> tuple[int, dict[int, socket.socket]] | None:
    """Return this rank and its connections to all others, or ``None`` for a single rank. Collective.

    Raises `InputError` if the environment lacks rank, number of ranks or secret, `CommunicationTimeout` if ranks are
    missing at the deadline, and `TransportError` if they cannot connect.
    """
    address, place = bootstrap_address(), started()
    if place is None or place.ranks is None or not 0 <= place.rank < place.ranks:
        found = "" if place is None else f", not {place.rank} and {place.ranks}"
        raise InputError(
            "COLLOPS_BOOTSTRAP needs the rank of this process and the number of ranks: start it by srun or torchrun, "
            f"or set RANK and WORLD_SIZE{found}"
        )
    rank, size = place.rank, place.ranks
    if address is None or size == 1:
        return None
    secret = os.environ.get("COLLOPS_SECRET", "").encode()
    if len(secret) < _LEAST_SECRET:
        raise InputError(
            f"COLLOPS_BOOTSTRAP needs COLLOPS_SECRET, {_LEAST_SECRET} characters or more, the same on all ranks and "
            "known to nobody else: export COLLOPS_SECRET=$(openssl rand -hex 32) before starting the ranks"
        )
    links: dict[int, socket.socket] = {}
    with ExitStack() as on_failure:
        on_failure.callback(lambda: [link.close() for link in links.values()])
        (_lead if rank == 0 else _follow)(address, rank, size, secret, _Deadline(), links)
        on_failure.pop_all()
    return rank, links


def _lead(
    address: tuple[str, int], rank: int, size: int, secret: bytes, deadline: _Deadline, links: dict[int, socket.socket]
) -> None:
    """Collect the other ranks' connections in `links`, tell each where the others listen, and agree on the outcome."""
    where: dict[int, tuple[str, int]] = {}
    refused: list[str] = []
    mistaken: list[socket.socket] = []
    problem: CollopsError | None = None
    with _listening(*address, "rank 0") as listener:
        try:
            for each in _arrivals(listener, secret, deadline, refused):
                if wrong := _mistake(each, links, size):
                    problem = problem or InputError(wrong)
                    mistaken.append(each.connection)
                    deadline.shorten()  # for those that are still to come, and shall learn of it
                else:
                    links[each.rank] = each.connection
                    where[each.rank] = each.connection.getpeername()[0], each.port
                if len(links) + len(mistaken) >= size - 1:
                    break
        except TimeoutError:
            here = "{}:{}".format(*listener.getsockname()[:2])
            missing = name_ranks([each for each in range(1, size) if each not in links])
            text = f"{missing} of {size} did not come to rank 0 at {here} {deadline}"
            if refused:
                hosts = ", ".join(sorted(set(refused))[:4])
                text += f"; {len(refused)} connections from {hosts} did not prove that they know COLLOPS_SECRET"
            problem = problem or CommunicationTimeout(text)
    if problem is None:
        for link in links.values():
            _tell(link, where)
        try:
            _hear_all(links, deadline)
        except CollopsError as error:
            problem = error
    for link in (*links.values(), *mistaken):
        _tell(link, described(problem))
    if problem is not None:
        problem.on_all_ranks = True
        raise problem


def _mistake(arrival: _Arrival, links: dict[int, socket.socket], size: int) -> str:
    if arrival.size != size:
        return f"rank {arrival.rank} was started as one of {arrival.size} ranks, and rank 0 as one of {size}"
    if arrival.rank in links or not 0 < arrival.rank < size:
        return f"two processes were started as rank {arrival.rank} of {size}: give each a RANK of its own"
    return ""


def _hear_all(links: dict[int, socket.socket], deadline: _Deadline) -> None:
    """Return when all ranks have their connections, or raise the first problem that one of them reports."""
    with DefaultSelector() as selector:
        for rank, link in links.items():
            selector.register(link, EVENT_READ, rank)
        while selector.get_map():
            try:
                ready = selector.select(deadline.left(_GRACE_SECONDS))
            except TimeoutError:
                waiting = name_ranks(sorted(key.data for key in selector.get_map().values()))
                raise CommunicationTimeout(f"{waiting} did not connect to all others {deadline}") from None
            for key, _ in ready:
                selector.unregister(key.fileobj)
                _hear(links[key.data], deadline, f"rank {key.data}")


def _follow(
    address: tuple[str, int], rank: int, size: int, secret: bytes, deadline: _Deadline, links: dict[int, socket.socket]
) -> None:
    """Connect to rank 0 and to all others, in `links`; raise what rank 0 tells."""
    mine, problem = f"rank {rank}", None
    links[0] = _dialled(address, deadline, mine, "rank 0")
    with _listening(links[0].getsockname()[0], 0, mine) as listener:
        own = _PLACE.pack(rank, size, listener.getsockname()[1])
        _prove(links[0], secret, own, deadline, mine, "rank 0 at {}:{}".format(*address))
        where = _hear(links[0], deadline, "rank 0")
        try:
            for other in range(1, rank):
                there = where[str(other)]
                links[other] = _dialled(there, deadline, mine, f"rank {other}")
                _prove(links[other], secret, own, deadline, mine, "rank {} at {}:{}".format(other, *there))
            for each in _arrivals(listener, secret, deadline, [], links[0]) if rank < size - 1 else ():
                if each.rank in links or not rank < each.rank < size:
                    each.connection.close()
                    continue
                links[each.rank] = each.connection
                if len(links) == size - 1:
                    break
        except TimeoutError:
            missing = name_ranks([each for each in range(size) if each != rank and each not in links])
            problem = CommunicationTimeout(f"{missing} did not connect to {mine} {deadline}")
        except CollopsError as error:
            problem = error
    _tell(links[0], described(problem))
    _hear(links[0], deadline, "rank 0")


def _arrivals(
    listener: socket.socket,
    secret: bytes,
    deadline: _Deadline,
    refused: list[str],
    watched: socket.socket | None = None,
) -> Iterator[_Arrival]:
    """Give the connections whose other end has proved to know the secret; addresses of others go to `refused`.

    Ends when `watched` can be read. Raises `TimeoutError` at the deadline.
    """
    strangers: dict[socket.socket, tuple[float, bytes, bytearray]] = {}

    def drop(connection: socket.socket) -> None:
        with suppress(OSError):
            refused.append(connection.getpeername()[0])
        connection.close()

    with DefaultSelector() as selector:
        selector.register(listener, EVENT_READ)
        if watched is not None:
            selector.register(watched, EVENT_READ)
        try:
            while True:
                deadline.left()
                for key, _ in selector.select(_LOOK_SECONDS):
                    ready: Any = key.fileobj
                    if ready is watched:
                        return
                    with suppress(OSError):  # the other end may be gone again
                        if ready is listener:
                            connection, _ = listener.accept()
                            connection.settimeout(0)
                            random = secrets.token_bytes(_RANDOM_BYTES)
                            strangers[connection] = time.monotonic() + _STRANGER_SECONDS, random, bytearray()
                            selector.register(connection, EVENT_READ)
                            connection.send(_GREETING.pack(_NAME, random))
                            continue
                        random, claim = strangers[ready][1:]
                        content = ready.recv(_CLAIM.size - len(claim))
                        claim += content
                        if content and len(claim) < _CLAIM.size:
                            continue
                        if content:
                            theirs, proof, place = _CLAIM.unpack(claim)
                            if hmac.compare_digest(proof, _proof(secret, b"arrive", random, theirs, place)):
                                ready.send(_proof(secret, b"accept", random, theirs, place))
                                selector.unregister(ready)
                                del strangers[ready]
                                yield _Arrival(ready, *_PLACE.unpack(place))
                                continue
                    if ready is not listener:
                        selector.unregister(ready)
                        del strangers[ready]
                        drop(ready)
                for late in [each for each, (end, *_) in strangers.items() if end < time.monotonic()]:
                    selector.unregister(late)
                    del strangers[late]
                    drop(late)
        finally:
            for connection in strangers:
                drop(connection)


def _prove(connection: socket.socket, secret: bytes, place: bytes, deadline: _Deadline, mine: str, there: str) -> None:
    """Prove to the other end that this one knows the secret, and have it do the same."""
    random = secrets.token_bytes(_RANDOM_BYTES)
    try:
        name, theirs = _GREETING.unpack(_read(connection, _GREETING.size, deadline))
        if name != _NAME:
            raise TransportError(f"another program answers {mine} in the place of {there}: choose another port")
        connection.sendall(_CLAIM.pack(random, _proof(secret, b"arrive", theirs, random, place), place))
        answer = _read(connection, _PROOF_BYTES, deadline)
    except TimeoutError:
        raise CommunicationTimeout(
            f"{mine} had no answer from {there} {deadline}: does another program listen there?"
        ) from None
    except OSError:
        raise TransportError(
            f"{there} refused the connection of {mine}: COLLOPS_SECRET differs, or another program has the port"
        ) from None
    if not hmac.compare_digest(answer, _proof(secret, b"accept", theirs, random, place)):
        raise TransportError(f"{there} does not know the COLLOPS_SECRET of {mine}")


def _proof(secret: bytes, role: bytes, *content: bytes) -> bytes:
    return hmac.digest(secret, role + b"".join(content), "sha256")  # each part has a fixed size


def _listening(host: str, port: int, who: str) -> socket.socket:
    """Return a socket that listens at one address."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=socket.SOMAXCONN)
    except OSError as error:
        raise TransportError(
            f"{who} cannot listen at {host}:{port} ({error.strerror or error}): COLLOPS_BOOTSTRAP needs an address of "
            "the host of rank 0 and a free port, and only one process may be rank 0"
        ) from error
    listener.setblocking(False)
    return listener


def _dialled(address: tuple[str, int], deadline: _Deadline, mine: str, who: str) -> socket.socket:
    """Connect, as soon as somebody listens there."""
    problem: object = "no connection"
    while True:
        try:
            return socket.create_connection(
                (address[0], address[1]), min(deadline.left() or _DIAL_SECONDS, _DIAL_SECONDS)
            )
        except OSError as error:
            problem = error if str(error) else problem
        try:
            deadline.left()
        except TimeoutError:
            host, port = address
            raise CommunicationTimeout(
                f"{mine} found nobody at {host}:{port} {deadline} ({problem}): {who} must run there; if it did, see "
                "its own error"
            ) from None
        time.sleep(_LOOK_SECONDS)


def _tell(link: socket.socket, value: Any) -> None:
    """Send what JSON can carry to a rank that has proved the secret, if it still runs."""
    content = json.dumps(value).encode()
    with suppress(OSError):
        link.settimeout(_GRACE_SECONDS)
        link.sendall(_LENGTH.pack(len(content)) + content)


def _hear(link: socket.socket, deadline: _Deadline, who: str) -> Any:
    """Return what a rank tells, or raise it if it is a problem."""
    try:
        (length,) = _LENGTH.unpack(_read(link, _LENGTH.size, deadline, _GRACE_SECONDS))
        told = json.loads(_read(link, length, deadline, _GRACE_SECONDS))
    except TimeoutError:
        raise CommunicationTimeout(f"{who} did not answer {deadline}") from None
    except OSError:
        raise TransportError(f"{who} ended while the ranks connected; its own error says why") from None
    if isinstance(told, list):
        raise shared_error(*told)
    return told


def _read(connection: socket.socket, count: int, deadline: _Deadline, grace: float = 0.0) -> bytes:
    """Return so many bytes; raise `TimeoutError` at the deadline, and another `OSError` if the connection ends."""
    content = b""
    while len(content) < count:
        connection.settimeout(deadline.left(grace))
        received = connection.recv(count - len(content))
        if not received:
            raise ConnectionError
        content += received
    return content
