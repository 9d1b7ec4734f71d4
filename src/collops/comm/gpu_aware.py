"""The transport of device arrays over a GPU-aware MPI, call by call: what the library cannot do is staged.

Some MPI libraries take device pointers in point-to-point calls and crash on them in collectives, so support is no
yes or no. :func:`gpu_awareness` finds out without trying: from what the library says of itself, or from the user.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

from collops.comm.mpi import MpiTransport
from collops.comm.staged import StagedTransport
from collops.comm.transport import Message, Pending
from collops.errors import InputError

__all__ = ["DeviceMpi", "GpuAwareTransport", "gpu_awareness"]

_LEVELS = ("none", "p2p", "all")


def gpu_awareness(mpi: Any) -> tuple[str, str]:
    """Say what an MPI library can do with device pointers, and how that is known.

    The environment's ``COLLOPS_GPU_AWARE_MPI`` decides where it is set: ``none``, ``p2p`` (point-to-point calls only)
    or ``all``. Otherwise the library is asked (``MPIX_Query_cuda_support``, ``MPIX_Query_rocm_support``); an Open MPI
    that was told to use UCX with CUDA takes device pointers in point-to-point calls even where it denies the rest.

    Returns
    -------
    level, reason : str

    Raises
    ------
    InputError
        If the environment names another level.
    """
    asked = os.environ.get("COLLOPS_GPU_AWARE_MPI", "auto")
    if asked in _LEVELS:
        return asked, "COLLOPS_GPU_AWARE_MPI says so"
    if asked != "auto":
        raise InputError(f"COLLOPS_GPU_AWARE_MPI={asked!r}: choose auto, none, p2p or all")
    for query in ("MPIX_Query_cuda_support", "MPIX_Query_rocm_support"):
        if _ask(mpi, query) == 1:
            return "all", f"{query} answers yes"
    ucx = os.environ.get("OMPI_MCA_pml") == "ucx"
    if ucx and "cuda" in os.environ.get("UCX_TLS", "").split(","):
        return "p2p", "Open MPI runs on UCX with CUDA, which carries device pointers between two ranks"
    return "none", "the MPI library does not say that it takes device pointers"


def _ask(mpi: Any, query: str) -> int | None:
    for library in (ctypes.CDLL(mpi.__file__), ctypes.CDLL(None)):
        function = getattr(library, query, None)
        if function is not None:
            function.restype = ctypes.c_int
            return function()
    return None


class DeviceMpi(MpiTransport):
    """MPI on device pointers. The current stream must be idle when a call starts."""

    def _buffer(self, array: Any) -> Any:
        return self._mpi.buffer.fromaddress(array.data.ptr, array.nbytes)


class GpuAwareTransport(StagedTransport):
    """Point-to-point messages (and, at level ``all``, collectives) on device pointers, the rest staged.

    Parameters
    ----------
    host : MpiTransport
        Carries what is staged.
    direct : DeviceMpi
        Carries device pointers.
    level : str
        ``"p2p"`` or ``"all"``.
    """

    name = "mpi"

    def __init__(self, host: MpiTransport, direct: DeviceMpi, level: str) -> None:
        super().__init__(host)
        self._direct = direct
        self._collectives = level == "all"

    def allreduce(self, source: Any, target: Any, op: str) -> None:
        if self._takes(source):
            self._direct.allreduce(source, target, op)
        else:
            super().allreduce(source, target, op)

    def reduce(self, source: Any, target: Any, op: str, root: int) -> None:
        if self._takes(source):
            self._direct.reduce(source, target, op, root)
        else:
            super().reduce(source, target, op, root)

    def bcast(self, source: Any, target: Any, root: int) -> None:
        if self._takes(target):
            self._direct.bcast(source, target, root)
        else:
            super().bcast(source, target, root)

    def allgather(self, source: Any, target: Any) -> None:
        if self._takes(source):
            self._direct.allgather(source, target)
        else:
            super().allgather(source, target)

    def reduce_scatter(self, source: Any, target: Any, op: str) -> None:
        if self._takes(source):
            self._direct.reduce_scatter(source, target, op)
        else:
            super().reduce_scatter(source, target, op)

    def alltoallv(self, source: Any, target: Any, send_counts: Sequence[int], receive_counts: Sequence[int]) -> None:
        if self._takes(source):
            self._direct.alltoallv(source, target, send_counts, receive_counts)
        else:
            super().alltoallv(source, target, send_counts, receive_counts)

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        self._cupy.cuda.get_current_stream().synchronize()
        return self._direct.start_exchange(sends, receives, tag)

    def _takes(self, array: Any) -> bool:
        """Whether MPI may be given the device pointer; half types are reduced by host code, which cannot read it."""
        if not self._collectives or (array.dtype.itemsize == 2 and array.dtype.kind in "fV"):
            return False
        self._cupy.cuda.get_current_stream().synchronize()
        return True
