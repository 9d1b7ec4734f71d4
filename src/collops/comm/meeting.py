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

from collops.comm.agreement import name_ranks
from collops.comm.failure import default_timeout
from collops.comm.launcher import bootstrap_address, started
from collops.errors import CommunicationTimeout, InputError, TransportError

__all__ = ["meet"]

_GREETING = b"collops tcp 1\n"
_RANDOM_BYTES, _PROOF_BYTES = 32, 32
_PLACE = struct.Struct("!IIH")  # rank, number of ranks, port where this rank listens
_LENGTH = struct.Struct("!I")
_LEAST_SECRET = 16  # characters; a secret that can be guessed can be found from one proof
_STRANGER_SECONDS = 10.0
_LOOK_SECONDS = 0.1
_GRACE_SECONDS = 10.0  # in which rank 0, whose deadline may be later, tells its verdict


class _Deadline:
    """The end of all waits of a start."""

    def __init__(self) -> None:
        self.seconds = default_timeout()
        self._end = None if self.seconds is None else time.monotonic() + self.seconds

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
    host, port = bootstrap_address() or ("", 0)
    place = started()
    if place is None or place.ranks is None or not 0 <= place.rank < place.ranks:
        raise InputError(
            "COLLOPS_BOOTSTRAP needs the rank of this process and the number of ranks: start it by srun or torchrun, or "
            f"set RANK and WORLD_SIZE{'' if place is None else f', which are {place.rank} and {place.ranks}'}"
        )
    rank, size = place.rank, place.ranks
    if size == 1:
        return None
    secret = os.environ.get("COLLOPS_SECRET", "").encode()
    if len(secret) < _LEAST_SECRET:
        raise InputError(
            f"COLLOPS_BOOTSTRAP needs COLLOPS_SECRET, {_LEAST_SECRET} characters or more that are the same on all ranks "
            "and that nobody else knows: before starting the ranks, export COLLOPS_SECRET=$(openssl rand -hex 32)"
        )
    with ExitStack() as on_failure:
        links: dict[int, socket.socket] = {}
        on_failure.callback(lambda: [link.close() for link in links.values()])
        if rank == 0:
            _lead(host, port, size, secret, _Deadline(), links)
        else:
            _follow(host, port, rank, size, secret, _Deadline(), links)
        on_failure.pop_all()
    for link in links.values():
        link.settimeout(None)
    return rank, links


def _lead(host: str, port: int, size: int, secret: bytes, deadline: _Deadline, links: dict[int, socket.socket]) -> None:
    """Collect the other ranks' connections in `links`, tell each where the others listen, and agree on the outcome."""
    where: dict[int, tuple[str, int]] = {}
    refused: list[str] = []
    problem: Exception | None = None
    with _listening(host, port, "rank 0") as listener:
        for arrival in _arrivals(listener, secret, refused):
            if arrival is not None:
                problem = _unexpected(arrival, links, size)
                if problem is not None:
                    _tell(arrival.connection, _described(problem))
                    arrival.connection.close()
                    break
                links[arrival.rank] = arrival.connection
                where[arrival.rank] = arrival.connection.getpeername()[0], arrival.port
            if len(links) == size - 1:
                break
            try:
                deadline.left()
            except TimeoutError:
                here = "{}:{}".format(*listener.getsockname()[:2])
                problem = _missing([each for each in range(1, size) if each not in links], size, here, deadline, refused)
                break
    if problem is None:
        for link in links.values():
            _tell(link, where)
        problem = _first_problem(links, deadline)
    for link in links.values():
        _tell(link, _described(problem))
    if problem is not None:
        raise _on_all(problem)


def _follow(
    host: str, port: int, rank: int, size: int, secret: bytes, deadline: _Deadline, links: dict[int, socket.socket]
) -> None:
    """Connect to rank 0 and to all others, in `links`; raise what rank 0 tells."""
    links[0] = _dialled(host, port, deadline, f"rank {rank}", "rank 0")
    with _listening(links[0].getsockname()[0], 0, f"rank {rank}") as listener:
        own = _PLACE.pack(rank, size, listener.getsockname()[1])
        _prove(links[0], secret, own, deadline, f"rank {rank}", f"rank 0 at {host}:{port}")
        where = {int(other): address for other, address in _verdict(links[0], deadline).items()}
        problem = None
        try:
            for other in range(1, rank):
                links[other] = _dialled(*where[other], deadline, f"rank {rank}", f"rank {other}")
                there = "rank {} at {}:{}".format(other, *where[other])
                _prove(links[other], secret, own, deadline, f"rank {rank}", there)
            if rank < size - 1:
                _accept(listener, secret, rank, size, links, deadline)
        except (TransportError, CommunicationTimeout) as error:
            problem = error
    _tell(links[0], _described(problem))
    _verdict(links[0], deadline)


