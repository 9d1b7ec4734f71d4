"""Iterations of a solver as a preconditioner, in the precision of its operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collops.array import Array
from collops.operators.base import LinearOperator
from collops.operators.memory import filled
from collops.solvers.cg import cg
from collops.solvers.problem import check_square
from collops.solvers.result import SolverResult


def inner_solve(A: LinearOperator, solver: Callable[..., SolverResult] = cg, **options: Any) -> LinearOperator:
    """Return a preconditioner that runs some iterations of a solver with an operator. Collective.

    Parameters
    ----------
    A : LinearOperator
        With one layout on both sides. The solver's vectors have the precision of its dtype. With the operator of the
        outer solver in single precision or bfloat16 (``A.astype("float32")``), this is the inner part of iterative
        refinement [Carson and Higham 2018]: the solution still becomes accurate to double precision.
    solver : callable
        A solver such as :func:`collops.cg`.
    **options
        Options of the solver, such as ``niter``, its preconditioner ``M``, or a tolerance (``rtol=1e-3`` of
        :func:`collops.cg`). ``verify`` is false by default: the accuracy of a preconditioner does not matter.

    Returns
    -------
    LinearOperator
        It is not linear, since its iterations depend on the vector: use it with ``collops.gmres(...,
        flexible=True)``. It has no adjoint.

    Raises
    ------
    LayoutError, UnsupportedTypeError
        If `A` has two layouts, or is not an operator. Applying it raises the errors of the solver.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.preconditioners import inner_solve
    >>> diagonal = np.linspace(1.0, 3.0, 50)
    >>> A = collops.Diagonal(diagonal)
    >>> M = inner_solve(A.astype("float32"), niter=30, rtol=1e-6)
    >>> result = collops.gmres(A, collops.ones(50), M=M, flexible=True, rtol=1e-14)
    >>> result.iterations <= 3, bool(abs(result.x.gather() * diagonal - 1).max() < 1e-13)
    (True, True)
    """
    check_square("inner_solve", A)
    return InnerSolve(A, solver, {"progress": False, "verify": False, **options})


class InnerSolve(LinearOperator):
    """The solution; see :func:`inner_solve`."""

    capturable = False  # the stopping tests of the solver run on the host

    def __init__(self, A: LinearOperator, solver: Callable[..., SolverResult], options: dict[str, Any]) -> None:
        super().__init__(A.domain, A.range, A.dtype, A.comm)
        self.clinear = A.clinear
        self._solve = lambda y: solver(A, y, **options).x

    def _forward(self, x: Array, out: Array | None) -> Array:
        dtype = np.result_type(self.dtype, np.complex64) if x.dtype.kind == "c" else self.dtype
        out = self._new(self.range, x) if out is None else out
        solution = self._solve(x.astype(dtype))
        for target, part in zip(out.leaves, solution.leaves, strict=True):
            filled(target, part.local_array)
        return out
