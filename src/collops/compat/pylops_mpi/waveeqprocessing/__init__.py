"""PyLops-MPI's operators of wave-equation processing."""

from collops.compat.pylops_mpi.waveeqprocessing.MDC import MPIMDC

__all__ = ["MPIMDC"]
