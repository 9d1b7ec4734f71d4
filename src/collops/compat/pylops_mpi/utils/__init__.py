"""PyLops-MPI's helpers."""

from collops.compat.pylops_mpi.utils import decorators, deps, fft_helper
from collops.compat.pylops_mpi.utils.benchmark import benchmark, mark
from collops.compat.pylops_mpi.utils.dottest import dottest

__all__ = ["benchmark", "decorators", "deps", "dottest", "fft_helper", "mark"]
