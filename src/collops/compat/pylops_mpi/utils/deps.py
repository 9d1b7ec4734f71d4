"""What PyLops-MPI asks about optional packages, and its environment variables."""

from __future__ import annotations

import importlib.util
import os

__all__ = ["cuda_aware_mpi_enabled", "mpi4py_fft", "mpi4py_fft_import", "nccl_enabled", "nccl_import"]


def nccl_import(message: str | None = None) -> str | None:
    """Return why NCCL is not used, or ``None`` where it is."""
    if os.environ.get("NCCL_PYLOPS_MPI", "1") == "0":
        return f"NCCL_PYLOPS_MPI is 0, so that {message or 'NCCL'} is not used"
    if importlib.util.find_spec("cupy") is None:
        return f"{message or 'NCCL'} needs CuPy, which is not installed"
    return None


def mpi4py_fft_import(message: str | None) -> str | None:
    """Return ``None``: Fourier transforms need no further package here."""
    return None


nccl_enabled = nccl_import() is None
cuda_aware_mpi_enabled = os.environ.get("PYLOPS_MPI_CUDA_AWARE", "0") == "1"
mpi4py_fft = True
