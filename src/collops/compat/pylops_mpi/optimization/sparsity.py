"""PyLops-MPI's functions ista and fista."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collops.compat.pylops_mpi.optimization.cls_sparsity import FISTA, ISTA

__all__ = ["fista", "ista"]

_Solution = tuple[Any, int, np.ndarray]


def ista(
    Op: Any,
    y: Any,
    x0: Any,
    niter: int = 10,
    SOp: Any = None,
    eps: float = 0.1,
    alpha: float | None = None,
    eigsdict: dict[str, Any] | None = None,
    tol: float = 1e-10,
    rtol: float = 0.0,
    rtol1: float = 0.0,
    threshkind: str = "soft",
    decay: Any = None,
    monitorres: bool = False,
    show: bool = False,
    itershow: tuple[int, int, int] = (10, 10, 10),
    callback: Callable[[Any], Any] | None = None,
) -> _Solution:
    """Find a sparse model by ISTA; see :func:`collops.solvers.ista` for the options. Collective.

    Returns
    -------
    x : DistributedArray or StackedDistributedArray
        The model.
    niter : int
        Number of iterations.
    cost : numpy.ndarray
        Cost of each.

    Raises
    ------
    NotImplementedError
        If there is no such `threshkind`.
    ValueError
        If `monitorres`, and the residual increases.

    Examples
    --------
    >>> import pylops
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> A = pylops_mpi.MPIBlockDiag([pylops.Identity(2)])
    >>> data = pylops_mpi.DistributedArray(global_shape=A.shape[0])
    >>> data[:] = 2.0
    >>> pylops_mpi.ista(A, data, data.zeros_like(), niter=20, eps=1.0, alpha=1.0)[0].local_array
    array([1.5, 1.5])
    """
    solver = _prepared(ISTA(Op), rtol, rtol1, callback)
    return solver.solve(
        y, x0, niter, SOp, eps, alpha, eigsdict, tol, threshkind, decay, monitorres, show=show, itershow=itershow
    )


def fista(
    Op: Any,
    y: Any,
    x0: Any,
    niter: int = 10,
    SOp: Any = None,
    eps: float = 0.1,
    alpha: float | None = None,
    eigsdict: dict[str, Any] | None = None,
    tol: float = 1e-10,
    rtol: float = 0.0,
    rtol1: float = 0.0,
    threshkind: str = "soft",
    decay: Any = None,
    monitorres: bool = False,
    show: bool = False,
    itershow: tuple[int, int, int] = (10, 10, 10),
    callback: Callable[[Any], Any] | None = None,
) -> _Solution:
    """Find a sparse model by FISTA; arguments and results as for :func:`ista`. Collective.

    Examples
    --------
    >>> import pylops
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> A = pylops_mpi.MPIBlockDiag([pylops.Identity(2)])
    >>> data = pylops_mpi.DistributedArray(global_shape=A.shape[0])
    >>> data[:] = 2.0
    >>> pylops_mpi.fista(A, data, data.zeros_like(), niter=20, eps=1.0, alpha=1.0)[0].local_array
    array([1.5, 1.5])
    """
    solver = _prepared(FISTA(Op), rtol, rtol1, callback)
    return solver.solve(
        y, x0, niter, SOp, eps, alpha, eigsdict, tol, threshkind, decay, monitorres, show=show, itershow=itershow
    )


def _prepared(solver: ISTA, rtol: float, rtol1: float, callback: Callable[[Any], Any] | None) -> ISTA:
    solver.rtol, solver.rtol1 = rtol, rtol1
    if callback is not None:
        solver.callback = callback
    return solver
