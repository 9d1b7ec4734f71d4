"""Absorbing layers: convolutional perfectly matched layers (CPML) around the model, and their profiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from collops.errors import InputError

_REFLECTION = 1e-5  # of the continuous layer at normal incidence
_POWER = 2  # of the damping, which grows from the edge of the model outwards


@dataclass(frozen=True)
class Layers:
    r"""Convolutional perfectly matched layers outside the model, where its edge values continue.

    Parameters
    ----------
    width : int
        Grid points of a layer; 0 for a rigid edge, where the field vanishes beyond the model.
    velocity : float, optional
        The velocity that scales the damping, in metres per second; by default the largest stable one. A layer absorbs
        better with twice the velocity at the edge than with half of it.
    frequency : float, optional
        The dominant frequency in hertz; by default the mean frequency of the power spectra of all wavelets.

    Notes
    -----
    A derivative across a layer is replaced by :math:`\partial_x u + \psi`, where the memory variable follows
    :math:`\psi^n = b \psi^{n-1} + a \partial_x u^n` [1]_. The second derivative has two memory variables [2]_:
    :math:`\psi` as above, and :math:`\zeta^n = b \zeta^{n-1} + a (\partial_{xx} u^n + \partial_x \psi^n)`. With the
    damping d, which grows with the square of the depth, and :math:`\alpha`, which falls from :math:`\pi f` to 0,
    :math:`b = \exp(-(d + \alpha) \Delta t)` and :math:`a = (b - 1) d / (d + \alpha)`. Both depend on the parameters
    and not on the model, so that the scheme depends on the model by the squared velocity alone.

    References
    ----------
    .. [1] Komatitsch, D., and Martin, R., "An unsplit convolutional perfectly matched layer improved at grazing
       incidence for the seismic wave equation", Geophysics 72(5), SM155-SM167, 2007.
    .. [2] Pasalic, D., and McGarry, R., "Convolutional perfectly matched layer for isotropic and anisotropic acoustic
       wave equations", SEG Technical Program Expanded Abstracts, 2925-2929, 2010.

    Examples
    --------
    >>> from collops.seismic.waves import Layers
    >>> Layers(30).width
    30
    """

    width: int = 20
    velocity: float | None = None
    frequency: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.width, int | np.integer) or self.width < 0:
            raise InputError(f"the width of absorbing layers must be an integer of at least 0, not {self.width!r}")
        for name in ("velocity", "frequency"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and (value > 0 or (value, name) == (0, "frequency"))):
                raise InputError(f"the {name} of absorbing layers must be a positive number, not {value!r}")


class Absorption(NamedTuple):
    """Parameters of layers: time step in seconds, velocity in metres per second, and dominant frequency in hertz."""

    interval: float
    velocity: float
    frequency: float


def profile(
    width: int, spacing: float, absorption: Absorption, staggered: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return `a` and `b` of the recursion for the points of a layer, or its width + 1 half points, innermost first."""
    points = np.minimum(np.arange(width + 1) + 0.5, width) if staggered else np.arange(1, width + 1)
    depth = points / max(width, 1)
    damping = (
        -(_POWER + 1) * absorption.velocity * math.log(_REFLECTION) / (2 * max(width, 1) * spacing) * depth**_POWER
    )
    shift = math.pi * absorption.frequency * (1 - depth)
    b = np.exp(-(damping + shift) * absorption.interval)
    return damping / (damping + shift) * (b - 1), b


def mean_frequency(wavelets: np.ndarray, interval: float) -> float:
    """Return the mean frequency of the power spectra of wavelets, (..., samples), in hertz; 0 if all vanish."""
    samples = wavelets.shape[-1]
    power = (np.abs(np.fft.rfft(wavelets.reshape(-1, samples))) ** 2).sum(axis=0)
    total = power.sum()
    return float((np.fft.rfftfreq(samples, interval) * power).sum() / total) if total else 0.0
