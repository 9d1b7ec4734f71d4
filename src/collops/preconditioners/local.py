"""Solutions with sparse factors on the host, applied by each rank to its part of a vector."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from collops.array import Array
from collops.backend import LocalArray, SparseArray
from collops.comm import Communicator
from collops.errors import InputError, LayoutError, UnsupportedTypeError, type_name
from collops.operators import CSRMatrix
from collops.operators.base import AnyLayout, LinearOperator
from collops.operators.local import applied_on_host
from collops.operators.memory import filled

Solve = Callable[[np.ndarray], np.ndarray]

# recommended by SuperLU for symmetric patterns: half the fill and a quarter of the time on a cube of 24^3 points
_SYMMETRIC = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 0.01, "options": {"SymmetricMode": True}}


def check_matrix(A: object) -> None:
    """Raise an error unless `A` is a sparse matrix with rows and columns split alike. No messages."""
    if not isinstance(A, CSRMatrix):
        raise UnsupportedTypeError(f"this preconditioner needs a CSRMatrix, not {type_name(A)}")
    if A.columns is not A.rows:
        raise LayoutError("this preconditioner needs a square matrix whose rows and columns are split alike")


class LocalSolve(LinearOperator):
    """The product of each rank's part of a vector with the inverse of a matrix. No messages.

    `factors` are functions that multiply by the inverse and by its adjoint, for vectors in the precision of `dtype`.
    """

    capturable = False

    def __init__(self, layout: AnyLayout, dtype: DTypeLike, comm: Communicator, factors: tuple[Solve, Solve]) -> None:
        super().__init__(layout, layout, dtype, comm)
        self._solves = [self._of_any_type(solve) for solve in factors]

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        solve, other = self._solves[adjoint], self._solves[not adjoint]
        if x.engine.memory != "host":
            raise UnsupportedTypeError(
                "sparse factors need arrays on the host; on devices use block_jacobi(A, 'ilu0'), chebyshev or multigrid"
            )
        local = x.local_array
        if x.engine.traced:
            return filled(out, applied_on_host(solve, other, (local.size, local.size), self.dtype, local))
        return filled(out, solve(local))

    def _of_any_type(self, solve: Solve) -> Solve:
        """Return a function that multiplies vectors of any type by real or complex factors."""

        def solved(x: LocalArray) -> np.ndarray:
            if x.dtype.kind == "c" and self.dtype.kind != "c":
                return solve(x.real.astype(self.dtype)) + 1j * solve(x.imag.astype(self.dtype))
            return solve(x.astype(self.dtype, copy=False))

        return solved


def factorised(matrix: SparseArray, kind: str = "lu", **options: Any) -> tuple[Solve, Solve]:
    """Return functions that multiply by the inverse of a sparse matrix, or an approximation, and by its adjoint.

    Raises InputError for a singular matrix, a missing package or an unknown kind.
    """
    from scipy.sparse.linalg import spilu, splu

    if not matrix.shape[0]:
        return (lambda x: x, lambda x: x)
    if kind == "amg":
        multiply = _hierarchy(matrix, options)
        return multiply, multiply
    if kind == "lu" and not options and _symmetric_pattern(matrix):
        options = _SYMMETRIC
    try:
        factors = {"lu": splu, "ilu": spilu}[kind](matrix.tocsc(), **options)
    except RuntimeError as problem:  # the only exception of SuperLU
        raise InputError(f"a block of {matrix.shape[0]} rows has no LU factors: {problem}") from problem
    if kind == "lu" and _is_singular(matrix, factors.solve):
        raise InputError(
            f"a block of {matrix.shape[0]} rows has no LU factors: to the precision of {matrix.dtype}, it is singular"
        )
    return factors.solve, lambda y: factors.solve(y, "H")


def _is_singular(matrix: SparseArray, solve: Solve) -> bool:
    """Return whether factors fail to reproduce a random solution, because their smallest pivot is a rounding error.

    Errors are compared after scaling columns to a largest entry of 1, since scales of unknowns do not matter.
    """
    dtype = np.result_type(matrix.dtype, np.float32)
    expected = np.random.default_rng(0).standard_normal(matrix.shape[0]).astype(dtype)
    largest = abs(matrix).max(axis=0).toarray().ravel()
    solution = largest * solve(matrix @ (expected / largest))
    return not np.linalg.norm(solution - expected) <= np.finfo(dtype).eps ** 0.125 * np.linalg.norm(expected)


def _symmetric_pattern(matrix: SparseArray) -> bool:
    pattern = matrix.astype(bool)
    return (pattern != pattern.T).nnz == 0


def _hierarchy(matrix: SparseArray, options: dict[str, Any]) -> Solve:
    if importlib.util.find_spec("pyamg") is None:
        raise InputError("local='amg' needs the package pyamg: install collops[amg], or choose 'lu' or 'ilu'")
    import pyamg
    from scipy import sparse

    before = np.random.get_state()  # noqa: NPY002 - PyAMG estimates norms from these numbers
    np.random.seed(0)  # noqa: NPY002
    try:
        return pyamg.smoothed_aggregation_solver(sparse.csr_matrix(matrix), **options).aspreconditioner().matvec
    finally:
        np.random.set_state(before)  # noqa: NPY002
