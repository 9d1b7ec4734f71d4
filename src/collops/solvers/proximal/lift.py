"""Proximal operators of local arrays, such as those of PyProximal, applied to each rank's part of an array."""

from __future__ import annotations

from typing import Any

from collops.errors import UnsupportedTypeError
from collops.solvers.proximal.operator import ProxOperator, like, total

__all__ = ["lift_proximal"]


def lift_proximal(local: Any) -> ProxOperator:
    """Return the sum over all ranks of a function of each rank's part of an array.

    Parameters
    ----------
    local : object or ProxOperator
        Has ``prox(x, tau)`` or ``proxdual(x, tau)``, and ``local(x)`` for values, all for one-dimensional arrays; and
        ``grad(x)`` where ``hasgrad`` is true. It must act on each element by itself, so that the result does not
        depend on the layout. Each rank may pass its own, for its elements. A proximal operator of collops is returned
        as it is.

    Raises
    ------
    UnsupportedTypeError
        If `local` has neither ``prox`` nor ``proxdual``.

    Notes
    -----
    No messages; a value takes one scalar allreduce. A Boolean value means 0 or infinity. The function is not captured,
    since `local` may synchronise with the device.

    Examples
    --------
    >>> import collops
    >>> import pyproximal
    >>> f = collops.lift_proximal(pyproximal.L1())
    >>> f.prox(collops.full(2, 3.0), 1.0).gather()
    array([2., 2.])
    """
    if isinstance(local, ProxOperator):
        return local
    if not callable(getattr(local, "prox", None)) and not callable(getattr(local, "proxdual", None)):
        raise UnsupportedTypeError(
            f"{type(local).__module__}.{type(local).__qualname__} has neither prox nor proxdual, so it is no proximal "
            "operator"
        )
    return LiftedProximal(local)


class LiftedProximal(ProxOperator):
    """The function that :func:`lift_proximal` returns."""

    capturable = False

    def __init__(self, local: Any) -> None:
        self._local = local
        self.has_gradient = bool(getattr(local, "hasgrad", False))

    def _prox(self, x: Any, tau: float, out: Any) -> Any:
        if not callable(getattr(self._local, "prox", None)):
            return super()._prox(x, tau, out)
        return _applied(lambda part: self._local.prox(part, tau), x, out)

    def _proxdual(self, x: Any, tau: float, out: Any) -> Any:
        if not callable(getattr(self._local, "proxdual", None)):
            return super()._proxdual(x, tau, out)
        return _applied(lambda part: self._local.proxdual(part, tau), x, out)

    def _grad(self, x: Any, out: Any) -> Any:
        return _applied(self._local.grad, x, out) if self.has_gradient else super()._grad(x, out)

    def _value(self, x: Any) -> Any:
        return total(x, [self._local_value(leaf.local_array) for leaf in x.leaves])

    def _local_value(self, part: Any) -> Any:
        value = self._local(part.reshape(-1)) if part.size else 0.0
        if isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", "") == "b":
            return 0.0 if value else float("inf")
        return value

    def __repr__(self) -> str:
        return f"<LiftedProximal of {type(self._local).__module__}.{type(self._local).__qualname__}>"


def _applied(function: Any, x: Any, out: Any) -> Any:
    """Return a function of each rank's part of each leaf, ravelled."""
    out = like(x, out)
    for leaf, target in zip(x.leaves, out.leaves, strict=True):
        part = leaf.local_array
        if part.size:
            point = function(part.reshape(-1)).reshape(part.shape)
            target.local_array = out.engine.put(target.local_array, ..., point)
    return out
