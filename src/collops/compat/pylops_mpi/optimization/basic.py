"""PyLops-MPI's functions cg and cgls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collops.compat.pylops_mpi.optimization.cls_basic import CG, CGLS

__all__ = ["cg", "cgls"]


def cg(
    Op: Any,
    y: Any,
    x0: Any,
    niter: int = 10,
    tol: float = 1e-4,
    show: bool = False,
    itershow: tuple[int, int, int] = (10, 10, 10),
    callback: Callable[[Any], Any] | None = None,
) -> tuple[Any, int, np.ndarray]:
    """Solve by conjugate gradients; see :func:`collops.cg`. Collective.

    Returns
    -------
    x : DistributedArray or StackedDistributedArray
        The solution.
    iit : int
        Number of iterations.
    cost : numpy.ndarray
        Norms of the residual.

    Examples
    --------
    >>> import numpy as np
    >>> import pylops
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> A = pylops_mpi.MPIBlockDiag([pylops.Diagonal(np.array([1.0, 2.0]))])
    >>> data = pylops_mpi.DistributedArray(global_shape=A.shape[0])
    >>> data[:] = 2.0
    >>> pylops_mpi.cg(A, data, data.zeros_like(), niter=5)[0].local_array
    array([2., 1.])
    """
    solver = CG(Op)
    if callback is not None:
        solver.callback = callback
    return solver.solve(y, x0, niter, tol, show, itershow)


def cgls(
    Op: Any,
    y: Any,
    x0: Any,
    niter: int = 10,
    damp: float = 0.0,
    tol: float = 1e-4,
    show: bool = False,
    itershow: tuple[int, int, int] = (10, 10, 10),
    callback: Callable[[Any], Any] | None = None,
) -> tuple[Any, int, int, float, float, np.ndarray]:
    """Minimise by conjugate gradients for least squares; see :func:`collops.cgls`. Collective.

    Returns
    -------
    x : DistributedArray or StackedDistributedArray
        The model.
    istop : int
        1 if the gradient is small enough, else 2.
    iit : int
        Number of iterations.
    r1norm : float
        As in PyLops, the squared norm of the gradient.
    r2norm : float
        Norm of the residual, damping included.
    cost : numpy.ndarray
        Norms of the residual.

    Examples
    --------
    >>> import numpy as np
    >>> import pylops
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> A = pylops_mpi.MPIBlockDiag([pylops.Diagonal(np.array([1.0, 2.0]))])
    >>> data = pylops_mpi.DistributedArray(global_shape=A.shape[0])
    >>> data[:] = 2.0
    >>> pylops_mpi.cgls(A, data, data.zeros_like(), niter=5)[0].local_array.round(6)
    array([2., 1.])
    """
    solver = CGLS(Op)
    if callback is not None:
        solver.callback = callback
    return solver.solve(y, x0, niter, damp, tol, show, itershow)
