"""PyLops-MPI's way to NCCL, which this package takes by itself where it is there."""

from __future__ import annotations

from typing import Any

import collops
from collops.compat.pylops_mpi.utils.deps import nccl_import
from collops.errors import TransportError

__all__ = ["initialize_nccl_comm"]


def initialize_nccl_comm() -> Any:
    """Return what PyLops-MPI's arrays take as ``base_comm_nccl``: this package's communicator. Collective.

    Each rank's GPU becomes its current device.

    Raises
    ------
    TransportError
        If there is no NCCL, or no GPU for each rank.
    """
    reason = nccl_import()
    if reason is not None:
        raise TransportError(reason)
    comm = collops.world()
    if comm.size > 1 and comm.device_transport != "nccl":
        raise TransportError(f"device arrays do not go by NCCL here:\n{comm.describe()}")
    return comm