def _accept(
    listener: socket.socket,
    secret: bytes,
    rank: int,
    size: int,
    links: dict[int, socket.socket],
    deadline: _Deadline,
) -> None:
    """Take the connections of the ranks above this one; return before, if rank 0 has something to say."""
    for arrival in _arrivals(listener, secret, [], links[0]):
        if arrival is not None:
            if arrival.rank in links or not rank < arrival.rank < size:
                arrival.connection.close()
                continue
            links[arrival.rank] = arrival.connection
            if len(links) == size - 1:
                return
        try:
            deadline.left()
        except TimeoutError:
            missing = name_ranks([each for each in range(size) if each != rank and each not in links])
            raise CommunicationTimeout(f"{missing} did not connect to rank {rank} in time") from None


def _arrivals(
    listener: socket.socket, secret: bytes, refused: list[str], watched: socket.socket | None = None
) -> Iterator[_Arrival | None]:
    """Give the connections whose other end has proved to know the secret, and ``None`` ten times a second.

    Ends when `watched` can be read. Addresses of others are added to `refused`.
    """
    strangers: dict[socket.socket, tuple[float, bytes, bytearray]] = {}
    claim_bytes = _RANDOM_BYTES + _PROOF_BYTES + _PLACE.size

    def drop(connection: socket.socket) -> None:
        selector.unregister(connection)
        del strangers[connection]

    with DefaultSelector() as selector:
        selector.register(listener, EVENT_READ)
        if watched is not None:
            selector.register(watched, EVENT_READ)
        try:
            while True:
                for key, _ in selector.select(_LOOK_SECONDS):
                    ready: Any = key.fileobj
                    if ready is watched:
                        return
                    if ready is listener:
                        with suppress(OSError):  # it may have gone again
                            connection, _ = listener.accept()
                            connection.settimeout(0)
                            mine = secrets.token_bytes(_RANDOM_BYTES)
                            strangers[connection] = time.monotonic() + _STRANGER_SECONDS, mine, bytearray()
                            selector.register(connection, EVENT_READ)
                            connection.send(_GREETING + mine)
                        continue
                    _, mine, claim = strangers[ready]
                    content = b""
                    with suppress(OSError):
                        content = ready.recv(claim_bytes - len(claim))
                    claim += content
                    if content and len(claim) < claim_bytes:
                        continue
                    drop(ready)
                    theirs, proof, place = _cut(bytes(claim))
                    if len(claim) == claim_bytes and hmac.compare_digest(
                        proof, _proof(secret, b"arrive", mine, theirs, place)
                    ):
                        with suppress(OSError):
                            ready.send(_proof(secret, b"accept", mine, theirs, place))
                        yield _Arrival(ready, *_PLACE.unpack(place))
                    else:
                        _refuse(ready, refused)
                for late in [each for each, (end, *_) in strangers.items() if end < time.monotonic()]:
                    drop(late)
                    _refuse(late, refused)
                yield None
        finally:
            for connection in strangers:
                _refuse(connection, refused)


def _refuse(connection: socket.socket, refused: list[str]) -> None:
    with suppress(OSError):
        refused.append(connection.getpeername()[0])
    connection.close()


def _prove(
    connection: socket.socket, secret: bytes, place: bytes, deadline: _Deadline, mine: str, there: str
) -> None:
    """Prove to the other end that this one knows the secret, and have it do the same."""
    try:
        greeting = _read(connection, len(_GREETING) + _RANDOM_BYTES, deadline)
        if not greeting.startswith(_GREETING):
            raise TransportError(f"another program answers {mine} in the place of {there}: choose another port")
        theirs, random = greeting[len(_GREETING) :], secrets.token_bytes(_RANDOM_BYTES)
        connection.sendall(random + _proof(secret, b"arrive", theirs, random, place) + place)
        answer = _read(connection, _PROOF_BYTES, deadline)
    except TimeoutError:
        raise CommunicationTimeout(f"{mine} waited {deadline.seconds:g} s (COLLOPS_TIMEOUT) for {there}") from None
    except (EOFError, OSError):
        raise TransportError(
            f"{there} refused the connection of {mine}: COLLOPS_SECRET differs, or another program has the port"
        ) from None
    if not hmac.compare_digest(answer, _proof(secret, b"accept", theirs, random, place)):
        raise TransportError(f"{there} does not know the COLLOPS_SECRET of {mine}")


def _proof(secret: bytes, role: bytes, *content: bytes) -> bytes:
    return hmac.digest(secret, role + b"".join(content), "sha256")  # each part has a fixed size


def _cut(claim: bytes) -> tuple[bytes, bytes, bytes]:
    ends = _RANDOM_BYTES, _RANDOM_BYTES + _PROOF_BYTES
    return claim[: ends[0]], claim[ends[0] : ends[1]], claim[ends[1] :]


