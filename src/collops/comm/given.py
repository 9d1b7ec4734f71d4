"""The communicator that a caller passes, or the world by default."""

from __future__ import annotations

from typing import Any

from collops.comm.communicator import Communicator
from collops.comm.world import world
from collops.errors import UnsupportedTypeError, type_name

__all__ = ["checked_communicator", "communicator_or_world"]


def communicator_or_world(comm: Any) -> Communicator:
    """Return `comm`, or the world where that is ``None``; raise `UnsupportedTypeError` if it is something else."""
    return world() if comm is None else checked_communicator(comm)


def checked_communicator(comm: Any) -> Communicator:
    """Return `comm`; raise `UnsupportedTypeError` if it is not a communicator of collops."""
    if not isinstance(comm, Communicator):
        raise UnsupportedTypeError(
            f"comm must be a communicator of collops, not {type_name(comm)}; "
            "collops.comm.from_mpi4py makes one of mpi4py's"
        )
    return comm
