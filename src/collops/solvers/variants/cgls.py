"""CGLS with damping, with a preconditioner, with norms that fused kernels compute on devices, and with one message.

Fused norms save passes over vectors. Record: operators-nvidia-h100-4-without-peer, "CGLS of [BlockDiag of first
derivatives; Laplacian]": an iteration takes 0.52 and 0.64 of the time with one reduction, which reads vectors again.

One message saves one of three sums over ranks. Record: cgls-nvidia-h200-4, "VStack of matrices", which has two.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from collops.array import (
    Array,
    axpby,
    axpby_and_square,
    dots,
    finite,
    quotient,
    square_of_sum,
    update_solution_and_direction,
)
from collops.array.fused import Square
from collops.operators import LinearOperator
from collops.operators.memory import new_array
from collops.solvers.cgls import CGLS, CGLSState
from collops.solvers.problem import consistent, has_copies, starting_point, takes_part
from collops.solvers.state import CONSTANT, SCRATCH, State, extended, scratch_array


@dataclass(slots=True)
class DampedCGLSState(CGLSState):
    """The additional state of CGLS with a preconditioner; both fields are ``None`` without one."""

    g: Array | None = field(metadata=SCRATCH)  # A^H r - damp^2 x
    t: Array | None = field(metadata=SCRATCH)  # M s


@dataclass(slots=True)
class OneMessageCGLSState(DampedCGLSState):
    """The additional state of CGLS with one message."""

    one_message: bool = field(metadata=CONSTANT)


class DampedCGLS(CGLS):
    """CGLS for the rows [A; damp I], with a preconditioner from the right [Björck 1996, section 7.4]; both optional."""

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> State:
        x, r, q = starting_point(A, y, x0)
        s = new_array(A.domain, x, x.dtype)
        g, t = (None if self.M is None else scratch_array(A.domain, x, x.dtype) for _ in range(2))
        state = DampedCGLSState(x, r, s, s, q, None, (), g, t)
        s, square = self._gradient(A, state)
        state.p = self._in_model(state).copy()
        gamma, rho = dots(*consistent(square, (r, r)))
        state.gamma, state.numbers = gamma, (gamma, rho, gamma * 0, gamma)
        return state

    def step(self, A: LinearOperator, state: State) -> State:
        """Minimise along the direction, and compute the next one."""
        p, damp, damped = state.p, self.damp, takes_part(self.damp)
        state.q, square = A._forward_and_square(p, state.q)
        delta, *pp = dots(square, (p, p)) if damped else dots(square)
        delta = delta + damp * damp * pp[0] if damped else delta
        alpha = quotient(state.gamma, delta)
        length = finite(alpha) if self.cautious else alpha
        state.r, square_of_r = axpby_and_square(-alpha, state.q, 1.0, state.r, out=state.r)
        if damped:
            state.x = axpby(length, p, 1.0, state.x, out=state.x)
        s, square_of_s = self._gradient(A, state)
        t = s if self.M is None else self._in_model(state)
        gamma, rho = dots(*consistent(square_of_s, square_of_r))
        beta = quotient(gamma, state.gamma)
        if damped:
            state.p = axpby(1.0, t, beta, p, out=p)
        else:
            state.x, state.p = update_solution_and_direction(state.x, length, p, beta, t)
        state.gamma, state.numbers = gamma, (gamma, rho, delta, state.gamma)
        return state

    def _gradient(self, A: LinearOperator, state: State) -> tuple[Array, Square]:
        """Return s = M^H (A^H r - damp^2 x), and its square."""
        state.s, square = self._back(A, state, state.r, -1, state.x, state.s)
        return state.s, square

    def _back(
        self, A: LinearOperator, state: State, image: Array, sign: int, x: Array, out: Array | None
    ) -> tuple[Array, Square]:
        """Return M^H (A^H image + sign damp^2 x), and its square."""
        damped, weight = takes_part(self.damp), sign * self.damp * self.damp
        if self.M is None:
            if not damped:
                return A._adjoint_and_square(image, out)
            g = A._adjoint(image, out)
            return axpby_and_square(weight, x, 1.0, g, out=g)
        state.g = A._adjoint(image, state.g)
        if damped:
            state.g = axpby(weight, x, 1.0, state.g, out=state.g)
        return self.M._adjoint_and_square(state.g, out)

    def _in_model(self, state: State) -> Array:
        """Return t = M s, or s itself without a preconditioner."""
        if self.M is None:
            return state.s
        state.t = self.M._forward(state.s, state.t)
        return state.t


class OneMessageCGLS(DampedCGLS):
    """CGLS without tolerances: the gradient of a replicated model needs no rank-consistent norm, and no message.

    The square of the next residual follows from inner products that share the message of the curvature.
    """

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> State:
        state = super().init(A, y, x0)
        return extended(OneMessageCGLSState, state, one_message=has_copies(state.s))

    def step(self, A: LinearOperator, state: State) -> State:
        """Minimise along the direction, and compute the next one."""
        if not state.one_message:
            return super().step(A, state)
        p, damp, damped = state.p, self.damp, takes_part(self.damp)
        state.q, square = A._forward_and_square(p, state.q)
        q, r = state.q, state.r
        qq, *pp, qr, rr = dots(square, *([(p, p)] if damped else []), (q, r), (r, r))
        delta = qq + damp * damp * pp[0] if damped else qq
        alpha = quotient(state.gamma, delta)
        length = finite(alpha) if self.cautious else alpha
        state.r = axpby(-alpha, q, 1.0, r, out=r)
        if damped:
            state.x = axpby(length, p, 1.0, state.x, out=state.x)
        (gamma,) = dots(self._gradient(A, state)[1])
        beta, t = quotient(gamma, state.gamma), self._in_model(state)
        if damped:
            state.p = axpby(1.0, t, beta, p, out=p)
        else:
            state.x, state.p = update_solution_and_direction(state.x, length, p, beta, t)
        rho = square_of_sum(rr, qr.real, qq, -alpha)
        state.gamma, state.numbers = gamma, (gamma, rho, delta, state.gamma)
        return state
