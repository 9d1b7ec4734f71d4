"""MPI, which only this module imports: its start, its communicators, and the messages that control the ranks.

Between ranks started without MPI, :mod:`collops.comm.tcp` substitutes mpi4py. Arrays are sent by
:mod:`collops.comm.mpi_transport` and :mod:`collops.comm.mpi_exchanges`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from collops._forks import end_child_without, register_at_exit
from collops._launcher import FORKED, bootstrap_address, is_forked, why_without_mpi
from collops.comm import tcp
from collops.comm.agreement import Json, Mpi, MpiComm, MpiHandle
from collops.comm.failure import Failures, close_all, default_timeout
from collops.comm.leftovers import remove_leftovers
from collops.comm.reductions import (
    OPERATIONS,
)
from collops.errors import InputError, TransportError, UnsupportedTypeError

__all__ = [
    "GPU_LEVELS",
    "ControlChannel",
    "addresses",
    "gpu_awareness",
    "handles",
    "load_mpi",
    "mpi4py_module",
    "mpi_or_tcp",
    "name_of_operation",
    "running_mpi_or_tcp",
]

GPU_LEVELS = ("none", "p2p", "all")
# MPI guarantees tags up to 32767. Users' messages on a shared communicator are unlikely to have these tags.
FAILURE_TAG, CALL_TAG = 32000, 32001


def load_mpi() -> tuple[Mpi, str]:
    """Return ``mpi4py.MPI``, its substitute, or ``None``; and the version of MPI or the reason.

    Collective at the first call of ranks without MPI, which connect here.
    """
    if reason := why_without_mpi():
        return None, reason
    if (address := bootstrap_address()) is not None:
        return tcp.join(), "TCP without MPI; the ranks connected at {}:{}".format(*address)
    if importlib.util.find_spec("mpi4py") is None:
        return None, "mpi4py is not installed"
    if "UCX_TLS" not in os.environ:  # UCX warns of settings of transports that it may not use
        # Waits have a deadline. UCX would close the connection to an unresponsive host earlier, and MPICH then crashes
        # when this rank sends its failure notice.
        os.environ.setdefault("UCX_TCP_KEEPIDLE", "inf")
    try:
        mpi = mpi4py_module()
    except (ImportError, RuntimeError) as error:
        return None, f"mpi4py finds no MPI library ({error})"
    return mpi, mpi.Get_library_version().splitlines()[0].strip(" \0")


def mpi4py_module() -> Mpi:
    """Return ``mpi4py.MPI`` with MPI initialised.

    mpi4py initialises MPI when it is first imported. If this is disabled (``mpi4py.rc.initialize``) and MPI is not yet
    initialised, this function initialises it, at mpi4py's level of thread support, and finalises it at the end of the
    program.

    Raises `TransportError` on ranks that were started without MPI, in children that a rank has forked, and after MPI
    was finalised.
    """
    if tcp.joined is not None:
        raise TransportError("this needs MPI, but COLLOPS_BOOTSTRAP has started these ranks without it")
    if is_forked():
        raise TransportError(f"MPI cannot be used: {FORKED}")
    if "mpi4py.MPI" not in sys.modules:
        remove_leftovers()
    from mpi4py import MPI

    mpi: Mpi = MPI
    if not mpi.Is_initialized():
        _initialise(mpi)
    elif mpi.Is_finalized():
        raise TransportError(
            "MPI has been finalised and cannot be initialised again: call MPI.Finalize() after the last call of "
            "collops, or leave it to mpi4py, which calls it at the end of the program"
        )
    _watch_end(mpi)
    return mpi


@cache
def _watch_end(mpi: Mpi) -> None:
    """Close all communicators when MPI is finalised: MPI first deletes the attributes of ``COMM_SELF``."""
    key = mpi.Comm.Create_keyval(delete_fn=lambda *_: close_all("MPI has been finalised"))
    mpi.COMM_SELF.Set_attr(key, None)


def _initialise(mpi: Mpi) -> None:
    """Initialise MPI as mpi4py does when it is imported, and finalise it after the exit functions of this library."""
    from mpi4py import rc

    if rc.threads:
        mpi.Init_thread(getattr(mpi, f"THREAD_{rc.thread_level.upper()}"))
    else:
        mpi.Init()
    register_at_exit(lambda: mpi.Is_finalized() or mpi.Finalize())


def _is_running() -> bool:
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()


end_child_without(_is_running)


def mpi_or_tcp() -> Mpi:
    """Return ``mpi4py.MPI``, or its substitute between ranks without MPI."""
    return tcp.joined or mpi4py_module()


def running_mpi_or_tcp() -> Mpi:
    """Return the result of :func:`mpi_or_tcp` if there are several ranks, else ``None``."""
    mpi: Mpi = tcp.joined or sys.modules.get("mpi4py.MPI")
    if mpi is None or is_forked() or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.size == 1:
        return None
    return mpi


def gpu_awareness(mpi: Mpi) -> tuple[str, str]:
    """Return the level of an MPI library's support for device pointers, and its source.

    The level is never tested by a call: some MPI libraries support device pointers in point-to-point calls but crash on
    them in collective calls. The environment variable ``COLLOPS_GPU_AWARE_MPI`` sets it: ``none``, ``p2p``
    (point-to-point calls only) or ``all``. Otherwise the library is queried (``MPIX_Query_cuda_support``,
    ``MPIX_Query_rocm_support``). Open MPI supports device pointers only in blocking collective calls, which are not
    used here; with UCX and CUDA it supports them in point-to-point calls, whatever the query returns.

    Raises `InputError` if the variable has another value.
    """
    asked = os.environ.get("COLLOPS_GPU_AWARE_MPI", "auto")
    if asked not in ("auto", *GPU_LEVELS):
        raise InputError(f"COLLOPS_GPU_AWARE_MPI={asked!r}: choose auto, none, p2p or all")
    if tcp.joined is not None:
        return "none", "these ranks were started without MPI"
    if asked != "auto":
        return asked, "set by COLLOPS_GPU_AWARE_MPI"
    for query in ("MPIX_Query_cuda_support", "MPIX_Query_rocm_support"):
        for library in (ctypes.CDLL(mpi.__file__), ctypes.CDLL(None)):
            function = getattr(library, query, None)
            if function is not None:
                function.restype = ctypes.c_int
                if function() == 1:
                    open_mpi = mpi.Get_library_version().startswith("Open MPI")
                    return "p2p" if open_mpi else "all", f"{query} answers yes"
                break
    ucx = os.environ.get("OMPI_MCA_pml") == "ucx"
    if ucx and "cuda" in os.environ.get("UCX_TLS", "").split(","):
        return "p2p", "Open MPI runs on UCX with CUDA, which supports device pointers in point-to-point calls"
    return "none", "the MPI library does not report support for device pointers"


def duplicate(comm: MpiComm) -> MpiComm:
    """Return a duplicate of an mpi4py communicator, with a deadline for its other ranks. Collective."""
    made, request = comm.Idup()
    Failures(ControlChannel(comm), default_timeout(), oversubscribed=True).wait(request, "setting up a communicator")
    return made


def on_node(comm: MpiComm, value: Json = None) -> tuple[int, list[Json]]:
    """Return this rank's number among the ranks of its node, and the `value` of each of them. Collective."""
    shared = comm.Split_type(mpi_or_tcp().COMM_TYPE_SHARED)
    numbering = shared.rank, shared.allgather(value)
    shared.Free()
    return numbering


