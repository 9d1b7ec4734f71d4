"""CG and CGLS with a single reduction: all inner products of an iteration share one message.

This is faster if the latency of a message outweighs more passes over the vectors. Record: lsm-cpu-2-cores-2,
"iteration": 0.96 of the time with two. On the GPUs of one host records show no gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collops.array import Array, axpby, dots, finite, quotient, square_of_sum, update_solution_and_direction
from collops.array.fused import Square
from collops.operators import LinearOperator
from collops.solvers.cg import curvature_of
from collops.solvers.cgls import CGLSNumbers
from collops.solvers.problem import consistent, takes_part
from collops.solvers.state import SCRATCH, Scalar, State, extended
from collops.solvers.variants.cg import PreconditionedCG, PreconditionedCGState
from collops.solvers.variants.cgls import DampedCGLS, DampedCGLSState

__all__ = ["SingleReductionCGLS"]


@dataclass(slots=True)
class SingleReductionCGState(PreconditionedCGState):
    """The additional state of CG with a single reduction."""

    q: Any  # by recurrence
    w: Array | None = field(metadata=SCRATCH)  # (A + damp) z
    curvature: Scalar  # (p, q)


class SingleReductionCG(PreconditionedCG):
    """CG with one reduction for each iteration: its inner products share a message.

    The rearrangement is due to Chronopoulos and Gear [1989]: q follows p by the same recurrence, so that all inner
    products are known once the operator has been applied to the residual. They derive the curvature of the next
    direction from the curvature of the last one and orthogonality, which loses accuracy: with ill-conditioned
    matrices the error was up to 1e9 times larger. This class expands it into three inner products instead.
    """

    name = "CG with a single reduction"

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> State:
        begin = self._begin(A, y, x0)
        w = self.image(A, begin.p, begin.q)
        begin.q = w.copy()
        begin.gamma, rho, delta = self._products(begin, (begin.p, w))
        begin.numbers = rho, rho, begin.gamma
        return extended(SingleReductionCGState, begin, w=w, curvature=curvature_of(A, delta))

    def step(self, A: LinearOperator, state: State) -> State:
        curvature = state.curvature
        alpha = quotient(state.gamma, curvature)
        state.r = axpby(-alpha, state.q, 1.0, state.r, out=state.r)
        direction = self._preconditioned(state)
        state.w = self.image(A, direction, state.w)
        pairs = (direction, state.w), (direction, state.q), (state.p, state.q)
        gamma, rho, zw, zq, pq = self._products(state, *pairs)
        beta = quotient(gamma, state.gamma)
        alpha = finite(alpha) if self.cautious else alpha
        state.x, state.p = update_solution_and_direction(state.x, alpha, state.p, beta, direction)
        state.q = axpby(1.0, state.w, beta, state.q, out=state.q)
        state.gamma, state.numbers = gamma, (rho, curvature, gamma)
        state.curvature = curvature_of(A, square_of_sum(zw.real, zq.real, pq.real, beta))
        return state


@dataclass(slots=True)
class SingleReductionCGLSState(DampedCGLSState):
    """The additional state of CGLS with a single reduction."""

    q: Any  # by recurrence
    w: Array | None = field(metadata=SCRATCH)  # A t
    curvature: Scalar  # |q|^2 + damp^2 |p|^2


class SingleReductionCGLS(DampedCGLS):
    """CGLS with one reduction for each iteration: its inner products share a message.

    The rearrangement is as in :class:`SingleReductionCG`.
    """

    name = "CGLS with a single reduction"

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> State:
        begin = super().init(A, y, x0)
        q = A._forward(begin.p, begin.q)
        curvature, *pp = dots(*consistent((q, q), *([] if self.M is None else [(begin.p, begin.p)])))
        if takes_part(self.damp):
            curvature = curvature + self.damp * self.damp * (pp[0] if pp else begin.gamma)
        begin.q = q.copy()
        begin.numbers = *begin.numbers[:2], curvature, begin.gamma
        return extended(SingleReductionCGLSState, begin, w=q, curvature=curvature)

    def step(self, A: LinearOperator, state: State) -> State:
        damped = takes_part(self.damp)
        alpha = quotient(state.gamma, state.curvature)
        length = finite(alpha) if self.cautious else alpha
        state.r = axpby(-alpha, state.q, 1.0, state.r, out=state.r)
        if damped:
            state.x = axpby(length, state.p, 1.0, state.x, out=state.x)
        _, square = self._gradient(A, state)
        in_model = self._in_model(state)
        state.w = A._forward(in_model, state.w)
        gamma, rho, ww, wq, qq = self._named(dots(*self._pairs(state, in_model, square)))
        beta = quotient(gamma, state.gamma)
        if damped:
            state.p = axpby(1.0, in_model, beta, state.p, out=state.p)
        else:
            state.x, state.p = update_solution_and_direction(state.x, length, state.p, beta, in_model)
        state.q = axpby(1.0, state.w, beta, state.q, out=state.q)
        state.gamma, state.curvature = gamma, square_of_sum(ww, wq.real, qq, beta)
        state.numbers = gamma, rho, state.curvature, gamma
        return state

    def _pairs(self, state: State, t: Array, square: Square) -> Sequence[tuple[Array, Array]]:
        """Return the pairs whose products are the numbers of an iteration; `t` is the gradient in the model."""
        r, w, q, p = state.r, state.w, state.q, state.p
        pairs = [square, (r, r), (w, w), (q, w), (q, q)]
        if takes_part(self.damp):
            pairs += [(p, t), (p, p)] if self.M is None else [(p, t), (p, p), (t, t)]
        return consistent(*pairs)

    def _named(self, products: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        """Return the squares of s and r, and the inner products of w and q in the metric of the curvature."""
        gamma, rho, ww, wq, qq, *lengths = products
        if lengths:
            tp, pp, *tt = lengths
            squared = self.damp * self.damp
            ww = ww + squared * (tt[0] if tt else gamma)
            wq, qq = wq.real + squared * tp.real, qq + squared * pp
        return gamma, rho, ww, wq, qq

    def details(self, state: State, history: CGLSNumbers) -> dict[str, Any]:
        # The curvature along a direction is available one iteration earlier.
        return super().details(state, history._replace(curvature=np.roll(history.curvature, 1)))
