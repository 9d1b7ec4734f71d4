"""Diagonals of matrix-free operators, from products with random signs."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import DTypeLike

from collops.array import Array, random, where
from collops.array.random_numbers import child_seed
from collops.operators import Columns, LinearOperator
from collops.solvers.problem import check_count, check_square


class Estimate(NamedTuple):
    """A random estimate, element by element."""

    value: Array
    error: Array  # the standard error of the value: about two thirds of the elements are within it


def probe_diagonal(
    A: LinearOperator, probes: int = 32, *, seed: int = 0, dtype: DTypeLike = "float64", engine: str | None = None
) -> Estimate:
    r"""Estimate the diagonal of an operator from its products with random signs [Bekas et al. 2007]. Collective.

    Parameters
    ----------
    A : LinearOperator
        With one layout on both sides, such as ``op.H @ op``; its diagonal can be passed to :func:`jacobi
        <collops.preconditioners.jacobi>`.
    probes : int
        Number of products, at least 2.
    seed : int
        Seed of the signs, which do not depend on the number of ranks.
    dtype : dtype
        Element type of the vectors.
    engine : str, optional
        Engine of the vectors.

    Returns
    -------
    named tuple
        ``value``, and ``error``, its standard error: about two thirds of the elements are within it. The estimate is
        unbiased. For real Hermitian operators and k probes, the variance of element i is
        :math:`\sum_{j \neq i} |A_{ij}|^2 / k`: zero for a diagonal operator, and large for rows with many off-diagonal
        elements.

    Raises
    ------
    LayoutError, InputError
        If `A` has two layouts, or `probes` is less than 2.

    Notes
    -----
    It sends the messages of `A`, and takes memory for three vectors.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.uncertainty import probe_diagonal
    >>> probe_diagonal(collops.Diagonal(np.array([1.0, 8.0, 4.0])), 2).value.gather()
    array([1., 8., 4.])
    """
    check_square("probe_diagonal", A)
    total = squares = 0.0
    count = check_count("probes", probes, smallest=2)
    for number in range(count):
        signs = random_signs(A, seed, number, dtype, engine)
        product = signs * A._forward(signs, None)
        total, squares = total + product, squares + abs(product) ** 2
    return estimate_of(total / count, squares / count, count)


def random_signs(A: LinearOperator, seed: int, number: int, dtype: DTypeLike, engine: str | None) -> Array:
    """Return an array of 1 and -1 in the domain of `A`; one for each number."""
    uniform = random(A.domain, kind="uniform", seed=child_seed(seed, number), comm=A.comm, engine=engine)
    return where(uniform < 0.5, -1.0, 1.0).astype(dtype)


def estimate_of(mean: Any, mean_square: Any, count: int) -> Estimate:
    """Return the mean of `count` numbers with its standard error, from the mean of their squared moduli."""
    variance = mean_square - abs(mean) ** 2
    return Estimate(mean, (where(variance > 0, variance, 0.0) / (count - 1)) ** 0.5)


def mean_of_columns(block: Array) -> Any:
    """Return the mean of the columns of a block. No messages."""
    columns = Columns.split(block)
    return sum(columns[1:], start=columns[0]) / len(columns)
