"""First arrivals from several sources in one velocity model, a batch of sources at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from collops.errors import InputError
from collops.extend.arrays import LocalArray
from collops.extend.engines import Engine, kernel_table
from collops.extend.engines import engine as engine_called
from collops.seismic.kirchhoff.eikonal.medium import Medium, Source
from collops.seismic.kirchhoff.geometry import ImageGrid
from collops.seismic.real_numbers import finite_array

_kernels_of = kernel_table("collops.seismic.kirchhoff.eikonal", "host", cupy="device")


def first_arrivals(
    axes: Sequence[ArrayLike],
    positions: ArrayLike,
    velocity: ArrayLike,
    *,
    engine: Engine | str | None = None,
    dtype: DTypeLike = "float64",
    threads: int | None = None,
) -> Iterator[LocalArray]:
    r"""Yield the times of the first arrivals from each position, by fast sweeping [Zhao 2005]. Not collective.

    Parameters
    ----------
    axes : sequence of arrays
        Coordinates of the points of a grid in metres, (``y``,) ``x`` and ``z``, each uniform.
    positions : array
        Coordinates of the sources in metres, (sources, axes), anywhere on the grid.
    velocity : array
        Velocity at the points in m/s, of the shape of the grid, in any memory order.
    engine : str or Engine, optional
        The engine that computes: ``"cupy"`` on its current device, all others on the host.
    dtype : dtype
        float32 or float64: the type in which devices compute. Hosts compute in float64.
    threads : int, optional
        Sources that a host with Numba computes at once; by default 1.

    Yields
    ------
    array
        Times in seconds, of the shape of the grid, in the memory of the engine.

    Raises
    ------
    InputError
        If an axis is not uniform, a position is outside of the grid, the velocity is not positive or has another shape,
        or the times do not converge.

    Notes
    -----
    The unknown of the scheme is the difference from the time along a straight ray at the velocity of the source
    [Luo and Qian 2012]: times are exact in a constant velocity, and next to a source the curvature of the wavefront
    does not add to the error. Differences are upwind, of second order where two points precede, else of first. Times
    within a few cells of a source are integrals of the slowness along straight rays.

    References
    ----------
    Zhao, H., "A fast sweeping method for eikonal equations", Mathematics of Computation, 74(250), pp. 603-627, 2005.

    Luo, S. and Qian, J., "Fast sweeping methods for factored anisotropic eikonal equations: multiplicative and additive
    factors", Journal of Scientific Computing, 52, pp. 360-382, 2012.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.seismic.kirchhoff import first_arrivals
    >>> x, z = 10.0 * np.arange(31), 10.0 * np.arange(41)
    >>> (times,) = first_arrivals((x, z), [(0.0, 0.0)], np.full((31, 41), 2000.0), engine="numpy")
    >>> round(float(times[30, 40]), 6)  # 500 m at 2000 m/s
    0.25
    """
    if len(axes) not in (2, 3):
        raise InputError(f"axes must be (x, z) or (y, x, z), not {len(axes)} arrays")
    grid = ImageGrid.from_axes(*reversed(axes))
    speed = finite_array("velocity", velocity)
    if speed.shape != grid.shape:
        raise InputError(f"velocity must have the shape {grid.shape}, not {speed.shape}")
    if not (speed > 0).all():
        raise InputError("velocity must be positive everywhere")
    places = finite_array("positions", positions).reshape(-1, len(grid.axes))
    for name, axis, spacing, values in zip(grid.names, grid.axes, grid.spacing, places.T, strict=True):
        if ((values < axis[0] - 1e-3 * spacing) | (values > axis[-1] + 1e-3 * spacing)).any():
            raise InputError(f"positions must lie within the grid: {name} from {axis[0]:g} to {axis[-1]:g} m")
    kernels, medium = _kernels_of(engine_called(engine)), Medium.of(grid, speed, np.dtype(dtype))
    at_a_time = kernels.at_a_time(medium, threads)
    for first in range(0, len(places), at_a_time):
        sources = [Source.at(position, grid, speed) for position in places[first : first + at_a_time]]
        yield from kernels.arrivals(medium, sources, threads)
