"""Central differences of any even order: their coefficients, numerical dispersion and the stability limit.

The second derivative is symmetric and the first is antisymmetric, so that each is its own transpose up to a sign.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from collops.errors import InputError

ORDERS = tuple(range(2, 17, 2))
"""Orders of accuracy in space."""

LIMITS = {2: 2.0, 4: math.sqrt(6)}
"""By order of accuracy in time: the largest product of velocity, wavenumber and time step.

Order 4 itself is stable up to the square root of 12, but from the square root of 6 on, shorter waves have lower
frequencies: they travel backwards, and absorbing layers amplify them.
"""


def first_derivative(order: int) -> np.ndarray:
    r"""Return the coefficients of :math:`u(x + kh) - u(x - kh)` for k = 1, 2, ..., with spacing 1.

    Parameters
    ----------
    order : int
        Order of accuracy: 2, 4, ..., 16.

    Raises
    ------
    InputError
        If `order` is another number.

    Examples
    --------
    >>> from collops.seismic.waves.stencil import first_derivative
    >>> first_derivative(4).round(4)
    array([ 0.6667, -0.0833])
    """
    half = _checked(order) // 2
    f = math.factorial
    return np.array([(-1) ** (k + 1) * f(half) ** 2 / (k * f(half - k) * f(half + k)) for k in range(1, half + 1)])


def staggered_derivative(order: int) -> np.ndarray:
    r"""Return the coefficients of :math:`u(x + (k - 1/2) h) - u(x - (k - 1/2) h)` for k = 1, 2, ..., with spacing 1.

    Parameters and exceptions as for :func:`first_derivative`.

    Examples
    --------
    >>> from collops.seismic.waves.stencil import staggered_derivative
    >>> staggered_derivative(4).round(4)
    array([ 1.125 , -0.0417])
    """
    n, f = _checked(order) // 2, math.factorial
    odd = math.prod(range(1, 2 * n, 2)) ** 2 / 4 ** (n - 1)
    return np.array([(-1) ** (k - 1) * odd / (f(n + k - 1) * f(n - k) * (2 * k - 1) ** 2) for k in range(1, n + 1)])


def second_derivative(order: int) -> np.ndarray:
    r"""Return the coefficients of :math:`u(x)`, and of :math:`u(x + kh) + u(x - kh)` for k = 1, 2, ...

    Parameters and exceptions as for :func:`first_derivative`, from which they follow [1]_:
    :math:`d_k = 2 f_k / k` for the coefficients :math:`f_k` of the first derivative.

    References
    ----------
    .. [1] Fornberg, B., "Generation of finite difference formulas on arbitrarily spaced grids", Mathematics of
       Computation 51, 699-706, 1988.

    Examples
    --------
    >>> from collops.seismic.waves.stencil import second_derivative
    >>> second_derivative(4).round(4)
    array([-2.5   ,  1.3333, -0.0833])
    """
    sides = 2 * first_derivative(order) / np.arange(1, order // 2 + 1)
    return np.array([-2 * sides.sum(), *sides])


def largest_step(order: int, spacing: Sequence[float], velocity: float, time_order: int = 2) -> float:
    r"""Return the longest stable time step, in seconds.

    It is :math:`2 / (v \sqrt{S \sum_a 1 / h_a^2})`, where S is the sum of the magnitudes of the coefficients of the
    second derivative, the symbol of the shortest wave. With order 4 in time it is :math:`\sqrt{3/2}` times as long.

    Parameters
    ----------
    order : int
        Order of accuracy in space.
    spacing : sequence of float
        Grid spacing along each axis, in metres.
    velocity : float
        The largest velocity, in metres per second.
    time_order : {2, 4}
        Order of accuracy in time.

    Examples
    --------
    >>> from collops.seismic.waves import largest_step
    >>> largest_step(2, (10.0,), 2000.0)
    0.005
    """
    return LIMITS[checked_time_order(time_order)] / (velocity * largest_wavenumber(order, spacing))


def largest_wavenumber(order: int, spacing: Sequence[float]) -> float:
    """Return the square root of the largest symbol of the Laplacian, in 1/m; parameters as for :func:`largest_step`."""
    weights = second_derivative(order)
    return math.sqrt((abs(weights[0]) + 2 * np.abs(weights[1:]).sum()) * sum(1 / h**2 for h in spacing))


def phase_velocity(order: int, points: float, courant: float, time_order: int = 2) -> float:
    r"""Return the phase velocity of the scheme along a grid axis, relative to the exact velocity.

    Parameters
    ----------
    order : int
        Order of accuracy in space.
    points : float
        Grid points per wavelength, more than 2.
    courant : float
        The Courant number :math:`v \Delta t / h`.
    time_order : {2, 4}
        Order of accuracy in time.

    Examples
    --------
    >>> from collops.seismic.waves import phase_velocity
    >>> round(phase_velocity(2, 10.0, 0.5), 3)
    0.988
    """
    phase = 2 * math.pi / points
    weights = second_derivative(order)
    symbol = -(weights[0] + 2 * sum(d * math.cos(k * phase) for k, d in enumerate(weights[1:], 1)))
    square = courant**2 * symbol
    square -= square**2 / 12 if checked_time_order(time_order) == 4 else 0
    return 2 / (courant * phase) * math.asin(math.sqrt(square) / 2)


def checked_time_order(order: int) -> int:
    """Return an order of accuracy in time; raise InputError unless it is 2 or 4."""
    if not (isinstance(order, int | np.integer) and order in LIMITS):
        raise InputError(f"the order of accuracy in time must be 2 or 4, not {order!r}")
    return order


def _checked(order: int) -> int:
    if order not in ORDERS:
        raise InputError(f"the order of accuracy in space must be 2, 4, ... or {ORDERS[-1]}, not {order!r}")
    return order
