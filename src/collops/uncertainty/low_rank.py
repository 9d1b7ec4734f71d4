"""Singular values and eigenvalues of operators from random samples of their range [Halko, Martinsson, Tropp 2011]."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from collops.array import Array, random
from collops.backend import LocalArray
from collops.errors import InputError
from collops.operators import Columns, LinearOperator
from collops.solvers.blocks import basis, combine, grams
from collops.solvers.problem import check_count, check_operator, check_square


class SingularTriplets(NamedTuple):
    """The largest singular values of an operator and the singular vectors; see :func:`randomized_svd`."""

    U: Array
    values: LocalArray
    V: Array


class Eigenpairs(NamedTuple):
    """The eigenvalues of largest modulus and the eigenvectors; see :func:`randomized_eigh`."""

    values: LocalArray
    vectors: Array


def randomized_svd(
    A: LinearOperator,
    rank: int,
    *,
    oversample: int = 10,
    power: int = 1,
    seed: int = 0,
    dtype: DTypeLike = "float64",
    engine: str | None = None,
) -> SingularTriplets:
    """Compute the largest singular values of an operator, and the singular vectors. Collective.

    Parameters
    ----------
    A : LinearOperator
        Any shape.
    rank : int
        Number of singular values, at most the smaller extent of `A`.
    oversample : int
        Number of additional random vectors. The error is a modest factor times the error of the best approximation.
    power : int
        Power steps; each applies the adjoint and `A` to all vectors. They reduce this factor to about 1 if singular
        values decay slowly, but lose singular values below about 1e-16 to the power of 1 / (2 power + 1), relative to
        the largest.
    seed : int
        Seed of the random vectors, which do not depend on the number of ranks.
    dtype : dtype
        Element type of the vectors; complex if the operator is complex.
    engine : str, optional
        Engine of the vectors.

    Returns
    -------
    named tuple
        ``U``, ``values`` and ``V``, where `A` is about ``U diag(values) V^H``: blocks of orthonormal vectors in its
        range and in its domain (see :class:`collops.operators.Columns`), and an array of the engine in descending
        order, on every rank. The error is bounded in [Halko et al. 2011, corollary 10.10].

    Raises
    ------
    InputError
        If a number is invalid.

    Notes
    -----
    With k = rank + oversample it applies `A` and its adjoint (power + 1) k times each, and sends one allreduce of k^2
    numbers for each power step and six more, besides the messages of `A`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.uncertainty import randomized_svd
    >>> found = randomized_svd(collops.Diagonal(np.array([1.0, 8.0, 4.0])), 2)
    >>> found.values.round(6), found.U.shape
    (array([8., 4.]), (2, 3))
    """
    columns, Y = _sampled_range(A, rank, oversample, seed, dtype, engine)
    for _ in range(check_count("power", power)):
        Y = columns._forward(columns._adjoint(basis(Y, passes=1)[0], None), None)
    Q, _ = basis(Y)
    W, S = basis(columns._adjoint(Q, None))
    # A is about Q Q^H A = Q (W S)^H.
    U, values, Vh = Y.engine.xp.linalg.svd(S)
    return SingularTriplets(combine(Q, Vh.conj().T[:, :rank]), values[:rank], combine(W, U[:, :rank]))


def randomized_eigh(
    A: LinearOperator,
    rank: int,
    *,
    oversample: int = 10,
    power: int = 1,
    seed: int = 0,
    dtype: DTypeLike = "float64",
    engine: str | None = None,
) -> Eigenpairs:
    """Compute the eigenvalues of largest modulus of a Hermitian operator, and the eigenvectors. Collective.

    Parameters
    ----------
    A : LinearOperator
        Hermitian (not checked), definite or not, with one layout on both sides.
    rank, oversample, seed, dtype, engine
        As for :func:`randomized_svd`.
    power : int
        Power steps; each applies `A` to all vectors.

    Returns
    -------
    named tuple
        ``values``, a real array of the engine on every rank, by descending modulus, and ``vectors``, a block of
        orthonormal vectors. The values lie between the smallest and the largest eigenvalue of `A`.

    Raises
    ------
    LayoutError, InputError
        If `A` has two layouts, or a number is invalid.

    Notes
    -----
    With k = rank + oversample it applies `A` (power + 2) k times, and sends one allreduce of k^2 numbers for each power
    step and four more, besides the messages of `A`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.uncertainty import randomized_eigh
    >>> randomized_eigh(collops.Diagonal(np.array([1.0, -8.0, 4.0])), 2).values.round(6)
    array([-8.,  4.])
    """
    check_square("randomized_eigh", A)
    columns, Y = _sampled_range(A, rank, oversample, seed, dtype, engine)
    for _ in range(check_count("power", power)):
        Y = columns._forward(basis(Y, passes=1)[0], None)
    Q, _ = basis(Y)
    (T,) = grams((Q, columns._forward(Q, None)))
    xp = Y.engine.xp
    values, vectors = xp.linalg.eigh((T + T.conj().T) / 2)
    order = xp.argsort(-xp.abs(values))[:rank]
    return Eigenpairs(values[order], combine(Q, vectors[:, order]))


def _sampled_range(
    A: LinearOperator, rank: int, oversample: int, seed: int, dtype: DTypeLike, engine: str | None
) -> tuple[Columns, Array]:
    """Return the operator for blocks, and the image of a block of random columns."""
    check_operator("A", A)
    smaller = min(A.shape)
    if check_count("rank", rank, smallest=1) > smaller:
        raise InputError(f"rank must be at most {smaller}, the smaller extent of the operator, not {rank}")
    columns = Columns(A, min(rank + check_count("oversample", oversample), smaller))
    if A.dtype.kind == "c":
        dtype = np.result_type(dtype, np.complex64)
    block = random(columns.domain, seed=seed, comm=A.comm, dtype=dtype, engine=engine)
    return columns, columns._forward(block, None)
