"""PyLops-MPI's squared L2 norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collops.compat.pylops_mpi._native import brought
from collops.compat.pylops_mpi._operator import native_of
from collops.compat.pylops_mpi._stacked_array import checked_array
from collops.compat.pylops_mpi.proximal.ProxOperator import MPIProxOperator
from collops.errors import InputError
from collops.solvers import proximal

__all__ = ["MPIL2"]


class MPIL2(MPIProxOperator):
    """The squared L2 norm of a misfit; see :class:`collops.solvers.proximal.L2`.

    Parameters
    ----------
    Op : MPILinearOperator, optional
        The operator; the identity by default.
    b, q : DistributedArray, optional
        Data, and the vector of a linear term.
    sigma, alpha : float
        Their factors.
    qgrad : bool
        Whether the gradient has the linear term.
    niter : int or callable
        With an operator: iterations that find a proximal point, or a function of the number of points found before.
    x0 : DistributedArray, optional
        Where the first search starts; needed with an operator.
    warm : bool
        Whether each search starts at the last point found.
    solver : str
        ``"cg"`` or ``"cgls"``, whose iterates are the same.
    kwargs_solver : dict, optional
        Of no effect: every search takes `niter` iterations and shows nothing.

    Raises
    ------
    ValueError
        If `x0` is missing, or there is no such `solver`.
    """

    def __init__(
        self,
        Op: Any = None,
        b: Any = None,
        q: Any = None,
        sigma: float = 1.0,
        alpha: float = 1.0,
        qgrad: bool = True,
        niter: int | Callable[[int], int] = 10,
        x0: Any = None,
        warm: bool = True,
        solver: str | None = "cgls",
        kwargs_solver: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if solver not in ("cg", "cgls", None):
            raise InputError(f"solver must be 'cg' or 'cgls', not {solver!r}")
        self.Op, self.b, self.q, self.sigma, self.alpha = Op, b, q, sigma, alpha
        operator, given = None, [None if a is None else checked_array(a).native for a in (b, q, x0)]
        if Op is not None:
            if x0 is None:
                raise InputError("with an operator, the norm needs x0")
            operator = native_of(Op, x0, x0 if b is None else b)
            self.layout = operator.domain
            sides = [operator.range, operator.domain, operator.domain]
            given = [None if a is None else brought(a, side) for a, side in zip(given, sides, strict=True)]
        self.native = proximal.L2(operator, given[0], given[1], sigma, alpha, qgrad, niter, given[2], warm)
