"""Communicators: ranks, and the transports between them."""

from collops.comm.communicator import Communicator
from collops.comm.device_wait import wait_while_source
from collops.comm.nccl_link import missing_for_nccl
from collops.comm.nvshmem_link import missing_for_nvshmem
from collops.comm.transport import Pending, Transport
from collops.comm.world import alone, from_mpi4py, world

__all__ = [
    "Communicator",
    "Pending",
    "Transport",
    "alone",
    "from_mpi4py",
    "missing_for_nccl",
    "missing_for_nvshmem",
    "wait_while_source",
    "world",
]
