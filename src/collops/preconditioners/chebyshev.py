"""The Chebyshev preconditioner: a polynomial of an operator, without inner products."""

from __future__ import annotations

import numpy as np

from collops.array import Array, axpby, update_solution_and_direction
from collops.errors import InputError
from collops.operators.base import LinearOperator
from collops.operators.memory import Buffers
from collops.solvers.power import power_iteration
from collops.solvers.problem import check_count, check_preconditioner, check_square

_SAFETY = 1.1  # power iteration approaches the largest eigenvalue from below
_RATIO = 30.0  # of the bounds [Adams et al. 2003]


def chebyshev(
    A: LinearOperator, degree: int = 3, bounds: tuple[float, float] | None = None, *, M: LinearOperator | None = None
) -> LinearOperator:
    """Return some steps of the Chebyshev iteration [Saad 2003, algorithm 12.1] for an operator. Collective.

    Parameters
    ----------
    A : LinearOperator
        Hermitian positive definite, with one layout on both sides.
    degree : int
        Degree of the polynomial: products with `A`.
    bounds : tuple of two floats, optional
        Smallest and largest eigenvalue of `A`, or of the product of `M` and `A`, between which the polynomial is small.
        The largest must not be too small. By default 1.1 times the estimate of 30 power iterations, and a thirtieth
        of it.
    M : LinearOperator, optional
        Another preconditioner, such as :func:`jacobi`, applied first in each step.

    Returns
    -------
    LinearOperator
        Hermitian positive definite, for the engines of `A` and `M`. Applying it takes `degree` products with `A` and
        one more with `M`, and sends only their messages.

    Raises
    ------
    InputError
        If the degree is negative, or the bounds are not positive and in order.
    LayoutError
        If `A` has two layouts, or `M` has another layout.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.preconditioners import chebyshev
    >>> A = collops.Diagonal(np.array([1.0, 2.0, 4.0]))
    >>> M = chebyshev(A, degree=4, bounds=(1.0, 4.0))
    >>> (A @ M @ collops.ones(3)).gather().round(2)
    array([0.99, 0.99, 1.01])
    """
    check_square("chebyshev", A)
    check_preconditioner(M, A.domain)
    degree = check_count("degree", degree)
    if bounds is None:
        power = power_iteration(A if M is None else M @ A, niter=30, tol=1e-3)
        largest = _SAFETY * abs(power.details["eigenvalue"])
        bounds = largest / _RATIO, largest
    low, high = map(float, bounds)
    if not 0 < low < high < float("inf"):
        raise InputError(f"bounds must be two positive numbers, the smaller one first, not {bounds!r}")
    return Chebyshev(A, M, degree, low, high)


class Chebyshev(LinearOperator):
    """The polynomial; see :func:`chebyshev`."""

    def __init__(self, A: LinearOperator, M: LinearOperator | None, degree: int, low: float, high: float) -> None:
        parts = [A] if M is None else [A, M]
        super().__init__(A.domain, A.range, np.result_type(*(part.dtype for part in parts)), A.comm)
        self._inherit(parts)
        self.degree, self.bounds = degree, (low, high)
        self._products = (
            (A._forward, None if M is None else M._forward),
            (A._adjoint, None if M is None else M._adjoint),
        )
        self._buffers = Buffers()

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        multiply, precondition = self._products[adjoint]
        r = x
        low, high = self.bounds
        center, radius = (high + low) / 2, (high - low) / 2
        r_out, d_out, memory = (self._buffers.get(name, self.domain, r, out.dtype) for name in "rdi")
        z = r if precondition is None else precondition(r, d_out)
        d = axpby(1.0, z, 0.0, z, out=d_out)  # the change of x up to its length, as in conjugate gradients
        x = axpby(0.0, d, 0.0, d, out=out)
        length, rho = 1 / center, radius / center
        for _ in range(self.degree):
            memory = multiply(d, memory)
            r = axpby(-length, memory, 1.0, r, out=r_out)
            z = r if precondition is None else precondition(r, memory)
            before, rho = rho, 1 / (2 * center / radius - rho)
            following = 2 * rho / radius
            x, d = update_solution_and_direction(x, length, d, rho * before * length / following, z)
            length = following
        return axpby(length, d, 1.0, x, out=x)
