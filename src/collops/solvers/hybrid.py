"""Hybrid LSQR: least squares with a damping chosen from the data in every iteration.

The bidiagonalisation of Golub and Kahan projects a large problem to a small one. Every rank solves the small problem
for many damping factors, and selects the best one from the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from collops.array import Array, StackedArray, axpby, dots, zeros_like
from collops.comm import Communicator
from collops.operators import LinearOperator
from collops.solvers.driver import solve, solver
from collops.solvers.method import DOUBLE_PRECISION, Degrees, Method, log2, not_finite
from collops.solvers.problem import (
    check_count,
    check_kept,
    check_number,
    check_problem,
    consistent,
    group_of,
    precision_of,
    starting_point,
    working_dtype,
)
from collops.solvers.result import SolverResult, Status
from collops.solvers.state import CONSTANT, SCRATCH, Numbers, Scalar, State

_MIN_DAMPING, _TRIALS = 1e-8, 120  # damping factors: the smallest, relative to the operator's norm, and their number
# Weight of plain cross-validation, at most 1. With 1, one solution in ten fits noise; see test_hybrid.
_ROBUST = 0.1


class HybridNumbers(NamedTuple):
    """The numbers of an iteration of hybrid LSQR."""

    residual: Scalar  # its norm, without damping
    damp: Scalar
    change: Scalar  # norm of the change of the solution
    norm: Scalar  # norm of the solution minus the starting point
    remainder: Scalar  # norm of A^H u outside of V: 0 if further iterations would not change the solution


@dataclass(slots=True)
class HybridState:
    """The bidiagonalisation ``A V = U B``; V and the last vector of U are stored."""

    start: Array
    basis: StackedArray  # V, with one vector more than the maximum number of iterations
    u: Array
    k: int  # iterations
    B: np.ndarray
    beta: float  # norm of the first residual
    alpha: float  # norm of A^H u outside of V
    weights: np.ndarray  # the solution is the sum of the basis with these
    numbers: Sequence[Scalar] = field(metadata=SCRATCH)
    image: Array | None = field(metadata=SCRATCH)
    size: int = field(metadata=CONSTANT)  # number of data
    comm: Communicator = field(metadata=CONSTANT)

    @property
    def x(self) -> Array:
        """The solution, computed from the basis on access. No messages."""
        x = self.start.copy()
        for weight, v in zip(self.weights[: self.k], self.basis.arrays, strict=False):
            x = axpby(float(weight), v, 1.0, x, out=x)
        return x


@dataclass(frozen=True)
class HybridLSQR(Method):
    """Hybrid LSQR; see :func:`hybrid_lsqr`."""

    niter: int
    noise: float | None
    tol: float
    precision: float = DOUBLE_PRECISION
    name = "hybrid LSQR"
    numbers = HybridNumbers
    tolerances = frozenset({"tol", "precision"})
    degrees: ClassVar[Degrees] = {"noise": (1, 0), "damp": (0, 1)}
    capturable = False  # the host chooses the damping
    traceable = False
    stops = (
        (lambda self, now, first: not_finite(now.residual, now.change), Status.NOT_FINITE),
        (lambda self, now, first: first.norm == 0, Status.EXACT_ZERO),
        (lambda self, now, first: now.change <= self.tol * now.norm, Status.CONVERGED),
        (lambda self, now, first: now.remainder == 0, Status.CONVERGED),
    )

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> HybridState:
        x, u, image = starting_point(A, y, x0)
        beta = _norm(u)
        u = axpby(1 / (beta or 1.0), u, 0.0, u, out=u)
        vectors: list[Any] = [zeros_like(x) for _ in range(self.niter + 1)]
        B = np.zeros((self.niter + 1, self.niter))
        numbers = beta, 0.0, 0.0, 0.0, 0.0
        scalars = 0, B, beta, 0.0, np.zeros(self.niter), numbers
        state = HybridState(x, StackedArray(vectors), u, *scalars, image, A.range.size, group_of(y))
        self._extend(A, state)
        gradient = state.alpha * beta
        return replace(state, numbers=(beta, 0.0, gradient, gradient, state.alpha))

    def step(self, A: LinearOperator, state: HybridState) -> HybridState:
        """Extend both bases by one vector each, and solve the small problem with the best damping."""
        k = state.k
        state.image = A._forward(state.basis.arrays[k], state.image)
        u = axpby(1.0, state.image, -state.alpha, state.u, out=state.u)
        beta = _norm(u)
        state.u = axpby(1 / beta if beta > self.precision * state.alpha else 0.0, u, 0.0, u, out=u)
        state.B = state.B.copy()
        state.B[k, k], state.B[k + 1, k] = state.alpha, beta
        state.k = k = k + 1
        before, damp, residual = state.weights, np.nan, np.nan
        if np.isfinite(beta):
            damp, residual, weights = _solution(state.B[: k + 1, :k], state.beta, state.size, self.noise)
            # One rank decides for all: rounding may differ between ranks.
            damp, residual, *weights = state.comm.bcast(np.array([damp, residual, *weights]))
            state.weights = np.append(weights, np.zeros(self.niter - k))
        self._extend(A, state)
        change = np.linalg.norm(state.weights - before) + (state.alpha - state.alpha)
        # With as many vectors as unknowns or data the space is complete; the remainder is rounding.
        remainder = 0.0 if k == min(A.shape) else state.alpha
        state.numbers = residual, damp, change, np.linalg.norm(state.weights), remainder
        return state

    def recomputed(
        self, A: LinearOperator, y: Array, x: Array | None, x0: Array | None, state: HybridState, now: HybridNumbers
    ) -> HybridNumbers | None:
        # No test refers to the residual at zero.
        return None if x is None else now._replace(residual=_norm(starting_point(A, y, x)[1]))

    def magnitudes(self, now: Numbers, before: Numbers | None, state: State) -> Sequence[float]:
        return () if before is not None or now.residual == 0 else (2 * log2(now.remainder),)

    def suspect(self, now: HybridNumbers, iteration: int) -> str:
        if now.residual - now.residual == 0:
            return "basis"
        return "image" if iteration else "u"

    def residual_norm(self, now: HybridNumbers) -> Scalar:
        return now.residual

    def details(self, state: HybridState, history: HybridNumbers) -> dict[str, Any]:
        return {"damp": float(history.damp[-1])}

    def _extend(self, A: LinearOperator, state: HybridState) -> None:
        """Find the next vector of V, orthogonal to all others, and the norm of A^H u in its direction.

        Orthogonality of V is sufficient: U then is sufficiently orthogonal [Simon and Zha 2000].
        """
        k, vectors = state.k, state.basis.arrays
        w = A._adjoint(state.u, vectors[k])
        alpha, lengths = 0.0, []
        for _ in range(2):  # classical Gram-Schmidt, twice
            *products, square = dots(*consistent(*((v, w) for v in vectors[:k]), (w, w)))
            for v, product in zip(vectors, products, strict=False):
                w = axpby(-product, v, 1.0, w, out=w)
            lengths.append(float(square) ** 0.5)
            remainder = float(square) - sum(abs(complex(product)) ** 2 for product in products)
            alpha = 0.0 if remainder < 0 else remainder**0.5  # NaN stays
        # After two passes, a vector in the span of the others is a rounding error.
        state.alpha = 0.0 if alpha <= 10 * self.precision * lengths[0] else alpha
        w = axpby(1 / state.alpha if state.alpha else 0.0, w, 0.0, w, out=w)
        arrays: list[Any] = list(vectors)
        arrays[k] = w
        state.basis = state.basis._like(arrays)


def _norm(array: Array) -> float:
    return float(dots(*consistent((array, array)))[0]) ** 0.5


def _solution(B: np.ndarray, beta: float, size: int, noise: float | None) -> tuple[float, float, np.ndarray]:
    """Return the best damping factor for the small problem, the norm of its residual, and its solution."""
    from scipy.optimize import brentq, minimize_scalar

    P, s, Qh = np.linalg.svd(B)
    data, outside = beta * P[0, : len(s)], beta * abs(P[0, -1])
    trials = np.log(s[0]) + np.linspace(np.log(_MIN_DAMPING), np.log(1 / _MIN_DAMPING) / 2, _TRIALS)

    def filtered(log: float) -> np.ndarray:
        """Return the filter factor of each singular vector for this damping."""
        return s * s / (s * s + np.exp(2 * log))

    def residual(log: float) -> float:
        return float(np.hypot(np.linalg.norm((1 - filtered(log)) * data), outside))

    def score(log: float) -> float:
        """Return the objective of robust generalised cross-validation [Lukas 2006], with the number of all data."""
        share = filtered(log)
        fit = residual(log) / (size - share.sum())
        return fit * fit * (_ROBUST + (1 - _ROBUST) * (share * share).sum() / size)

    if noise is None and len(s) == size:
        # As many vectors as data leave no data for validation: keep the previous damping.
        log = float(np.log(_solution(B[:-1, :-1], beta, size, None)[0])) if size > 1 else float(trials[0])
    elif noise is None:
        best = int(np.argmin([score(log) for log in trials]))
        interval = trials[max(best - 1, 0)], trials[min(best + 1, _TRIALS - 1)]
        log = float(minimize_scalar(score, bounds=interval, method="bounded").x)
    elif residual(trials[0]) >= noise or residual(trials[-1]) <= noise:
        log = float(trials[0 if residual(trials[0]) >= noise else -1])
    else:
        log = float(brentq(lambda log: residual(log) - noise, trials[0], trials[-1]))
    safe = np.where(s > 0, s, 1.0)
    return float(np.exp(log)), residual(log), Qh.T @ (filtered(log) * data / safe)


@solver
def hybrid_lsqr(
    A: LinearOperator,
    y: Array,
    x0: Array | None = None,
    *,
    niter: int = 50,
    noise: float | None = None,
    tol: float = 1e-4,
    **run: Any,
) -> SolverResult:
    r"""Minimise :math:`\|y - A x\|^2 + \epsilon^2 \|x - x_0\|^2`, with an automatic damping :math:`\epsilon`.

    Collective.

    Parameters
    ----------
    A, y, x0
        As for :func:`cgls`.
    niter : int
        Largest number of iterations. It takes memory for `niter` models. A run can only resume with the same number.
    noise : float, optional
        Norm of the noise in `y`, if known: the norm of the residual will equal it [Morozov 1966]. By default, robust
        generalised cross-validation [Lukas 2006] chooses the damping, which assumes white noise.
    tol : float
        Stop when an iteration, including its change of damping, changes the solution by at most this fraction of its
        norm, or when further iterations cannot change it: at the latest at the number of unknowns or data.
    **run
        Other options of :class:`Run`.

    Returns
    -------
    SolverResult
        With the damping factor as ``damp`` in its details. ``residual_norms`` has the norms of :math:`y - A x`.

    Raises
    ------
    LayoutError, InputError
        As for :func:`cgls`.

    Notes
    -----
    The solution after k iterations is the best one, with the damping of this iteration, in the Krylov space of LSQR
    [Chung et al. 2008]. Unlike the solution of :func:`lsqr`, it does not become worse with more iterations. To
    penalise a transform of the model, such as its Laplacian L, solve for :math:`L x`, or choose the damping of a
    stacked operator by :func:`discrepancy`.

    Besides the messages of `A`, iteration k sends one scalar allreduce, two of k + 1 numbers, and broadcasts k + 2
    numbers. On JAX the iterations are not compiled.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> n = 1 + np.arange(40)
    >>> rng = np.random.default_rng(0)
    >>> A = collops.VStack([rng.normal(size=(60, 40)) / n**2])
    >>> truth = collops.from_global(1.0 / n, A.domain)
    >>> y = A @ truth + 0.05 * collops.from_global(rng.normal(size=60))
    >>> chosen, undamped = (solver(A, y, niter=40).x for solver in (collops.hybrid_lsqr, collops.lsqr))
    >>> bool((chosen - truth).norm() < 0.1 * (undamped - truth).norm())
    True
    """
    check_problem(A, y, x0, niter)
    noise = None if noise is None else check_number("noise", noise)
    size = max(1, min(check_count("niter", niter), *A.shape))
    dtype = working_dtype(A, y, x0)
    check_kept("niter", size, y.engine, size, layout=A.domain, dtype=dtype)
    method = HybridLSQR(size, noise, check_number("tol", tol), precision_of(dtype))
    return solve(method, A, y, x0, niter=min(niter, size), parts=[method], **run)
