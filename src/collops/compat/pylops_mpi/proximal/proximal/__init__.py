"""PyLops-MPI's own proximal operators."""

from collops.compat.pylops_mpi.proximal.proximal.L2 import MPIL2
from collops.compat.pylops_mpi.proximal.proximal.L21 import MPIL21

__all__ = ["MPIL2", "MPIL21"]
