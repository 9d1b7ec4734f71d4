"""The part of mpi4py's interface that :mod:`collops.comm.mpi` uses, for ranks that were started without MPI.

Messages are sent by TCP (:mod:`collops.comm.mesh`); :mod:`collops.comm.bootstrap` describes how they connect.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from collops._forks import at_fork, register_at_exit
from collops._launcher import bootstrap_address, started
from collops.comm.agreement import Json, MpiBuffer, name_ranks
from collops.comm.failure import default_timeout
from collops.comm.mesh import NAP_SECONDS, Mesh, Request, TcpError
from collops.errors import CommunicationError, CommunicationTimeout, InputError

_SETUP, _BARRIER = -1, -2  # reserved tags


class _All:
    """Several requests as one."""

    def __init__(self, requests: Sequence[Request | _All]) -> None:
        self._pending = requests

    def Test(self) -> bool:
        self._pending = [request for request in self._pending if not request.Test()]
        return not self._pending


class Group:
    """Some of the ranks of a world without MPI, in the order of `members`, with methods of mpi4py's communicators.

    Values of :meth:`allgather` must be serialisable as JSON.
    """

    def __init__(self, mesh: Mesh, members: Sequence[int], name: str) -> None:
        self.members = list(members)
        self.size = len(self.members)
        self.rank = self.members.index(mesh.rank)
        self.attributes: dict[str, Any] = {}
        self._mesh = mesh
        self._name = name
        self._made = 0
        # Groups are made in the same order on all of their ranks, so that this needs no message.
        self._context = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")

    @property
    def lost(self) -> set[int]:
        """Ranks that can no longer be reached."""
        lost = self._mesh.lost
        return {rank for rank, member in enumerate(self.members) if member in lost} if lost else set()

    def Dup(self) -> Group:
        """Return a group of the same ranks, with separate messages."""
        return self._part(self.members)

    def Idup(self) -> tuple[Group, _All]:
        """Return such a group, and a request that is complete when all ranks have called this. Collective."""
        return self.Dup(), self.Ibarrier()

    def Split(self, color: int | str | None, key: int = 0) -> Group | None:
        """Return the group of the ranks that pass the same `color`, or ``None`` without one. Collective."""
        rows = self.allgather([color, key])
        if color is None:
            self._made += 1
            return None
        chosen = sorted((row[1], rank) for rank, row in enumerate(rows) if row[0] == color)
        return self._part([self.members[rank] for _, rank in chosen])

    def Split_type(self, _: object) -> Group | None:
        """Return the group of the ranks of this node. Collective."""
        return self.Split(_node())

    def allgather(self, value: Json) -> list[Json]:
        """Return the value of every rank. Collective; with the deadline of other waits."""
        text = memoryview(json.dumps(value).encode())
        for member in self.members:
            self._mesh.send(member, self._context, _SETUP, text)
        begin, timeout = time.monotonic(), default_timeout()
        keys = [(member, self._context, _SETUP) for member in self.members]
        while missing := [rank for rank, key in enumerate(keys) if key not in self._mesh.arrived]:
            self._mesh.progress()
            if lost_ranks := self.lost.intersection(missing):
                raise CommunicationError(
                    f"{name_ranks(sorted(lost_ranks))} of {self.size} ended while ranks were starting"
                )
            if timeout is not None and time.monotonic() - begin > timeout:
                missing_ranks = name_ranks(missing)
                raise CommunicationTimeout(
                    f"{missing_ranks} of {self.size} sent nothing within {timeout:g} s (COLLOPS_TIMEOUT)"
                )
            time.sleep(NAP_SECONDS)
        return [json.loads(self._mesh.take(*key) or b"") for key in keys]

    def Isend(self, buffer: MpiBuffer, dest: int, tag: int = 0) -> Request:
        """Start to send a contiguous array."""
        return self._mesh.send(self.members[dest], self._context, tag, _bytes_of(buffer))

    def Irecv(self, buffer: MpiBuffer, source: int, tag: int = 0) -> Request:
        """Start to receive into a contiguous array."""
        return self._mesh.receive(self.members[source], self._context, tag, _bytes_of(buffer))

    def arrivals(self, tag: int) -> Iterator[tuple[int, bytearray]]:
        """Return the messages of any rank and length that have arrived, each with its sender."""
        self._mesh.progress()
        for rank, member in enumerate(self.members):
            while (content := self._mesh.take(member, self._context, tag)) is not None:
                yield rank, content

    def Ibarrier(self) -> _All:
        """Return a request that is complete when all ranks have called this. Collective."""
        empty = np.empty(0, np.uint8)
        arriving = [self.Irecv(empty, rank, _BARRIER) for rank in range(self.size)]
        return _All([*arriving, *(self.Isend(empty, rank, _BARRIER) for rank in range(self.size))])

    def Recv_init(self, buffer: MpiBuffer, source: int, tag: int) -> _Persistent:
        """Prepare to receive into a contiguous array, any number of times."""
        return _Persistent(partial(self.Irecv, buffer, source, tag))

    def Send_init(self, buffer: MpiBuffer, dest: int, tag: int) -> _Persistent:
        """Prepare to send a contiguous array, any number of times."""
        return _Persistent(partial(self.Isend, buffer, dest, tag))

    def Get_attr(self, _: object) -> dict[str, Any]:
        """Return a dictionary that lives as long as this group."""
        return self.attributes

    def Free(self) -> None:
        """Do nothing: a group has no memory outside Python."""

    def Abort(self, code: int) -> NoReturn:
        """End all processes with this exit code, each when it next waits or sends."""
        self._mesh.abort(code)

    def _part(self, members: Sequence[int]) -> Group:
        self._made += 1
        return Group(self._mesh, members, f"{self._name}/{self._made}")


class _Persistent:
    """A message that can be started any number of times; `begin` starts it."""

    def __init__(self, begin: Callable[[], Request]) -> None:
        self.begin = begin
        self.Test: Callable[[], bool] = lambda: True

    def start(self) -> None:
        self.Test = self.begin().Test

    def Free(self) -> None:
        """Do nothing."""


joined: SimpleNamespace | None = None
"""The result of :func:`join`; ``None`` until this process has joined."""


def join() -> SimpleNamespace:
    """Connect to the other ranks, and return a substitute for ``mpi4py.MPI``. Collective at its first call.

    Raises `InputError` if the environment lacks rank and number of ranks, and the errors of
    :func:`collops.comm.bootstrap.connect_ranks`.
    """
    global joined  # noqa: PLW0603 (a process joins once)
    if joined is not None:
        return joined
    address, process = bootstrap_address(), started()
    if address is None or process is None or process.ranks is None or not 0 <= process.rank < process.ranks:
        raise InputError(
            "COLLOPS_BOOTSTRAP needs the rank of this process and the number of ranks: start it by srun or torchrun, "
            f"or set RANK and WORLD_SIZE{'' if process is None else f', not {process.rank} and {process.ranks}'}"
        )
    from collops.comm.bootstrap import connect_ranks  # a slow import that only ranks without MPI need

    mesh = Mesh(process.rank, connect_ranks(address, process.rank, process.ranks))
    register_at_exit(mesh.close)
    at_fork(partial(_leave, mesh))
    joined = SimpleNamespace(
        COMM_WORLD=Group(mesh, range(process.ranks), "world"),
        Intracomm=Group,
        Status=dict,
        Exception=TcpError,
        Is_initialized=lambda: True,
        Is_finalized=lambda: False,
        Comm=SimpleNamespace(Create_keyval=int),
        Prequest=SimpleNamespace(
            Startall=lambda requests: [request.start() for request in requests],
            Testall=lambda requests: all(request.Test() for request in requests),
        ),
        buffer=SimpleNamespace(fromaddress=lambda address, size: (ctypes.c_ubyte * size).from_address(address)),
        Get_address=lambda array: array.ctypes.data,
        **dict.fromkeys(("BYTE", "COMM_NULL", "COMM_TYPE_SHARED", "IN_PLACE", "UNDEFINED")),
    )
    return joined


def _leave(mesh: Mesh) -> None:
    global joined  # noqa: PLW0603 (a forked child has not joined)
    joined = None
    mesh.leave()


def _bytes_of(buffer: MpiBuffer) -> memoryview:
    """Return the memory of a contiguous array, or of a buffer that mpi4py accepts."""
    array = np.asarray(buffer[0] if isinstance(buffer, list) else buffer)
    return array.reshape(-1).view(np.uint8).data


def _node() -> str:
    """Return a name of the machine, or of the container on it, within which processes can share memory."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/ipc').stat().st_ino}"
    except OSError:  # not Linux
        return socket.gethostname()
