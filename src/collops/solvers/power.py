"""Power iteration: the eigenvalue of largest modulus of an operator, and an eigenvector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from collops.array import Array, Finite, axpby, divide, dots, random
from collops.backend import LocalArray
from collops.operators import LinearOperator
from collops.solvers.driver import solve, solver
from collops.solvers.method import Degrees, Method, log2, not_finite
from collops.solvers.problem import check_number, check_problem, check_square, consistent, working_dtype
from collops.solvers.result import SolverResult, Status
from collops.solvers.state import SCRATCH, Numbers, Scalar, State, Truth, scratch_array


@dataclass(slots=True)
class PowerState:
    """State of power iteration between iterations."""

    x: Array  # vector of norm 1
    image: Array | None = field(metadata=SCRATCH)  # A x
    numbers: LocalArray  # a float64 array of the elements of PowerNumbers


class PowerNumbers(NamedTuple):
    """The numbers of an iteration; all of them infinite before the first one."""

    real: Scalar  # real and imaginary part of the eigenvalue
    imaginary: Scalar
    real_before: Scalar  # of the previous iteration
    imaginary_before: Scalar
    defect: Scalar  # |A x - eigenvalue x|^2


def _begun(now: PowerNumbers) -> Truth:
    return (now.real != np.inf) | (now.imaginary != np.inf)


def _square(real: Scalar, imaginary: Scalar) -> Scalar:
    return real * real + imaginary * imaginary


def _unchanged(method: PowerIteration, now: PowerNumbers) -> Truth:
    change = _square(now.real - now.real_before, now.imaginary - now.imaginary_before)
    return change < method.tol * method.tol * _square(now.real, now.imaginary)


@dataclass(frozen=True)
class PowerIteration(Method):
    """Power iteration as a method of the driver."""

    tol: float = 1e-5  # bound on the change of the eigenvalue in one iteration, relative to it
    tolerances = frozenset({"tol"})
    name = "Power iteration"
    numbers = PowerNumbers
    square = True
    degrees: ClassVar[Degrees] = {"x": (0, 0), "residual": (0, 1), "eigenvalue": (0, 1)}
    stops = (
        (lambda self, now, first: _begun(now) & not_finite(now.real, now.imaginary), Status.NOT_FINITE),
        (lambda self, now, first: (now.real == 0) & (now.imaginary == 0), Status.CONVERGED),
        (lambda self, now, first: _begun(now) & _unchanged(self, now), Status.CONVERGED),
    )

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> PowerState:
        engine = y.engine
        (square,) = dots(*consistent((y, y)))
        x = axpby(_inverse_root(engine.xp, square), y, 0.0, y)
        numbers = engine.xp.full(len(PowerNumbers._fields), np.inf, dtype=engine.dtype(np.float64))
        return PowerState(x, scratch_array(A.range, y, y.dtype), numbers)

    def step(self, A: LinearOperator, state: PowerState) -> PowerState:
        """Apply the operator, measure, and scale."""
        engine, xp = state.x.engine, state.x.engine.xp
        state.image = A._forward(state.x, state.image)
        value, square = dots(*consistent((state.x, state.image), (state.image, state.image)))
        numbers = engine.put(state.numbers, slice(2, 4), state.numbers[:2])
        # |A x - value x|^2 for x of norm 1; rounding may make it negative.
        measured = {0: value.real, 1: value.imag, 4: xp.maximum(square - abs(value) ** 2, 0)}
        for index, number in measured.items():
            numbers = engine.put(numbers, index, number)
        state.numbers = numbers
        scale = _inverse_root(xp, square)
        # If the scale is not finite, the vector is unchanged.
        unchanged = xp.where(xp.isfinite(scale), xp.zeros_like(scale), xp.ones_like(scale))[()]
        state.x = axpby(Finite((1.0, scale)), state.image, unchanged, state.x, out=state.x)
        return state

    def magnitudes(self, now: Numbers, before: Numbers | None, state: State) -> Sequence[float]:
        return () if before is None else (log2(_square(now.real, now.imaginary) + now.defect),)

    def residual_norm(self, now: PowerNumbers) -> Scalar:
        return now.defect**0.5

    def details(self, state: PowerState, history: PowerNumbers) -> dict[str, Any]:
        real, imaginary = float(history.real[-1]), float(history.imaginary[-1])
        return {"eigenvalue": complex(real, imaginary) if state.x.dtype.kind == "c" else real}


@solver
def power_iteration(
    A: LinearOperator,
    x0: Array | None = None,
    *,
    niter: int = 100,
    tol: float = 1e-5,
    dtype: DTypeLike = "float64",
    engine: str | None = None,
    seed: int = 0,
    **run: Any,
) -> SolverResult:
    r"""Find the eigenvalue of largest modulus by power iteration. Collective.

    Parameters
    ----------
    A : LinearOperator
        With one layout on both sides, such as ``op.H @ op``.
    x0 : DistributedArray or StackedArray, optional
        The starting vector, not zero. By default random numbers that depend on `seed` only, not on the number of ranks.
    niter : int
        Largest number of iterations.
    tol : float
        Stop when an iteration changes the eigenvalue by less than this, relative to it.
    dtype : dtype
        Element type of the vectors without `x0`; complex if the operator is complex.
    engine : str, optional
        Engine of the vectors without `x0`.
    seed : int
        Seed of the random numbers.
    **run
        Other options of :class:`Run`; without a progress bar by default.

    Returns
    -------
    SolverResult
        Its ``x`` is the eigenvector, of norm 1, and ``details["eigenvalue"]`` the eigenvalue: a float, or a complex
        number for complex vectors. The residual is :math:`A x - \lambda x`.

    Raises
    ------
    LayoutError, InputError
        If `A` has two layouts or `x0` has another layout, or an option is invalid.

    Notes
    -----
    Besides the messages of `A`, an iteration sends one allreduce of two numbers.

    The iterates agree with ``pylops.optimization.eigs.power_iteration`` from the same start. For a Hermitian operator
    the eigenvalue approaches the largest modulus from below.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> result = collops.power_iteration(collops.Diagonal(np.array([1.0, 2.0, 4.0])))
    >>> round(float(result.details["eigenvalue"]), 3)
    4.0
    """
    check_square("power iteration", A)
    if A.dtype.kind == "c":
        dtype = np.result_type(dtype, np.complex64)
    start = random(A.domain, comm=A.comm, dtype=dtype, engine=engine, seed=seed) if x0 is None else x0
    check_problem(A, start, None, niter)
    method = PowerIteration(check_number("tol", tol))
    start = start.astype(working_dtype(A, start, None), copy=False)
    return solve(method, A, start, niter=niter, **{"progress": False, **run})


def _inverse_root(xp: ModuleType, square: Scalar) -> Scalar:
    """Return ``1 / sqrt(square)``, and 0 for a zero vector."""
    return divide(1.0, xp.sqrt(square))
