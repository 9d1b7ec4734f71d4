"""Preconditioners without messages: the inverse of the diagonal, and of each rank's diagonal block."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.array import DistributedArray
from collops.backend import LocalArray, any_true, engine_of, is_traced
from collops.comm import Communicator
from collops.comm.agreement import collective_errors
from collops.errors import InputError, UnsupportedTypeError, type_name
from collops.operators import CSRMatrix, Diagonal
from collops.operators.base import LinearOperator
from collops.operators.dims import communicator_of
from collops.preconditioners.local import LocalSolve, check_matrix, factorised
from collops.preconditioners.sparse_inverses import dense_blocks, incomplete_factors

_OF_ALL_ENGINES = {"ilu0": incomplete_factors, "dense": dense_blocks}


def jacobi(
    A: LinearOperator | DistributedArray | LocalArray, *, l1: bool = False, comm: Communicator | None = None
) -> LinearOperator:
    r"""Return the inverse of the diagonal of an operator. Collective.

    Parameters
    ----------
    A : CSRMatrix or array
        The operator, which has a method ``diagonal``; or the diagonal itself, as for :class:`collops.Diagonal`.
    l1 : bool
        Whether to invert the sums of the moduli of each row, :math:`\sum_j |a_{ij}|`, in place of the diagonal, of a
        :class:`collops.CSRMatrix` [Baker et al. 2011].
    comm : Communicator, optional
        The ranks, if `A` is a plain array; the world by default.

    Returns
    -------
    LinearOperator
        Works on every engine. Applying it sends no messages.

    Raises
    ------
    InputError
        On every rank, if an element of the diagonal, or a sum, is 0 or not finite.
    UnsupportedTypeError
        If `A` is an operator without a method ``diagonal``: pass the diagonal itself. With `l1`, if it is not a
        CSRMatrix.
    LayoutError
        With `l1`, if rows and columns are split differently.

    Notes
    -----
    With `l1`, the iteration :math:`x \leftarrow x + M (y - A x)` converges for every Hermitian positive definite matrix
    without an estimate of its eigenvalues, and so does a smoother made of a few such steps. As a preconditioner of a
    Krylov method the diagonal itself is the better choice.

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
    if l1:
        check_matrix(A)
        sums = sum(np.asarray(abs(block).sum(axis=1)) for block in diagonal.blocks)
        diagonal = DistributedArray(diagonal.rows, diagonal.comm, sums)
    elif isinstance(A, LinearOperator):
        if not callable(getattr(A, "diagonal", None)):
            raise UnsupportedTypeError(f"{type_name(A)} has no method diagonal(): pass the diagonal as an array")
        diagonal = A.diagonal()  # pyright: ignore[reportAttributeAccessIssue]
    comm = communicator_of(diagonal, comm)
    with collective_errors(comm):
        values = diagonal.local_array if isinstance(diagonal, DistributedArray) else np.asarray(diagonal)
        xp = engine_of(values).xp
        if not is_traced(values) and any_true(~xp.isfinite(values) | (values == 0)):
            raise InputError("jacobi needs a diagonal without elements that are 0 or not finite")
    return Diagonal(1 / diagonal, comm=comm)


def block_jacobi(A: CSRMatrix, local: str = "lu", **options: Any) -> LinearOperator:
    """Return the inverse, or an approximation, of each rank's diagonal block of a sparse matrix. Collective.

    Parameters
    ----------
    A : CSRMatrix
        Rows and columns split alike.
    local : {"lu", "ilu", "amg", "ilu0", "dense"}
        ``"lu"``: sparse LU factors by SuperLU [Li 2005]. ``"ilu"``: incomplete LU factors, with thresholds and pivots.
        ``"amg"``: one cycle of PyAMG's smoothed aggregation, for Hermitian positive definite blocks (``pip install
        collops[amg]``). ``"ilu0"``: incomplete factors without fill-in, whose triangular systems are solved by Jacobi
        iterations. ``"dense"``: the inverses of smaller blocks, of consecutive rows.
    **options
        Options of ``scipy.sparse.linalg.splu``, ``spilu`` or ``pyamg.smoothed_aggregation_solver``; ``sweeps``, the
        number of Jacobi iterations for each factor of ``"ilu0"``, 3 by default; or ``block_size``, the number of rows
        of a block of ``"dense"``, 8 by default.

    Returns
    -------
    LinearOperator
        Applying it sends no messages. ``"ilu0"`` and ``"dense"`` work on every engine; CUDA graphs can record them, and
        compiled loops of JAX contain them. The others work on arrays on the host; JAX calls the host.

    Raises
    ------
    InputError
        On every rank, if a block is singular, incomplete factors do not exist, a kind is unknown or PyAMG is missing.
    LayoutError
        If rows and columns are split differently.
    UnsupportedTypeError
        If `A` is not a CSRMatrix.

    Notes
    -----
    With all kinds but ``"ilu"`` it is Hermitian positive definite if `A` is, as :func:`collops.cg` requires. Incomplete
    LU factors with pivots are not Hermitian even then: use them with methods for unsymmetric systems.

    ``"ilu0"`` computes its factors by the fixed-point iteration of [Chow and Patel 2015], with a ``RuntimeWarning`` on
    every rank if it does not converge, as in long one-dimensional chains. It replaces the inverses of the factors by
    truncated Neumann series [Anzt et al. 2015]: one product with the strict triangle for each sweep. Three sweeps are
    nearly as good as exact solutions for diagonally dominant matrices. M-matrices always have such factors; other
    positive definite matrices may not.

    With more ranks, blocks become smaller and more iterations are needed; :func:`two_level` and :func:`multigrid` avoid
    this. The usual blocks of ``"dense"`` are the unknowns of a point, in consecutive rows of one rank.

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
    if local in _OF_ALL_ENGINES:
        return _OF_ALL_ENGINES[local](A, **options)
    dtype = np.result_type(A.dtype, np.float64)
    with collective_errors(A.comm):
        if local not in ("lu", "ilu", "amg"):
            raise InputError(f"local must be 'lu', 'ilu', 'amg', 'ilu0' or 'dense', not {local!r}")
        factors = factorised(A.blocks[0].astype(dtype), local, **options)
    return LocalSolve(A.rows, dtype, A.comm, factors)
