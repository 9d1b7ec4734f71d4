"""The alternating direction method of multipliers (ADMM), and variants for functions of an operator's image."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from collops.array import Array, StackedArray, axpby, zeros_like
from collops.errors import LayoutError
from collops.operators import LinearOperator, StackedVStack
from collops.operators.memory import new_array
from collops.solvers.cgls import CGLS
from collops.solvers.driver import solve, solver
from collops.solvers.problem import check_array, check_count, check_operator, precision_of
from collops.solvers.proximal.l2 import L2, solve_inner
from collops.solvers.proximal.operator import ProxOperator, check_step
from collops.solvers.proximal.splitting import RESIDUAL, UPDATE, Splitting, check_arguments, check_bounds
from collops.solvers.result import SolverResult
from collops.solvers.shrinkage import StepSums, advance
from collops.solvers.state import SCRATCH, Scalar, scratch_array


@dataclass(slots=True)
class ADMMState:
    """State of ADMM between iterations, in the notation of Boyd et al.; the first step allocates scratch memory."""

    x: Array
    z: Array
    u: Array  # the scaled multiplier
    image: Array | None  # A x; None without an operator (it is x)
    difference: Array  # A x - z
    point: Array | None = field(metadata=SCRATCH)  # the next x
    memory: Any = field(metadata=SCRATCH)  # scratch memory for the update of x
    sums: StepSums

    @property
    def Ax(self) -> Array:
        """The image of x."""
        return self.x if self.image is None else self.image


@dataclass(frozen=True)
class ADMM(Splitting):
    """ADMM [Boyd et al. 2011, 3.1.1; Parikh and Boyd 2014, 4.4], where A is the identity."""

    tau: float  # step size
    gfirst: bool = False  # whether z is updated before x
    measured = (("x", UPDATE), ("difference", RESIDUAL))
    name = "ADMM"

    def init(self, A: LinearOperator | None, y: Array, x0: Array | None) -> ADMMState:
        x = y  # the starting point; x0 is the starting point of z
        image = None if A is None else A._forward(x, new_array(A.range, x, x.dtype))
        Ax = x if image is None else image
        z = Ax.copy() if x0 is None else x0.astype(x.dtype)
        sums = StepSums.over(z, x, width=3, extra=1)
        return self.started(A, ADMMState(x, z, zeros_like(z), image, axpby(1.0, Ax, -1.0, z), None, None, sums))

    def step(self, A: LinearOperator | None, state: ADMMState) -> ADMMState:
        """Update x and z, each with the other fixed, and the multiplier by their difference."""
        self.begin(state.sums)
        if self.gfirst:
            state.z = self.g._prox_of_sum(1.0, state.Ax, 1.0, state.u, self.tau, state.z)
        state.point = self._next_x(A, state)
        state.x, _ = advance(state.sums, 1, state.x, base=state.point, update=UPDATE, keep=True)
        if A is not None:
            state.image = A._forward(state.x, state.image)
        if not self.gfirst:
            state.z = self.g._prox_of_sum(1.0, state.Ax, 1.0, state.u, self.tau, state.z)
        state.difference, _ = advance(
            state.sums, 0, state.difference, base=state.Ax, alpha=-1.0, gradient=state.z, square=RESIDUAL
        )
        state.u = axpby(1.0, state.difference, 1.0, state.u, out=state.u)
        return self.finished(A, state)

    def _next_x(self, A: Any, state: ADMMState) -> Array:
        return self.f._prox_of_sum(1.0, state.z, -1.0, state.u, self.tau, state.point)

    def _objective(self, A: LinearOperator | None, state: ADMMState) -> Scalar:
        return self.f._value(state.x) + self.g._value(state.Ax)


@dataclass(frozen=True)
class LinearizedADMM(ADMM):
    """Linearised ADMM [Parikh and Boyd 2014, 4.4.2]: a gradient step replaces the inversion of A."""

    mu: float = 1.0  # step size of x
    name = "Linearised ADMM"

    def _next_x(self, A: LinearOperator, state: ADMMState) -> Array:
        moved = axpby(1.0, state.u, 1.0, state.difference, out=state.difference)
        if state.memory is None:
            state.memory = scratch_array(A.domain, state.x, state.x.dtype)
        state.memory = A._adjoint(moved, state.memory)
        return self.f._prox_of_sum(1.0, state.x, -self.mu / self.tau, state.memory, self.mu, state.point)


@dataclass(frozen=True)
class ADMML2(ADMM):
    """ADMM with a misfit [Boyd et al. 2011, 6.4.1]; CGLS computes x, starting from the last x."""

    b: Any = None
    both: Any = None  # the operator of the misfit above A / sqrt(tau)
    inner: int = 10  # iterations of CGLS

    def _next_x(self, A: LinearOperator, state: ADMMState) -> Array:
        factor = 1 / math.sqrt(self.tau)
        state.memory = axpby(factor, state.z, -factor, state.u, out=state.memory)
        data = StackedArray([self.b, state.memory])
        method, gradient = CGLS(0.0, 0.0, precision_of(state.x.dtype), cautious=False), self.both.adjoint(data)
        return solve_inner(method, self.both, data, state.x, self.inner, gradient)


@solver
def admm(
    f: ProxOperator,
    g: ProxOperator,
    x0: Array,
    tau: float,
    *,
    z0: Array | None = None,
    niter: int = 10,
    gfirst: bool = False,
    tol: float | None = None,
    rtol: float | None = None,
    objective: bool = False,
    **run: Any,
) -> SolverResult:
    r"""Minimise :math:`f(x) + g(z)` with :math:`x = z` by the alternating direction method of multipliers. Collective.

    Parameters
    ----------
    f, g : ProxOperator
        The functions.
    tau : float
        Step size.
    z0 : DistributedArray or StackedArray, optional
        The starting point of z; `x0` by default.
    gfirst : bool
        Whether z is updated before x.
    x0, niter, tol, rtol, objective, **run
        As for :func:`proximal_gradient`; the objective is the minimised function. In a callback, z is
        ``view.state.z``.

    Returns
    -------
    SolverResult
        The residual is :math:`x - z`. In its details: ``z``, and ``objective`` if it was evaluated.

    Raises
    ------
    UnsupportedTypeError, LayoutError, InputError
        If an argument has the wrong type, layout or value.

    Notes
    -----
    Boyd et al. [2011, 3.1.1]:

    .. math::
        x_{k+1} &= \mathrm{prox}_{\tau f}(z_k - u_k) \\
        z_{k+1} &= \mathrm{prox}_{\tau g}(x_{k+1} + u_k) \\
        u_{k+1} &= u_k + x_{k+1} - z_{k+1}

    Besides the messages of `f` and `g`, an iteration sends one allreduce of three numbers.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> f = collops.L2(b=collops.from_global(np.array([3.0, 0.2, -2.0])))
    >>> result = collops.admm(f, collops.L1(), collops.zeros(3), tau=1.0, niter=100)
    >>> result.x.gather().round(3)
    array([ 2.,  0., -1.])
    """
    x = check_arguments(x0, niter, z0=z0, f=f, g=g)
    method = ADMM(f, g, *check_bounds(tol, rtol, objective), check_step(tau), bool(gfirst))
    return solve(method, None, x, z0, parts=(f, g), niter=niter, **run)


@solver
def linearized_admm(
    f: ProxOperator,
    g: ProxOperator,
    A: LinearOperator,
    x0: Array,
    tau: float,
    mu: float,
    *,
    z0: Array | None = None,
    niter: int = 10,
    tol: float | None = None,
    rtol: float | None = None,
    objective: bool = False,
    **run: Any,
) -> SolverResult:
    r"""Minimise :math:`f(x) + g(A x)` by linearised ADMM. Collective.

    For results, exceptions and other parameters see :func:`admm`; the residual is :math:`A x - z`.

    Parameters
    ----------
    A : LinearOperator
        An operator of any shape, whose domain has the layout of `x0`.
    tau, mu : float
        Step sizes, with :math:`\mu \le \tau / \lambda_{max}(A^H A)`.
    z0 : DistributedArray or StackedArray, optional
        The starting point of z, in the range of `A`; ``A @ x0`` by default.

    Notes
    -----
    Parikh and Boyd [2014, 4.4.2]:

    .. math::
        x_{k+1} &= \mathrm{prox}_{\mu f}\big(x_k - \tfrac{\mu}{\tau} A^H (A x_k - z_k + u_k)\big) \\
        z_{k+1} &= \mathrm{prox}_{\tau g}(A x_{k+1} + u_k) \\
        u_{k+1} &= u_k + A x_{k+1} - z_{k+1}

    Besides the messages of `f`, `g` and `A`, an iteration sends one allreduce of three numbers.

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
    check_operator("A", A)
    x = check_arguments(x0, niter, A, z0=z0, f=f, g=g)
    method = LinearizedADMM(f, g, *check_bounds(tol, rtol, objective), check_step(tau), mu=check_step(mu, "mu"))
    return solve(method, A, x, z0, parts=(f, g), niter=niter, **run)


