"""PyLops-MPI's module of arrays."""

from collops.compat.pylops_mpi._array import DistributedArray, Partition, local_split, subcomm_split
from collops.compat.pylops_mpi._stacked_array import StackedDistributedArray

__all__ = ["DistributedArray", "Partition", "StackedDistributedArray", "local_split", "subcomm_split"]
