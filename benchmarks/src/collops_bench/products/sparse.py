"""Products with a sparse matrix and its transpose, beside other libraries.

The matrix is a 27-point stencil with equally many rows on every rank, periodic across the ranks. On hosts the peers are
PETSc, and SciPy on one rank; on one GPU CuPy, PyTorch and nvmath-python, all by cuSPARSE. For products with the
transpose those of one process get it as a matrix with compressed rows, since ours keeps such a one on GPUs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from collops.array import DistributedArray
from collops.operators import CSRMatrix
from collops_bench.operators.beside import Beside, Program, measure_beside
from collops_bench.peers import why_no_package, why_no_petsc
from collops_bench.record import Measurement
from collops_bench.registry import Context
from collops_bench.starforest import ring_rows, stencil_rows
from collops_bench.timing import Plan

__all__ = ["measure"]

_QUICK, _ON_HOSTS, _ON_DEVICES = 8, 64, 126  # points along each edge of a rank's cube


def measure(context: Context) -> Iterator[Measurement]:
    """Yield forward and adjoint."""
    device, comm = context.engine.memory == "device", context.comm
    side = _QUICK if context.options.quick else _ON_DEVICES if device else _ON_HOSTS
    dtype = "float32" if device else "float64"
    local = ring_rows(stencil_rows(side, 0, side, dtype), side * side, side * comm.rank, side * comm.size)
    # Values that differ, so that rows that are exchanged would be found.
    local.data[...] = np.random.default_rng(comm.rank).uniform(0.5, 1.5, local.nnz)
    case = Beside(
        "27-point stencil",
        {"rows_per_rank": local.shape[0], "entries_per_rank": int(local.nnz), "dtype": dtype},
        CSRMatrix(local, comm=comm),
        dtype,
        Plan(rounds=3, seconds=0.01) if context.options.quick else Plan(rounds=9, seconds=0.1),
        partial(_on_devices if device else _on_hosts, context, local),
        headline=True,
    )
    yield from measure_beside(context, case)


def _on_hosts(context: Context, local: Any, direction: str, x: DistributedArray) -> Mapping[str, Program | str]:
    if (petsc := why_no_petsc(context)) is None:
        petsc = _of_petsc(local, direction, x.local_array)
    if (scipy := why_no_package(context, "scipy", one_process=True)) is None:
        scipy = Program(partial(_oriented(local, direction).dot, x.local_array))
    return {"PETSc": petsc, "SciPy": scipy}


def _oriented(local: Any, direction: str) -> Any:
    return local if direction == "forward" else local.T.tocsr()


def _of_petsc(local: Any, direction: str, x: np.ndarray) -> Program:
    from petsc4py import PETSc  # pyright: ignore[reportAttributeAccessIssue]

    sizes = (local.shape[0], None), (local.shape[0], None)
    entries = local.indptr.astype(PETSc.IntType), local.indices.astype(PETSc.IntType), local.data
    matrix = PETSc.Mat().createAIJ(sizes, csr=entries, comm=PETSc.COMM_WORLD)
    argument, result = matrix.createVecs()
    argument.array[:] = x
    multiply = matrix.mult if direction == "forward" else matrix.multTranspose

    def run() -> Any:
        multiply(argument, result)
        return result.array

    return Program(run)


def _on_devices(context: Context, local: Any, direction: str, x: DistributedArray) -> Mapping[str, Program | str]:
    found: dict[str, Program | str] = {}
    rows = _oriented(local, direction)
    makers: tuple[tuple[str, str, str, Callable[[Any, Any], Program | str]], ...] = (
        ("CuPy", "cupy", "cupy-cuda13x", _of_cupy),
        ("PyTorch", "torch", "torch", _of_torch),
        ("nvmath-python", "nvmath.sparse", "nvmath-python", _of_nvmath),
    )
    for name, module, package, make in makers:
        reason = why_no_package(context, module, package=package, one_process=True)
        found[name] = make(rows, x.local_array) if reason is None else reason
    return found


def _of_cupy(rows: Any, x: Any) -> Program:
    from cupyx.scipy.sparse import csr_matrix

    return Program(partial(csr_matrix(rows).dot, x))


def _of_torch(rows: Any, x: Any) -> Program:
    import torch

    parts = (torch.as_tensor(part, device="cuda") for part in (rows.indptr, rows.indices, rows.data))
    # PyTorch 2.11 warns of a beta state, and of this check unless a program chooses.
    with warnings.catch_warnings(), torch.sparse.check_sparse_tensor_invariants(enable=False):
        warnings.filterwarnings("ignore", "Sparse CSR tensor support", UserWarning)
        matrix = torch.sparse_csr_tensor(*parts, size=rows.shape)
    return Program(partial(torch.mv, matrix, torch.as_tensor(x, device="cuda")))


def _of_nvmath(rows: Any, x: Any) -> Program | str:
    import cupy
    from cupyx.scipy.sparse import csr_matrix
    from nvmath.sparse import Matmul

    try:
        product = Matmul(csr_matrix(rows), x, c=cupy.zeros(rows.shape[0], x.dtype), beta=0.0)
        product.plan()
    except (RuntimeError, TypeError, ValueError) as error:  # of another version of cuSPARSE
        return f"{type(error).__name__}: {error}"
    return Program(product.execute)
