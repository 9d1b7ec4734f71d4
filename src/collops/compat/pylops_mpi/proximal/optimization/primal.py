"""PyLops-MPI's proximal gradient method and ADMM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collops.compat.pylops_mpi._native import between, brought
from collops.compat.pylops_mpi._operator import native_of
from collops.compat.pylops_mpi._stacked_array import checked_array, wrapped
from collops.compat.pylops_mpi.optimization._solver import told
from collops.compat.pylops_mpi.proximal.ProxOperator import native_prox
from collops.errors import InputError
from collops.solvers import proximal

__all__ = ["ADMML2", "ProximalGradient"]


def ProximalGradient(
    proxf: Any,
    proxg: Any,
    x0: Any,
    epsg: Any = 1.0,
    tau: float | None = None,
    eta: float = 1.0,
    niter: int = 10,
    niterback: int = 100,
    acceleration: str | None = None,
    tol: float | None = None,
    callback: Callable[[Any], Any] | None = None,
    show: bool = False,
) -> Any:
    """Minimise f + epsg * g by proximal gradient steps; see :func:`collops.solvers.proximal.proximal_gradient`.

    Collective.

    Parameters
    ----------
    proxf, proxg : MPIProxOperator
        The functions; the first has a gradient.
    x0 : DistributedArray
        Where to start.
    epsg, tau, eta, niter, niterback, acceleration, tol
        See there; without `tau` the step size is searched for.
    callback : callable, optional
        Gets the model after each iteration.
    show : bool
        Whether to show a progress bar, where standard error is a terminal.

    Returns
    -------
    DistributedArray
        The model.
    """
    layout, start = getattr(proxf, "layout", None), checked_array(x0).native
    result = proximal.proximal_gradient(
        native_prox(proxf, x0),
        native_prox(proxg, x0),
        start if layout is None else brought(start, layout),
        epsg=epsg,
        tau=tau,
        eta=eta,
        niter=niter,
        niterback=niterback,
        acceleration=acceleration,
        tol=tol,
        callback=told(callback, x0),
        progress=None if show else False,
    )
    return wrapped(brought(result.x, x0.native.layout), x0)


def ADMML2(
    proxg: Any,
    Op: Any,
    b: Any,
    A: Any,
    x0: Any,
    tau: float,
    niter: int = 10,
    z0: Any = None,
    gfirst: bool = False,
    callback: Callable[[Any], Any] | None = None,
    show: bool = False,
    kwargs_solver: dict[str, Any] | None = None,
) -> tuple[Any, Any]:
    """Minimise 1/2 |Op x - b|^2 + g(A x) by ADMM; see :func:`collops.solvers.proximal.admm_l2`. Collective.

    Parameters
    ----------
    proxg : MPIProxOperator
        The penalty.
    Op, A : MPILinearOperator or MPIStackedLinearOperator
        Of the misfit and of the penalty.
    b, x0 : DistributedArray
        The data, and where to start.
    tau : float
        Step size.
    niter : int
        Largest number of iterations.
    z0 : DistributedArray or StackedDistributedArray, optional
        Where the second variable starts; at ``A @ x0`` by default.
    gfirst : bool
        Whether the proximal point of g comes first.
    callback : callable, optional
        Gets the model after each iteration.
    show : bool
        Whether to show a progress bar, where standard error is a terminal.
    kwargs_solver : dict, optional
        ``niter``, iterations of CGLS in each one.

    Returns
    -------
    x, z : DistributedArray or StackedDistributedArray
        Both variables.

    Raises
    ------
    ValueError
        If there is no `x0`.
    """
    if x0 is None:
        raise InputError("ADMML2 needs x0")
    image = A @ x0 if z0 is None else z0
    misfit, penalty = native_of(Op, x0, b), native_of(A, x0, image)
    penalty = between(penalty, misfit.domain, penalty.range)
    result = proximal.admm_l2(
        native_prox(proxg, image),
        misfit,
        brought(b.native, misfit.range),
        penalty,
        brought(x0.native, misfit.domain),
        tau,
        z0=None if z0 is None else brought(z0.native, penalty.range),
        niter=niter,
        gfirst=gfirst,
        inner=(kwargs_solver or {}).get("niter", 10),
        callback=told(callback, x0),
        progress=None if show else False,
    )
    return wrapped(brought(result.x, x0.native.layout), x0), wrapped(result.details["z"], image)
