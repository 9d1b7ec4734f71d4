"""collops: distributed arrays, linear operators and solvers over MPI, NCCL and NVSHMEM.

Names and packages are imported when they are first used, so that ``import collops`` needs only NumPy and takes no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from collops import _forks, _moved, errors  # notes each fork from now on
from collops.errors import CollopsError

if TYPE_CHECKING:
    from collops import apps, array, backend, comm, exchange, jax, limits, operators, preconditioners, profile, solvers
    from collops.array import (
        DistributedArray,
        IndexScatter,
        Layout,
        StackedArray,
        StackedLayout,
        axpby,
        dots,
        empty,
        empty_like,
        from_global,
        from_local,
        full,
        load,
        ones,
        random,
        save,
        where,
        zeros,
        zeros_like,
    )
    from collops.comm import Communicator, from_mpi4py, world
    from collops.exchange import ExchangePlan, StarForest
    from collops.operators import (
        FFT,
        FFT2D,
        FFTND,
        MDC,
        BlockDiag,
        BlockToeplitz,
        CSRMatrix,
        Diagonal,
        FirstDerivative,
        Fredholm1,
        Gradient,
        Halo,
        HStack,
        Identity,
        Laplacian,
        LinearOperator,
        MatrixMult,
        NonStationaryConvolve1D,
        Patch,
        Restriction,
        SecondDerivative,
        Sliding,
        StackedBlockDiag,
        StackedHStack,
        StackedVStack,
        Sum,
        Transpose,
        VStack,
        Zero,
        dottest,
    )
    from collops.solvers import (
        SolverResult,
        Status,
        bicgstab,
        block_cg,
        block_cgls,
        cg,
        cgls,
        fista,
        gmres,
        hybrid_lsqr,
        ista,
        lsmr,
        lsqr,
        minres,
        power_iteration,
    )
    from collops.solvers.proximal import (
        L0,
        L1,
        L2,
        L21,
        Box,
        Euclidean,
        Nuclear,
        ProxOperator,
        admm,
        admm_l2,
        lift_proximal,
        linearized_admm,
        primal_dual,
        proximal_gradient,
    )

__version__ = "0.1.0"

_ROOMS = {
    "collops.array": (
        *("DistributedArray", "IndexScatter", "Layout", "StackedArray", "StackedLayout", "axpby", "dots", "empty"),
        *("empty_like", "from_global", "from_local", "full", "load", "ones", "random", "save", "where", "zeros"),
        "zeros_like",
    ),
    "collops.bridges.sharding": ("from_jax", "to_jax"),  # a guest, imported on request
    "collops.comm": ("Communicator", "from_mpi4py", "world"),
    "collops.exchange": ("ExchangePlan", "StarForest"),
    "collops.operators": (
        *("FirstDerivative", "Gradient", "Halo", "Laplacian", "SecondDerivative"),
        *("FFT", "FFT2D", "FFTND", "Fredholm1", "MDC"),
        *("Diagonal", "Identity", "MatrixMult", "NonStationaryConvolve1D", "Restriction", "Sum", "Transpose", "Zero"),
        *("BlockToeplitz", "Patch", "Sliding"),
        *("BlockDiag", "HStack", "LinearOperator", "StackedBlockDiag", "StackedHStack", "StackedVStack", "VStack"),
        *("CSRMatrix", "dottest"),
    ),
    "collops.seismic": ("Kirchhoff",),  # a guest, imported on request
    "collops.solvers": (
        *("SolverResult", "Status", "bicgstab", "block_cg", "block_cgls", "cg", "cgls", "fista", "gmres"),
        *("hybrid_lsqr", "ista", "lsmr", "lsqr", "minres", "power_iteration"),
    ),
    "collops.solvers.proximal": (
        *("L0", "L1", "L2", "L21", "Box", "Euclidean", "Nuclear", "ProxOperator", "admm", "admm_l2", "lift_proximal"),
        *("linearized_admm", "primal_dual", "proximal_gradient"),
    ),
}
_PACKAGES = {
    *("apps", "array", "backend", "bridges", "cli", "comm", "compat", "exchange", "extend", "jacobi", "jax", "limits"),
    *("operators", "preconditioners", "profile", "seismic", "solvers", "uncertainty"),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

# Without names of bridges, which may need libraries that are not installed.
_NEED_NOTHING = sorted(name for name, home in _HOME.items() if not home.startswith("collops.bridges."))
__all__ = ["CollopsError", "__version__", "errors", "profile", *_NEED_NOTHING]


def __getattr__(name: str) -> Any:
    if name not in _HOME and name not in _PACKAGES:
        raise AttributeError(f"module 'collops' has no attribute {name!r}")
    if name != "profile":
        # Registers the engine of JAX, whose arrays a communicator takes as well.
        importlib.import_module("collops.array")
    try:
        home = importlib.import_module(_HOME.get(name, f"collops.{name}"))
    except ModuleNotFoundError as error:  # not the error of an attribute, which inspection of dir() expects
        missing = str(error.name).partition(".")[0]
        raise AttributeError(f"collops.{name} needs the package {missing}, which is not installed") from error
    value = globals()[name] = getattr(home, name) if name in _HOME else home
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_PACKAGES})
