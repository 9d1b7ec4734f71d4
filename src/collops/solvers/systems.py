"""Shifted operators, tests of the residual, and checks of arguments, shared by methods for square systems."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from collops.array import Array, axpby, divide, dots
from collops.operators import LinearOperator
from collops.solvers.method import DOUBLE_PRECISION, Degrees, Method, not_finite
from collops.solvers.problem import (
    check_numbers,
    check_problem,
    check_square,
    consistent,
    explained_by_rounding,
    precision_of,
    starting_point,
    takes_part,
    working_dtype,
)
from collops.solvers.result import Status
from collops.solvers.state import Numbers, Scalar, State, Truth


class Shifted(Method):
    """A method for ``(A + added) x = y`` with one layout on both sides, and a preconditioner `M` or ``None``."""

    damp: Scalar = 0.0
    M: LinearOperator | None
    square = True

    @property
    def added(self) -> Scalar:
        """The multiple of the identity."""
        return self.damp

    def optimality(self, A: LinearOperator, y: Array, x: Array) -> Array:
        """Return the residual, which is zero at the solution."""
        return axpby(1.0, y, -1.0, self.image(A, x, None))

    def image(self, A: LinearOperator, x: Array, out: Array | None) -> Array:
        """Return ``(A + added) x``, optionally in the memory `out`."""
        image = A._forward(x, out)
        return axpby(self.added, x, 1.0, image, out=image) if takes_part(self.added) else image

    def at_rounding(self, A: LinearOperator, y: Array, x: Array, now: Numbers, history: Numbers) -> tuple[Truth, Truth]:
        # The residual consists of rounding errors, so that the norm of its image is about the norm of A times its norm.
        _, r, z = starting_point(A, y, x, image_of=self.image)
        z = self.image(A, r, z)
        rr, zz = dots(*consistent((r, r), (z, z)))
        return explained_by_rounding(divide(zz, rr) ** 0.5, y, x, rr**0.5, zz**0.5)

    def preconditioned(self, r: Array, out: Array | None) -> Array:
        """Return ``M r``, optionally in the memory `out`; `r` itself without a preconditioner."""
        return r if self.M is None else self.M._forward(r, out)


@dataclass(frozen=True)
class SquareSystem(Shifted):
    """A shifted system whose method has the norm of the residual as the first of its `numbers`.

    Attributes
    ----------
    rtol, atol : float
        Bounds on the norm of the residual, relative to the norm of the data and absolute.
    precision : float
        Relative size of rounding errors, below which a residual cannot be distinguished from 0.
    M : LinearOperator or None
        The preconditioner, which approximates the inverse of the operator.
    """

    rtol: float = 1e-5
    atol: float = 0.0
    precision: float = DOUBLE_PRECISION
    M: LinearOperator | None = None
    tolerances = frozenset({"rtol", "atol", "precision"})
    stops = (
        (lambda self, now, first: not_finite(now.residual), Status.NOT_FINITE),
        (lambda self, now, first: now.residual <= self.rtol * first.residual, Status.CONVERGED, "rtol"),
        (lambda self, now, first: now.residual <= self.atol, Status.CONVERGED, "atol"),
        (lambda self, now, first: now.residual <= self.precision * first.residual, Status.COMPATIBLE_TO_ROUNDING),
    )

    degrees: ClassVar[Degrees] = {"atol": (1, 0), "M": (0, -1)}

    def residual_norm(self, now: Numbers) -> Scalar:
        return now.residual

    def recomputed(
        self, A: LinearOperator, y: Array, x: Array | None, x0: Array | None, state: State, now: Numbers
    ) -> Numbers | None:
        r = starting_point(A, y, x, image_of=self.image)[1]
        return now._replace(residual=dots(*consistent((r, r)))[0] ** 0.5)

    def tangent(self, A: LinearOperator, tol: Scalar) -> tuple[Any, LinearOperator]:
        return replace(self, rtol=0.0, atol=tol**0.5, precision=DOUBLE_PRECISION), A


def checked_system(
    name: str,
    A: LinearOperator,
    y: Array,
    x0: Array | None,
    niter: int,
    M: LinearOperator | None,
    rtol: Scalar,
    atol: Scalar,
) -> dict[str, Any]:
    """Check all arguments, and return the options of a :class:`SquareSystem`. No messages.

    Raises LayoutError, with the `name` of the function, if the operator has two layouts.
    """
    check_problem(A, y, x0, niter, M)
    check_square(name, A, "; lsqr takes any")
    return {**check_numbers(rtol=rtol, atol=atol), "precision": precision_of(working_dtype(A, y, x0)), "M": M}
