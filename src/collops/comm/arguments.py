"""Validation of communicator arguments."""

from __future__ import annotations

from collops.comm.communicator import Communicator
from collops.comm.world import world
from collops.errors import UnsupportedTypeError, type_name

__all__ = ["checked_communicator", "communicator_or_world"]


def communicator_or_world(comm: object) -> Communicator:
    """Return `comm`, or the world for ``None``; raise `UnsupportedTypeError` for other types."""
    return world() if comm is None else checked_communicator(comm)


def checked_communicator(comm: object) -> Communicator:
    """Return `comm`; raise `UnsupportedTypeError` if it is not a communicator of collops."""
    if not isinstance(comm, Communicator):
        raise UnsupportedTypeError(
            f"comm must be a communicator of collops, not {type_name(comm)}; "
            "collops.comm.from_mpi4py converts communicators of mpi4py"
        )
    return comm
