"""Linearised ADMM: ADMM for a function of an operator's image, with a gradient step in place of an inversion."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Unpack

from collops.array import axpby, zeros_like
from collops.operators import LinearOperator
from collops.operators.base import new_array
from collops.solvers.driver import Run, solve
from collops.solvers.proximal.operator import ProxOperator, check_step
from collops.solvers.proximal.splitting import (
    FIRST,
    SECOND,
    Splitting,
    check_arguments,
    check_bounds,
    check_operator,
)
from collops.solvers.result import SolverResult
from collops.solvers.shrinkage import StepSums, advance
from collops.solvers.state import CONSTANT, SCRATCH, scratch_array

__all__ = ["LinearizedADMM", "linearized_admm"]


@dataclass(slots=True)
class LinearizedADMMState:
    """Vectors of linearised ADMM between two iterations."""

    operator: LinearOperator = field(metadata=CONSTANT)
    x: Any
    z: Any
    u: Any  # the scaled multiplier
    image: Any = field(metadata=SCRATCH)  # A x
    difference: Any  # A x - z
    gradient: Any = field(metadata=SCRATCH)  # A^H (A x - z + u)
    point: Any = field(metadata=SCRATCH)  # the next x
    sums: StepSums


@dataclass(frozen=True)
class LinearizedADMM(Splitting):
    """Linearised ADMM as a method of the driver.

    Attributes
    ----------
    tau, mu : float
        Step sizes.

    Examples
    --------
    >>> import collops
    >>> D = collops.FirstDerivative(4, kind="forward")
    >>> f = collops.L2(b=collops.ones(4))
    >>> result = collops.linearized_admm(f, collops.L1(0.1), D, collops.zeros(4), tau=1.0, mu=0.2, niter=100)
    >>> result.x.gather().round(2)
    array([1., 1., 1., 1.])
    """

    tau: float
    mu: float
    measured = (("x", SECOND), ("difference", FIRST))
    name = "Linearised ADMM"

    def init(self, operator: LinearOperator, data: Any, x0: Any, report_now: bool) -> LinearizedADMMState:
        """Return the state before the first iteration."""
        x = data
        image = operator._forward(x, new_array(operator.range, x, x.dtype))
        z = image.copy() if x0 is None else x0.astype(x.dtype)
        difference = axpby(1.0, image, -1.0, z, out=new_array(operator.range, x, x.dtype))
        sums = self.start(difference, x)
        self.before(sums, self._objective(x, image) if self.objective else None)
        gradient, point = (scratch_array(operator.domain, x, x.dtype) for _ in range(2))
        return LinearizedADMMState(operator, x, z, zeros_like(z), image, difference, gradient, point, sums)

    def step(self, state: LinearizedADMMState) -> LinearizedADMMState:
        """Find both proximal points, and move the multiplier by their difference."""
        operator = state.operator
        self.begin(state.sums)
        state.difference = axpby(1.0, state.u, 1.0, state.difference, out=state.difference)
        state.gradient = operator._adjoint(state.difference, state.gradient)
        state.point = self.f._prox_of_sum(1.0, state.x, -self.mu / self.tau, state.gradient, self.mu, state.point)
        state.x, _ = advance(state.sums, 1, state.x, base=state.point, update=SECOND, keep=True)
        state.image = operator._forward(state.x, state.image)
        state.z = self.g._prox_of_sum(1.0, state.image, 1.0, state.u, self.tau, state.z)
        state.difference = self.difference(state.sums, 0, state.image, state.z, state.difference)
        state.u = axpby(1.0, state.difference, 1.0, state.u, out=state.u)
        self.finish(state.sums, self._objective(state.x, state.image) if self.objective else None)
        return state

    def _objective(self, x: Any, image: Any) -> Any:
        return self.f._value(x) + self.g._value(image)


def linearized_admm(
    f: ProxOperator,
    g: ProxOperator,
    A: LinearOperator,
    x0: Any,
    tau: float,
    mu: float,
    *,
    z0: Any = None,
    niter: int = 10,
    tol: float | None = None,
    rtol: float | None = None,
    objective: bool = False,
    **run: Unpack[Run],
) -> SolverResult:
    r"""Minimise :math:`f(x) + g(A x)` by linearised ADMM. Collective.

    Parameters
    ----------
    f, g : ProxOperator
        The functions.
    A : LinearOperator
        Any shape.
    x0 : DistributedArray or StackedArray
        The starting point, in the domain of `A`.
    tau, mu : float
        Step sizes, with :math:`\mu \le \tau / \lambda_{max}(A^H A)`.
    z0 : DistributedArray or StackedArray, optional
        The starting point of z, in the range of `A`; ``A @ x0`` by default.
    niter : int
        Largest number of iterations.
    tol, rtol, objective
        As for :func:`collops.solvers.proximal.proximal_gradient`; the objective is :math:`f(x) + g(A x)`.
    **run
        Options of the run, as for :func:`collops.solvers.cgls`; ``view.state.z`` is the second variable.

    Returns
    -------
    SolverResult
        The residual is :math:`A x - z`. In its details: ``z``, and ``objective`` if it was evaluated.

    Raises
    ------
    UnsupportedTypeError
        If an argument is no proximal operator, operator or distributed array.
    LayoutError
        If a layout does not fit.
    InputError
        If an option is invalid.

    Notes
    -----
    .. math::
        x_{k+1} &= \mathrm{prox}_{\mu f}\big(x_k - \tfrac{\mu}{\tau} A^H (A x_k - z_k + u_k)\big) \\
        z_{k+1} &= \mathrm{prox}_{\tau g}(A x_{k+1} + u_k) \\
        u_{k+1} &= u_k + A x_{k+1} - z_{k+1}

    Besides the messages of `f`, `g` and `A`, an iteration sends one scalar allreduce.

    References
    ----------
    .. [1] Parikh, N., Boyd, S., "Proximal algorithms", Foundations and Trends in Optimization 1, 127-239, 2014.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> D = collops.FirstDerivative(6, kind="forward")
    >>> f = collops.L2(b=collops.from_global(np.array([1.0, 1.1, 0.9, 3.1, 2.9, 3.0])))
    >>> result = collops.linearized_admm(f, collops.L1(0.1), D, collops.zeros(6), tau=1.0, mu=0.2, niter=200)
    >>> result.x.gather().round(1)
    array([1., 1., 1., 3., 3., 3.])
    """
    check_operator("A", A, x0, z0)
    x = check_arguments(x0, niter, (A, z0), f=f, g=g)
    method = LinearizedADMM(
        f,
        g,
        *check_bounds(tol, rtol, objective),
        check_step(tau),
        check_step(mu, "mu"),
    )
    return solve(method, A, x, z0, parts=(f, g), niter=niter, **run)
