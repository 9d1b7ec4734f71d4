"""Power iteration: the eigenvalue of largest modulus of an operator, and its eigenvector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from collops.array import Finite, axpby, divide, dots, random
from collops.errors import LayoutError
from collops.operators import LinearOperator
from collops.operators.base import new_array
from collops.solvers.driver import solve
from collops.solvers.method import Row
from collops.solvers.problem import agreed, check_number, check_problem, working_dtype
from collops.solvers.result import SolverResult, Status
from collops.solvers.run import Run

__all__ = ["PowerIteration", "power_iteration"]


@dataclass(slots=True)
class PowerState:
    """Vectors and scalars of the power iteration between two iterations."""

    operator: LinearOperator
    x: Any  # of norm 1
    image: Any  # A x
    x_agreed: Any  # in the form whose inner products all ranks agree on
    image_agreed: Any
    numbers: Any  # real and imaginary part of the eigenvalue, and of the one before; square of the defect
    rebuilt = frozenset({"image", "x_agreed", "image_agreed"})


@dataclass(frozen=True)
class PowerIteration:
    """Power iteration as a method of the driver.

    Attributes
    ----------
    tol : float
        Bound on the change of the eigenvalue in one iteration, relative to it.
    """

    tol: float = 1e-5
    stops = frozenset({"tol"})
    name = "Power iteration"
    width = 5

    def init(self, operator: LinearOperator, data: Any, x0: Any, prompt: bool) -> PowerState:
        """Return the state before the first iteration: the start, scaled to norm 1."""
        xp = data.engine.xp
        x, image = data.copy(), new_array(operator.range, data, data.dtype)
        x_agreed, image_agreed = agreed(x), agreed(image)
        (square,) = dots((x_agreed, x_agreed))
        axpby(_inverse_root(xp, square), x, 0.0, x, out=x)
        numbers = xp.full(self.width, np.inf, np.float64)
        return PowerState(operator, x, image, x_agreed, image_agreed, numbers)

    def step(self, state: PowerState) -> PowerState:
        """Apply the operator, measure, and scale."""
        x, numbers, xp = state.x, state.numbers, state.x.engine.xp
        image = state.image = state.operator._forward(x, state.image)
        value, square = dots((state.x_agreed, state.image_agreed), (state.image_agreed, state.image_agreed))
        numbers[2:4] = numbers[:2]
        numbers[0] = value.real
        numbers[1] = value.imag
        # |A x - value x|^2 for x of norm 1; rounding may take it below 0.
        numbers[4] = xp.maximum(square - abs(value) ** 2, 0)
        scale = _inverse_root(xp, square)
        state.x = axpby(Finite((1.0, scale)), image, _where_not_finite(xp, scale), x, out=x)
        return state

    def finalize(self, state: PowerState) -> PowerState:
        """Return the state."""
        return state

    def late(self, state: PowerState) -> bool:
        """Return False: the numbers of an iteration are there with it."""
        return False

    def monitor(self, state: PowerState) -> Any:
        """Return the eigenvalue, the one before, and the square of the defect."""
        return state.numbers

    def verdict(self, row: Row, first: Row) -> Status | None:
        """Stop where the eigenvalue has changed by less than ``tol`` of it, or is 0."""
        real, imaginary, *_ = row
        if real == float("inf") and imaginary == float("inf"):
            return None  # before the first iteration
        value, before = complex(real, imaginary), complex(row[2], row[3])
        if value - value != 0:
            return Status.NOT_FINITE
        if value == 0 or abs(value - before) < self.tol * abs(value):
            return Status.CONVERGED
        return None

    def suspect(self, row: Row, iteration: int) -> str:
        """Return the array that was first not finite."""
        return "image"

    def residual_norms(self, rows: np.ndarray) -> np.ndarray:
        """Return the norms of ``A x - eigenvalue x``."""
        return np.sqrt(rows[:, 4])

    def details(self, state: PowerState, rows: np.ndarray) -> dict[str, Any]:
        """Return the eigenvalue: real for a real operator."""
        real, imaginary = rows[-1, :2].tolist()
        return {"eigenvalue": complex(real, imaginary) if state.x.dtype.kind == "c" else real}


def power_iteration(
    A: LinearOperator,
    x0: Any = None,
    *,
    niter: int = 100,
    tol: float = 1e-5,
    dtype: Any = "float64",
    engine: str | None = None,
    seed: int = 0,
    **run: Unpack[Run],
) -> SolverResult:
    r"""Find the eigenvalue of largest modulus by power iteration. Collective.

    Parameters
    ----------
    A : LinearOperator
        With one layout on both sides, such as ``op.H @ op``.
    x0 : DistributedArray or StackedArray, optional
        Where to start, of any norm but 0. By default random numbers from a generator that depends on `seed` only, not
        on the number of ranks.
    niter : int
        Largest number of iterations.
    tol : float
        Stop when an iteration changes the eigenvalue by less than this, relative to it.
    dtype : dtype
        Of the vectors, if there is no `x0`; complex if the operator is.
    engine : str, optional
        Of the vectors, if there is no `x0`.
    seed : int
        Of the random numbers.
    **run
        How it is run, as for :func:`collops.solvers.cgls`; there is no progress bar by default.

    Returns
    -------
    SolverResult
        Its ``x`` is the eigenvector, of norm 1, and ``details["eigenvalue"]`` the eigenvalue: a float, of complex
        vectors a complex number. The residual is :math:`A x - \lambda x`.

    Raises
    ------
    LayoutError
        If `A` has two layouts, or `x0` has not that of `A`.
    InputError
        If an option makes no sense.

    Notes
    -----
    Besides the messages of `A`, an iteration sends one allreduce of two numbers.

    Every iterate is that of ``pylops.optimization.eigs.power_iteration`` from the same start. The eigenvalue approaches
    the largest modulus of a Hermitian operator from below.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> result = collops.power_iteration(collops.Diagonal(np.array([1.0, 2.0, 4.0])))
    >>> round(float(result.details["eigenvalue"]), 3)
    4.0
    """
    if isinstance(A, LinearOperator) and A.domain is not A.range:
        raise LayoutError(f"power iteration needs an operator with one layout on both sides, not {A!r}")
    if x0 is None and isinstance(A, LinearOperator):
        if A.dtype.kind == "c":
            dtype = np.result_type(dtype, np.complex64)
        x0 = random(A.domain, comm=A.comm, dtype=dtype, engine=engine, seed=seed)
    check_problem(A, x0, None, niter)
    method = PowerIteration(check_number("tol", tol))
    start = x0.astype(working_dtype(A, x0, None), copy=False)  # pyright: ignore[reportOptionalMemberAccess]
    return solve(method, A, start, niter=niter, **{"progress": False, **run})


def _inverse_root(xp: Any, square: Any) -> Any:
    """Return ``1 / sqrt(square)``, and 0 of a vector that vanished."""
    return divide(1.0, xp.sqrt(square))


def _where_not_finite(xp: Any, scale: Any) -> Any:
    """Return what a vector is multiplied by that is kept if `scale` is not finite, and else replaced."""
    return xp.where(xp.isfinite(scale), xp.zeros_like(scale), xp.ones_like(scale))[()]
