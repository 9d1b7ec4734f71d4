"""The interface of PyLops-MPI 0.8.0 on top of this package: its programs run unchanged.

``import collops.compat.pylops_mpi as pylops_mpi``, or ``python -m collops.compat.pylops_mpi script.py``, which runs a
script as it is. ``docs/from-pylops-mpi.md`` shows both interfaces side by side, and what differs on purpose.
"""

from collops.compat.pylops_mpi import (
    basicoperators,
    optimization,
    plotting,
    proximal,
    signalprocessing,
    utils,
    waveeqprocessing,
)
from collops.compat.pylops_mpi.basicoperators import (
    MPIBlockDiag,
    MPIFirstDerivative,
    MPIGradient,
    MPIHalo,
    MPIHStack,
    MPILaplacian,
    MPIMatrixMult,
    MPISecondDerivative,
    MPIStackedBlockDiag,
    MPIStackedVStack,
    MPIVStack,
)
from collops.compat.pylops_mpi.DistributedArray import DistributedArray, Partition, StackedDistributedArray
from collops.compat.pylops_mpi.LinearOperator import MPILinearOperator, asmpilinearoperator
from collops.compat.pylops_mpi.optimization.basic import cg, cgls
from collops.compat.pylops_mpi.optimization.cls_basic import CG, CGLS
from collops.compat.pylops_mpi.optimization.cls_sparsity import FISTA, ISTA
from collops.compat.pylops_mpi.optimization.sparsity import fista, ista
from collops.compat.pylops_mpi.plotting.plotting import plot_distributed_array, plot_local_arrays
from collops.compat.pylops_mpi.proximal import MPIProxOperator
from collops.compat.pylops_mpi.StackedLinearOperator import MPIStackedLinearOperator
from collops.compat.pylops_mpi.version import __version__

__all__ = [
    "CG",
    "CGLS",
    "FISTA",
    "ISTA",
    "DistributedArray",
    "MPIBlockDiag",
    "MPIFirstDerivative",
    "MPIGradient",
    "MPIHStack",
    "MPIHalo",
    "MPILaplacian",
    "MPILinearOperator",
    "MPIMatrixMult",
    "MPIProxOperator",
    "MPISecondDerivative",
    "MPIStackedBlockDiag",
    "MPIStackedLinearOperator",
    "MPIStackedVStack",
    "MPIVStack",
    "Partition",
    "StackedDistributedArray",
    "__version__",
    "asmpilinearoperator",
    "basicoperators",
    "cg",
    "cgls",
    "fista",
    "ista",
    "optimization",
    "plot_distributed_array",
    "plot_local_arrays",
    "plotting",
    "proximal",
    "signalprocessing",
    "utils",
    "waveeqprocessing",
]
