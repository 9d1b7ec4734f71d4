"""The options, tests and arithmetic that LSQR and LSMR share: both follow Golub and Kahan's bidiagonalisation.

Scalars are always in double precision; the factors of vectors are in the precision of the vectors. The same code
handles Python numbers and arrays of JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from collops.array import Array, axpby, divide, dots
from collops.backend import Engine, LocalArray
from collops.operators import LinearOperator
from collops.operators.memory import new_array
from collops.solvers.cgls import CGLS, GRADIENT_UNITS
from collops.solvers.method import DOUBLE_PRECISION, Method, log2, not_finite
from collops.solvers.problem import (
    check_numbers,
    consistent,
    explained_by_rounding,
    precision_of,
    starting_point,
    takes_part,
    working_dtype,
)
from collops.solvers.result import Status
from collops.solvers.state import Numbers, Scalar, State, Truth


@dataclass(frozen=True)
class Bidiagonalisation(Method):
    """The options of LSQR and LSMR, and the stopping tests of Paige and Saunders.

    The first of its `numbers` is the norm of the residual without damping.
    """

    damp: float = 0.0
    atol: float = 1e-8
    btol: float = 1e-8
    conlim: float = 1e8
    precision: float = DOUBLE_PRECISION  # relative size of the vectors' rounding errors
    tolerances = frozenset({"atol", "btol", "conlim", "precision"})
    # The strictest test comes first. A number that does not change a sum is a rounding error.
    stops = (
        (lambda self, now, first: not_finite(now[0], now.arnorm, now.xnorm), Status.NOT_FINITE),
        (lambda self, now, first: (now.acond == 0) & (now.arnorm == 0), Status.EXACT_ZERO),
        (
            lambda self, now, first: begun(now) & (now.rnorm <= self.btol * first.rnorm + self.atol * image_norm(now)),
            Status.COMPATIBLE,
        ),
        (
            lambda self, now, first: begun(now) & (now.arnorm <= self.atol * self.scale(now, first)),
            Status.LEAST_SQUARES,
        ),
        (lambda self, now, first: begun(now) & (now.acond >= (self.conlim or math.inf)), Status.ILL_CONDITIONED),
        (lambda self, now, first: lost(now.rnorm, first.rnorm + image_norm(now)), Status.COMPATIBLE_TO_ROUNDING),
        # As for CGLS. Further iterations would follow rounding errors into the null space of a singular operator.
        (
            lambda self, now, first: now.arnorm <= GRADIENT_UNITS * self.precision * now.anorm * now.rnorm,
            Status.LEAST_SQUARES_TO_ROUNDING,
        ),
        (lambda self, now, first: lost(1, now.acond), Status.SINGULAR_TO_ROUNDING),
    )
    optimality = CGLS.optimality
    damps_change = True

    @property
    def degrees(self) -> dict[str, tuple[float, float]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The powers of the units; see :class:`Method`. A preconditioner has the inverse unit of the operator."""
        of_norm = 1 if getattr(self, "M", None) is None else 0
        norms = {"arnorm": (1, of_norm), "anorm": (0, of_norm), "xnorm": (1, -1), "var": (0, -2)}
        return {**dict.fromkeys(("r1norm", "rnorm", "r2norm"), (1, 0)), **norms, "damp": (0, 1), "M": (0, -1)}

    def magnitudes(self, now: Numbers, before: Numbers | None, state: State) -> Sequence[float]:
        if before is not None or now[0] == 0:
            return ()
        gradient, residual = log2(now.arnorm), log2(now[0])
        return 2 * gradient, 2 * (gradient - residual), 2 * (2 * residual - gradient)

    def scale(self, now: Numbers, first: Numbers) -> Scalar:
        """Return the number with which the norm of the gradient is compared."""
        return first.arnorm

    def report(self, state: State) -> LocalArray:
        return state.scalars[: len(self.numbers._fields)]

    def residual_norm(self, now: Numbers) -> Scalar:
        return now[0]

    def recomputed(
        self, A: LinearOperator, y: Array, x: Array | None, x0: Array | None, state: State, now: Numbers
    ) -> Numbers | None:
        _, r, _ = starting_point(A, y, x)
        g, change = A._adjoint(r, None), None
        if x is not None and takes_part(self.damp):
            change = x if x0 is None else axpby(1.0, x, -1.0, x0, out=new_array(x.layout, x, x.dtype))
            g = axpby(-self.damp * self.damp, change, 1.0, g, out=g)
        M = getattr(self, "M", None)
        g = g if M is None else M._adjoint(g, None)
        pairs = [(r, r), (g, g), *([] if x is None else [(x, x)]), *([] if change is None else [(change, change)])]
        rr, gg, *others = (square.real for square in dots(*consistent(*pairs)))
        computed = {"r1norm": rr**0.5, "rnorm": rr**0.5, "arnorm": gg**0.5}
        if x is not None and M is None:
            computed["xnorm"] = others[0] ** 0.5
        if change is not None:
            computed["rnorm"] = (rr + self.damp * self.damp * others[1]) ** 0.5
        return now._replace(**computed)

    def at_rounding(self, A: LinearOperator, y: Array, x: Array, now: Numbers, history: Numbers) -> tuple[Truth, Truth]:
        length = None if getattr(self, "M", None) is None else now.xnorm
        return explained_by_rounding(now.anorm, y, x, now.rnorm, now.arnorm, length)

    def restarts(self, state: State) -> bool:
        # After a restart, damping would penalise the change from the new start, and variances would miss iterations.
        return not takes_part(self.damp) and getattr(state, "variance", None) is None


