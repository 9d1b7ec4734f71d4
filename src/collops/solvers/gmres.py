"""GMRES and flexible GMRES: the smallest residual in a Krylov space, with one reduction per iteration.

Two passes of classical Gram-Schmidt make the basis orthonormal. The second pass is delayed by one iteration, and shares
the message of the first pass over the next vector [Bielich et al. 2022]. Until then the newest basis vector, called
``u``, has a norm of about 1, estimated by the Pythagorean theorem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

from collops.array import Array, axpby, divide, dots, zeros
from collops.array.dtypes import real_of
from collops.array.kernels import kernels_for
from collops.backend import Engine
from collops.operators import LinearOperator
from collops.operators.base import AnyLayout
from collops.operators.columns import block_layout, column
from collops.operators.memory import check_holds
from collops.solvers.blocks import as_rows, grams, multiply, pieces
from collops.solvers.driver import solve, solver
from collops.solvers.method import log2
from collops.solvers.problem import check_count, check_kept, consistent, on_host, starting_point
from collops.solvers.result import SolverResult
from collops.solvers.state import CONSTANT, SCRATCH, Numbers, Scalar, scratch_array
from collops.solvers.systems import SquareSystem, checked_system


@dataclass(slots=True)
class GMRESState:
    """A cycle of GMRES: ``A Z = V H``; ``Q H = R`` with a unitary Q is upper triangular above a row of zeros.

    Z is ``M V``. Small matrices are on the host, which waits for the inner products of an iteration: the many small
    operations would take longer on a device.
    """

    start: Array  # the solution before this cycle
    basis: Array  # V as a block of columns; column k is u
    directions: Any  # Z as a block, stored for flexible GMRES only
    k: int  # iterations of this cycle
    gamma: Scalar  # norm of the residual before this cycle
    residual: Scalar  # norm of the residual
    H: np.ndarray  # its last column becomes final with the second pass over u
    Q: np.ndarray  # without the rotation for the last column
    R: np.ndarray  # without the last column
    z: Array | None = field(metadata=SCRATCH)  # M u
    y: Array = field(metadata=CONSTANT)  # the data
    M: LinearOperator | None = field(metadata=CONSTANT)

    @property
    def x(self) -> Array:
        """The solution, computed from the basis on access. Collective: one allreduce, and the preconditioner."""
        k = self.k
        if k == 0:
            return self.start.copy()
        final = replace(self, H=self.H.copy(), Q=self.Q.copy(), R=self.R.copy())
        gram = _products(self, slice(k, k + 1))
        _second_pass(final, gram[:k, 0], gram[k, 0].real)
        # A column that adds nothing to the space has a zero on the diagonal, and does not enter the solution.
        R, unused = final.R[:k, :k], np.diagonal(final.R)[:k] == 0
        goal = np.where(unused, 0, self.gamma * final.Q[:k, 0])
        weights = np.linalg.solve(R + np.diag(unused).astype(R.dtype), goal)
        change = _sum(weights, self.basis if self.directions is None else self.directions, self.start)
        if self.M is not None and self.directions is None:
            change = self.M._forward(change, None)
        return axpby(1.0, self.start, 1.0, change)


class GMRESNumbers(NamedTuple):
    """The number of an iteration of GMRES: the norm of the residual."""

    residual: Scalar


@dataclass(frozen=True)
class GMRES(SquareSystem):
    """GMRES [Saad and Schultz 1986], and flexible GMRES [Saad 1993], preconditioned from the right.

    On JAX the steps run one by one: the number of basis vectors of an iteration is not traceable.

    Attributes
    ----------
    restart : int
        Iterations in a cycle, after which the basis is discarded.
    flexible : bool
        Whether the preconditioner may differ from iteration to iteration.
    rtol, atol, M
        As for :func:`gmres`.
    precision : float
        Relative size of rounding errors, below which a residual cannot be distinguished from 0.

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

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> GMRESState:
        x, r, _ = starting_point(A, y, x0)
        dtype, m = r.dtype, self.restart
        basis, directions = zeros(block_layout(r.layout, m + 1), comm=y.comm, dtype=dtype, engine=y.engine), None
        if self.flexible:
            directions = zeros(block_layout(r.layout, m), comm=y.comm, dtype=dtype, engine=y.engine)
        _put(basis, 0, r, None)
        (square,) = grams(*consistent((basis, basis)), columns=(slice(1), slice(1)))
        gamma = np.sqrt(y.engine.to_host(square)[0, 0].real)
        _put(basis, 0, axpby(divide(1.0, gamma), r, 0.0, r, out=r), None)
        small = np.result_type(dtype, gamma.dtype)
        H, Q, R = np.zeros((m + 1, m), small), np.eye(m + 1, dtype=small), np.zeros((m, m), small)
        z = None if self.M is None or self.flexible else scratch_array(r.layout, y, dtype)
        return GMRESState(x, basis, directions, 0, gamma, gamma, H, Q, R, z, y, self.M)

    def magnitudes(self, now: Numbers, before: Numbers | None, state: GMRESState) -> Sequence[float]:
        if before is None or before.residual == 0:
            return ()
        norm = log2(float(np.linalg.norm(state.H[:2, 0].astype(complex))))
        return 2 * norm, 2 * (log2(before.residual) - norm)

    def step(self, A: LinearOperator, state: GMRESState) -> GMRESState:
        """Orthonormalise the last basis vector, add an approximately orthonormal one, and minimise the residual."""
        if state.k == self.restart:
            state = self._restarted(A, state)
        layout, k, V = state.start.layout, state.k, state.basis
        memory = _memory(V, layout, k + 1)
        direction = _memory(state.directions, layout, k) if self.flexible else state.z
        z = self.preconditioned(column(V, layout, k), direction)
        _put(V, k + 1, A._forward(z, memory), memory)
        gram = _products(state, slice(k, k + 2))
        c, uu, s, uw, ww = gram[:k, 0], gram[k, 0].real, gram[:k, 1], gram[k, 1], gram[k + 1, 1].real
        per_beta = divide(1.0, _second_pass(state, c, uu))
        if self.flexible:
            _put(state.directions, k, axpby(per_beta, z, 0.0, z, out=direction), direction)
        else:
            state.z = z

        # The first pass over the next vector, w / beta, and its norm by the Pythagorean theorem.
        h = _longer(s, (uw - np.vdot(c, s)) * per_beta) * per_beta
        square = ww * per_beta * per_beta
        norm = np.sqrt(np.maximum(square - np.vdot(h, h).real, np.finfo(square.dtype).eps * square))
        per_norm = divide(1.0, norm)
        last = np.zeros((2, k + 2), h.dtype)  # the two vectors by the basis with u and w
        last[0, : k + 1] = v = _longer(-c * per_beta, per_beta)
        following = h + h[k] * v
        following[k] = h[k] * per_beta
        last[1] = _longer(-following, per_beta) * per_norm
        if not np.isfinite(ww):
            for leaf in V.leaves:  # or column k would get a part of it, zero times infinity
                leaf.local_array = leaf.engine.put(leaf.local_array, k + 1, 0.0)
        _replace(V, k, last)
        if not self.flexible:
            h = h - state.H[: k + 1, :k] @ c * per_beta  # A M v, where w is A M u
        state.H[:, k] = 0
        if np.isfinite(ww):
            state.H[: k + 1, k], state.H[k + 1, k] = h, norm
        *_, sine = _rotation(state.Q, state.H[:, k], k, _rounding(state.H[:, : k + 1]))
        state.residual = np.abs(sine * state.Q[k, 0]) * state.gamma + (ww - ww)
        state.k = k + 1
        return state

    def report(self, state: GMRESState) -> Sequence[Scalar]:
        return (float(state.residual),)

    def restarted(self, A: LinearOperator, y: Array, x: Array, state: GMRESState) -> GMRESState:
        """Begin a cycle in the memory of the last one."""
        _, r, _ = starting_point(A, y, x)
        (square,) = dots(*consistent((r, r)))
        gamma = np.sqrt(np.real(y.engine.to_host(square))).astype(real_of(state.Q.dtype))[()]
        _put(state.basis, 0, axpby(divide(1.0, gamma), r, 0.0, r, out=r), None)
        Q = np.eye(self.restart + 1, dtype=state.Q.dtype)
        return replace(state, start=x, k=0, gamma=gamma, residual=gamma, Q=Q)

    def _restarted(self, A: LinearOperator, state: GMRESState) -> GMRESState:
        """Begin a cycle with the residual of the solution; its norm may be inexact, since the norm of u is measured."""
        state.start = state.x
        memory, scale = _memory(state.basis, state.start.layout, 0), divide(1.0, state.residual)
        image = A._forward(state.start, memory)
        _put(state.basis, 0, axpby(scale, state.y, -scale, image, out=memory), memory)
        state.k, state.gamma = 0, state.residual
        state.Q = np.eye(self.restart + 1, dtype=state.Q.dtype)
        return state


