"""Pipelined CG and CGLS: the one message of an iteration overlaps with the application of the operator.

This hides the latency of the message and load imbalance, at the cost of more applications of the operator and passes
over vectors. No record shows a gain yet: between two ranks of one host an iteration took 1.2 to 1.5 times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collops.array import Array, axpby, dots, finite, quotient, square_of_sum, start_dots
from collops.operators import LinearOperator
from collops.solvers.cg import curvature_of
from collops.solvers.problem import consistent, takes_part
from collops.solvers.state import Scalar, State, extended, scratch_array
from collops.solvers.variants.single_reduction import (
    SingleReductionCG,
    SingleReductionCGLS,
    SingleReductionCGLSState,
    SingleReductionCGState,
)

PERIOD = 6
"""Iterations after which recurrences are replaced by their definitions; see :class:`PipelinedCG`."""


@dataclass(slots=True)
class PipelinedCGState(SingleReductionCGState):
    """The additional state of pipelined CG; without a preconditioner z and s are ``None``."""

    z: Any  # M r, by recurrence
    w: Any  # by recurrence
    s: Array | None  # M q; None without a preconditioner, where q is used
    t: Array  # (A + damp) s
    zq: Scalar  # (z, q)
    sq: Scalar  # (s, q)
    iterations: int = 0


class PipelinedCG(SingleReductionCG):
    """CG whose one reduction overlaps with the operator: predict and recompute [Chen and Carson 2020].

    The inner products of an iteration predict the next (r, z), and thus the next directions; their image is computed
    while the message with their products is sent. The prediction is used for directions only: steps use the measured
    number. Errors of recurrences grow, so that every six iterations z and w are recomputed, and q in the following
    iteration. Recomputing w in every iteration, as in the paper, doubles the work of the operator and saves few
    iterations; replacing the residual as well delays convergence.
    """

    name = "pipelined CG"
    always_measured = True  # additional recurrences make the residual drift
    traceable = False

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> State:
        begin = super().init(A, y, x0)
        s = None if self.M is None else self.M._forward(begin.q, scratch_array(A.domain, y, begin.r.dtype))
        t = self.image(A, begin.q if s is None else s, scratch_array(A.domain, y, begin.r.dtype))
        (sq,) = dots(*consistent((begin.q if s is None else s, begin.q)))
        return extended(PipelinedCGState, begin, s=s, t=t, zq=begin.curvature, sq=sq.real)

    def step(self, A: LinearOperator, state: State) -> State:
        curvature = state.curvature
        alpha = quotient(state.gamma, curvature)
        beta = quotient(predicted_square(state.gamma, state.zq, state.sq, alpha), state.gamma)
        state.x = axpby(finite(alpha) if self.cautious else alpha, state.p, 1.0, state.x, out=state.x)
        state.r = axpby(-alpha, state.q, 1.0, state.r, out=state.r)
        state.iterations += 1
        if state.iterations % PERIOD == PERIOD - 1:
            direction = self._preconditioned(state)
            state.w = self.image(A, direction, state.w)
        else:
            if self.M is not None:
                state.z = axpby(-alpha, state.s, 1.0, state.z, out=state.z)
            direction = state.r if self.M is None else state.z
            state.w = axpby(-alpha, state.t, 1.0, state.w, out=state.w)
        state.p = axpby(1.0, direction, beta, state.p, out=state.p)
        if state.iterations % PERIOD == 0:
            state.q = self.image(A, state.p, state.q)
        else:
            state.q = axpby(1.0, state.w, beta, state.q, out=state.q)
        if self.M is not None:
            state.s = self.M._forward(state.q, state.s)
        image = state.q if self.M is None else state.s
        finish = start_dots(*self._pairs(state, (state.p, state.q), (direction, state.q), (image, state.q)))
        state.t = self.image(A, image, state.t)
        state.gamma, rho, pq, zq, sq = self._named(finish())
        state.curvature, state.zq, state.sq = curvature_of(A, pq), zq.real, sq.real
        state.numbers = rho, curvature, state.gamma
        return state


@dataclass(slots=True)
class PipelinedCGLSState(SingleReductionCGLSState):
    """The additional state of pipelined CGLS; without a preconditioner u is ``None``."""

    s: Any  # by recurrence
    t: Any  # by recurrence
    w: Any  # by recurrence
    v: Array  # M^H (A^H q + damp^2 p)
    u: Array | None  # M v; None without a preconditioner, where v is used
    e: Array  # A u
    sv: Scalar  # (s, v)
    vv: Scalar  # |v|^2
    iterations: int = 0


class PipelinedCGLS(SingleReductionCGLS):
    """CGLS whose one reduction overlaps with operator and preconditioner; see :class:`PipelinedCG`.

    In exact arithmetic it is pipelined CG for the normal equations; when it recomputes the image of the gradient, it
    computes the gradient from the residual of the data, as CGLS does.
    """

    name = "pipelined CGLS"
    traceable = False

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> State:
        begin = super().init(A, y, x0)
        model, data = ((layout, y, begin.r.dtype) for layout in (A.domain, A.range))
        v, square = self._back(A, begin, begin.q, 1, begin.p, scratch_array(*model))
        u = None if self.M is None else self.M._forward(v, scratch_array(*model))
        e = A._forward(v if u is None else u, scratch_array(*data))
        sv, vv = dots(*consistent((begin.s, v), square))
        return extended(PipelinedCGLSState, begin, v=v, u=u, e=e, sv=sv.real, vv=vv)

    def step(self, A: LinearOperator, state: State) -> State:
        damped = takes_part(self.damp)
        alpha = quotient(state.gamma, state.curvature)
        beta = quotient(predicted_square(state.gamma, state.sv, state.vv, alpha), state.gamma)
        state.x = axpby(finite(alpha) if self.cautious else alpha, state.p, 1.0, state.x, out=state.x)
        state.r = axpby(-alpha, state.q, 1.0, state.r, out=state.r)
        state.iterations += 1
        if state.iterations % PERIOD == PERIOD - 1:
            self._gradient(A, state)
            t = self._in_model(state)
            state.w = A._forward(t, state.w)
        else:
            state.s = axpby(-alpha, state.v, 1.0, state.s, out=state.s)
            if self.M is not None:
                state.t = axpby(-alpha, state.u, 1.0, state.t, out=state.t)
            t = state.s if self.M is None else state.t
            state.w = axpby(-alpha, state.e, 1.0, state.w, out=state.w)
        state.p = axpby(1.0, t, beta, state.p, out=state.p)
        if state.iterations % PERIOD == 0:
            state.q = A._forward(state.p, state.q)
        else:
            state.q = axpby(1.0, state.w, beta, state.q, out=state.q)
        s, r, p, q = state.s, state.r, state.p, state.q
        v, square = self._back(A, state, q, 1, p, state.v)  # M^H (A^H q + damp^2 p)
        state.v = v
        lengths = [(p, p)] if damped else []
        finish = start_dots(*consistent((s, s), (r, r), (q, q), (s, v), square, *lengths))
        if self.M is not None:
            state.u = v = self.M._forward(v, state.u)
        state.e = A._forward(v, state.e)
        gamma, rho, curvature, sv, state.vv, *pp = finish()
        state.gamma, state.sv = gamma, sv.real
        state.curvature = curvature + self.damp * self.damp * pp[0] if pp else curvature
        state.numbers = gamma, rho, state.curvature, gamma
        return state


def predicted_square(square: Scalar, product: Scalar, change: Scalar, alpha: Scalar) -> Scalar:
    """Return the square of ``z - alpha s`` from inner products of both; 0 if rounding makes it negative."""
    return max(square_of_sum(square, product, change, -alpha), 0.0)
