"""PyLops-MPI's proximal methods."""

from collops.compat.pylops_mpi.proximal.optimization.primal import ADMML2, ProximalGradient
from collops.compat.pylops_mpi.proximal.optimization.primaldual import PrimalDual

__all__ = ["ADMML2", "PrimalDual", "ProximalGradient"]
