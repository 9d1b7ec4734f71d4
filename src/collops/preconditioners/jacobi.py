"""Preconditioners without messages: the inverse of the diagonal, and of each rank's diagonal block."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.array import DistributedArray
from collops.backend import LocalArray, engine_of, is_traced
from collops.comm import Communicator
from collops.comm.agreement import collective_errors
from collops.errors import InputError, UnsupportedTypeError, type_name
from collops.operators import CSRMatrix, Diagonal
from collops.operators.base import LinearOperator
from collops.operators.dims import communicator_of
from collops.preconditioners.local import LocalSolve, check_matrix, factorised


def jacobi(A: LinearOperator | DistributedArray | LocalArray, *, comm: Communicator | None = None) -> LinearOperator:
    """Return the inverse of the diagonal of an operator. Collective.

    Parameters
    ----------
    A : CSRMatrix or array
        The operator, which has a method ``diagonal``; or the diagonal itself, as for :class:`collops.Diagonal`.
    comm : Communicator, optional
        The ranks, if `A` is a plain array; the world by default.

    Returns
    -------
    LinearOperator
        Works on every engine. Applying it sends no messages.

    Raises
    ------
    InputError
        On every rank, if an element of the diagonal is 0 or not finite.
    UnsupportedTypeError
        If `A` is an operator without a method ``diagonal``: pass the diagonal itself.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> import collops
    >>> from collops.preconditioners import jacobi
    >>> A = collops.CSRMatrix.from_global(sp.diags_array([2.0, 4.0]).tocsr())
    >>> (jacobi(A) @ collops.ones(2)).gather()
    array([0.5 , 0.25])
    """
    diagonal: Any = A
    if isinstance(A, LinearOperator):
        if not callable(getattr(A, "diagonal", None)):
            raise UnsupportedTypeError(f"{type_name(A)} has no method diagonal(): pass the diagonal as an array")
        diagonal = A.diagonal()  # pyright: ignore[reportAttributeAccessIssue]
    comm = communicator_of(diagonal, comm)
    with collective_errors(comm):
        values = diagonal.local_array if isinstance(diagonal, DistributedArray) else np.asarray(diagonal)
        xp = engine_of(values).xp
        if not is_traced(values) and not bool(xp.all(xp.isfinite(values) & (values != 0))):
            raise InputError("jacobi needs a diagonal without elements that are 0 or not finite")
    return Diagonal(1 / diagonal, comm=comm)


def block_jacobi(A: CSRMatrix, local: str = "lu", **options: Any) -> LinearOperator:
    """Return the inverse of each rank's diagonal block of a sparse matrix. Collective.

    Parameters
    ----------
    A : CSRMatrix
        Rows and columns split alike.
    local : {"lu", "ilu", "amg"}
        Sparse LU factors by SuperLU [Li 2005]; incomplete LU factors, with thresholds and pivots; or one cycle of
        PyAMG's smoothed aggregation, for Hermitian positive definite blocks (``pip install collops[amg]``).
    **options
        Options of ``scipy.sparse.linalg.splu``, ``spilu`` or ``pyamg.smoothed_aggregation_solver``.

    Returns
    -------
    LinearOperator
        Works on arrays on the host; JAX calls the host. Applying it sends no messages.

    Raises
    ------
    InputError
        On every rank, if a block is singular, a kind is unknown or PyAMG is missing.
    LayoutError
        If rows and columns are split differently.
    UnsupportedTypeError
        If `A` is not a CSRMatrix.

    Notes
    -----
    With ``"lu"`` and ``"amg"`` it is Hermitian positive definite if `A` is, as :func:`collops.cg` requires. Incomplete
    LU factors with pivots are not Hermitian even then: use them with methods for unsymmetric systems.

    With more ranks, blocks become smaller and more iterations are needed; :func:`two_level` avoids this.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> import collops
    >>> from collops.preconditioners import block_jacobi
    >>> A = collops.CSRMatrix.from_global(sp.diags_array([2.0, 4.0]).tocsr())
    >>> (block_jacobi(A) @ collops.ones(2)).gather()
    array([0.5 , 0.25])
    """
    check_matrix(A)
    dtype = np.result_type(A.dtype, np.float64)
    with collective_errors(A.comm):
        if local not in ("lu", "ilu", "amg"):
            raise InputError(f"local must be 'lu', 'ilu' or 'amg', not {local!r}")
        factors = factorised(A.blocks[0].astype(dtype), local, **options)
    return LocalSolve(A.rows, dtype, A.comm, factors)
