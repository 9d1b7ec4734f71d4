"""PyLops-MPI's proximal operators and methods, implemented by the native ones."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from numbers import Real
from typing import Any

import numpy as np

from collops.compat.pylops_mpi._arrays import AnyArray, as_native, wrap, wrap_like
from collops.compat.pylops_mpi._linear_operator import native_of
from collops.compat.pylops_mpi._native import filled, with_layouts
from collops.compat.pylops_mpi._solvers import native_callback
from collops.errors import InputError, UnsupportedTypeError
from collops.extend.arrays import Array, LocalArray
from collops.extend.operators import AnyLayout
from collops.extend.solvers import proximal


class _LocalProx:
    """A local proximal operator that records whether its last value was a Boolean."""

    def __init__(self, local: Any) -> None:
        self._local = local
        self.indicator = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def __call__(self, x: Any) -> Any:
        value = self._local(x)
        self.indicator = isinstance(value, bool | np.bool_)
        return value


def _positive(tau: float) -> float:
    if np.any(np.asarray(tau) <= 0):
        raise InputError(f"tau must be positive, not {tau!r}")
    return tau


class MPIProxOperator:
    """A proximal operator of distributed arrays, see :func:`collops.solvers.proximal.lift_proximal`.

    `prox` is an operator of PyProximal, equal on all ranks, that acts element by element. Derived classes implement
    ``__call__(x)``, ``prox(x, tau)`` or ``proxdual(x, tau)``, and optionally ``grad(x)``. `native` is the native
    proximal operator, or ``None`` for a user's class.
    """

    native: proximal.ProxOperator | None = None
    layout: AnyLayout | None = None  # the layout of the arrays that the function contains, if any
    _local: _LocalProx | None = None

    def __init__(self, prox: Any = None) -> None:
        self.proxop = prox
        if prox is not None:
            if not callable(getattr(prox, "prox", None)):
                raise UnsupportedTypeError(f"expected a proximal operator of PyProximal, not {type(prox).__name__}")
            self._local = _LocalProx(prox)
            self.native = proximal.lift_proximal(self._local)

    @property
    def hasgrad(self) -> bool:
        """Whether the function has a gradient."""
        return self.native is not None and self.native.has_gradient

    def __call__(self, x: AnyArray) -> float | bool:
        """Return the value, a Boolean for an indicator function. Collective: one scalar allreduce."""
        value = self._get()(self._argument(x)).item()
        if self._local is None:
            return value
        for leaf in x.native.leaves:
            if not leaf.local_array.size:  # the local operator has not been called on this rank
                self._local(leaf.local_array.reshape(-1))
        return value == 0 if self._local.indicator else value

    def prox(self, x: AnyArray, tau: float) -> AnyArray:
        """Return the proximal point for a positive `tau`."""
        return wrap(self._get().prox(self._argument(x), _positive(tau)), x)

    def proxdual(self, x: AnyArray, tau: float) -> AnyArray:
        """Return the proximal point of the convex conjugate for a positive `tau`."""
        return wrap(self._get().proxdual(self._argument(x), _positive(tau)), x)

    def grad(self, x: AnyArray) -> AnyArray:
        """Return the gradient."""
        return wrap(self._get().grad(self._argument(x)), x)

    def postcomposition(self, sigma: float) -> MPIProxOperator:
        """Return the function times `sigma`."""
        return self._composed(native_prox(self).postcomposition(sigma))

    def precomposition(self, a: float, b: AnyArray | float = 0.0) -> MPIProxOperator:
        """Return the function of ``a * x + b``."""
        return self._composed(native_prox(self).precomposition(a, getattr(b, "native", b)))

    def __mul__(self, sigma: Any) -> MPIProxOperator:
        return self.postcomposition(float(sigma)) if isinstance(sigma, Real) else NotImplemented

    __rmul__ = __mul__

    def _composed(self, native: proximal.ProxOperator) -> MPIProxOperator:
        composed = MPIProxOperator()
        composed.native, composed.layout = native, self.layout
        return composed

    def _argument(self, x: AnyArray) -> Array:
        """Return the native array of the argument `x`."""
        return as_native(x, self.layout)

    def _get(self) -> proximal.ProxOperator:
        if self.native is None:
            raise NotImplementedError(f"{type(self).__name__} does not implement this method")
        return self.native


class MPIL2(MPIProxOperator):
    """The squared L2 norm of a misfit, see :class:`collops.solvers.proximal.L2`.

    With an operator, `x0` is required: the first inner solve starts from it. `solver` is ``"cg"`` or ``"cgls"``, which
    have the same iterates. `kwargs_solver` has no effect: every inner solve takes `niter` iterations.
    """

    def __init__(
        self,
        Op=None,
        b=None,
        q=None,
        sigma=1.0,
        alpha=1.0,
        qgrad=True,
        niter: int = 10,
        x0=None,
        warm=True,
        solver="cgls",
        kwargs_solver=None,
    ) -> None:
        super().__init__()
        self.Op, self.b, self.q, self.sigma, self.alpha = Op, b, q, sigma, alpha
        native = range = None
        if Op is not None and x0 is None:
            raise InputError("x0 must be passed when Op is not None")
        if solver not in ("cg", "cgls"):
            raise InputError(f"Provided solver={solver}. Available options are 'cg' or 'cgls'.")
        if Op is not None:
            native = native_of(Op, x0, x0 if b is None else b)
            range, self.layout = native.range, native.domain
        data, point, start = as_native(b, range), as_native(q, self.layout), as_native(x0, self.layout)
        self.native = proximal.L2(native, data, point, sigma, alpha, qgrad, niter, start, warm)


class MPIL21(MPIProxOperator):
    """The L2,1 norm: the sum of the lengths of short vectors, see :class:`collops.solvers.proximal.L21`.

    `ndim` is the number of components: the parts of a stacked array.
    """

    def __init__(self, ndim: int, sigma: float = 1.0) -> None:
        super().__init__()
        self.ndim, self.sigma = ndim, sigma
        self.native = proximal.L21(ndim, sigma)

    def _argument(self, x: AnyArray) -> Array:
        count = getattr(x, "narrays", 1)
        if count != self.ndim:
            raise InputError(f"Expected {self.ndim} DistributedArray, got {count}")
        return super()._argument(x)

    def sum_squared(self, x: AnyArray) -> AnyArray:
        """Return the lengths of the vectors: despite the name, the square roots of the sums."""
        squares = reduce(operator.add, [abs(part.native) ** 2 for part in x.distarrays])
        return wrap(np.sqrt(squares), x)


_METHODS = ("__call__", "prox", "proxdual", "grad")


class _UserProx(proximal.ProxOperator):
    """A native proximal operator that calls a user's one with arrays such as `like`."""

    capturable = False

    def __init__(self, operator: MPIProxOperator, like: AnyArray) -> None:
        self._operator, self._array = operator, like
        self.has_gradient = operator.hasgrad or self._has("grad")

    def _has(self, method: str) -> bool:
        return getattr(type(self._operator), method) is not getattr(MPIProxOperator, method)

    def _called(self, method: str, x: Array, out: Array | None, *arguments: object) -> Array:
        return filled(getattr(self._operator, method)(wrap(x, self._array), *arguments).native, x, out)

    def _prox(self, x: Array, tau: float, out: Array | None) -> Array:
        return self._called("prox", x, out, tau) if self._has("prox") else super()._prox(x, tau, out)

    def _proxdual(self, x: Array, tau: float, out: Array | None) -> Array:
        return self._called("proxdual", x, out, tau) if self._has("proxdual") else super()._proxdual(x, tau, out)

    def _grad(self, x: Array, out: Array | None) -> Array:
        return self._called("grad", x, out)

    def _value(self, x: Array) -> LocalArray:
        return x.engine.xp.asarray(self._operator(wrap(x, self._array)))


