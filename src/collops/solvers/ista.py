"""ISTA: iterative shrinkage and thresholding, for sparse models."""

from __future__ import annotations

from typing import Any, Unpack

from collops.operators import LinearOperator
from collops.solvers.iterative_thresholding import minimise
from collops.solvers.result import SolverResult
from collops.solvers.run import Run

__all__ = ["ista"]


def ista(
    A: LinearOperator,
    y: Any,
    x0: Any = None,
    *,
    niter: int = 10,
    SOp: LinearOperator | None = None,
    eps: float = 0.1,
    alpha: float | None = None,
    eigsdict: dict[str, Any] | None = None,
    tol: float = 1e-10,
    rtol: float = 0.0,
    rtol1: float = 0.0,
    threshkind: str = "soft",
    perc: float | None = None,
    decay: Any = None,
    monitorres: bool = False,
    **run: Unpack[Run],
) -> SolverResult:
    r"""Minimise :math:`\|y - A x\|_2^2 + \epsilon \|x\|_p^p` with p = 1, 1/2 or 0 by ISTA. Collective.

    Parameters
    ----------
    A : LinearOperator
        Any shape.
    y : DistributedArray or StackedArray
        The data, in the range of `A`. Its precision is that of the computation.
    x0 : DistributedArray or StackedArray, optional
        Where to start; zero by default.
    niter : int
        Largest number of iterations.
    SOp : LinearOperator, optional
        A transform :math:`S` that leads to models from coefficients: then :math:`S^H x` is to be sparse.
    eps : float
        The weight :math:`\epsilon` of the penalty.
    alpha : float, optional
        Step size, at most the inverse of the largest eigenvalue of :math:`A^H A`; by default that inverse, the
        eigenvalue estimated by :func:`collops.solvers.power_iteration`.
    eigsdict : dict, optional
        Arguments for that function.
    tol : float
        Stop when the norm of the update is at most this.
    rtol : float
        Stop when the cost is below this multiple of the cost of the first iteration; 0 for never.
    rtol1 : float
        Stop when the cost is below this multiple of the norm of the data; 0 for never.
    threshkind : str
        ``"soft"`` (p = 1), ``"half"`` (p = 1/2) or ``"hard"`` (p = 0); or ``"soft-percentile"``,
        ``"half-percentile"`` or ``"hard-percentile"``, which keep a share of the values instead of those above a size.
    perc : float, optional
        With a percentile: how many percent of the values are kept. `eps` and `decay` then do not matter.
    decay : array_like, optional
        A factor of the threshold for each iteration.
    monitorres : bool
        Whether to stop when the residual increases, with the status ``RESIDUAL_INCREASED``.
    **run
        How it is run, as for :func:`collops.solvers.cgls`.

    Returns
    -------
    SolverResult
        In its details: ``cost`` (an array, one element for each iteration: half the squared norm of the residual before
        the step plus :math:`\epsilon` times the sum of absolute values after it, as in PyLops), ``updates`` (norms of
        the updates) and ``alpha``.

    Raises
    ------
    LayoutError
        If `y`, `x0` or `SOp` has not the layout that `A` asks for.
    InputError
        If an option makes no sense.
    UnsupportedTypeError
        If an argument is no operator or distributed array.

    Notes
    -----
    .. math:: x_{k+1} = S\, T\big(S^H (x_k + \alpha A^H (y - A x_k))\big)

    where :math:`T` shrinks each value by the threshold :math:`\epsilon \alpha / 2`.

    Besides the messages of `A` and `SOp`, an iteration sends one allreduce of three numbers; with a percentile, four
    more in single precision and seven in double precision, of 2048 counts.

    The iterates are those of ``pylops.optimization.sparsity.ista``, as far as `alpha` is the same: PyLops estimates it
    from random numbers.

    References
    ----------
    .. [1] Daubechies, I., Defrise, M., De Mol, C., "An iterative thresholding algorithm for linear inverse problems
       with a sparsity constraint", Communications on Pure and Applied Mathematics 57, 1413-1457, 2004.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.Diagonal(np.array([1.0, 1.0, 1.0]))
    >>> data = collops.from_global(np.array([3.0, 0.2, -2.0]))
    >>> collops.ista(A, data, niter=20, eps=1.0).x.gather()
    array([ 2.5,  0. , -1.5])
    """
    return minimise(accelerated=False, **locals())
