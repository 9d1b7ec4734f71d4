"""Operators of both packages: each case returns an operator and a model, whose parts are uneven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pylops
import pytest

from tests.compat.sides import COPIES, DIMS, DTYPES, Side
from tests.operators.problems import vector

Built = tuple[Any, Any]


def rows(s: Side) -> list[int]:
    return [7 + rank % 2 for rank in range(s.size)]


def columns(s: Side) -> list[int]:
    return [6 - rank % 3 for rank in range(s.size)]


def halves(s: Side) -> list[int]:
    return [2 * rank // s.size for rank in range(s.size)]


def block_diag(s: Side, **options: Any) -> Built:
    local = [s.matrix(rows(s)[s.rank], columns(s)[s.rank])]
    op = s.pkg.MPIBlockDiag(local, base_comm=s.base_comm, **options)
    return op, s.vector(op.shape[1], columns(s))


def masked_block_diag(s: Side) -> Built:
    op, _ = block_diag(s, mask=halves(s))
    return op, s.array(vector(op.shape[1], s.dtype, 1), columns(s), mask=halves(s))


def two_blocks(s: Side) -> Built:
    op = s.pkg.MPIBlockDiag([s.matrix(2, 2), s.matrix(rows(s)[s.rank], 2, 1)], base_comm=s.base_comm)
    return op, s.vector(op.shape[1])


def vertical(s: Side) -> Built:
    op = s.pkg.MPIVStack([s.matrix(rows(s)[s.rank], 5)], base_comm=s.base_comm)
    return op, s.vector(5)


def horizontal(s: Side) -> Built:
    op = s.pkg.MPIHStack([s.matrix(5, columns(s)[s.rank])], base_comm=s.base_comm)
    return op, s.vector(op.shape[1], columns(s))


def local(s: Side) -> Built:
    values = s.xp.asarray(vector(20, s.dtype, 3).reshape(4, 5))  # equal on all ranks
    return s.pkg.MPILinearOperator(pylops.MatrixMult(values, dtype=s.dtype), base_comm=s.base_comm), s.vector(5)


def derivative(name: str, dims: Any = DIMS, **options: Any) -> Callable[[Side], Built]:
    def build(s: Side) -> Built:
        op = getattr(s.pkg, name)(dims, dtype=s.dtype, base_comm=s.base_comm, **options)
        return op, s.vector(np.prod(dims))

    return build


def even(s: Side) -> list[int]:
    """Return the parts of a model along whole rows: only then can PyLops-MPI add the results of derivatives to it."""
    return [DIMS[1] * len(part) for part in np.array_split(np.arange(DIMS[0]), s.size)]


def stacked_vertical(s: Side) -> Built:
    op, _ = derivative("MPILaplacian")(s)
    return s.pkg.MPIStackedVStack([op, 0.5 * derivative("MPIFirstDerivative")(s)[0]]), s.vector(op.shape[1], even(s))


def stacked_block_diag(s: Side) -> Built:
    op, _ = derivative("MPISecondDerivative")(s)
    blocks, other = block_diag(s)
    return s.pkg.MPIStackedBlockDiag([op, blocks]), s.stacked(s.vector(op.shape[1], even(s)), other)


def algebra(s: Side) -> Built:
    A, _ = derivative("MPISecondDerivative")(s)
    B, _ = derivative("MPIFirstDerivative", kind="forward")(s)
    return (2 * A.H @ B - B.T @ A) ** 2 + 0.5 * A.conj(), s.vector(A.shape[1], even(s))


def fredholm(s: Side, **options: Any) -> Built:
    slices = [2 + rank % 2 for rank in range(s.size)]
    G = vector(sum(slices) * 12, s.dtype, 4).reshape(-1, 3, 4)
    mine = G[sum(slices[: s.rank]) :][: slices[s.rank]]
    op = s.get("signalprocessing.MPIFredholm1")(s.xp.asarray(mine), nz=2, dtype=s.dtype, **options)
    return op, s.vector(op.shape[1])


def convolution(s: Side) -> Built:
    per_rank = 6
    hs = vector(2 * s.size * 5, s.dtype, 5).reshape(-1, 5)
    ih = 1 + 3 * np.arange(2 * s.size)
    make = s.get("signalprocessing.MPINonStationaryConvolve1D")
    return make((per_rank * s.size,), hs, ih, base_comm=s.base_comm, dtype=s.dtype), s.vector(per_rank * s.size)


def wave_equation(s: Side) -> Built:
    slices, nt = [2 + rank % 2 for rank in range(s.size)], 4 * s.size + 7
    G = vector(sum(slices) * 6, "complex128", 4).reshape(-1, 3, 2)
    mine = s.xp.asarray(G[sum(slices[: s.rank]) :][: slices[s.rank]])
    op = s.get("waveeqprocessing.MPIMDC")(mine, nt=nt, nv=2, nfreq=sum(slices), dt=0.1, dr=2.0)
    return op, s.array(vector(op.shape[1], "float64", 6) + 0j)


def matrix_product(kind: str) -> Callable[[Side], Built]:
    def build(s: Side) -> Built:
        grid = int(s.size**0.5)
        if grid**2 != s.size:
            pytest.skip("PyLops-MPI multiplies matrices on square numbers of ranks only")
        row, column = divmod(s.rank, grid)
        full = vector(24 * grid**2, s.dtype, 7).reshape(6 * grid, 4 * grid)
        part = 6 * column if kind == "block" else 6 * row
        mine = full[part:][:6] if kind == "block" else full[part:][:6, 4 * column :][:, :4]
        make = s.get("basicoperators.MPIMatrixMult")
        comms = {"base_comm": s.base_comm, "base_comm_nccl": s.nccl}
        op = make(s.xp.asarray(np.ascontiguousarray(mine)), 2 * grid, kind=kind, dtype=s.dtype, **comms)
        return op, s.vector(op.shape[1])

    return build


def halo(widths: Any) -> Callable[[Side], Built]:
    def build(s: Side) -> Built:
        dims = (4, 3 * s.size)
        options = {"proc_grid_shape": (1, s.size), "comm": s.base_comm, "dtype": s.dtype}
        return s.get("basicoperators.Halo.MPIHalo")(dims, widths, **options), s.vector(np.prod(dims))

    return build


def inner_halo(s: Side) -> Built:
    """Halos with widths that differ from rank to rank: none at the ends of the array."""
    return halo((0, 0, int(s.rank > 0), int(s.rank < s.size - 1)))(s)


def fourier(s: Side) -> Built:
    pytest.importorskip("mpi4py_fft", reason="PyLops-MPI transforms by mpi4py-fft, which is not installed")
    op = s.get("signalprocessing.MPIFFTND")(DIMS, axes=(0, 1), base_comm=s.base_comm)
    return op, s.array(vector(np.prod(DIMS), "complex128", 1))


@dataclass(frozen=True)
class Case:
    """An operator with the partitions of models that it accepts."""

    build: Callable[[Side], Built]
    partitions: tuple[str, ...] = ("SCATTER",)
    dtypes: tuple[str, ...] = DTYPES
    dot_test: bool = True  # the adjoint of a halo drops it, so its dot test may fail
    host_only: bool = False  # PyLops-MPI has no tests of it with CuPy


REPLICABLE = ("SCATTER", "BROADCAST")
OPERATORS = {
    "block diagonal": Case(block_diag),
    "masked block diagonal": Case(masked_block_diag),
    "two blocks on each rank": Case(two_blocks),
    "vertical stack": Case(vertical, COPIES),
    "horizontal stack": Case(horizontal),
    "local operator": Case(local, COPIES),
    "first derivative": Case(derivative("MPIFirstDerivative", sampling=2.0), REPLICABLE),
    "first derivative, 5 points": Case(derivative("MPIFirstDerivative", order=5, edge=True), REPLICABLE),
    "forward derivative": Case(derivative("MPIFirstDerivative", (19,), kind="forward"), REPLICABLE),
    "backward derivative": Case(derivative("MPIFirstDerivative", (11, 2, 3), kind="backward"), REPLICABLE),
    "second derivative": Case(derivative("MPISecondDerivative", sampling=0.5), REPLICABLE),
    "second derivative, edges": Case(derivative("MPISecondDerivative", edge=True), REPLICABLE),
    "second derivative, forward": Case(derivative("MPISecondDerivative", kind="forward"), REPLICABLE),
    "Laplacian": Case(derivative("MPILaplacian", weights=(1, 3), sampling=(0.5, 2.0))),
    "gradient": Case(derivative("MPIGradient")),
    "stacked vertical stack": Case(stacked_vertical),
    "stacked block diagonal": Case(stacked_block_diag),
    "algebra": Case(algebra, dtypes=("float32", "float64")),
    "Fredholm integral": Case(fredholm, COPIES),
    "Fredholm integral, transposed": Case(lambda s: fredholm(s, saveGt=True, usematmul=False), COPIES),
    "convolution": Case(convolution, dtypes=("float32", "float64"), host_only=True),
    "multi-dimensional convolution": Case(wave_equation, COPIES, ("complex128",)),
    "SUMMA": Case(matrix_product("summa")),
    "matrix product by blocks": Case(matrix_product("block")),
    "halo": Case(halo(1), dot_test=False, host_only=True),
    "halo with zeros": Case(halo((1, 2)), dot_test=False, host_only=True),
    "halo without ends": Case(inner_halo, dot_test=False, host_only=True),
    "Fourier transform": Case(fourier, dtypes=("complex128",), host_only=True),
}
CASES = [(name, case.partitions[0], dtype) for name, case in OPERATORS.items() for dtype in case.dtypes]
CASES += [(name, other, case.dtypes[-1]) for name, case in OPERATORS.items() for other in case.partitions[1:]]


def applied(case: Case) -> Callable[[Side], Any]:
    """Return what a case compares: shapes, products with the operator and its adjoint, and the dot test."""

    def run(s: Side) -> Any:
        op, model = case.build(s)
        data = op.matvec(model)
        back = op.rmatvec(data)
        passed = s.get("utils.dottest.dottest")(op, model, data, raiseerror=False, rtol=1e-4)
        extents = [np.ravel(extent).tolist() for extent in (op.shape, op.dims, op.dimsd)]
        return [*extents, bool(passed) or not case.dot_test, data, back, (op.H @ data)]

    return run