def native_prox(prox: Any, like: AnyArray | None = None) -> proximal.ProxOperator:
    """Return the native proximal operator; for a user's methods, one that calls them with arrays such as `like`."""
    prox = prox if isinstance(prox, MPIProxOperator) else MPIProxOperator(prox)
    replaced = [getattr(type(prox), method) is not getattr(MPIProxOperator, method) for method in _METHODS]
    return _UserProx(prox, like) if prox.native is None or any(replaced) else prox.native


# Methods


def _run_options(niter: int, callback: Callable[..., None] | None, show: bool) -> dict[str, Any]:
    return {"niter": niter, "callback": callback, "progress": None if show else False}


def ProximalGradient(
    proxf,
    proxg,
    x0,
    epsg=1.0,
    tau=None,
    eta=1.0,
    niter=10,
    niterback=100,
    acceleration: str | None = None,
    tol=None,
    callback=None,
    show=False,
) -> AnyArray:
    """Minimise f + epsg * g by proximal gradient steps, see :func:`collops.solvers.proximal.proximal_gradient`.

    Collective. `callback` is called with the model after each iteration; `show` prints a progress bar if standard error
    is a terminal.
    """
    acceleration = None if acceleration == "None" else acceleration
    if acceleration not in (None, "vandenberghe", "fista"):
        raise NotImplementedError(f"Acceleration should be None, vandenberghe or fista, not {acceleration!r}")
    f, g = native_prox(proxf, x0), native_prox(proxg, x0)
    start = as_native(x0, getattr(proxf, "layout", None))
    options = {"epsg": epsg, "tau": tau, "eta": eta, "niterback": niterback, "acceleration": acceleration, "tol": tol}
    options |= _run_options(niter, native_callback(callback, x0), show)
    result = proximal.proximal_gradient(f, g, start, **options)
    return wrap_like(result.x, x0)


