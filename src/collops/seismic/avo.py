"""Amplitude versus angle: the intercept and gradient of reflections, by least squares on angle gathers.

References
----------
.. [1] Shuey, R. T., "A simplification of the Zoeppritz equations", Geophysics, 50(4), pp. 609-614, 1985: the first two
   terms of the reflection coefficient.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import numpy as np
from numpy.typing import ArrayLike

from collops.errors import InputError
from collops.seismic.real_numbers import real_array

__all__ = ["Avo", "fit_avo"]


@dataclass(frozen=True)
class Avo:
    """The intercept and gradient of reflections, and their standard deviations; all arrays have one shape.

    Values are NaN where too few classes are left for them.

    Examples
    --------
    >>> from collops.seismic import Avo, fit_avo
    >>> isinstance(fit_avo([0.0, 10.0, 20.0], [[1.0], [0.9], [0.8]]), Avo)
    True
    """

    intercept: np.ndarray
    gradient: np.ndarray
    intercept_deviation: np.ndarray
    gradient_deviation: np.ndarray


def fit_avo(
    angles: ArrayLike,
    gathers: ArrayLike,
    *,
    weights: ArrayLike = 1.0,
    noise: ArrayLike | None = None,
    window: int = 1,
) -> Avo:
    r"""Fit :math:`R(\theta) = A + B \sin^2\theta` to the amplitudes of angle gathers, at each depth.

    The standard deviations follow from `noise`, or else from the residual of the fit with :math:`n - 2` degrees of
    freedom for n classes, which includes the error of the approximation.

    Parameters
    ----------
    angles : array
        Angles of incidence in degrees, of shape ``(classes,)``.
    gathers : array
        Amplitudes, of shape ``(..., classes, rows)``.
    weights : array
        Weights of the squared residuals, which broadcast to the gathers: 0 excludes an amplitude. Without `noise` they
        are inverse variances of the amplitudes, up to a common factor.
    noise : array, optional
        Standard deviations of the amplitudes, which broadcast to the gathers. The fit then also divides by their
        squares.
    window : int
        Rows over which squared residuals are averaged without `noise`. Fewer than about ten degrees of freedom, as of
        one row, determine a standard deviation poorly.

    Returns
    -------
    Avo
        Arrays of shape ``(..., rows)``, in the unit of the gathers.

    Raises
    ------
    InputError
        If shapes do not fit, angles are not between 0 and 90 degrees, weights or standard deviations are
        negative, or `window` is less than 1.

    Notes
    -----
    The two terms (Shuey 1985) suit contrasts of up to about 20 % and angles of up to about 30 degrees.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.seismic import fit_avo
    >>> angles = np.array([5.0, 15.0, 25.0])
    >>> gather = 0.1 - 0.2 * np.sin(np.radians(angles))[:, None] ** 2  # one row
    >>> avo = fit_avo(angles, gather, noise=0.01)
    >>> avo.intercept.round(6), avo.gradient.round(6)
    (array([0.1]), array([-0.2]))
    >>> avo.gradient_deviation.round(3)
    array([0.081])
    """
    angles, values = _checked(angles, gathers, window)
    factors = _factors("weights", weights, values.shape)
    if noise is None:  # weights are then inverse variances, up to a factor that follows from the residual
        variances = np.divide(1.0, factors, out=np.zeros(values.shape), where=factors > 0)
    else:
        variances = _factors("noise", noise, values.shape) ** 2
        factors = np.divide(factors, variances, out=np.zeros(values.shape), where=variances > 0)
    # Amplitudes that count for nothing may be NaN, and their noise infinite.
    values, variances = (np.where(factors > 0, part, 0) for part in (values, variances))
    sines = np.sin(np.radians(angles))[:, None] ** 2
    shares, freedom = _normal_equations(sines, factors, 2 if noise is not None else 3)
    intercept, gradient = ((share * values).sum(axis=-2) for share in shares)
    variance: np.ndarray | float = 1.0
    if noise is None:
        fitted = intercept[..., None, :] + gradient[..., None, :] * sines
        squares = np.where(freedom > 0, factors * (values - fitted) ** 2, 0).sum(axis=-2)
        variance = _variance(squares, freedom[..., 0, :], window)
    return Avo(intercept, gradient, *(np.sqrt(variance * (share**2 * variances).sum(axis=-2)) for share in shares))


def _checked(angles: ArrayLike, gathers: ArrayLike, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the angles and the amplitudes of :func:`fit_avo` as arrays."""
    angles, values = real_array("angles", angles), real_array("gathers", gathers)
    if values.ndim < 2 or angles.shape != values.shape[-2:-1]:
        raise InputError(
            f"gathers need the shape (..., classes, rows) for angles of the shape (classes,), not {values.shape} and "
            f"{angles.shape}"
        )
    if not ((angles >= 0) & (angles < 90)).all():
        raise InputError("angles must be between 0 and 90 degrees")
    if isinstance(window, bool) or not isinstance(window, Integral) or window < 1:
        raise InputError(f"window must be a whole number of rows, at least 1, not {window!r}")
    return angles, values


def _normal_equations(
    sines: np.ndarray, factors: np.ndarray, min_classes: int
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Solve for intercept and gradient at all depths.

    Returns
    -------
    shares : pair of arrays
        The coefficients are sums over the classes of the amplitudes times these numbers, which are NaN where fewer than
        `min_classes` classes have a weight or their angles are equal.
    freedom : array
        Degrees of freedom, of shape ``(..., 1, rows)``; 0 where the shares are NaN.
    """
    a, b, c = ((factors * sines**power).sum(axis=-2, keepdims=True) for power in range(3))
    determinant, count = a * c - b**2, np.count_nonzero(factors, axis=-2, keepdims=True)
    known = (count >= min_classes) & (determinant > 1e-12 * a * c)
    divisor = np.where(known, determinant, np.nan)
    return (factors * (c - b * sines) / divisor, factors * (a * sines - b) / divisor), known * (count - 2)


def _variance(squares: np.ndarray, freedom: np.ndarray, window: int) -> np.ndarray:
    """Return sums of squares over degrees of freedom, both over a window of rows; NaN without any."""
    from scipy.ndimage import correlate1d

    # Not uniform_filter1d, whose running sum is negative at times where squares vanish below larger ones.
    taps = np.full(window, 1 / window)
    sums = [correlate1d(part.astype(np.float64), taps, axis=-1) for part in (squares, freedom)]
    return np.divide(*sums, out=np.full(sums[0].shape, np.nan), where=sums[1] > 0)


def _factors(name: str, values: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    """Return values that are not negative, in a shape to which they broadcast."""
    array = real_array(name, values)
    try:
        array = np.broadcast_to(array, shape)
    except ValueError:
        raise InputError(f"{name} must broadcast to the shape of the gathers, {shape}, not {array.shape}") from None
    if not (array >= 0).all():
        raise InputError(f"{name} must not be negative")
    return array