def split(comm: MpiComm, color: int | None, key: int) -> MpiComm:
    """Return the mpi4py communicator of the ranks that pass the same `color`, or ``None`` without one. Collective."""
    part = comm.Split(mpi_or_tcp().UNDEFINED if color is None else color, key)
    return None if color is None else part


def values_kept_with(comm: MpiComm) -> dict[str, Any]:
    """Return a dictionary with the lifetime of an mpi4py communicator, whose handle MPI may reuse afterwards.

    Raises `UnsupportedTypeError` if `comm` is not an intracommunicator of mpi4py.
    """
    mpi = mpi_or_tcp()
    if not isinstance(comm, mpi.Intracomm) or comm == mpi.COMM_NULL:
        raise UnsupportedTypeError(f"from_mpi4py takes an intracommunicator of mpi4py, not {comm!r}")
    values: Any = comm.Get_attr(_key())
    if values is None:
        values = {}
        comm.Set_attr(_key(), values)
    return values


@cache
def _key() -> int:
    return mpi_or_tcp().Comm.Create_keyval()


def ranks_in_world(comm: MpiComm) -> list[int]:
    """Return the ranks in ``MPI.COMM_WORLD`` of the ranks of an mpi4py communicator."""
    if isinstance(comm, tcp.Group):
        return comm.members
    mpi = mpi4py_module()
    return list(mpi.Group.Translate_ranks(comm.group, None, mpi.COMM_WORLD.group))


