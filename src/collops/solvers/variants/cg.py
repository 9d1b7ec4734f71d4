"""CG with a preconditioner, and with norms that fused kernels compute on devices.

Fused norms save a pass over the residual. Record: operators-nvidia-h100-4-without-peer, "CGLS of [BlockDiag of first
derivatives; Laplacian]", for the same optimisation in CGLS; its rows with one reduction are without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from collops.array import Array, axpby, axpby_and_square, dots, finite, quotient, update_solution_and_direction
from collops.operators import LinearOperator
from collops.solvers.cg import CG, CGState, curvature_of
from collops.solvers.problem import consistent, starting_point
from collops.solvers.state import SCRATCH, Scalar, State, scratch_array

__all__ = ["PreconditionedCG"]


@dataclass(slots=True)
class PreconditionedCGState(CGState):
    """The additional state of preconditioned CG."""

    z: Array | None = field(metadata=SCRATCH)  # M r; None without a preconditioner, where r is used


class PreconditionedCG(CG):
    """Preconditioned conjugate gradients [Saad 2003, algorithm 9.1]; `M` may be ``None``."""

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> State:
        state = self._begin(A, y, x0)
        state.gamma, rho = self._products(state)
        state.numbers = rho, rho, state.gamma
        return state

    def _begin(self, A: LinearOperator, y: Array, x0: Array | None) -> PreconditionedCGState:
        """Return the state before the first iteration, without its inner products."""
        x, r, q = starting_point(A, y, x0, image_of=self.image)
        memory = None if self.M is None else scratch_array(A.domain, x, x.dtype)
        state = PreconditionedCGState(x, r, r, q, None, (), memory)
        state.p = self._preconditioned(state).copy()
        return state

    def step(self, A: LinearOperator, state: State) -> State:
        """Minimise along the direction, and compute the next one."""
        state.q = self.image(A, state.p, state.q)
        (pq,) = dots((state.p, state.q))
        curvature = curvature_of(A, pq)
        alpha = quotient(state.gamma, curvature)
        if self.M is None:
            state.r, square = axpby_and_square(-alpha, state.q, 1.0, state.r, out=state.r)
            z = state.r
            (gamma,) = dots(*consistent(square))
            rho = gamma
        else:
            state.r = axpby(-alpha, state.q, 1.0, state.r, out=state.r)
            z = self._preconditioned(state)
            gamma, rho = self._products(state)
        beta = quotient(gamma, state.gamma)
        alpha = finite(alpha) if self.cautious else alpha
        state.x, state.p = update_solution_and_direction(state.x, alpha, state.p, beta, z)
        state.gamma, state.numbers = gamma, (rho, curvature, gamma)
        return state

    def _preconditioned(self, state: State) -> Array:
        """Return z = M r, or r itself without a preconditioner."""
        if self.M is None:
            return state.r
        state.z = self.M._forward(state.r, state.z)
        return state.z

    def _products(self, state: State, *others: tuple[Array, Array]) -> tuple[Scalar, ...]:
        """Return (r, z), |r|^2 and the products of other pairs, in one message."""
        return self._named(dots(*self._pairs(state, *others)))

    def _pairs(self, state: State, *others: tuple[Array, Array]) -> Sequence[tuple[Array, Array]]:
        r = state.r
        return consistent(*([] if self.M is None else [(r, state.z)]), (r, r), *others)

    def _named(self, products: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        gamma, *others = products
        return (gamma, *products) if self.M is None else (gamma.real, *others)
