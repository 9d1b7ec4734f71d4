"""A plugin for pytest: ranks that share one GPU take it for a GPU of their own each.

    mpirun -n 2 python -m pytest -p tests.gpu.pretended_gpus tests/gpu

NCCL goes through sockets, as between hosts. The processes take turns on the GPU, so that kernels of several ranks may
wait for each other, slowly. NVSHMEM has signals only if the kernels run at once, under CUDA's Multi-Process Service:

    nvidia-cuda-mps-control -d
    CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50 mpirun -n 2 python -m pytest -p tests.gpu.pretended_gpus tests/gpu

There the kernels of `persistent`, which fill a GPU, wait for each other in vain.
"""

from __future__ import annotations

import os
import socket

_RANK = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK", "0")

os.environ.update(NCCL_HOSTID=f"gpu{_RANK}", NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1", NCCL_IB_DISABLE="1")
os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
# The name of a GPU begins with that of its host; which ranks share memory is asked of MPI.
socket.gethostname = lambda: f"gpu{_RANK}"