def _memory(block: Array, layout: AnyLayout, number: int) -> Array | None:
    """Return memory for a column: a view of the block if the engine is mutable, else ``None``."""
    return column(block, layout, number) if block.engine.mutable else None


def _put(block: Array, number: int, array: Array, memory: Array | None) -> None:
    """Copy an array to a column of a block, unless it is `memory`, the view of that column."""
    if array is not memory:
        for column, new in zip(block.leaves, array.leaves, strict=True):
            check_holds(column.dtype, new.dtype)
            column.local_array = column.engine.put(column.local_array, number, new.local_array)


def _sum(weights: np.ndarray, block: Array, like: Array) -> Array:
    """Return a weighted sum of the first columns of a block, in the layout and dtype of `like`."""
    total = zeros(like.layout, comm=like.comm, dtype=like.dtype, engine=like.engine)
    weights = like.engine.from_host(weights)
    for leaf, out in zip(block.leaves, total.leaves, strict=True):
        vectors = as_rows(leaf.local_array)[: len(weights)]
        out._hold(multiply(weights, vectors).reshape(out.local_array.shape))
    return total


def _replace(block: Array, k: int, matrix: np.ndarray) -> None:
    """Replace columns k and k + 1 by the products of `matrix` with the columns up to k + 1."""
    engine = block.engine
    matrix = engine.from_host(matrix)
    for leaf in block.leaves:
        shape = leaf.local_array.shape
        vectors = as_rows(leaf.local_array)
        combine_into_two = getattr(kernels_for(engine), "combine_into_two", None)
        if combine_into_two is not None and combine_into_two(vectors[: k + 2], matrix):
            continue
        for piece in pieces(engine, vectors.shape[1]):
            parts = [multiply(matrix[:, some], vectors[some, piece]) for some in _together(engine, k + 2)]
            vectors = engine.put(vectors, (slice(k, k + 2), piece), reduce(add, parts))
        leaf.local_array = vectors.reshape(shape)


