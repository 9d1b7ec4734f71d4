r"""Tilted transverse isotropy: Thomsen's parameters, and the times of qP waves along straight rays.

With the slowness vector p divided by the slowness along the symmetry axis, :math:`Z` the square of its component along
the axis, :math:`X` the square of the component across, and :math:`\kappa = 2 (\epsilon - \delta) / (1 + 2 \epsilon)`,
with Thomsen's parameters [4]_, Alkhalifah's acoustic dispersion relation is

.. math:: (1 + 2 \epsilon) X + Z - \kappa (1 + 2 \epsilon) X Z = 1.

It needs no velocity of shear waves, and times hardly depend on it [1]_. For :math:`-3 < \kappa < 1` its surface around
the origin is strictly convex: the curve :math:`x^2 + z^2 - \kappa x^2 z^2 = 1` is bent least on its diagonal. The
relation is linear in X and in Z, so that linearised in both it is an ellipsoid that touches the surface: sweeps solve
the equation of this ellipsoid, and take the next one where the solution is, as in [2]_ and [3]_.

References
----------
.. [1] Alkhalifah, T., "An acoustic wave equation for anisotropic media", Geophysics, 65(4), pp. 1239-1250, 2000.
.. [2] Waheed, U. bin, Yarman, C. E., and Flagg, G., "An iterative, fast-sweeping-based eikonal solver for 3D tilted
   anisotropic media", Geophysics, 80(3), pp. C49-C58, 2015.
.. [3] Qian, J., Zhang, Y.-T., and Zhao, H.-K., "A fast sweeping method for static convex Hamilton-Jacobi equations",
   Journal of Scientific Computing, 31, pp. 237-271, 2007: which neighbours a ray may come from.
.. [4] Thomsen, L., "Weak elastic anisotropy", Geophysics, 51(10), pp. 1954-1966, 1986.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from collops.errors import InputError
from collops.extend.engines import engine_of
from collops.seismic.kirchhoff.geometry import ImageGrid
from collops.seismic.real_numbers import finite_array

STEPS = 16  # most attempts at the neighbours and the ellipsoid of a point; few points need more than 4
CLOSE = 1e-4  # change of the squared component along the axis below which an ellipsoid is the last one
SLACK = 1e-5  # of the slowness: rounding of components that decide which neighbours count
CELLS = 128  # of the table of `Reference`

_NEWTON_STEPS = 8
_LARGEST_RATIO = 4.0  # of 1 + 2 delta to 1 + 2 epsilon, where the slowness surface ceases to be convex


@dataclass(frozen=True)
class Thomsen:
    """The anisotropy of a medium in which P waves travel along an axis of symmetry with the velocity of the model.

    Parameters
    ----------
    epsilon, delta : float or array
        Thomsen's parameters [Thomsen 1986] of a transversely isotropic medium: a number, or values of the shape of the
        model; 0 by default. With a tilt of 0 the medium is called VTI, otherwise TTI. 1 + 2 epsilon and 1 + 2 delta
        must be positive, and 1 + 2 delta less than 4 (1 + 2 epsilon): above it wavefronts fold.
    tilt, azimuth : float or array
        Direction of the symmetry axis in degrees, likewise: the angle from the vertical, and in 3-D the angle from the
        direction of x towards y. The axis is (sin tilt cos azimuth, sin tilt sin azimuth, cos tilt) along x, y and z,
        where z points down; in 2-D it lies in the plane, and a positive tilt turns its lower end towards x.

    Notes
    -----
    Anisotropic media carry qP waves by Alkhalifah's acoustic dispersion relation [Alkhalifah 2000], which needs no
    velocity of shear waves. The straight rays of :func:`first_arrivals` have the group velocity of the source's medium,
    so that times are exact in a homogeneous anisotropic medium as well. The scheme replaces the slowness surface of a
    point by an ellipsoid that touches it, and repeats this where the solution is [Waheed et al. 2015]; a ray comes from
    the neighbours towards which its group velocity points [Qian et al. 2007].

    References
    ----------
    Alkhalifah, T., "An acoustic wave equation for anisotropic media", Geophysics, 65(4), pp. 1239-1250, 2000.

    Qian, J., Zhang, Y.-T., and Zhao, H.-K., "A fast sweeping method for static convex Hamilton-Jacobi equations",
    Journal of Scientific Computing, 31, pp. 237-271, 2007.

    Thomsen, L., "Weak elastic anisotropy", Geophysics, 51(10), pp. 1954-1966, 1986.

    Waheed, U. bin, Yarman, C. E., and Flagg, G., "An iterative, fast-sweeping-based eikonal solver for 3D tilted
    anisotropic media", Geophysics, 80(3), pp. C49-C58, 2015.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.seismic.kirchhoff import Thomsen, TravelTimes, first_arrivals
    >>> TravelTimes("eikonal", 2000.0, thomsen=Thomsen(0.2, 0.1, tilt=30.0)).thomsen.epsilon
    0.2
    >>> x, medium = 10.0 * np.arange(31), vars(Thomsen(0.2, 0.1))
    >>> (times,) = first_arrivals((x, x), [(0.0, 0.0)], np.full((31, 31), 2000.0), **medium, engine="numpy")
    >>> round(float(times[30, 0]), 6)  # 300 m across the axis, 1.4 ** 0.5 times as fast
    0.126773
    """

    epsilon: Any = 0.0
    delta: Any = 0.0
    tilt: Any = 0.0
    azimuth: Any = 0.0

    def parameters(self, grid: ImageGrid) -> np.ndarray | None:
        """Return `parameters_of` these values."""
        return parameters_of(grid, self.epsilon, self.delta, self.tilt, self.azimuth)


def parameters_of(
    grid: ImageGrid, epsilon: ArrayLike, delta: ArrayLike, tilt: ArrayLike, azimuth: ArrayLike
) -> np.ndarray | None:
    """Return the anisotropy at the points, (points, 5), or None for an isotropic medium; see `first_arrivals`.

    The values of a point are 1 + 2 epsilon, kappa, and the symmetry axis along y, x and z.
    """
    given = {"epsilon": epsilon, "delta": delta, "tilt": tilt, "azimuth": azimuth}
    values = {name: finite_array(name, value) for name, value in given.items()}
    for name, value in values.items():
        if value.size != 1 and value.shape != grid.shape:
            raise InputError(f"{name} must be a number or have the shape {grid.shape}, not {value.shape}")
        # Numbers stay numbers: arrays of a large grid would take longer than the times.
        values[name] = value.reshape((1,) * len(grid.shape)) if value.size == 1 else value
    if len(grid.axes) == 2 and values["azimuth"].any():
        raise InputError("azimuth is for 3-D grids: in 2-D, the symmetry axis lies in the plane; omit it")
    across, normal = 1 + 2 * values["epsilon"], 1 + 2 * values["delta"]
    for what, wrong in (
        ("1 + 2 epsilon must be positive", across <= 0),
        ("1 + 2 delta must be positive", normal <= 0),
        ("1 + 2 delta must be less than 4 (1 + 2 epsilon): wavefronts would fold", normal >= _LARGEST_RATIO * across),
    ):
        if wrong.any():
            where = np.unravel_index(int(np.broadcast_to(wrong, grid.shape).argmax()), grid.shape)
            one, two = (float(np.broadcast_to(values[name], grid.shape)[where]) for name in ("epsilon", "delta"))
            raise InputError(
                f"{what}; at {', '.join(f'{name} {index}' for name, index in zip(grid.names, where, strict=True))}, "
                f"epsilon is {one:g} and delta {two:g}"
            )
    if (across == 1).all() and (normal == 1).all():
        return None
    tilts, azimuths = np.deg2rad(values["tilt"]), np.deg2rad(values["azimuth"])
    axis = np.sin(tilts) * np.sin(azimuths), np.sin(tilts) * np.cos(azimuths), np.cos(tilts)
    parts = across, 1 - normal / across, *axis
    return np.stack([np.broadcast_to(part, grid.shape).ravel() for part in parts], axis=1)


def group_slowness(parameters: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Return the slowness of rays, relative to a wave along the symmetry axis.

    `parameters` are (…, 5), the values of `parameters_of`, whose axis may have any length; `along` are unit vectors
    along the rays, (…, 3).
    """
    stretch, kappa, axis = parameters[..., 0], parameters[..., 1], parameters[..., 2:]
    parallel = (axis * along).sum(axis=-1) ** 2 / np.maximum((axis**2).sum(axis=-1), np.finfo(float).tiny)
    across = np.maximum(1 - parallel, 0) / stretch
    return np.sqrt((across + parallel) * _support(parallel / (across + parallel), kappa)[0])


