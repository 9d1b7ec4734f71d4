"""A plugin for pytest: ranks of one machine pretend to be on a host of their own each, and may then share one GPU.

    mpirun -n 2 python -m pytest -p tests.gpu.pretended_hosts tests/gpu

NCCL is told so, and goes through sockets. Neither shared windows nor GPUs' access to each other's memory are used.
"""

from __future__ import annotations

import os
import socket
import sys

import collops.comm

_RANK = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK", "0")

os.environ.update(NCCL_HOSTID=f"host{_RANK}", NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1", NCCL_IB_DISABLE="1")
os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
socket.gethostname = lambda: f"host{_RANK}"
for _module in ("collops.comm.mpi", "collops.comm.world"):
    sys.modules[_module].on_node = lambda comm, value=None: (0, [value])  # pyright: ignore[reportAttributeAccessIssue]


def pytest_sessionstart() -> None:
    """Choose the device as on a host of one rank, in PyLops-MPI as well; MPI has read its environment by now."""
    collops.comm.world()
    os.environ["OMPI_COMM_WORLD_LOCAL_RANK"] = "0"
