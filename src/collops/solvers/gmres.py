"""GMRES and flexible GMRES: the smallest residual in a Krylov space, with one reduction in an iteration.

Two passes of Gram and Schmidt's classical method make the basis orthonormal. The second pass is delayed by one
iteration, and then shares the message of the first pass over the next vector [Bielich et al. 2022]. Until then the
newest basis vector, called ``u``, has a norm of about 1, which comes from the theorem of Pythagoras.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from collops.array import StackedArray, axpby, divide, dots, zeros
from collops.backend import engine_of
from collops.operators import LinearOperator
from collops.solvers.driver import solve, solver
from collops.solvers.problem import check_count, rank_consistently, starting_point, working_dtype
from collops.solvers.result import SolverResult
from collops.solvers.state import CONSTANT, SCRATCH, scratch_array
from collops.solvers.systems import SquareSystem, checked_system

__all__ = ["GMRES"]


@dataclass(slots=True)
class GMRESState:
    """A cycle of GMRES: ``A Z = V H``, where ``Q H = R`` is upper triangular but for a row of zeros, and Q is unitary.

    Z is ``M V``. Small matrices are of the engine, so that no step waits for a number.
    """

    start: Any  # the solution before this cycle
    basis: Any  # V, of which the last vector is u
    directions: Any  # Z if it is kept, as flexible GMRES needs it
    k: int  # iterations of this cycle
    gamma: Any  # norm of the residual before this cycle
    residual: Any  # norm of the residual
    H: Any  # its last column is not final before the second pass over u
    Q: Any  # without the rotation for the last column
    R: Any  # without the last column
    z: Any = field(metadata=SCRATCH)  # M u
    w: Any = field(metadata=SCRATCH)  # A M u
    y: Any = field(metadata=CONSTANT)  # the data
    M: Any = field(metadata=CONSTANT)
    consistent: Callable[[Any], Any] = field(metadata=CONSTANT)  # see rank_consistently

    @property
    def x(self) -> Any:
        """The solution, made of the basis when it is asked for. Collective: one allreduce, and the preconditioner."""
        k, xp = self.k, self.start.engine.xp
        if k == 0:
            return self.start.copy()
        final = replace(self, H=self.H.copy(), Q=self.Q.copy(), R=self.R.copy())
        _second_pass(final, *_products(self, self.basis.arrays[k]))
        # A column that adds nothing to the space has a zero on the diagonal, and no part in the solution.
        R, unused = final.R[:k, :k], xp.diagonal(final.R)[:k] == 0
        goal = xp.where(unused, 0, self.gamma * final.Q[:k, 0])
        weights = xp.linalg.solve(R + xp.diag(unused).astype(R.dtype), goal)
        if self.directions is not None:
            return _add(self.start.copy(), 1.0, weights, self.directions.arrays[:k])
        change = _add(self.basis.arrays[0].copy(), weights[0], weights[1:], self.basis.arrays[1:k])
        change = change if self.M is None else self.M._forward(change, None)
        return axpby(1.0, self.start, 1.0, change)


class GMRESNumbers(NamedTuple):
    """The number of an iteration of GMRES: the norm of the residual."""

    residual: Any


@dataclass(frozen=True)
class GMRES(SquareSystem):
    """GMRES [Saad and Schultz 1986], and flexible GMRES [Saad 1993], preconditioned from the right.

    JAX runs its steps one by one: the number of basis vectors that an iteration works with is not an array.

    Attributes
    ----------
    restart : int
        Iterations in a cycle, after which the basis is dropped.
    flexible : bool
        Whether the preconditioner may differ from iteration to iteration.
    rtol, atol, precision, M
        As for :class:`collops.solvers.BiCGStab`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.solvers import GMRES, solve
    >>> A = collops.Diagonal(np.array([1.0, -2.0, 4.0]))
    >>> solve(GMRES(rtol=1e-12), A, collops.ones(3), niter=10).x.gather().round(6)
    array([ 1.  , -0.5 ,  0.25])
    """

    restart: int = 30
    flexible: bool = False
    results = ()
    name = "GMRES"
    numbers = GMRESNumbers
    traceable = False

    def init(self, A: LinearOperator, y: Any, x0: Any) -> GMRESState:
        dtype, m, xp = working_dtype(A, y, x0), self.restart, y.engine.xp
        x, r, w = starting_point(A, y, x0, dtype, A._forward)
        consistent = rank_consistently(r)
        together = consistent(r)
        (square,) = dots((together, together))
        gamma = xp.sqrt(square)
        more = [zeros(r.layout, comm=y.comm, dtype=dtype, engine=y.engine) for _ in range(m)]
        basis = StackedArray([axpby(divide(1.0, gamma), r, 0.0, r, out=r), *more])
        directions = StackedArray([array.copy() for array in more]) if self.flexible else None
        small = np.result_type(dtype, gamma.dtype)
        H, Q, R = xp.zeros((m + 1, m), small), xp.eye(m + 1, dtype=small), xp.zeros((m, m), small)
        z = None if self.M is None or self.flexible else scratch_array(r.layout, y, dtype)
        return GMRESState(x, basis, directions, 0, gamma, gamma, H, Q, R, z, w, y, self.M, consistent)

    def step(self, A: LinearOperator, state: GMRESState) -> GMRESState:
        """Make the last basis vector orthonormal, add one that nearly is, and minimise the residual."""
        if state.k == self.restart:
            state = self._restarted(A, state)
        engine, k, V = state.basis.engine, state.k, state.basis.arrays
        xp, u = engine.xp, V[k]
        z = self.preconditioned(u, state.directions.arrays[k] if self.flexible else state.z)
        w = state.w = A._forward(z, state.w)
        state.z = state.z if self.flexible else z
        c, uu, s, uw, ww = _products(state, u, w)
        per_beta = divide(1.0, _second_pass(state, c, uu))
        if self.flexible:
            direction = state.directions.arrays[k]
            axpby(per_beta, z, 0.0, direction, out=direction)
        _add(u, per_beta, -c * per_beta, V[:k])

        # The first pass over the next vector, w / beta, and its norm by the theorem of Pythagoras.
        h = xp.append(s, (uw - xp.vdot(c, s)) * per_beta) * per_beta
        square = ww * per_beta * per_beta
        norm = xp.sqrt(xp.maximum(square - xp.vdot(h, h).real, np.finfo(square.dtype).eps * square))
        per_norm = divide(1.0, norm)
        _add(axpby(per_beta * per_norm, w, 0.0, V[k + 1], out=V[k + 1]), 1.0, -h * per_norm, V[: k + 1])
        if not self.flexible:
            h = h - (state.H[: k + 1, :k] * c).sum(axis=1) * per_beta  # A M v, where w is A M u
        column = engine.put(xp.zeros(self.restart + 1, state.H.dtype), slice(k + 1), h)
        column = xp.where(xp.isfinite(ww), engine.put(column, k + 1, norm), 0)
        state.H = engine.put(state.H, (slice(None), k), column)
        *_, sine = _rotation(state.Q, column, k, _rounding(state.H[:, : k + 1]))
        state.residual = xp.abs(sine * state.Q[k, 0]) * state.gamma + (ww - ww)
        state.k = k + 1
        return state

    def report(self, state: GMRESState) -> tuple[Any, ...]:
        return (state.residual,)

    def _restarted(self, A: LinearOperator, state: GMRESState) -> GMRESState:
        """Begin a cycle with the residual of the solution; its norm need not be exact, as that of u is measured."""
        state.start = state.x
        image = A._forward(state.start, state.w)
        r = axpby(1.0, state.y, -1.0, image, out=state.basis.arrays[0])
        axpby(divide(1.0, state.residual), r, 0.0, r, out=r)
        state.k, state.gamma = 0, state.residual
        state.Q = state.start.engine.xp.eye(self.restart + 1, dtype=state.Q.dtype)
        return state


def _add(target: Any, scale: Any, weights: Any, vectors: Any) -> Any:
    """Return ``scale * target`` and a weighted sum of vectors, in the memory of `target`."""
    if not len(vectors):
        return axpby(scale, target, 0.0, target, out=target)
    for number, vector in enumerate(vectors):
        target = axpby(weights[number], vector, scale if number == 0 else 1.0, target, out=target)
    return target


def _products(state: GMRESState, u: Any, w: Any = None) -> tuple[Any, ...]:
    """Return the inner products of the basis with u, and of u; with w also of the basis and u with w, and of w."""
    k = state.k
    *before, u = map(state.consistent, (*state.basis.arrays[:k], u))
    pairs = [*((v, u) for v in before), (u, u)]
    if w is not None:
        w = state.consistent(w)
        pairs += [*((v, w) for v in before), (u, w), (w, w)]
    numbers = u.engine.xp.asarray(dots(*pairs), dtype=state.H.dtype)
    both = numbers[:k], numbers[k].real
    return both if w is None else (*both, numbers[k + 1 : 2 * k + 1], numbers[2 * k + 1], numbers[-1].real)


def _second_pass(state: GMRESState, c: Any, uu: Any) -> Any:
    """Return the norm of u outside of the basis, 0 if that is a rounding error, and make the last columns final.

    `c` and `uu` are the inner products of the basis with u, and of u. From a norm of 0 on, all vectors are zero.
    """
    engine, k = state.basis.engine, state.k
    xp = engine.xp
    if k == 0:
        beta = xp.sqrt(uu)
        state.gamma = state.gamma * beta
        return beta
    beta, norm = xp.sqrt(xp.maximum(uu - xp.vdot(c, c).real, 0)), state.H[k, k - 1]
    rounding = _rounding(state.H[:, :k])
    both = xp.where(norm == 0, 0, norm * xp.append(c, beta))  # w may be NaN then
    last = engine.put(state.H[:, k - 1].copy(), slice(k + 1), xp.append(state.H[:k, k - 1], 0) + both)
    state.H = engine.put(state.H, (slice(None), k - 1), last)
    column, cosine, sine = _rotation(state.Q, last, k - 1, rounding)
    state.R = engine.put(state.R, (slice(k), k - 1), column[:k])
    upper, lower = state.Q[k - 1], state.Q[k]
    rotated = xp.stack([xp.conj(cosine) * upper + sine * lower, cosine * lower - sine * upper])
    state.Q = engine.put(state.Q, slice(k - 1, k + 1), rotated)
    return xp.where(last[k].real > rounding, beta, 0)


def _rotation(Q: Any, column: Any, k: int, rounding: Any) -> tuple[Any, Any, Any]:
    """Return column `k` of R, and the cosine and sine of the rotation that eliminates its element in row k + 1.

    A column that depends on those before it, but for rounding, leaves a zero on the diagonal.
    """
    engine = engine_of(Q)
    xp = engine.xp
    turned = (Q * column).sum(axis=1)
    rho, sigma = turned[k], turned[k + 1].real
    length = xp.hypot(xp.abs(rho), sigma)
    there = length > rounding
    cosine, sine = (xp.where(there, divide(part, length), other) for part, other in ((rho, 0), (sigma, 1)))
    return engine.put(turned, k, xp.where(there, length, 0)), cosine, sine


def _rounding(H: Any) -> Any:
    """Return the size of rounding errors of the images of basis vectors."""
    xp = engine_of(H).xp
    return 10 * np.finfo(H.dtype).eps * xp.sqrt((xp.abs(H) ** 2).sum())


@solver
def gmres(
    A: LinearOperator,
    y: Any,
    x0: Any = None,
    *,
    niter: int = 100,
    restart: int = 30,
    M: LinearOperator | None = None,
    flexible: bool = False,
    rtol: float = 1e-5,
    atol: float = 0.0,
    **run: Any,
) -> SolverResult:
    r"""Solve :math:`A x = y` by restarted GMRES [Saad and Schultz 1986], or flexible GMRES [Saad 1993]. Collective.

    Parameters
    ----------
    A : LinearOperator
        With one layout on both sides, and linear over the complex numbers.
    y, x0
        As for :func:`cgls`.
    niter : int
        Largest number of iterations, each with one application of `A`, over all cycles.
    restart : int
        Iterations in a cycle. Memory is needed for as many vectors, and one more; for twice as many with `flexible`.
    M : LinearOperator, optional
        The preconditioner, which approximates the inverse of `A`, applied from the right: the residual is that of
        :math:`A x = y`.
    flexible : bool
        Whether the image of a vector under `M` may differ from iteration to iteration.
    rtol, atol : float
        Stop when the norm of the residual is at most `rtol` times the first one, or at most `atol`. The solver always
        stops where the residual is no larger than rounding errors of the first one.
    **run
        Other options of :class:`Run`.

    Returns
    -------
    SolverResult
        The solution, and the history of the iteration.

    Raises
    ------
    LayoutError, InputError
        If `A` has two layouts, `y`, `x0` or `M` does not have that of `A`, or an option is invalid.

    Notes
    -----
    Besides the messages of `A` and `M`, iteration k of a cycle sends one allreduce of 2 k + 1 numbers. A restart, the
    end, and a callback that reads `x` need one more, and apply `M` once more; a restart also applies `A`.

    The basis is as orthogonal as by two passes of Gram and Schmidt's classical method in every iteration. On JAX the
    iterations are not compiled, and have no derivatives.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.Diagonal(np.array([1.0, -2.0, 4.0]))
    >>> collops.gmres(A, collops.ones(3), rtol=1e-12).x.gather().round(6)
    array([ 1.  , -0.5 ,  0.25])
    """
    options = checked_system("gmres", A, y, x0, niter, M, rtol, atol)
    restart = min(check_count("restart", restart, smallest=1), max(1, A.domain.size))
    method = GMRES(**options, restart=restart, flexible=bool(flexible))
    return solve(method, A, y, x0, niter=niter, parts=[M], **run)