@solver
def admm_l2(
    g: ProxOperator,
    Op: LinearOperator,
    b: Array,
    A: LinearOperator,
    x0: Array,
    tau: float,
    *,
    z0: Array | None = None,
    niter: int = 10,
    gfirst: bool = False,
    inner: int = 10,
    tol: float | None = None,
    rtol: float | None = None,
    objective: bool = False,
    **run: Any,
) -> SolverResult:
    r"""Minimise :math:`\frac{1}{2} \|\mathrm{Op}\, x - b\|_2^2 + g(A x)` by ADMM. Collective.

    For results, exceptions and other parameters see :func:`admm`; the residual is :math:`A x - z`.

    Parameters
    ----------
    Op : LinearOperator
        The operator of the misfit, whose domain has the layout of `x0`.
    b : DistributedArray or StackedArray
        The data, in the range of `Op`.
    A : LinearOperator
        The operator of the penalty, with the domain of `Op`.
    z0 : DistributedArray or StackedArray, optional
        The starting point of z, in the range of `A`; ``A @ x0`` by default.
    inner : int
        Fixed number of iterations of CGLS in each iteration, starting from the last x.

    Notes
    -----
    Boyd et al. [2011, 6.4.1]:

    .. math::
        x_{k+1} &= \arg\min_x \tfrac{1}{2} \|\mathrm{Op}\, x - b\|_2^2 + \tfrac{1}{2 \tau} \|A x - z_k + u_k\|_2^2 \\
        z_{k+1} &= \mathrm{prox}_{\tau g}(A x_{k+1} + u_k) \\
        u_{k+1} &= u_k + A x_{k+1} - z_{k+1}

    Besides the messages of `g` and `A`, an iteration sends three small allreduces, and the messages of `inner`
    iterations of CGLS.

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
    check_operator("Op", Op)
    check_operator("A", A)
    check_array("x0", x0, Op.domain)
    if b is None:
        raise LayoutError("admm_l2 needs data b in the range of Op")
    inner = check_count("inner", inner, smallest=1)
    x, tau = check_arguments(x0, niter, A, (Op, b), z0, g=g), check_step(tau)
    method = ADMML2(
        L2(Op, b),
        g,
        *check_bounds(tol, rtol, objective),
        tau,
        bool(gfirst),
        b=b.astype(x.dtype),
        both=StackedVStack([Op, (1 / math.sqrt(tau)) * A]),
        inner=inner,
    )
    return solve(method, A, x, z0, parts=(Op, g), niter=niter, **run)
