"""The image grid: how far it reaches, how fine it is, and how both follow from a survey."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from collops.apps.lsm.survey import Geometry
from collops.errors import InputError

__all__ = ["Grid", "cover"]

_MOST_COLUMNS, _MOST_ROWS = 401, 401
_MARGIN = 0.05
_MOST_STEPS = 1e12


@dataclass(frozen=True)
class Grid:
    """A regular grid of image points; arrays on it have shape ``(nx, nz)``.

    Parameters
    ----------
    nx, nz : int
        Points along the line and in depth.
    dx, dz : float
        Their spacings in metres.
    x0 : float
        Distance along the line of the first column, in metres. The first row lies at depth 0.

    Raises
    ------
    InputError
        If a size or a spacing is not positive.
    """

    nx: int
    nz: int
    dx: float
    dz: float
    x0: float = 0.0

    def __post_init__(self) -> None:
        # The eikonal solver and the interpolation of velocities take differences along both axes.
        for name, size in (("nx", self.nx), ("nz", self.nz)):
            if size < 2:
                raise InputError(f"the image needs at least 2 points along each axis, but --{name} is {size}")
        for name, spacing in (("dx", self.dx), ("dz", self.dz)):
            if not (np.isfinite(spacing) and spacing > 0):
                raise InputError(f"--{name} must be a positive number of metres, not {spacing}")
        if not np.isfinite(self.x0):
            raise InputError(f"--x0 must be a finite number of metres, not {self.x0}")

    @property
    def shape(self) -> tuple[int, int]:
        """Points along the line, points in depth."""
        return self.nx, self.nz

    @property
    def x(self) -> np.ndarray:
        """Distance of every column along the line, in metres."""
        return self.x0 + self.dx * np.arange(self.nx)

    @property
    def z(self) -> np.ndarray:
        """Depth of every row, in metres."""
        return self.dz * np.arange(self.nz)

    def check_contains(self, geometry: Geometry) -> None:
        """Raise unless all sources and receivers lie on the grid.

        Raises
        ------
        InputError
            Naming the range of what lies outside.
        """
        left, right, top, bottom = geometry.bounds
        # Coordinates that came through a file are rounded: a thousandth of a cell outside is inside.
        slack_x, slack_z = self.dx / 1000, self.dz / 1000
        if left < self.x[0] - slack_x or right > self.x[-1] + slack_x:
            raise InputError(
                f"sources and receivers lie at {left:g} to {right:g} m, "
                f"off the model's {self.x[0]:g} to {self.x[-1]:g} m: "
                "change --nx, --dx or --x0, or leave them out"
            )
        if top < -slack_z or bottom > self.z[-1] + slack_z:
            raise InputError(
                f"sources and receivers lie at depths of {top:g} to {bottom:g} m, "
                f"off the model's 0 to {self.z[-1]:g} m: "
                "change --nz or --dz, or leave them out"
            )


def cover(
    geometry: Geometry,
    profile: Callable[[np.ndarray], np.ndarray],
    *,
    nx: int | None = None,
    nz: int | None = None,
    dx: float | None = None,
    dz: float | None = None,
    x0: float | None = None,
) -> Grid:
    """Choose the grid for a survey; what is given stays.

    The line from the first to the last station is covered with a margin of 5 % on both sides. Columns are
    half a receiver spacing apart (the spacing of midpoints), but at most 401. Rows reach as deep as a
    vertical echo at the end of the record comes from, and are as far apart as the columns, but at most 401.
    Spacings are rounded to at most three digits.

    Parameters
    ----------
    geometry : Geometry
        The survey.
    profile : callable
        Velocity in m/s at an array of depths in m, representative of the line.
    nx, nz, dx, dz, x0
        See `Grid`.

    Raises
    ------
    InputError
        If a given size is not positive.
    """
    left, right, _, deepest = geometry.bounds
    span = (right - left) * (1 + 2 * _MARGIN)
    if dx is None:
        if nx is not None:
            dx = _round_up(span / max(nx - 1, 1))
        else:
            dx = max(_round_down(_receiver_spacing(geometry) / 2), _round_up(span / (_MOST_COLUMNS - 1)))
    _check_steps("dx", span, dx)
    margin = _MARGIN * (right - left)
    if dx > 0 and nx is None and x0 is None:
        # Columns at multiples of the spacing, so that stations at multiples of it lie on columns.
        first, last = np.floor((left - margin) / dx), np.ceil((right + margin) / dx)
        nx, x0 = int(last - first) + 1, float(first * dx)
    if nx is None:
        nx = int(np.ceil((right + margin - (left if x0 is None else x0)) / dx)) + 1 if dx > 0 else 1
    if x0 is None:
        # Spare columns go to both sides.
        x0 = ((left + right) - (nx - 1) * dx) / 2
    if dz is None or nz is None:
        depth = max(_deepest_echo(profile, geometry), 1.5 * deepest)
        if dz is None:
            dz = max(dx, _round_up(depth / (_MOST_ROWS - 1))) if nz is None else _round_up(depth / max(nz - 1, 1))
        if nz is None:
            _check_steps("dz", depth, dz)
            nz = int(np.ceil(depth / dz)) + 1 if dz > 0 else 1
    return Grid(nx, nz, dx, dz, x0)


def _check_steps(name: str, length: float, step: float) -> None:
    """Raise if a length has more steps than any array has elements; a step that is not positive is refused later."""
    if step > 0 and not float(length) / step < _MOST_STEPS:
        raise InputError(f"--{name} {step:g} is too fine for {length:g} m: choose a larger one")


def _receiver_spacing(geometry: Geometry) -> float:
    """Return the median distance between neighbouring receivers along the line, over the shots."""
    steps = [np.diff(np.unique(receivers[0])) for receivers in geometry.distinct_receivers()]
    together: np.ndarray = np.concatenate(steps)
    left, right, _, _ = geometry.bounds
    return float(np.median(together)) if together.size else (right - left) / 100


def _deepest_echo(profile: Callable[[np.ndarray], np.ndarray], geometry: Geometry) -> float:
    """Return the depth from which a vertical echo arrives at the end of the record."""
    one_way = float(geometry.times[-1]) / 2
    if one_way <= 0:
        raise InputError("the record ends before the shot: check the delay recording time in the trace headers")
    speed = float(profile(np.zeros(1))[0])
    depth, steps = speed * one_way, 2000
    # The depth is not known in advance where the velocity grows: it doubles until it is deep enough.
    for _ in range(60):
        z = np.linspace(0, depth, steps)
        velocity = profile(z)
        if not (velocity > 0).all():
            usable = z[: int(np.argmin(velocity > 0))]
            return float(usable[-1]) if usable.size else 0.0
        time = np.concatenate([[0], np.cumsum(np.diff(z) * 2 / (velocity[1:] + velocity[:-1]))])
        if time[-1] >= one_way:
            return float(np.interp(one_way, time, z))
        depth *= 2
    return depth


def _round_down(value: float) -> float:
    return _rounded(value, np.floor)


def _round_up(value: float) -> float:
    return _rounded(value, np.ceil)


def _rounded(value: float, how: Callable[[float], float]) -> float:
    if value <= 0 or not np.isfinite(value):
        return value
    unit = 10.0 ** (np.floor(np.log10(value)) - 2)
    # The tiny shift keeps a number that is round already from being moved by its own rounding error.
    shift = 1e-9 if how is np.floor else -1e-9
    return float(np.round(how(value / unit + shift) * unit, 9))