def _together(engine: Engine, count: int) -> list[slice]:
    """Return the groups of `count` vectors that a product reads together.

    Hardware prefetching supports a few vectors at a time: 30 vectors in one product took 1.6 times as long as in groups
    of eight on one core of an AMD EPYC.
    """
    step = 8 if on_host(engine) else count
    return [slice(first, min(first + step, count)) for first in range(0, count, step)]


def _products(state: GMRESState, last: slice) -> np.ndarray:
    """Return the inner products of the columns of the basis up to `last` with the columns in `last`."""
    (gram,) = grams(*consistent((state.basis, state.basis)), columns=(slice(last.stop), last))
    return state.start.engine.to_host(gram).astype(state.H.dtype, copy=False)


def _second_pass(state: GMRESState, c: np.ndarray, uu: np.floating) -> np.floating:
    """Return the norm of u orthogonal to the basis, 0 if it is a rounding error, and finalise the last columns.

    `c` and `uu` are the inner products of the basis with u, and of u. After a norm of 0, all vectors are zero.
    """
    k = state.k
    if k == 0:
        beta = np.sqrt(uu)
        state.gamma = state.gamma * beta
        return beta
    beta, norm = np.sqrt(np.maximum(uu - np.vdot(c, c).real, 0)), state.H[k, k - 1]
    rounding, last = _rounding(state.H[:, :k]), state.H[:, k - 1]
    last[k] = 0
    if norm != 0:  # w may be NaN otherwise
        last[: k + 1] += norm * _longer(c, beta)
    column, cosine, sine = _rotation(state.Q, last, k - 1, rounding)
    state.R[:k, k - 1] = column[:k]
    upper, lower = state.Q[k - 1], state.Q[k]
    state.Q[k - 1 : k + 1] = np.conj(cosine) * upper + sine * lower, cosine * lower - sine * upper
    return beta if last[k].real > rounding else np.zeros_like(beta)


