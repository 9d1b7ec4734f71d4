"""Relaxation in time, by which a quality factor attenuates and disperses waves: its frequencies, and its filters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from collops.errors import InputError, UnsupportedTypeError, type_name

_MAX_MECHANISMS = 5
_SAMPLES = 60  # frequencies of the band, in which quality factors are fitted
_FITTED = 50.0  # the quality factor for which relaxation frequencies are chosen
_SMALLEST = 5.0  # the one for which their weights must be positive as well


@dataclass(frozen=True)
class Relaxation:
    r"""Generalised standard linear solids, whose quality factor is constant in a band of frequencies.

    Parameters
    ----------
    frequency : float
        The reference frequency in hertz, in the band: its phase velocity is the velocity of the model.
    band : pair of float, optional
        The lowest and the highest frequency in hertz with the quality factor of the medium; by default from a quarter
        of the reference frequency to four times as much. Waves below and above it are attenuated less.
    mechanisms : int
        Number of relaxation mechanisms, 1 to 5. Each has a memory variable and a coefficient at each grid point.

    Raises
    ------
    InputError
        If an argument cannot be used.

    Notes
    -----
    With the quality factor Q, the real part of the complex modulus is Q times the imaginary part. The modulus of the
    wave equation is

    .. math::
        M(\omega) = M(0) \left(1 + \sum_l y_l \frac{i \omega \tau_l}{1 + i \omega \tau_l}\right)

    times :math:`v^2`, with the relaxation times :math:`\tau_l` and weights :math:`y_l` of mechanisms [1]_ [2]_. For a
    given Q, the condition on the parts of M is linear in the weights, which are fitted to it in the band [1]_; the
    relaxation times are equally spaced on a logarithmic scale, whose range is chosen for the best fit. M(0) is chosen
    for the phase velocity at the reference frequency.

    In time steps, mechanisms are recursions by the trapezoidal rule. It maps each frequency to another one, for which
    the fit accounts: the discrete scheme has the quality factor of the fit. With three mechanisms, its error in the
    default band is at most 0.6 % of Q for Q = 20 or more.

    References
    ----------
    .. [1] Emmerich, H., and Korn, M., "Incorporation of attenuation into time-domain computations of seismic wave
       fields", Geophysics 52(9), 1252-1264, 1987.
    .. [2] Robertsson, J. O. A., Blanch, J. O., and Symes, W. W., "Viscoelastic finite-difference modeling", Geophysics
       59(9), 1444-1456, 1994.

    Examples
    --------
    >>> from collops.seismic.waves import Relaxation
    >>> Relaxation(20.0).band
    (5.0, 80.0)
    """

    frequency: float
    band: tuple[float, float] | None = None
    mechanisms: int = 3

    def __post_init__(self) -> None:
        if not _positive(self.frequency):
            raise InputError(f"the frequency of relaxation must be a positive number, not {self.frequency!r}")
        band = (self.frequency / 4, 4 * self.frequency) if self.band is None else self.band
        ends = band.tolist() if isinstance(band, np.ndarray) else band
        if not (isinstance(ends, tuple | list) and len(ends) == 2 and all(map(_positive, ends)) and ends[0] < ends[1]):
            raise InputError(f"the band of relaxation must be two increasing positive frequencies, not {band!r}")
        if not band[0] <= self.frequency <= band[1]:
            raise InputError(
                f"the frequency of relaxation must be in its band from {band[0]:g} to {band[1]:g} Hz, "
                f"not {self.frequency:g} Hz"
            )
        count = self.mechanisms
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or not 1 <= count <= _MAX_MECHANISMS:
            raise InputError(f"relaxation has 1 to {_MAX_MECHANISMS} mechanisms, not {count!r}")
        object.__setattr__(self, "band", (float(band[0]), float(band[1])))


class Filters(NamedTuple):
    r"""Causal filters in time, one for each quality factor: :math:`a (q^n + \sum_l r_l^n)` of a signal q.

    The memory variables follow :math:`r_l^{n+1} = d_l r_l^n + g_l q^n` from rest.

    Attributes
    ----------
    first : numpy.ndarray
        The factors a.
    gains : numpy.ndarray
        The coefficients g, of the mechanisms as first axis; none is positive.
    largest : float
        The largest response, which all filters have at the frequency of alternating signs.
    """

    first: np.ndarray
    gains: np.ndarray
    largest: float


class Mechanisms:
    """The relaxation mechanisms in a scheme with some time step.

    Parameters
    ----------
    relaxation : Relaxation
        Their description.
    interval : float
        The time step in seconds.

    Attributes
    ----------
    decays : numpy.ndarray
        The coefficients d of the filters, one for each mechanism.

    Raises
    ------
    InputError
        If the band reaches half the sampling frequency.
    """

    def __init__(self, relaxation: Relaxation, interval: float) -> None:
        assert relaxation.band is not None
        low, high = relaxation.band
        if high >= 0.5 / interval:
            raise InputError(
                f"the band of relaxation must end below half the sampling frequency, {0.5 / interval:g} Hz, "
                f"not at {high:g} Hz"
            )
        # Frequencies as the trapezoidal rule maps them, times half the time step.
        fitted = np.tan(np.pi * interval * np.geomspace(low, high, _SAMPLES))
        self._reference = math.tan(math.pi * interval * relaxation.frequency)
        centre, places = math.sqrt(fitted[0] * fitted[-1]), np.linspace(-0.5, 0.5, int(relaxation.mechanisms))
        best = math.inf
        for width in np.linspace(0.0, math.log(fitted[-1] / fitted[0]) + 4, 121 if len(places) > 1 else 1):
            relaxed = centre * np.exp(width * places)
            error, fit = _fit(fitted[:, np.newaxis] / relaxed)
            if error < best:
                best, self._relaxed, self._fit = error, relaxed, fit
        self.decays = (1 - self._relaxed) / (1 + self._relaxed)

    def filters(self, quality_factor: np.ndarray) -> Filters:
        """Return the filters for quality factors; raise InputError if one is too small for the mechanisms."""
        values, places = np.unique(quality_factor, return_inverse=True)
        weights = _weights(*self._fit, values)
        if not (weights > 0).all():
            smallest = values[~(weights > 0).all(axis=1)].max()
            raise InputError(f"a quality factor of {smallest:g} is too small for this band of relaxation")
        parts = self._reference / self._relaxed * 1j
        response = 1 + (weights * (parts / (1 + parts))).sum(axis=1)
        static = np.real(1 / np.sqrt(response)) ** 2  # the response at frequency 0
        first = 1 + (weights / (1 + self._relaxed)).sum(axis=1)
        gains = -weights * 2 * self._relaxed / (1 + self._relaxed) ** 2 / first[:, np.newaxis]
        places, shape = places.reshape(-1), quality_factor.shape
        largest = float((static * (1 + weights.sum(axis=1))).max())
        return Filters((static * first)[places].reshape(shape), gains.T[:, places].reshape(-1, *shape), largest)


def mechanisms_of(relaxation: object, parameters: Mapping[str, Any], interval: float) -> dict[str, Mechanisms]:
    """Return the mechanisms as an argument of the medium with these parameters: none without a quality factor.

    Raises InputError or UnsupportedTypeError if the relaxation cannot be used.
    """
    if "quality_factor" not in parameters:
        if relaxation is not None:
            raise InputError("relaxation= needs a quality factor: pass quality_factor=")
        return {}
    if relaxation is None:
        raise InputError(
            "a quality factor needs a reference frequency, at which the velocity holds: pass relaxation=, for example "
            "Relaxation(20.0)"
        )
    if not isinstance(relaxation, Relaxation):
        raise UnsupportedTypeError(f"relaxation must be a Relaxation, not {type_name(relaxation)}")
    return {"mechanisms": Mechanisms(relaxation, interval)}


def _fit(ratios: np.ndarray) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    """Return the largest relative error of the quality factor, and a matrix and a vector for its weights.

    `ratios` are fitted frequencies over relaxation frequencies, of shape (frequencies, mechanisms). The error is
    infinite if a weight would not be positive.
    """
    real, imaginary = ratios**2 / (1 + ratios**2), ratios / (1 + ratios**2)
    inverse = np.linalg.pinv(imaginary)
    fit = inverse @ real, inverse.sum(axis=1)
    weights = _weights(*fit, np.array([_SMALLEST, _FITTED, 1e6]))
    if not (weights > 0).all():
        return math.inf, fit
    found = (1 + real @ weights[1]) / (imaginary @ weights[1])
    return float(np.abs(found / _FITTED - 1).max()), fit


def _weights(matrix: np.ndarray, vector: np.ndarray, quality_factor: np.ndarray) -> np.ndarray:
    r"""Return the weights for quality factors, of shape (values, mechanisms).

    The condition on the parts of the modulus, :math:`\Im M = \Re M / Q`, is :math:`P y - R y / Q = 1 / Q` with the
    parts P and R of the mechanisms at the fitted frequencies. Both sides are multiplied by the pseudo-inverse of P.
    """
    loss = 1 / quality_factor[:, np.newaxis]
    left = np.eye(len(vector)) - loss[..., np.newaxis] * matrix
    return np.linalg.solve(left, (loss * vector)[..., np.newaxis])[..., 0]


def _positive(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and bool(math.isfinite(value) and value > 0)
