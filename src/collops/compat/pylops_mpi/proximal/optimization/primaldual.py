"""PyLops-MPI's primal-dual method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collops.compat.pylops_mpi._native import brought
from collops.compat.pylops_mpi._operator import native_of
from collops.compat.pylops_mpi._stacked_array import checked_array, wrapped
from collops.compat.pylops_mpi.proximal.ProxOperator import native_prox
from collops.solvers import proximal

__all__ = ["PrimalDual"]


def PrimalDual(
    proxf: Any,
    proxg: Any,
    A: Any,
    x0: Any,
    y0: Any,
    tau: Any,
    mu: Any,
    z: Any = None,
    theta: float = 1.0,
    niter: int = 10,
    gfirst: bool = True,
    callback: Callable[..., Any] | None = None,
    callbacky: bool = False,
    returny: bool = False,
    show: bool = False,
) -> Any:
    """Minimise g(A x) + f(x) + z^T x by the primal-dual method; see :func:`collops.solvers.proximal.primal_dual`.

    Collective.

    Parameters
    ----------
    proxf, proxg : MPIProxOperator
        The functions.
    A : MPILinearOperator or MPIStackedLinearOperator
        What g is applied to the image of.
    x0, y0 : DistributedArray or StackedDistributedArray
        Where both variables start.
    tau, mu, z, theta, niter, gfirst
        See there.
    callback : callable, optional
        Gets the model after each iteration, and the dual variable if `callbacky`.
    callbacky, returny : bool
        Whether the callback gets, and the function returns, the dual variable too.
    show : bool
        Whether to show a progress bar, where standard error is a terminal.

    Returns
    -------
    DistributedArray, or two of them
        The model, and the dual variable if `returny`.
    """
    operator = native_of(A, x0, y0)

    def primal(array: Any) -> Any:
        return wrapped(brought(array, x0.native.layout), x0)

    def dual(array: Any) -> Any:
        return wrapped(brought(array, y0.native.layout), y0)

    def tell(_: int, view: Any) -> None:
        assert callback is not None
        callback(primal(view.x), dual(view.state.y)) if callbacky else callback(primal(view.x))

    result = proximal.primal_dual(
        native_prox(proxf, x0),
        native_prox(proxg, y0),
        operator,
        brought(x0.native, operator.domain),
        tau,
        mu,
        y0=brought(y0.native, operator.range),
        z=None if z is None else brought(checked_array(z).native, operator.domain),
        theta=theta,
        niter=niter,
        gfirst=gfirst,
        callback=None if callback is None else tell,
        progress=None if show else False,
    )
    x = primal(result.x)
    return (x, dual(result.details["y"])) if returny else x
