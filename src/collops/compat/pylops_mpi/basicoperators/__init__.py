"""PyLops-MPI's basic operators."""

from collops.compat.pylops_mpi.basicoperators.BlockDiag import MPIBlockDiag, MPIStackedBlockDiag
from collops.compat.pylops_mpi.basicoperators.FirstDerivative import MPIFirstDerivative
from collops.compat.pylops_mpi.basicoperators.Gradient import MPIGradient
from collops.compat.pylops_mpi.basicoperators.Halo import MPIHalo
from collops.compat.pylops_mpi.basicoperators.HStack import MPIHStack
from collops.compat.pylops_mpi.basicoperators.Laplacian import MPILaplacian
from collops.compat.pylops_mpi.basicoperators.MatrixMult import MPIMatrixMult
from collops.compat.pylops_mpi.basicoperators.SecondDerivative import MPISecondDerivative
from collops.compat.pylops_mpi.basicoperators.VStack import MPIStackedVStack, MPIVStack

__all__ = [
    "MPIBlockDiag",
    "MPIFirstDerivative",
    "MPIGradient",
    "MPIHStack",
    "MPIHalo",
    "MPILaplacian",
    "MPIMatrixMult",
    "MPISecondDerivative",
    "MPIStackedBlockDiag",
    "MPIStackedVStack",
    "MPIVStack",
]