def _listening(host: str, port: int, who: str) -> socket.socket:
    """Return a socket that listens at one address."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=socket.SOMAXCONN)
    except OSError as error:
        raise TransportError(
            f"{who} cannot listen at {host}:{port} ({error.strerror or error}): COLLOPS_BOOTSTRAP needs an address of "
            "the host of rank 0 and a free port, and there must be one rank 0"
        ) from error
    listener.setblocking(False)
    return listener


def _dialled(host: str, port: int, deadline: _Deadline, mine: str, who: str) -> socket.socket:
    """Connect, as soon as somebody listens there."""
    problem: OSError | None = None
    while True:
        try:
            left = deadline.left()
            return socket.create_connection((host, port), 5.0 if left is None else min(left, 5.0))
        except OSError as error:
            try:
                deadline.left()
            except TimeoutError:
                raise CommunicationTimeout(
                    f"{mine} found nobody at {host}:{port} within {deadline.seconds:g} s (COLLOPS_TIMEOUT): {who} must "
                    f"run there, and its own error, if it had one, says more ({problem or error})"
                ) from None
            problem = error
            time.sleep(_LOOK_SECONDS)


def _unexpected(arrival: _Arrival, links: dict[int, socket.socket], size: int) -> Exception | None:
    if arrival.size != size:
        return InputError(f"rank {arrival.rank} was started as one of {arrival.size} ranks, and rank 0 as one of {size}")
    if arrival.rank in links or not 0 < arrival.rank < size:
        return InputError(f"two processes were started as rank {arrival.rank} of {size}: give each a RANK of its own")
    return None


def _missing(ranks: list[int], size: int, here: str, deadline: _Deadline, refused: list[str]) -> Exception:
    text = f"{name_ranks(ranks)} of {size} did not come to rank 0 at {here} within {deadline.seconds:g} s (COLLOPS_TIMEOUT)"
    if refused:
        hosts = ", ".join(sorted(set(refused))[:4])
        text += f"; connections from {hosts} did not prove that they know COLLOPS_SECRET ({len(refused)})"
    return CommunicationTimeout(text)


def _first_problem(links: dict[int, socket.socket], deadline: _Deadline) -> Exception | None:
    """Return the first problem that a rank reports, or ``None`` when all have their connections."""
    with DefaultSelector() as selector:
        for rank, link in links.items():
            selector.register(link, EVENT_READ, rank)
        try:
            while selector.get_map():
                for key, _ in selector.select(deadline.left(_GRACE_SECONDS)):
                    rank, link = key.data, links[key.data]
                    selector.unregister(link)
                    problem = _hear(link, deadline, f"rank {rank}")
                    if problem is not None:
                        return _error(problem)
        except TimeoutError:
            waited = name_ranks(sorted(key.data for key in selector.get_map().values()))
            return CommunicationTimeout(f"{waited} did not connect to all others in {deadline.seconds:g} s")
        except TransportError as error:
            return error
    return None


def _verdict(link: socket.socket, deadline: _Deadline) -> Any:
    """Return what rank 0 tells, or raise it if it is a problem."""
    told = _hear(link, deadline, "rank 0")
    if isinstance(told, list):
        raise _on_all(_error(told))
    return told


def _described(problem: Exception | None) -> list[str] | None:
    return None if problem is None else [type(problem).__name__, str(problem)]


def _error(described: list[str]) -> Exception:
    kinds = {kind.__name__: kind for kind in (InputError, TransportError, CommunicationTimeout)}
    return kinds[described[0]](described[1])


def _on_all(error: Any) -> Exception:
    error.on_all_ranks = True
    return error


def _tell(link: socket.socket, value: Any) -> None:
    """Send what JSON can carry to a rank that has proved the secret; who has gone does not hear it."""
    content = json.dumps(value).encode()
    with suppress(OSError):
        link.settimeout(_GRACE_SECONDS)
        link.sendall(_LENGTH.pack(len(content)) + content)


def _hear(link: socket.socket, deadline: _Deadline, who: str) -> Any:
    try:
        (length,) = _LENGTH.unpack(_read(link, _LENGTH.size, deadline, _GRACE_SECONDS))
        return json.loads(_read(link, length, deadline, _GRACE_SECONDS))
    except TimeoutError:
        raise CommunicationTimeout(f"{who} did not answer within {deadline.seconds:g} s (COLLOPS_TIMEOUT)") from None
    except (EOFError, OSError):
        raise TransportError(f"{who} ended while the ranks connected; its own error says why") from None


def _read(connection: socket.socket, count: int, deadline: _Deadline, grace: float = 0.0) -> bytes:
    """Return so many bytes; raise `TimeoutError` at the deadline and `EOFError` at the end of the connection."""
    content = b""
    while len(content) < count:
        connection.settimeout(deadline.left(grace))
        received = connection.recv(count - len(content))
        if not received:
            raise EOFError
        content += received
    return content
