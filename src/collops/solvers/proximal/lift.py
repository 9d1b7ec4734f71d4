"""Proximal operators of local arrays, such as those of PyProximal, applied to every rank's part of an array."""

from __future__ import annotations

from typing import Any

from collops.errors import UnsupportedTypeError
from collops.solvers.proximal.operator import ProxOperator, combined, like

__all__ = ["LiftedProximal", "lift_proximal"]


class LiftedProximal(ProxOperator):
    """A function that is the sum of one function of every rank's part.

    Parameters
    ----------
    local : object
        Has ``prox(x, tau)`` or ``proxdual(x, tau)``, and ``local(x)`` for values, all of one-dimensional arrays; and
        ``grad(x)`` where ``hasgrad`` is true. It must not depend on where the array is cut: act on each element by
        itself. Each rank may have one of its own, for its elements.

    Notes
    -----
    No messages; a value takes one scalar allreduce. A value that is a truth means 0 or infinity. Since nothing is known
    of what `local` does on a device, it is not captured.

    Examples
    --------
    >>> import collops
    >>> from collops.solvers.proximal import LiftedProximal
    >>> import pyproximal
    >>> LiftedProximal(pyproximal.L1()).prox(collops.full(2, 3.0), 1.0).gather()
    array([2., 2.])
    """

    capturable = False

    def __init__(self, local: Any) -> None:
        self._local = local
        self.has_gradient = bool(getattr(local, "hasgrad", False))

    def _prox(self, x: Any, tau: float, out: Any) -> Any:
        if not callable(getattr(self._local, "prox", None)):
            return super()._prox(x, tau, out)
        return self._applied(x, out, lambda part: self._local.prox(part, tau))

    def _proxdual(self, x: Any, tau: float, out: Any) -> Any:
        if not callable(getattr(self._local, "proxdual", None)):
            return super()._proxdual(x, tau, out)
        return self._applied(x, out, lambda part: self._local.proxdual(part, tau))

    def _grad(self, x: Any, out: Any) -> Any:
        if not self.has_gradient:
            return super()._grad(x, out)
        return self._applied(x, out, self._local.grad)

    def _value(self, x: Any) -> Any:
        return combined(x, [self._local_value(leaf.local_array) for leaf in x.leaves])

    def _local_value(self, part: Any) -> Any:
        if not part.size:
            return 0.0
        value = self._local(part.reshape(-1))
        if isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", "") == "b":
            return 0.0 if value else float("inf")
        return value

    @staticmethod
    def _applied(x: Any, out: Any, function: Any) -> Any:
        out = like(x, out)
        for leaf, target in zip(x.leaves, out.leaves, strict=True):
            part = leaf.local_array
            if part.size:
                point = function(part.reshape(-1)).reshape(part.shape)
                target.local_array = out.engine.put(target.local_array, ..., point)
        return out

    def __repr__(self) -> str:
        return f"<LiftedProximal of {type(self._local).__module__}.{type(self._local).__qualname__}>"


def lift_proximal(local: Any) -> ProxOperator:
    """Return a proximal operator of distributed arrays from one of local arrays; one of them as it is.

    Parameters
    ----------
    local : object or ProxOperator
        See :class:`LiftedProximal`.

    Raises
    ------
    UnsupportedTypeError
        If `local` has neither ``prox`` nor ``proxdual``.

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
