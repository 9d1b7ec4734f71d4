"""ADMM with a least-squares misfit: the first of its two steps is solved by conjugate gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Unpack

from collops.array import StackedArray, axpby, zeros_like
from collops.errors import LayoutError
from collops.operators import LinearOperator, StackedVStack
from collops.operators.base import new_array
from collops.solvers.cgls import CGLS
from collops.solvers.driver import Run, solve
from collops.solvers.problem import check_count
from collops.solvers.proximal.l2 import L2, solve_inner
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

__all__ = ["ADMML2", "admm_l2"]


@dataclass(slots=True)
class ADMML2State:
    """Vectors of ADMM with a least-squares misfit between two iterations."""

    operator: LinearOperator = field(metadata=CONSTANT)
    x: Any
    z: Any
    u: Any  # the scaled multiplier
    image: Any  # A x
    difference: Any = field(metadata=SCRATCH)  # A x - z
    data: Any = field(metadata=CONSTANT)
    right: Any = field(metadata=SCRATCH)  # (z - u) / sqrt(tau), the data of the penalty
    sums: StepSums


@dataclass(frozen=True)
class ADMML2(Splitting):
    """ADMM with a least-squares misfit as a method of the driver.

    Attributes
    ----------
    b : DistributedArray or StackedArray
        Data of the misfit.
    both : LinearOperator
        The operator of the misfit above that of the penalty, scaled.
    tau : float
        Step size.
    gfirst : bool
        Whether g comes first.
    inner : int
        Iterations of conjugate gradients.

    Examples
    --------
    >>> import collops
    >>> D = collops.FirstDerivative(4, kind="forward")
    >>> y, start = collops.ones(4), collops.zeros(4)
    >>> result = collops.admm_l2(collops.L1(0.1), collops.Identity(4), y, D, start, tau=1.0, niter=30)
    >>> result.x.gather().round(2)
    array([1., 1., 1., 1.])
    """

    b: Any
    both: LinearOperator
    tau: float
    gfirst: bool
    inner: int
    measured = (("x", SECOND), ("difference", FIRST))
    name = "ADMM"

    def init(self, operator: LinearOperator, data: Any, x0: Any, report_now: bool) -> ADMML2State:
        """Return the state before the first iteration."""
        x = data
        image = operator._forward(x, new_array(operator.range, x, x.dtype))
        z = image.copy() if x0 is None else x0.astype(x.dtype)
        sums = self.start(z, x)
        self.before(sums, self._objective(x, image) if self.objective else None)
        difference = new_array(operator.range, x, x.dtype)
        data, right = self.b.astype(x.dtype), scratch_array(operator.range, x, x.dtype)
        return ADMML2State(operator, x, z, zeros_like(z), image, difference, data, right, sums)

    def step(self, state: ADMML2State) -> ADMML2State:
        """Solve for x, find the proximal point z, and move the multiplier by their difference."""
        self.begin(state.sums)
        if self.gfirst:
            state.z = self.g._prox_of_sum(1.0, state.image, 1.0, state.u, self.tau, state.z)
        state.x = self._fitted(state)
        state.image = state.operator._forward(state.x, state.image)
        if not self.gfirst:
            state.z = self.g._prox_of_sum(1.0, state.image, 1.0, state.u, self.tau, state.z)
        state.difference = self.difference(state.sums, 0, state.image, state.z, state.difference)
        state.u = axpby(1.0, state.difference, 1.0, state.u, out=state.u)
        self.finish(state.sums, self._objective(state.x, state.image) if self.objective else None)
        return state

    def _fitted(self, state: ADMML2State) -> Any:
        """Return the minimiser of the misfit plus the distance of ``A x`` from ``z - u``, searched from x."""
        per_root = 1 / math.sqrt(self.tau)
        state.right = axpby(per_root, state.z, -per_root, state.u, out=state.right)
        data = StackedArray([state.data, state.right])
        method, gradient = CGLS(0.0, 0.0, cautious=False), self.both.adjoint(data)
        solution = solve_inner(method, "gradient_square", self.both, data, state.x, self.inner, gradient)
        return advance(state.sums, 1, state.x, base=solution, update=SECOND, keep=True)[0]

    def _objective(self, x: Any, image: Any) -> Any:
        return self.f._value(x) + self.g._value(image)


def admm_l2(
    g: ProxOperator,
    Op: LinearOperator,
    b: Any,
    A: LinearOperator,
    x0: Any,
    tau: float,
    *,
    z0: Any = None,
    niter: int = 10,
    gfirst: bool = False,
    inner: int = 10,
    tol: float | None = None,
    rtol: float | None = None,
    objective: bool = False,
    **run: Unpack[Run],
) -> SolverResult:
    r"""Minimise :math:`\frac{1}{2} \|\mathrm{Op}\, x - b\|_2^2 + g(A x)` by ADMM. Collective.

    Parameters
    ----------
    g : ProxOperator
        The penalty.
    Op : LinearOperator
        Of the misfit.
    b : DistributedArray or StackedArray
        The data, in the range of `Op`.
    A : LinearOperator
        Of the penalty, with the domain of `Op`.
    x0 : DistributedArray or StackedArray
        The starting point, in that domain.
    tau : float
        Step size.
    z0 : DistributedArray or StackedArray, optional
        The starting point of z, in the range of `A`; ``A @ x0`` by default.
    niter : int
        Largest number of iterations.
    gfirst : bool
        Whether the proximal point of `g` comes first.
    inner : int
        Iterations of CGLS in each one, always as many, from the x before.
    tol, rtol, objective
        As for :func:`collops.solvers.proximal.proximal_gradient`; the objective is what is minimised.
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
        x_{k+1} &= \arg\min_x \tfrac{1}{2} \|\mathrm{Op}\, x - b\|_2^2 + \tfrac{1}{2 \tau} \|A x - z_k + u_k\|_2^2 \\
        z_{k+1} &= \mathrm{prox}_{\tau g}(A x_{k+1} + u_k) \\
        u_{k+1} &= u_k + A x_{k+1} - z_{k+1}

    Besides the messages of `g` and `A`, an iteration sends three scalar allreduces, and those of `inner` iterations of
    CGLS.

    References
    ----------
    .. [1] Boyd, S., Parikh, N., Chu, E., Peleato, B., Eckstein, J., "Distributed optimization and statistical learning
       via the alternating direction method of multipliers", Foundations and Trends in Machine Learning 3, 1-122, 2011.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> D = collops.FirstDerivative(6, kind="forward")
    >>> noisy = collops.from_global(np.array([1.0, 1.1, 0.9, 3.1, 2.9, 3.0]))
    >>> result = collops.admm_l2(collops.L1(0.1), collops.Identity(6), noisy, D, collops.zeros(6), tau=1.0, niter=100)
    >>> result.x.gather().round(1)  # flat, with one step
    array([1., 1., 1., 3., 3., 3.])
    """
    check_operator("A", A, x0, z0)
    check_operator("Op", Op, x0, b)
    if b is None:
        raise LayoutError("admm_l2 needs data b in the range of Op")
    inner = check_count("inner", inner, smallest=1)
    x = check_arguments(x0, niter, (A, Op, b, z0), g=g)
    step = check_step(tau)
    method = ADMML2(
        L2(Op, b),
        g,
        *check_bounds(tol, rtol, objective),
        b,
        StackedVStack([Op, (1 / math.sqrt(step)) * A]),
        step,
        bool(gfirst),
        inner,
    )
    parts = (Op, g)
    return solve(method, A, x, z0, parts=parts, niter=niter, **run)