def addresses(functions: Sequence[str]) -> list[int]:
    """Return the addresses of functions of the MPI library that mpi4py has loaded, for native code."""
    loaded = ctypes.CDLL(mpi4py_module().__file__)  # resolves symbols of the libraries linked to this module
    return [ctypes.cast(loaded[f"MPI_{name}"], ctypes.c_void_p).value or 0 for name in functions]


def handles(names: Sequence[str]) -> list[int]:
    """Return the handles of MPI's datatypes and operations with these names."""
    return [getattr(mpi4py_module(), name).handle for name in names]


def name_of_operation(op: object) -> str | None:
    """Return the name of an operation of mpi4py, such as ``"sum"`` for ``MPI.SUM``; ``None`` for other objects."""
    mpi = mpi4py_module()
    return next((name for name, known in OPERATIONS.items() if op == getattr(mpi, known.mpi)), None)


class ControlChannel:
    """Sends JSON between the ranks of an mpi4py communicator, without waiting for the receivers.

    Other messages on `comm` must not have the `tag`. `error` is the class of MPI's exceptions.
    """

    def __init__(self, comm: MpiComm, tag: int = FAILURE_TAG) -> None:
        self._mpi = mpi = mpi_or_tcp()
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.error: type[Exception] = mpi.Exception
        self._comm = comm
        self._tag = tag
        self._status = mpi.Status()
        self._sends: list[MpiHandle] = []  # keeps the memory of sends, also to dead ranks, alive

    @property
    def lost(self) -> Collection[int]:
        """Ranks whose process has exited, if known. MPI itself aborts the program in this case."""
        return getattr(self._comm, "lost", ())

    def send(self, message: Json, ranks: Collection[int] | None = None) -> None:
        """Send a message representable in JSON to `ranks`, by default to all other ranks. Not collective."""
        content = np.frombuffer(json.dumps(message).encode(), np.uint8)
        self.delivered()
        targets = [rank for rank in range(self.size) if rank != self.rank] if ranks is None else ranks
        self._sends += [self._comm.Isend(content, dest=rank, tag=self._tag) for rank in targets]

    def delivered(self) -> bool:
        """Return whether all sends are complete. Not collective."""
        self._sends = [request for request in self._sends if not request.Test()]
        return not self._sends

    def receive(self) -> Iterator[tuple[int, Json]]:
        """Yield received messages, each with its sender. Not collective."""
        if isinstance(self._comm, tcp.Group):
            yield from ((rank, json.loads(content)) for rank, content in self._comm.arrivals(self._tag))
            return
        while self._comm.Iprobe(source=self._mpi.ANY_SOURCE, tag=self._tag, status=self._status):
            sender = self._status.Get_source()
            content = np.empty(self._status.Get_count(self._mpi.BYTE), np.uint8)
            self._comm.Recv(content, source=sender, tag=self._tag)
            yield sender, json.loads(content.tobytes())

    def barrier(self) -> Callable[[], bool]:
        """Enter a barrier, and return a function that tests whether all ranks have entered it. Collective."""
        return self._comm.Ibarrier().Test
