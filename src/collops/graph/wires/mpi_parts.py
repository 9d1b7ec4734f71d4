"""What the wires over MPI share: a communicator of their own, and how MPI is shown the memory of an array."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from collops.comm.mpi import mpi4py_module
from collops.errors import TransportError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["buffer_of", "messages_of", "mpi"]

_made: weakref.WeakKeyDictionary[Communicator, Any] = weakref.WeakKeyDictionary()


def mpi() -> Any:
    """Return ``mpi4py.MPI``."""
    return mpi4py_module()


def messages_of(comm: Communicator) -> Any:
    """Return the mpi4py communicator on which star forests exchange their messages. Collective at its first call.

    Raises
    ------
    TransportError
        In a world without MPI.
    """
    if comm.control is None:
        raise TransportError("this wire needs MPI, and the communicator is a world of one without it")
    if comm not in _made:
        _made[comm] = comm.control.Dup()
    return _made[comm]


def buffer_of(array: Any) -> Any:
    """Return the memory of a contiguous array, on the host or on a device, as bytes for MPI."""
    if not array.nbytes:
        return bytearray(0)
    address = array.ctypes.data if hasattr(array, "ctypes") else array.data.ptr
    return mpi().buffer.fromaddress(address, array.nbytes)
