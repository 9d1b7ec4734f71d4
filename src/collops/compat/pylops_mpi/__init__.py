"""The interface of PyLops-MPI 0.8.0: its programs run unchanged.

Use ``import collops.compat.pylops_mpi as pylops_mpi``, or run a script unchanged with
``python -m collops.compat.pylops_mpi script.py``. ``docs/from-pylops-mpi.md`` compares both interfaces and lists the
intended differences.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from itertools import accumulate

from collops.compat.pylops_mpi import _arrays, _grids, _linear_operator, _operators, _proximal, _solvers, _utilities
from collops.compat.pylops_mpi._arrays import DistributedArray, Partition, StackedDistributedArray
from collops.compat.pylops_mpi._grids import MPIHalo, MPIMatrixMult
from collops.compat.pylops_mpi._linear_operator import MPILinearOperator, MPIStackedLinearOperator, asmpilinearoperator
from collops.compat.pylops_mpi._operators import (
    MPIBlockDiag,
    MPIFirstDerivative,
    MPIGradient,
    MPIHStack,
    MPILaplacian,
    MPISecondDerivative,
    MPIStackedBlockDiag,
    MPIStackedVStack,
    MPIVStack,
)
from collops.compat.pylops_mpi._proximal import MPIProxOperator
from collops.compat.pylops_mpi._solvers import CG, CGLS, FISTA, ISTA, cg, cgls, fista, ista
from collops.compat.pylops_mpi._utilities import plot_distributed_array, plot_local_arrays

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

__version__ = version = "0.8.0"
version_tuple = (0, 8, 0)

_HOMES = (_arrays, _linear_operator, _operators, _grids, _solvers, _proximal, _utilities)

# PyLops-MPI's modules and the names in each. A package also has the names of its modules.
_MODULES = {
    "DistributedArray": "DistributedArray Partition StackedDistributedArray local_split subcomm_split",
    "LinearOperator": "MPILinearOperator asmpilinearoperator",
    "StackedLinearOperator": "MPIStackedLinearOperator",
    "basicoperators.BlockDiag": "MPIBlockDiag MPIStackedBlockDiag",
    "basicoperators.FirstDerivative": "MPIFirstDerivative",
    "basicoperators.Gradient": "MPIGradient",
    "basicoperators.HStack": "MPIHStack",
    "basicoperators.Halo": "MPIHalo halo_block_split",
    "basicoperators.Laplacian": "MPILaplacian",
    "basicoperators.MatrixMult": "MPIMatrixMult active_grid_comm block_gather local_block_split",
    "basicoperators.SecondDerivative": "MPISecondDerivative",
    "basicoperators.VStack": "MPIStackedVStack MPIVStack",
    "optimization.basic": "cg cgls",
    "optimization.cls_basic": "CG CGLS",
    "optimization.cls_sparsity": "FISTA ISTA",
    "optimization.eigs": "power_iteration",
    "optimization.sparsity": "fista ista",
    "plotting.plotting": "plot_distributed_array plot_local_arrays",
    "proximal.ProxOperator": "MPIProxOperator",
    "proximal.optimization.primal": "ADMML2 ProximalGradient",
    "proximal.optimization.primaldual": "PrimalDual",
    "proximal.proximal.L2": "MPIL2",
    "proximal.proximal.L21": "MPIL21",
    "signalprocessing.FFT2D": "MPIFFT2D",
    "signalprocessing.FFTND": "MPIFFTND",
    "signalprocessing.Fredholm1": "MPIFredholm1",
    "signalprocessing.NonStatConvolve1d": "MPINonStationaryConvolve1D",
    "utils._nccl": "initialize_nccl_comm",
    "utils.benchmark": "benchmark mark",
    "utils.decorators": "reshaped",
    "utils.deps": "cuda_aware_mpi_enabled mpi4py_fft mpi4py_fft_import nccl_enabled nccl_import",
    "utils.dottest": "dottest",
    "utils.fft_helper": "fftshift_nd ifftshift_nd",
    "version": "__version__ version version_tuple",
    "waveeqprocessing.MDC": "MPIMDC",
}


def _make_modules() -> None:
    """Create the modules of PyLops-MPI, with the names that each of them defines."""
    here = sys.modules[__name__]
    for path, names in _MODULES.items():
        package = here
        for full in accumulate(path.split("."), "{}.{}".format):
            name = f"{__name__}.{full}"
            if name not in sys.modules:
                module = sys.modules[name] = module_from_spec(ModuleSpec(name, None))
                module.__doc__ = f"PyLops-MPI's module ``{full}``."
                # Some classes and functions have the name of their module and hide it.
                vars(package).setdefault(full.rpartition(".")[2], module)
            package = sys.modules[name]
            for each in names.split():
                setattr(package, each, getattr(next(home for home in (*_HOMES, here) if hasattr(home, each)), each))


_make_modules()