def ADMML2(
    proxg, Op, b, A, x0, tau, niter=10, z0=None, gfirst=False, callback=None, show=False, kwargs_solver=None
) -> tuple[AnyArray, AnyArray]:
    """Minimise 1/2 |Op x - b|^2 + g(A x) by ADMM, see :func:`collops.solvers.proximal.admm_l2`; return x and z.

    Collective. `z0` is ``A @ x0`` by default. The ``niter`` of `kwargs_solver` is the number of inner CGLS iterations;
    its other entries have no effect. For `callback` and `show` see :func:`ProximalGradient`.
    """
    if x0 is None:
        raise InputError("ADMML2 requires x0")
    image = A @ x0 if z0 is None else z0
    misfit, penalty = native_of(Op, x0, b), native_of(A, x0, image)
    penalty = with_layouts(penalty, misfit.domain, penalty.range)
    data, start = as_native(b, misfit.range), as_native(x0, misfit.domain)
    options = {"gfirst": gfirst, "inner": (kwargs_solver or {}).get("niter", 10)}
    options |= _run_options(niter, native_callback(callback, x0), show)
    options["z0"] = as_native(z0, penalty.range)
    result = proximal.admm_l2(native_prox(proxg, image), misfit, data, penalty, start, tau, **options)
    return wrap_like(result.x, x0), wrap(result.details["z"], image)


def PrimalDual(
    proxf,
    proxg,
    A,
    x0,
    y0,
    tau,
    mu,
    z=None,
    theta=1.0,
    niter=10,
    gfirst=True,
    callback: Callable[..., object] | None = None,
    callbacky=False,
    returny=False,
    show=False,
) -> AnyArray | tuple[AnyArray, AnyArray]:
    """Minimise g(A x) + f(x) + z^T x by the primal-dual method, see :func:`collops.solvers.proximal.primal_dual`.

    Collective. `callbacky` passes the dual variable to `callback` after the model, and `returny` returns both. For
    `callback` and `show` see :func:`ProximalGradient`.
    """
    native, call = native_of(A, x0, y0), native_callback(callback, x0, y0 if callbacky else None)
    f, g, start = native_prox(proxf, x0), native_prox(proxg, y0), as_native(x0, native.domain)
    options = {"theta": theta, "gfirst": gfirst, "y0": as_native(y0, native.range), "z": as_native(z, native.domain)}
    options |= _run_options(niter, call, show)
    result = proximal.primal_dual(f, g, native, start, tau, mu, **options)
    x = wrap_like(result.x, x0)
    return (x, wrap_like(result.details["y"], y0)) if returny else x
