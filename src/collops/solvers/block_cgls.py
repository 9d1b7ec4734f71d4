"""Block CGLS: least squares for several right-hand sides, which share their search directions and messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from collops.array import Array, axpby, divide, dots
from collops.backend import LocalArray
from collops.operators import Columns, LinearOperator
from collops.solvers.block_cg import BlockCG, BlockCGState, block_options, squares_of_columns
from collops.solvers.blocks import Block
from collops.solvers.cgls import CGLS
from collops.solvers.driver import solve, solver
from collops.solvers.method import Degrees, log2
from collops.solvers.problem import (
    check_number,
    check_operator,
    check_preconditioner,
    consistent,
    explained_by_rounding,
    starting_point,
    takes_part,
)
from collops.solvers.result import SolverResult, Status
from collops.solvers.state import CONSTANT, Numbers, Scalar, State, Truth, extended, scratch_array


@dataclass(slots=True)
class BlockCGLSState(BlockCGState):
    """The additional state of block CGLS, whose residuals Q C are gradients."""

    objectives: LocalArray  # of each column, |y - A x|^2 + damp^2 |x|^2
    normal: LinearOperator = field(metadata=CONSTANT)  # A^H A


@dataclass(frozen=True)
class BlockCGLS(BlockCG):
    """Block conjugate gradients on the normal equations, with an orthonormal basis of the gradients.

    `damp` is the damping factor, `rtol` and `atol` bound the norm of each column's gradient, and `M` approximates the
    inverse of ``A^H A``. See :class:`BlockCG`.
    """

    name = "Block CGLS"
    stops = tuple(
        (test, Status.LEAST_SQUARES_TO_ROUNDING if status is Status.COMPATIBLE_TO_ROUNDING else status, *option)
        for test, status, *option in BlockCG.stops
    )
    optimality = CGLS.optimality  # pyright: ignore[reportAssignmentType]
    square = False
    degrees: ClassVar[Degrees] = {"atol": (1, 1), "damp": (0, 1), "M": (0, -2)}

    @property
    def added(self) -> Scalar:
        """The multiple of the identity."""
        return self.damp * self.damp

    def init(self, A: Any, y: Array, x0: Array | None) -> BlockCGLSState:
        x, r, _ = starting_point(A, y, x0)
        objectives = squares_of_columns(r)
        g = A._adjoint(r, None)
        if takes_part(self.damp) and x0 is not None:
            objectives = objectives + self.damp * self.damp * squares_of_columns(x)
            g = axpby(-self.damp * self.damp, x, 1.0, g, out=g)
        at_zero = None if x0 is None else A._adjoint(starting_point(A, y, None)[1], None)
        begin = self._begin(A, x, g, scratch_array(A.domain, x, x.dtype), at_zero)
        begin.numbers = self._in_one_unit(objectives).sum(), *begin.numbers[1:]
        # One operator, so that no block of all columns of the data is needed.
        normal = Columns(A.operator.H @ A.operator, A.count)
        return extended(BlockCGLSState, begin, objectives=objectives, normal=normal)

    def step(self, A: LinearOperator, state: State) -> State:
        """Take a step of block CG with the normal equations."""
        state = super().step(state.normal, state)
        state.objectives = state.x.engine.xp.maximum(state.objectives - state.decrease, 0)
        state.numbers = self._in_one_unit(state.objectives).sum(), *state.numbers[1:]
        return state

    def magnitudes(self, now: Numbers, before: Numbers | None, state: State) -> Sequence[float]:
        if before is not None or now.residual == 0:
            return ()
        gradient, residual = log2(now.largest), log2(now.residual)
        return gradient, gradient - residual, 2 * residual - gradient

    def recomputed(
        self, A: LinearOperator, y: Array, x: Array | None, x0: Array | None, state: State, now: Numbers
    ) -> Numbers | None:
        if x is None:
            return now  # its tests refer to columns of the state
        _, r, _ = starting_point(A, y, x)
        g, objectives = A._adjoint(r, None), squares_of_columns(r)
        if takes_part(self.damp):
            g = axpby(-self.damp * self.damp, x, 1.0, g, out=g)
            objectives = objectives + self.damp * self.damp * squares_of_columns(x)
        _, relative, largest = self._norms(squares_of_columns(g), state.first)
        return now._replace(residual=self._in_one_unit(objectives).sum(), relative=relative, largest=largest)

    def at_rounding(self, A: LinearOperator, y: Array, x: Array, now: Numbers, history: Numbers) -> tuple[Truth, Truth]:
        g = self.optimality(A, y, x)
        gg, image = dots(*consistent((g, g)))[0], A._forward(g, None)
        norm = divide(dots(*consistent((image, image)))[0], gg) ** 0.5
        return False, explained_by_rounding(norm, y, x, now.residual**0.5, gg**0.5)[1]

    def tangent(self, A: Any, tol: Scalar) -> tuple[BlockCG, LinearOperator]:
        method = BlockCG(rtol=0.0, atol=tol**0.5, M=self.M, damp=self.damp * self.damp)
        return method, Columns(A.operator.H @ A.operator, A.count)


@solver
def block_cgls(
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
    r"""Minimise :math:`\|Y - A X\|^2 + \epsilon^2 \|X\|^2` for several right-hand sides by block CGLS. Collective.

    Parameters
    ----------
    A : LinearOperator
        Any shape.
    Y, X0
        As for :func:`block_cg`, in the range of `A` and in its domain.
    niter : int
        Largest number of iterations. Each applies `A` and its adjoint once to every column.
    damp : float
        The damping factor :math:`\epsilon`.
    M : LinearOperator, optional
        The preconditioner, from the right as in :func:`cgls`: an approximate inverse of `A` or of the root of
        :math:`A^H A`, in the layout of the model, with an adjoint.
    rtol, atol : float
        Stop when the norm of each column's gradient, :math:`A^H (y - A x) - \epsilon^2 x`, is at most `rtol` times the
        norm of :math:`A^H y`, or each is at most `atol`; with `X0` as well.
    **run
        Other options of :class:`Run`.

    Returns
    -------
    SolverResult
        Its ``x`` is a block; :meth:`collops.operators.Columns.split` returns the columns. ``residual_norms`` are the
        roots of the objective of all columns, computed from its decrease: below 1e-8 of the first they are rounding
        errors.

    Raises
    ------
    LayoutError, InputError
        If arrays or `M` do not have the layouts of `A`, or an option is invalid.

    Notes
    -----
    The method is :func:`block_cg` for the normal equations; see its notes on messages and columns. In the layout of the
    data it needs memory for `Y` and one column, or for one batch of :class:`collops.operators.Columns`.

    The gradient follows a recurrence. For noisy data, solutions are as accurate as with :func:`cgls`. For consistent
    equations, rounding errors are amplified by the square of the condition number, not by the condition number: to
    improve the accuracy, restart with ``X0=result.x``, which recomputes the residuals.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.solvers import block_cgls
    >>> A = collops.VStack([np.vander([1.0, 2.0, 3.0, 4.0], 2)])  # lines through four points
    >>> Y = [collops.from_local(np.array(values), A.range) for values in ([3.0, 5.0, 7.0, 9.0], [1.0, 1.0, 1.0, 1.0])]
    >>> block_cgls(A, Y, rtol=1e-12).x.gather().round(6) + 0.0
    array([[2., 1.],
           [0., 1.]])
    """
    check_operator("A", A)
    check_preconditioner(M, A.domain)
    normal = None if M is None else M @ M.H
    columns, Y, X0, options = block_options(A, Y, X0, niter, normal, rtol, atol)
    method = BlockCGLS(**options, damp=check_number("damp", damp))
    return solve(method, columns, Y, X0, niter=niter, parts=[M], **run)
