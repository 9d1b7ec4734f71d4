"""Block CG: conjugate gradients for several right-hand sides, which share their search directions and messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from collops.array import Array
from collops.backend import LocalArray, engine_of
from collops.operators import Columns, LinearOperator
from collops.solvers.blocks import Block, as_block, combine, factors, grams, multiply, pseudo_inverse, second_factors
from collops.solvers.driver import solve, solver
from collops.solvers.method import DOUBLE_PRECISION, Degrees, not_finite
from collops.solvers.problem import (
    check_number,
    check_numbers,
    check_operator,
    check_preconditioner,
    check_problem,
    check_square,
    consistent,
    precision_of,
    starting_point,
    working_dtype,
)
from collops.solvers.result import SolverResult, Status
from collops.solvers.state import SCRATCH, Numbers, Scalar, State
from collops.solvers.systems import Shifted

_INDEFINITE = -0.01
"""Bound on negative eigenvalues from rounding errors, also for operators in single precision."""

_QUIET = np.errstate(over="ignore", invalid="ignore")  # the first test detects numbers that are not finite


@dataclass(slots=True)
class BlockCGState:
    """State of block CG between iterations: blocks and small matrices. The residual is Q C."""

    x: Array
    q: Array  # a basis of the residuals; orthonormal in the inner product of M
    u: Array | None  # M Q; None without a preconditioner, where Q is used
    p: Array  # directions
    c: LocalArray
    z: Array | None = field(metadata=SCRATCH)  # (A + damp) P
    first: LocalArray  # squared norms of the residuals at zero
    decrease: LocalArray = field(metadata=SCRATCH)  # of each column's objective, x^H (A + damp) x - 2 Re x^H y
    numbers: Sequence[Scalar] = field(metadata=SCRATCH)


class BlockNumbers(NamedTuple):
    """The numbers of an iteration of a block method."""

    residual: Scalar  # squared norm of all residuals
    relative: Scalar  # the largest relative squared norm of a column's residual (CGLS: gradient)
    largest: Scalar  # the largest squared norm itself
    definite: Scalar  # the smallest eigenvalue of P^H A P and W^H M W, scaled to diagonals of ones


@dataclass(frozen=True)
class BlockCG(Shifted):
    """Block conjugate gradients [O'Leary 1980], with an orthonormal basis of the residuals [Dubrulle 2001].

    Operator and preconditioner are :class:`collops.operators.Columns`. `rtol` and `atol` bound each column's residual.
    """

    damp: float = 0.0
    rtol: float = 1e-5
    atol: float = 0.0
    precision: float = DOUBLE_PRECISION  # relative size of rounding errors
    M: LinearOperator | None = None
    name = "Block CG"
    numbers = BlockNumbers
    tolerances = frozenset({"rtol", "atol", "precision"})
    columns: tuple[float, ...] | LocalArray | None = (
        None  # units of the columns, relative to the largest, if they differ
    )
    degrees: ClassVar[Degrees] = {"atol": (1, 0), "damp": (0, 1), "M": (0, -1)}
    stops = (
        (lambda self, now, first: not_finite(now.residual, now.largest), Status.NOT_FINITE),
        (lambda self, now, first: now.relative <= self.rtol * self.rtol, Status.CONVERGED, "rtol"),
        (lambda self, now, first: now.largest <= self.atol * self.atol, Status.CONVERGED),
        (lambda self, now, first: now.relative <= self.precision * self.precision, Status.COMPATIBLE_TO_ROUNDING),
        (lambda self, now, first: now.definite < _INDEFINITE, Status.INDEFINITE),
    )

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> BlockCGState:
        x, r, z = starting_point(A, y, x0, image_of=self.image)
        return self._begin(A, x, r, z, None if x0 is None else y)

    @_QUIET
    def _begin(self, A: LinearOperator, x: Array, r: Array, z: Array | None, at_zero: Array | None) -> BlockCGState:
        """Return the state with these starting points, their residuals, and memory for images.

        `at_zero` are the residuals at zero, if they differ.
        """
        u = self.preconditioned(r, None)
        gram, squares = self._measured(A, r, u)
        S, T, definite = factors(gram)
        squares = first = engine_of(squares).xp.diagonal(squares).real
        if at_zero is not None:
            first = squares_of_columns(at_zero)
            first = engine_of(first).xp.where(first > 0, first, squares)
        numbers = *self._norms(squares, first), definite
        q, u = combine(r, T), None if self.M is None else combine(u, T)
        p = q.copy() if u is None else u.copy()
        return BlockCGState(x, q, u, p, S, z, first, first, numbers)

    @_QUIET
    def step(self, A: LinearOperator, state: BlockCGState) -> BlockCGState:
        """Minimise over the span of the directions, and compute the next directions."""
        p, q, c, xp = state.p, state.q, state.c, state.x.engine.xp
        z = state.z = self.image(A, p, state.z)
        curvature, descent, gram = self._products(A, (p, z), (p, q), (q, q if state.u is None else state.u))
        again, second = second_factors(gram)
        curvature, descent = (multiply(second.conj().T, matrix, second) for matrix in (curvature, descent))
        inverse, definite = pseudo_inverse(curvature)
        alpha, c = multiply(inverse, descent), multiply(again, c)
        change = multiply(alpha, c)
        state.x = combine(p, multiply(second, change), state.x)
        gained = multiply(change.conj().T, 2 * multiply(descent, c) - multiply(curvature, change))
        state.decrease = xp.diagonal(gained).real
        w = combine(z, multiply(second, -alpha), combine(q, second))
        u = self.preconditioned(w, None)
        gram, squares = self._measured(A, w, u)
        S, T, other = factors(gram)
        state.q = combine(w, T)
        state.u = None if self.M is None else combine(u, T)
        state.p = combine(p, multiply(second, S.conj().T), state.q if self.M is None else state.u)
        residuals = xp.diagonal(multiply(c.conj().T, squares, c)).real
        state.c = multiply(S, c)
        state.numbers = *self._norms(residuals, state.first), xp.minimum(definite, other)
        return state

    def recomputed(
        self, A: LinearOperator, y: Array, x: Array | None, x0: Array | None, state: State, now: Numbers
    ) -> Numbers | None:
        if x is None:
            return now  # its tests refer to columns of the state
        squares = squares_of_columns(starting_point(A, y, x, image_of=self.image)[1])
        residual, relative, largest = self._norms(squares, state.first)
        return now._replace(residual=residual, relative=relative, largest=largest)

    def tangent(self, A: LinearOperator, tol: Scalar) -> tuple[BlockCG, LinearOperator]:
        return BlockCG(rtol=0.0, atol=tol**0.5, M=self.M, damp=self.damp), A

    def _in_one_unit(self, squares: LocalArray) -> LocalArray:
        """Return squared norms of columns in the squared unit of the largest column."""
        if self.columns is None:
            return squares
        columns = engine_of(squares).xp.asarray(self.columns, dtype=squares.dtype)
        return squares * columns * columns

    def _norms(self, squares: LocalArray, first: LocalArray) -> tuple[Scalar, Scalar, Scalar]:
        """Return the sum of squared norms of columns, the largest relative to the first ones, and the largest."""
        xp, nonzero = engine_of(squares).xp, first > 0
        relative = xp.where(nonzero, squares / xp.where(nonzero, first, 1), squares)  # 0 of 0 is 0
        squares = self._in_one_unit(squares)
        return squares.sum(), xp.max(relative), xp.max(squares)

    def _measured(self, A: LinearOperator, w: Array, u: Array) -> tuple[LocalArray, LocalArray]:
        """Return W^H M W and W^H W, where U is M W. One message."""
        gram, *squares = self._products(A, (w, u), *([] if self.M is None else [(w, w)]))
        return gram, squares[0] if squares else gram

    def _products(self, A: LinearOperator, *pairs: tuple[Array, Array]) -> list[LocalArray]:
        """Return matrices of inner products; real ones if operators are linear over the real numbers only."""
        products = grams(*consistent(*pairs))
        if A.clinear and (self.M is None or self.M.clinear):
            return products
        return [product.real for product in products]


def squares_of_columns(block: Array) -> LocalArray:
    """Return the squared norms of the columns of a block. Collective: one allreduce."""
    (gram,) = grams(*consistent((block, block)))
    return engine_of(gram).xp.diagonal(gram).real


def block_options(
    A: LinearOperator, Y: Block, X0: Block | None, niter: int, M: LinearOperator | None, rtol: Scalar, atol: Scalar
) -> tuple[Columns, Array, Array | None, dict[str, Any]]:
    """Return operator, data and starting points as blocks, and the options of a block method, after all checks."""
    check_operator("A", A)
    Y = as_block("Y", Y, A.range)
    X0 = None if X0 is None else as_block("X0", X0, A.domain)
    columns = Columns(A, len(Y.leaves[0]))
    check_problem(columns, Y, X0, niter)
    check_preconditioner(M, A.domain)
    options = {
        **check_numbers(rtol=rtol, atol=atol),
        "precision": precision_of(working_dtype(A, Y, X0)),
        "M": None if M is None else Columns(M, columns.count),
    }
    return columns, Y, X0, options


@solver
def block_cg(
    A: LinearOperator,
    Y: Block,
    X0: Block | None = None,
    *,
    niter: int = 100,
    damp: float = 0.0,
    M: LinearOperator | None = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
    **run: Any,
) -> SolverResult:
    r"""Solve :math:`(A + \epsilon I) X = Y` for several right-hand sides by block CG [O'Leary 1980]. Collective.

    Parameters
    ----------
    A : LinearOperator
        Hermitian positive definite, with one layout on both sides.
    Y : DistributedArray, StackedArray, or sequence of them
        The right-hand sides: a list of arrays in the layout of `A`, or a block as :class:`collops.operators.Columns`
        describes it. Their precision determines the precision of the computation.
    X0 : like `Y`, optional
        The initial guesses; zero by default.
    niter : int
        Largest number of iterations. Each applies `A` once to every column.
    damp : float
        The multiple :math:`\epsilon` of the identity that is added.
    M : LinearOperator, optional
        The preconditioner, Hermitian positive definite, for one column.
    rtol, atol : float
        Stop when the norm of each column's residual is at most `rtol` times its right-hand side's norm, or each at
        most `atol`; with `X0` as well.
    **run
        Other options of :class:`Run`.

    Returns
    -------
    SolverResult
        Its ``x`` is a block; :meth:`collops.operators.Columns.split` returns the columns. ``residual_norms`` has the
        norms of all residuals together.

    Raises
    ------
    LayoutError, InputError
        If `A` has two layouts, arrays or `M` have another layout, or an option is invalid.

    Notes
    -----
    With k columns, an iteration sends two allreduces of at most 3 k^2 numbers, in addition to the messages of `A` and
    `M` for each column or each batch of up to 64; see :class:`collops.operators.Columns`. Every column minimises over
    the directions of all columns, so that more columns take fewer iterations: up to k extreme eigenvalues no longer
    delay the convergence. Apart from the operator, the work grows with the square of k: about 18 k^2 floating-point
    operations for each point of the model, in matrix products.

    The basis of the residuals is orthonormalised as proposed by Dubrulle [2001], so that columns may be linearly
    dependent and converge at different rates.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.solvers import block_cg
    >>> A = collops.Diagonal(np.array([1.0, 2.0, 4.0]))
    >>> result = block_cg(A, [collops.ones(3), collops.full(3, 2.0)], rtol=1e-12)
    >>> result.x.gather()
    array([[1.  , 0.5 , 0.25],
           [2.  , 1.  , 0.5 ]])
    """
    columns, Y, X0, options = block_options(A, Y, X0, niter, M, rtol, atol)
    check_square("block_cg", A, "; block_cgls takes any")
    method = BlockCG(**options, damp=check_number("damp", damp))
    return solve(method, columns, Y, X0, niter=niter, parts=[M], **run)