class Arithmetic(NamedTuple):
    """Functions of scalars: of Python's numbers, or of 0-d arrays that may be traced or on a device."""

    sqrt: Callable[[Scalar], Scalar]
    hypot: Callable[..., Scalar]
    over: Callable[[Scalar, Scalar], Scalar]  # the quotient; 0 if the divisor is 0, so that a zero vector stays 0
    number: Callable[[Scalar], Scalar]
    items: Callable[[LocalArray], list[Scalar]]


_OF_PYTHON = Arithmetic(math.sqrt, math.hypot, lambda a, b: a / b if b != 0 else 0.0, float, np.ndarray.tolist)


def arithmetic(engine: Engine, scalars: LocalArray) -> Arithmetic:
    """Return the functions of scalars for `scalars`, an array of float64."""
    if engine.mutable and engine.memory == "host":
        return _OF_PYTHON
    xp = engine.xp
    return Arithmetic(
        xp.sqrt,
        lambda *numbers: xp.sqrt(sum(number * number for number in numbers)),
        divide,
        lambda value: xp.asarray(value, dtype=scalars.dtype),
        list,
    )


def put_numbers(engine: Engine, array: LocalArray, indices: slice, numbers: list[Scalar]) -> LocalArray:
    """Return `array` with `numbers` in the slice `indices`."""
    if engine.mutable and engine.memory == "host":
        array[indices] = numbers
        return array
    return engine.put(array, indices, engine.xp.stack([engine.xp.asarray(x, dtype=array.dtype) for x in numbers]))


def next_u(A: LinearOperator, model: Array, state: State, scale: Scalar, carry: Scalar) -> Scalar:
    """Extend the basis of the data by the image of the last vector of the other; return the square of its norm."""
    state.image = A._forward(model, state.image)
    state.u = axpby(scale, state.image, carry, state.u, out=state.u)
    return dots(*consistent((state.u, state.u)))[0]


def checked_bounds(
    A: LinearOperator, y: Array, x0: Array | None, damp: Scalar, atol: Scalar, btol: Scalar, conlim: Scalar
) -> dict[str, float]:
    """Return the options of a :class:`Bidiagonalisation`. No messages."""
    numbers = check_numbers(damp=damp, atol=atol, btol=btol, conlim=conlim)
    return {**numbers, "precision": precision_of(working_dtype(A, y, x0))}


def begun(now: Numbers) -> Truth:
    """Return whether an iteration has been completed."""
    return now.acond != 0


def image_norm(now: Numbers) -> Scalar:
    """Return a bound on the norm of the image of x."""
    return now.anorm * now.xnorm


def lost(number: Scalar, scale: Scalar) -> Truth:
    """Return whether a number does not change a sum with `scale`."""
    return scale + number <= scale
