"""PyLops-MPI's proximal operators and methods."""

from collops.compat.pylops_mpi.proximal.ProxOperator import MPIProxOperator

from collops.compat.pylops_mpi.proximal import optimization, proximal  # isort: skip
from collops.compat.pylops_mpi.proximal.proximal import MPIL2, MPIL21

__all__ = ["MPIL2", "MPIL21", "MPIProxOperator", "optimization", "proximal"]