def _support(share: np.ndarray, kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the squared support function of the slowness surface with epsilon 0, and its derivative by `share`.

    `share` is the squared cosine of the angle between the ray and the symmetry axis. The wave has the squared tangent
    ratio: Newton's method solves for it on the side of the diagonal on which it is less than 1.
    """
    small, large = np.minimum(share, 1 - share), np.maximum(share, 1 - share)
    ratio = wanted = small / large
    for _ in range(_NEWTON_STEPS):
        both = 1 + ratio
        square = 2 / (both + np.sqrt(both**2 - 4 * kappa * ratio))  # of the larger component of the slowness
        one, two = 1 - kappa * square, 1 - kappa * ratio * square
        change = -square * one / (both - 2 * kappa * ratio * square)
        bent = -kappa * (change * two - one * (square + ratio * change)) / two**2
        ratio = ratio - (ratio * (one / two) ** 2 - wanted) / ((one / two) ** 2 + 2 * ratio * one / two * bent)
        ratio = np.clip(ratio, 0, 1)
    both = 1 + ratio
    square = 2 / (both + np.sqrt(both**2 - 4 * kappa * ratio))
    root = np.sqrt(square * large) + np.sqrt(ratio * square * small)
    slope = root * np.sqrt(square / large) * ((1 - kappa * ratio * square) / (1 - kappa * square) - 1)
    return root**2, np.where(share > 0.5, -slope, slope)


@dataclass(frozen=True)
class Reference:
    """The homogeneous medium with the values at a source, whose wavefront is the factor that sweeps leave out.

    The time squared is a quadratic form of the distances along and across the symmetry axis, times a smooth function of
    their ratio; it has a table, from which cubic polynomials interpolate.
    """

    slowness: float  # along the symmetry axis, s/m
    stretch: float  # 1 + 2 epsilon
    axis: np.ndarray  # (3,), a unit vector along y, x, z
    table: np.ndarray  # (CELLS + 1, 2): the function at equal steps of the square of the cosine, and its derivative

    @classmethod
    def of(cls, slowness: float, parameters: np.ndarray) -> Reference:
        """Return the medium of five values of `parameters_of`."""
        stretch, kappa, *axis = parameters
        table = np.stack(_support(np.linspace(0, 1, CELLS + 1), kappa), axis=1)
        # Opposite axes of neighbouring points may cancel.
        return cls(slowness, float(stretch), np.array(axis) / max(float(np.linalg.norm(axis)), 1e-12), table)

    @property
    def described(self) -> np.ndarray:
        """The slowness, the stretch and the axis, in one array."""
        return np.array([self.slowness, self.stretch, *self.axis])

    def times(self, offsets: Sequence[Any]) -> Any:
        """Return the times at points with these coordinates relative to the source, which are broadcast.

        Offsets may be on a device.
        """
        table = engine_of(offsets[0]).from_host(self.table.astype(offsets[0].dtype))
        along, across, value, _ = self._interpolated(offsets, table)
        return self.slowness * np.sqrt((along**2 + across) * value)

    def slopes(self, offsets: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the derivatives of the times along the axes; zero at the source."""
        along, across, value, slope = self._interpolated(offsets, self.table)
        share = along**2 / np.maximum(along**2 + across, np.finfo(float).tiny)
        of_across, of_along = (value - share * slope) / self.stretch, value + (1 - share) * slope
        time = np.sqrt((along**2 + across) * value)
        scale = self.slowness / np.where(time > 0, time, np.inf)
        return [
            scale * (of_across * (part - along * n) + of_along * along * n)
            for part, n in zip(offsets, self.axis, strict=True)
        ]

    def _interpolated(self, offsets: Sequence[Any], table: Any) -> tuple[Any, Any, Any, Any]:
        """Return the distance along the axis, the stretched squared one across, the function and its derivative."""
        along = sum(part * float(n) for part, n in zip(offsets, self.axis, strict=True))
        across = np.maximum(sum(part**2 for part in offsets) - along**2, 0) / self.stretch
        place = CELLS * along**2 / np.maximum(along**2 + across, 1e-30)
        cell = np.minimum(place.astype(np.int32), CELLS - 1)
        part = place - cell.astype(place.dtype)
        first, left, last, right = table[cell, 0], table[cell, 1], table[cell + 1, 0], table[cell + 1, 1]
        # The coefficients of Hermite's cubic polynomial.
        left, right = left / CELLS, right / CELLS
        square = 3 * (last - first) - 2 * left - right
        cube = left + right - 2 * (last - first)
        value = first + part * (left + part * (square + part * cube))
        return along, across, value, CELLS * (left + part * (2 * square + 3 * part * cube))
