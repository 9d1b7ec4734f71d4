"""PyLops-MPI's proximal operators: any of PyProximal's that acts on each element by itself, and compositions."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from collops.compat.pylops_mpi._native import brought
from collops.compat.pylops_mpi._stacked_array import checked_array, wrapped
from collops.errors import UnsupportedTypeError
from collops.solvers import proximal

__all__ = ["MPIProxOperator", "native_prox"]


class _Noted:
    """A local proximal operator that remembers whether its values are truths."""

    def __init__(self, local: Any) -> None:
        self._local = local
        self.truth = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def __call__(self, x: Any) -> Any:
        value = self._local(x)
        self.truth = isinstance(value, bool | np.bool_)
        return value


class MPIProxOperator:
    """A proximal operator of distributed arrays; see :class:`collops.solvers.proximal.LiftedProximal`.

    Parameters
    ----------
    prox : pyproximal.ProxOperator
        Equal on all ranks; it acts on each element by itself.

    Raises
    ------
    TypeError
        If it is no proximal operator.

    Notes
    -----
    Derived classes implement ``__call__(x)``, ``prox(x, tau)`` or ``proxdual(x, tau)``, and perhaps ``grad(x)``.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> import pyproximal
    >>> prox = pylops_mpi.MPIProxOperator(pyproximal.L1())
    >>> x = pylops_mpi.DistributedArray(global_shape=3)
    >>> x[:] = 3.0
    >>> prox.prox(x, 1.0).asarray()
    array([2., 2., 2.])
    """

    native: proximal.ProxOperator | None = None
    layout: Any = None  # the one that the function's own arrays ask for; None where any will do

    def __init__(self, prox: Any = None) -> None:
        self.proxop = prox
        if prox is not None:
            if not callable(getattr(prox, "prox", None)):
                raise UnsupportedTypeError(f"expected a proximal operator of PyProximal, not {type(prox).__name__}")
            self._noted = _Noted(prox)
            self.native = proximal.LiftedProximal(self._noted)

    @classmethod
    def _of(cls, native: proximal.ProxOperator, layout: Any) -> MPIProxOperator:
        made = object.__new__(MPIProxOperator)
        made.proxop, made.native, made.layout = None, native, layout
        return made

    _noted: _Noted | None = None

    @property
    def hasgrad(self) -> bool:
        """Whether the function has a gradient."""
        return self.native is not None and self.native.has_gradient

    def __call__(self, x: Any) -> Any:
        """Return the value, a truth for an indicator function. Collective: one scalar allreduce."""
        value = self._get().__call__(self._given(x)).item()
        if self._noted is None:
            return value
        for leaf in x.native.leaves:
            if not leaf.local_array.size:  # this rank has not seen a value yet
                self._noted(leaf.local_array.reshape(-1))
        return value == 0 if self._noted.truth else value

    def prox(self, x: Any, tau: float) -> Any:
        """Return the proximal point.

        Raises
        ------
        ValueError
            If `tau` is not positive.
        """
        return wrapped(self._get().prox(self._given(x), tau), x)

    def proxdual(self, x: Any, tau: float) -> Any:
        """Return the proximal point of the convex conjugate. See :meth:`prox`."""
        return wrapped(self._get().proxdual(self._given(x), tau), x)

    def grad(self, x: Any) -> Any:
        """Return the gradient."""
        return wrapped(self._get().grad(self._given(x)), x)

    def postcomposition(self, sigma: float) -> MPIProxOperator:
        """Return the function times `sigma`."""
        return self._of(native_prox(self).postcomposition(sigma), self.layout)

    def precomposition(self, a: float, b: Any = 0.0) -> MPIProxOperator:
        """Return the function of ``a * x + b``."""
        return self._of(native_prox(self).precomposition(a, getattr(b, "native", b)), self.layout)

    def __mul__(self, sigma: Any) -> Any:
        return self.postcomposition(float(sigma)) if isinstance(sigma, Real) else NotImplemented

    __rmul__ = __mul__

    def _get(self) -> proximal.ProxOperator:
        if self.native is None:
            raise NotImplementedError(f"{type(self).__name__} implements no such method")
        return self.native

    def _given(self, x: Any) -> Any:
        array = checked_array(x).native
        return array if self.layout is None else brought(array, self.layout)


class _Translated(proximal.ProxOperator):
    """A user's proximal operator of PyLops-MPI's arrays, as one of this package's."""

    capturable = False

    def __init__(self, operator: MPIProxOperator, like: Any) -> None:
        self._operator, self._array = operator, like
        self.has_gradient = type(operator).grad is not MPIProxOperator.grad

    def _prox(self, x: Any, tau: float, out: Any) -> Any:
        if type(self._operator).prox is MPIProxOperator.prox:
            return super()._prox(x, tau, out)
        return _in(self._operator.prox(wrapped(x, self._array), tau), out)

    def _proxdual(self, x: Any, tau: float, out: Any) -> Any:
        if type(self._operator).proxdual is MPIProxOperator.proxdual:
            return super()._proxdual(x, tau, out)
        return _in(self._operator.proxdual(wrapped(x, self._array), tau), out)

    def _grad(self, x: Any, out: Any) -> Any:
        return _in(self._operator.grad(wrapped(x, self._array)), out)

    def _value(self, x: Any) -> Any:
        return x.engine.xp.asarray(self._operator(wrapped(x, self._array)))


def _in(result: Any, out: Any) -> Any:
    if out is None:
        return result.native
    for target, part in zip(out.leaves, result.native.leaves, strict=True):
        target.local_array[...] = part.local_array
    return out


def native_prox(operator: Any, like: Any = None) -> proximal.ProxOperator:
    """Return the native proximal operator: its own, or one that calls a user's class with arrays like `like`."""
    if not isinstance(operator, MPIProxOperator):
        operator = MPIProxOperator(operator)
    return _Translated(operator, like) if operator.native is None else operator.native
