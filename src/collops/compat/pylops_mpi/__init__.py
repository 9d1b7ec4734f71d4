"""The interface of PyLops-MPI 0.8.0: its programs run unchanged.

Use ``import collops.compat.pylops_mpi as pylops_mpi``, with :func:`install` if the program also has other imports of
``pylops_mpi``; or run a script unchanged with ``python -m collops.compat.pylops_mpi script.py``.
``docs/from-pylops-mpi.md`` compares both interfaces and lists the intended differences.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from itertools import accumulate

from collops.compat.pylops_mpi import (
    _arrays,
    _grids,
    _linear_operator,
    _messages,
    _operators,
    _proximal,
    _solvers,
    _utilities,
)
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
    "install",
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

_HOMES = (_arrays, _linear_operator, _operators, _grids, _solvers, _proximal, _messages, _utilities)

# PyLops-MPI's modules and the names in each. A package also has the names of its modules.
_MODULES = {
    "Distributed": "DistributedMixIn NcclCommunicatorType",
    "DistributedArray": "DistributedArray NcclCommunicatorType Partition StackedDistributedArray local_split "
    "subcomm_split to_scalar",
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
    "utils._common": "_unroll_allgather_recv",
    "utils._mpi": "_prepare_allgather_inputs_mpi mpi_allgather mpi_allreduce mpi_bcast mpi_recv mpi_send mpi_sendrecv",
    "utils._nccl": "NcclOp _nccl_buf_size _nccl_sync _prepare_allgather_inputs_nccl cupy_to_nccl_dtype "
    "initialize_nccl_comm mpi_op_to_nccl nccl_allgather nccl_allreduce nccl_asarray nccl_bcast nccl_recv nccl_send "
    "nccl_sendrecv nccl_split",
    "utils.benchmark": "benchmark mark",
    "utils.decorators": "reshaped",
    "utils.deps": "cuda_aware_mpi_enabled mpi4py_fft mpi4py_fft_import nccl_enabled nccl_import",
    "utils.dottest": "dottest",
    "utils.fft_helper": "fftshift_nd ifftshift_nd",
    "version": "__version__ version version_tuple",
    "waveeqprocessing.MDC": "MPIMDC",
}


def _make_modules() -> None:
    """Create the modules of PyLops-MPI with their names."""
    package_root = sys.modules[__name__]
    for path, names in _MODULES.items():
        package = package_root
        for full in accumulate(path.split("."), "{}.{}".format):
            name = f"{__name__}.{full}"
            if name not in sys.modules:
                module = sys.modules[name] = module_from_spec(ModuleSpec(name, None))
                module.__doc__ = f"PyLops-MPI's module ``{full}``."
                # Some classes and functions have the name of their module and hide it.
                vars(package).setdefault(full.rpartition(".")[2], module)
            package = sys.modules[name]
            for item in names.split():
                setattr(
                    package, item, getattr(next(home for home in (*_HOMES, package_root) if hasattr(home, item)), item)
                )
        vars(package)["__all__"] = names.split()


def install() -> None:
    """Let all later imports of ``pylops_mpi`` and its modules in this process find this package. Not collective.

    Call it before the program imports ``pylops_mpi``, which need not be installed. Modules of the real package that are
    already loaded are removed from ``sys.modules``; names imported from them remain unchanged, and only ``Partition``
    of them can be passed to this package.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> pylops_mpi.install()  # before other imports  # doctest: +SKIP
    >>> from pylops_mpi.DistributedArray import Partition  # doctest: +SKIP
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "pylops_mpi"]:
        del sys.modules[name]
    for name, module in list(sys.modules.items()):
        if f"{name}.".startswith(f"{__name__}."):
            sys.modules["pylops_mpi" + name.removeprefix(__name__)] = module


_make_modules()
