"""Choose the number of iterations by cross-validation, and weights by the discrepancy principle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collops.array import DistributedArray
from collops.errors import InputError
from collops.operators import Diagonal, LinearOperator
from collops.solvers.cgls import cgls
from collops.solvers.driver import View
from collops.solvers.problem import check_count
from collops.solvers.result import SolverResult


def cross_validate(
    A: LinearOperator,
    y: DistributedArray,
    held: DistributedArray,
    *,
    niter: int,
    patience: int = 5,
    method: Callable[..., SolverResult] = cgls,
    **options: Any,
) -> np.ndarray:
    r"""Solve with one part of the data, and compare the iterates with the held-out part. Collective.

    Early iterations of Krylov methods fit the components that the data determine best; later ones fit noise. Noise in
    one part of the data does not predict the other part [Stone 1974] if the two are independent. To make this true for
    coherent noise and for data that the operator cannot model, hold out entire records rather than single samples.

    Parameters
    ----------
    A : LinearOperator
        From the model to the data.
    y, held : DistributedArray
        The data, and an array like them: 1 for data that are held out, 0 for others.
    niter, patience : int
        Stop after `niter` iterations, or `patience` iterations without a smaller residual of the held-out data.
    method : callable
        A solver such as :func:`cgls`.
    **options
        Further options of the solver.

    Returns
    -------
    ndarray
        Norm of the residual of the held-out data relative to their norm, before the first iteration and after each,
        the same on every rank. The index of the minimum is the number of iterations to choose: 0 if no iterate predicts
        the held-out data better than zero, or if one of the two parts is zero.

    Raises
    ------
    InputError
        If a number is invalid.
    LayoutError
        If `y` or `held` does not have the layout of the range of `A`.

    Notes
    -----
    An iteration applies `A` twice and its adjoint once, and sends one more scalar allreduce than the solver.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.solvers import cross_validate
    >>> A = collops.VStack([np.random.default_rng(0).normal(size=(40, 10))])
    >>> held = collops.from_local((np.arange(40) % 2).astype(float), A.range)
    >>> shares = cross_validate(A, A @ collops.ones(A.domain), held, niter=10, tol=0)
    >>> bool(shares[-1] < 1e-6)
    True
    """
    check_count("niter", niter, smallest=1)
    check_count("patience", patience, smallest=1)
    used = 1.0 - held
    norm = float((held * y).norm())
    if not (norm and float((used * y).norm())):
        return np.ones(1)
    shares = [1.0]

    def watch(iteration: int, view: View) -> bool:
        shares.append(float((held * (y - A.forward(view.x))).norm()) / norm)
        return iteration - int(np.argmin(shares)) >= patience

    method(Diagonal(used) @ A, used * y, niter=niter, callback=watch, **options)
    return np.array(shares)


def discrepancy(misfit: Callable[[float], float], noise: float, largest: float, smallest: float) -> float:
    """Choose the weight of a regularisation so that the residual and the noise have equal norms [Morozov 1966].

    Halves the weight, from the largest, until the residual is at most the noise, and interpolates logarithmically
    between the last two. Collective if `misfit` is.

    Parameters
    ----------
    misfit : callable
        Returns the norm of the residual of the solution for a weight. It is called with descending weights, so that
        each solution can start from the previous one.
    noise : float
        Norm of the noise in the data.
    largest, smallest : float
        Bounds on the weight.

    Returns
    -------
    float
        The weight: `largest` if its residual is at most the noise, `smallest` if no residual is.

    Raises
    ------
    InputError
        Unless the weights are positive, in this order, and the noise is zero or positive.

    Examples
    --------
    >>> from collops.solvers import discrepancy
    >>> round(discrepancy(lambda weight: 2 * weight, 0.6, 1.0, 0.01), 6)
    0.3
    """
    if not 0 < smallest <= largest < np.inf or not noise >= 0:
        raise InputError(
            f"weights must be positive and descending and noise at least 0, not {largest}, {smallest} and {noise}"
        )
    before, weight = None, largest
    norm = misfit(weight)
    while norm > noise and weight > smallest:
        before = weight, norm
        weight = max(weight / 2, smallest)
        norm = misfit(weight)
    if before is None or not 0 < norm < noise:
        return weight
    share = np.log(noise / norm) / np.log(before[1] / norm)
    return float(weight * (before[0] / weight) ** share)
