"""Choose from the data how far to trust them: iterations by cross-validation, weights by the discrepancy principle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from collops.array import DistributedArray
from collops.errors import InputError
from collops.operators import Diagonal, LinearOperator
from collops.solvers.cgls import cgls
from collops.solvers.driver import View
from collops.solvers.problem import check_count
from collops.solvers.result import SolverResult

__all__ = ["CrossValidation", "Discrepancy", "cross_validate", "discrepancy"]


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """The outcome of :func:`cross_validate`.

    Attributes
    ----------
    iterations : int
        The number of iterations with the smallest residual of the held-out data; 0 if no iterate predicts them better
        than zeros do.
    shares : ndarray
        Norm of the residual of the held-out data over their own norm, before the first iteration and after each.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.solvers import CrossValidation
    >>> CrossValidation(1, np.array([1.0, 0.4, 0.5])).shares.min()
    np.float64(0.4)
    """

    iterations: int
    shares: np.ndarray


def cross_validate(
    A: LinearOperator,
    y: DistributedArray,
    held: DistributedArray,
    *,
    niter: int,
    patience: int = 5,
    method: Callable[..., SolverResult] = cgls,
    **options: Any,
) -> CrossValidation:
    r"""Choose a number of iterations: solve with one part of the data, and predict the other. Collective.

    The first iterations of Krylov methods find the part of the solution that the data determine best; later ones fit
    noise. What they fit of it in one part of the data does not predict the other part [Stone 1974], if the noise of the
    two is independent. Coherent noise, and data that the operator cannot model, are no exception, as they are for
    generalised cross-validation or the discrepancy principle: hold out whole records, not single samples.

    Parameters
    ----------
    A : LinearOperator
        From the model to the data.
    y, held : DistributedArray
        The data, and an array like them: 1 for data that are held out, 0 for others.
    niter : int
        Largest number of iterations.
    patience : int
        Stop after this many iterations without a smaller residual of the held-out data.
    method : callable
        A solver such as :func:`cgls`.
    **options
        Further options of the solver.

    Returns
    -------
    CrossValidation
        The choice, the same on every rank.

    Raises
    ------
    InputError
        If the data that are held out, or the others, are all zero, or if a number is invalid.
    LayoutError
        If `y` or `held` does not have the layout of the range of `A`.

    Notes
    -----
    An iteration applies `A` twice and its adjoint once.

    .. math:: k = \arg\min_k \|H (y - A x_k)\|, \qquad x_k \approx \arg\min_x \|(I - H) (y - A x)\|

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.solvers import cross_validate
    >>> matrix = np.random.default_rng(0).normal(size=(40, 10))
    >>> A = collops.VStack([matrix])
    >>> y = A @ collops.ones(A.domain)
    >>> held = collops.from_local((np.arange(40) % 2).astype(float), A.range)
    >>> bool(cross_validate(A, y, held, niter=10, tol=0).shares[-1] < 1e-6)
    True
    """
    check_count("niter", niter, smallest=1)
    check_count("patience", patience, smallest=1)
    used = 1.0 - held
    whole = float((held * y).norm())
    if not (whole and float((used * y).norm())):
        raise InputError("one of the two parts of the data is zero: hold out other data")
    shares = [1.0]

    def watch(iteration: int, view: View) -> bool:
        shares.append(float((held * (y - A.forward(view.x))).norm()) / whole)
        return iteration - int(np.argmin(shares)) >= patience

    method(Diagonal(used) @ A, used * y, niter=niter, callback=watch, **options)
    return CrossValidation(int(np.argmin(shares)), np.array(shares))


@dataclass(frozen=True, eq=False)
class Discrepancy:
    """The outcome of :func:`discrepancy`.

    Attributes
    ----------
    weight : float
        The chosen weight.
    weights, misfits : ndarray
        The weights that were tried, from the largest, and the norms of their residuals.
    reached : bool
        Whether the smallest of these norms is at most that of the noise.

    Examples
    --------
    >>> from collops.solvers import discrepancy
    >>> discrepancy(lambda weight: weight, 0.3, 1.0, 0.01).reached
    True
    """

    weight: float
    weights: np.ndarray
    misfits: np.ndarray
    reached: bool


def discrepancy(misfit: Callable[[float], float], noise: float, largest: float, smallest: float) -> Discrepancy:
    """Choose the weight of a regularisation so that the norm of the residual is that of the noise [Morozov 1966].

    Halves the weight, from the largest, until the residual is at most the noise, and interpolates logarithmically
    between the last two. Collective if `misfit` is.

    Parameters
    ----------
    misfit : callable
        Returns the norm of the residual of the solution for a weight. Called in descending order of weights: begin each
        solution with the last.
    noise : float
        Norm of the noise in the data.
    largest, smallest : float
        Between these the weight is chosen.

    Returns
    -------
    Discrepancy
        The choice. The weight is `largest` if its residual is at most the noise, `smallest` if no residual is.

    Raises
    ------
    InputError
        Unless the weights are positive, in this order, and the noise is zero or positive.

    Examples
    --------
    >>> from collops.solvers import discrepancy
    >>> round(discrepancy(lambda weight: 2 * weight, 0.6, 1.0, 0.01).weight, 6)
    0.3
    """
    if not 0 < smallest <= largest < np.inf or not noise >= 0:
        raise InputError(
            f"the weights must be positive and the noise not negative, not {largest}, {smallest} and {noise}"
        )
    weights, misfits = [float(largest)], [misfit(float(largest))]
    while misfits[-1] > noise and weights[-1] > smallest:
        weights.append(max(weights[-1] / 2, smallest))
        misfits.append(misfit(weights[-1]))
    reached = misfits[-1] <= noise
    chosen = weights[-1]
    if reached and len(weights) > 1 and 0 < misfits[-1] < noise:
        share = np.log(noise / misfits[-1]) / np.log(misfits[-2] / misfits[-1])
        chosen = float(weights[-1] * (weights[-2] / weights[-1]) ** share)
    return Discrepancy(chosen, np.array(weights), np.array(misfits), reached)
