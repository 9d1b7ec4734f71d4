"""What a program knows of a communicator: the number of its wire in the native library, its rank and its size."""

from __future__ import annotations

import ctypes
from typing import Any
from weakref import WeakKeyDictionary

from collops.comm import Communicator, from_mpi4py, world
from collops.comm.cores import available_cores
from collops.comm.deadline import default_timeout
from collops.errors import InputError, TransportError
from collops.jax import native

__all__ = ["Wire", "wire_of"]

_SPINS = 20000
_SPINS_OF_MANY = 20


class Wire:
    """One communicator as a parameter of primitives, equal to itself alone.

    Attributes
    ----------
    rank, size : int
        Of the communicator.
    numbers : dict of str to int
        Of the wires in the native library, by platform (``"cpu"``, ``"cuda"``, ``"rocm"``).
    """

    def __init__(self, rank: int, size: int, numbers: dict[str, int]) -> None:
        self.rank = rank
        self.size = size
        self.numbers = numbers

    def number(self, platform: str) -> int:
        """Return the number of the wire for arrays of `platform`.

        Raises
        ------
        TransportError
            If this communicator has none.
        """
        if platform not in self.numbers:
            raise TransportError(
                f"this communicator has no wire for JAX arrays on {platform}: it needs NCCL, a GPU for each rank"
            )
        return self.numbers[platform]

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.size}>"


_known: WeakKeyDictionary[Communicator, Wire] = WeakKeyDictionary()


def wire_of(comm: Any = None) -> Wire:
    """Return the wire of a communicator. Collective at its first call with `comm`, which makes a private duplicate.

    Parameters
    ----------
    comm : Communicator or mpi4py.MPI.Comm, optional
        By default the world.

    Raises
    ------
    InputError
        If `comm` is neither, or the native library is missing.
    TransportError
        If MPI may not be called from XLA's threads.
    """
    if comm is None:
        comm = world()
    elif not isinstance(comm, Communicator):
        if not hasattr(comm, "handle") or not hasattr(comm, "Dup"):
            raise InputError(f"comm must be a collops or mpi4py communicator, not {type(comm).__name__}")
        comm = from_mpi4py(comm)
    known = _known.get(comm)
    if known is None:
        known = _known[comm] = Wire(comm.rank, comm.size, {"cpu": _host_wire(comm)})
    return known


def _host_wire(comm: Communicator) -> int:
    library = native.library()
    if comm.size == 1:
        return library.collops_add_alone()

    native.load_mpi()
    private = comm.control.Dup()  # XLA's threads and the program's own calls must not meet on one communicator
    crowded = comm.local_size > len(available_cores())
    return library.collops_add_mpi(
        ctypes.c_int64(private.handle),
        comm.rank,
        comm.size,
        ctypes.c_double(default_timeout() or 0.0),
        _SPINS_OF_MANY if crowded else _SPINS,
    )