def _rotation(Q: np.ndarray, column: np.ndarray, k: int, rounding: np.floating) -> tuple[np.ndarray, Scalar, Scalar]:
    """Return column `k` of R, and the cosine and sine of the rotation that eliminates its element in row k + 1.

    A column that depends on the previous columns to rounding gets a zero on the diagonal.
    """
    turned = Q @ column
    rho, sigma = turned[k], turned[k + 1].real
    turned[k] = length = np.hypot(np.abs(rho), sigma)
    if length > rounding:
        return turned, rho / length, sigma / length
    turned[k] = 0
    return turned, 0.0, 1.0


def _rounding(H: np.ndarray) -> np.floating:
    """Return the size of rounding errors of the images of basis vectors."""
    return 10 * np.finfo(H.dtype).eps * np.linalg.norm(H)


def _longer(vector: np.ndarray, value: Scalar) -> np.ndarray:
    """Return a vector with one more element; ``numpy.append`` is several times slower."""
    longer = np.empty(len(vector) + 1, vector.dtype)
    longer[:-1], longer[-1] = vector, value
    return longer


@solver
def gmres(
    A: LinearOperator,
    y: Array,
    x0: Array | None = None,
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
        Iterations in a cycle. It takes memory for `restart` + 1 vectors, or twice as many with `flexible`.
    M : LinearOperator, optional
        The right preconditioner, which approximates the inverse of `A`; the residual remains :math:`y - A x`.
    flexible : bool
        Whether the image of a vector under `M` may differ from iteration to iteration.
    rtol, atol : float
        Stop when the norm of the residual is at most `rtol` times the norm of `y`, or at most `atol`, also with `x0`.
        The solver always stops when the residual is as small as rounding errors.
    **run
        Other options of :class:`Run`.

    Returns
    -------
    SolverResult
        The solution, and the history of the iteration.

    Raises
    ------
    LayoutError, InputError
        If `A` has two layouts, `y`, `x0` or `M` has another layout, or an option is invalid.

    Notes
    -----
    Besides the messages of `A` and `M`, iteration k of a cycle sends one allreduce of 2 k + 2 numbers. A restart, the
    end, and a callback that reads `x` take one more, and apply `M` once more; a restart also applies `A`.

    The basis is as orthogonal as with two passes of classical Gram-Schmidt in every iteration. The second pass follows
    in the next iteration: until then the residual norm is overestimated if the space is nearly complete. On JAX the
    iterations are not compiled, and cannot be differentiated.

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
    check_kept("restart", restart, y.engine, 2 * restart, layout=y.layout, dtype=y.dtype)
    method = GMRES(**options, restart=restart, flexible=bool(flexible))
    return solve(method, A, y, x0, niter=niter, parts=[M], **run)
