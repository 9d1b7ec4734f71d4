"""LSQR with a preconditioner, and with estimates of variances."""

from __future__ import annotations

from dataclasses import dataclass, field

from collops.array import Array, Finite, axpby, dots, zeros_like
from collops.operators import LinearOperator
from collops.operators.memory import new_array
from collops.solvers.bidiagonalisation import next_u
from collops.solvers.lsqr import LSQR, LSQRState, after_u, after_v
from collops.solvers.problem import consistent, real_dtype, starting_point
from collops.solvers.state import SCRATCH, Scalar, State, scratch_array


@dataclass(slots=True)
class PreconditionedLSQRState(LSQRState):
    """The state of LSQR for A M, whose model is z with x = M z. Without M, t, d and gradient are ``None``."""

    t: Array | None  # M v
    d: Array | None  # M w
    gradient: Array | None = field(metadata=SCRATCH)  # A^H u
    variance: Array | None  # the diagonal of (A^H A + damp^2)^-1 so far, or None


class PreconditionedLSQR(LSQR):
    """LSQR with a preconditioner from the right, and with the variances of the solution; both are optional."""

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> State:
        x, u, image = starting_point(A, y, x0)
        gradient = None if self.M is None else scratch_array(A.domain, x, x.dtype)
        gradient, v = self._adjoint(A, u, gradient, new_array(A.domain, x, x.dtype))
        scalars, factors, factor, v, w = self._begin(u, v)
        t = None if self.M is None else self.M._forward(v, new_array(A.domain, x, x.dtype))
        d = None if t is None else axpby(factor["per_alfa"], t, 0.0, t)
        back = scratch_array(A.domain, x, x.dtype)
        variance = zeros_like(x, real_dtype(x.dtype)) if self.calc_var else None
        return PreconditionedLSQRState(x, u, v, w, image, back, scalars, factors, t, d, gradient, variance)

    def step(self, A: LinearOperator, state: State) -> State:
        """Extend both bases by one vector each, and update the solution."""
        engine = state.x.engine
        model = state.v if self.M is None else state.t
        u_square = next_u(A, model, state, state.factor["per_alfa"], state.factor["u_carry"])
        state.put(*after_u(engine, state.scalars, state.factors, u_square))
        state.gradient, state.back = self._adjoint(A, state.u, state.gradient, state.back)
        state.v = axpby(state.factor["per_beta"], state.back, state.factor["v_carry"], state.v, out=state.v)
        v_square, w_square = dots(*consistent((state.v, state.v), (state.w, state.w)))
        state.put(*after_v(engine, state.scalars, state.factors, v_square, w_square, self.damp))
        factor = state.factor
        direction = state.w if self.M is None else state.d
        if state.variance is not None:
            state.variance = _with_squares(factor["per_rho_square"], direction, state.variance)
        state.x = axpby(Finite((1.0, factor["x_step"])), direction, 1.0, state.x, out=state.x)
        state.w = axpby(factor["per_alfa"], state.v, factor["w_carry"], state.w, out=state.w)
        if self.M is not None:
            state.t = self.M._forward(state.v, state.t)
            state.d = axpby(factor["per_alfa"], state.t, factor["w_carry"], state.d, out=state.d)
        return state

    def _adjoint(
        self, A: LinearOperator, u: Array, gradient: Array | None, back: Array | None
    ) -> tuple[Array | None, Array]:
        """Return A^H u, or ``None`` without a preconditioner, and M^H A^H u."""
        if self.M is None:
            return None, A._adjoint(u, back)
        gradient = A._adjoint(u, gradient)
        return gradient, self.M._adjoint(gradient, back)


def _with_squares(factor: Scalar, w: Array, variance: Array) -> Array:
    """Return ``variance + factor * |w|**2``, element by element, in the memory of `variance`."""
    for leaf, target in zip(w.leaves, variance.leaves, strict=True):
        square = leaf.engine.xp.abs(leaf.local_array).astype(target.dtype, copy=False)
        square *= square
        axpby(factor, leaf._like(square), 1.0, target, out=target)
    return variance
