"""First arrivals from several sources in one velocity model, a batch of sources at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from collops.errors import InputError
from collops.extend.arrays import LocalArray
from collops.extend.engines import Engine, kernel_table
from collops.extend.engines import engine as engine_called
from collops.seismic.kirchhoff.eikonal.anisotropy import parameters_of
from collops.seismic.kirchhoff.eikonal.medium import Medium, Source
from collops.seismic.kirchhoff.geometry import ImageGrid
from collops.seismic.real_numbers import finite_array

_kernels_of = kernel_table("collops.seismic.kirchhoff.eikonal", "host", cupy="device")


def first_arrivals(
    axes: Sequence[ArrayLike],
    positions: ArrayLike,
    velocity: ArrayLike,
    *,
    epsilon: ArrayLike = 0.0,
    delta: ArrayLike = 0.0,
    tilt: ArrayLike = 0.0,
    azimuth: ArrayLike = 0.0,
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
        Velocity at the points in m/s, of the shape of the grid, in any memory order; in an anisotropic medium the
        velocity of P waves along the symmetry axis.
    epsilon, delta : float or array
        Thomsen's parameters of a transversely isotropic medium: a number, or values of the shape of the grid; 0 by
        default. With a tilt of 0 the medium is called VTI, otherwise TTI.
    tilt, azimuth : float or array
        Direction of the symmetry axis in degrees, likewise: the angle from the vertical, and in 3-D the angle from the
        direction of x towards y. The axis is (sin tilt cos azimuth, sin tilt sin azimuth, cos tilt) along x, y and z,
        where z points down; in 2-D it lies in the plane, and a positive tilt turns its lower end towards x.
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
        If an axis is not uniform, a position is outside of the grid, the velocity is not positive, an array has another
        shape, 1 + 2 epsilon or 1 + 2 delta is not positive, 1 + 2 delta is 4 (1 + 2 epsilon) or more, which folds
        wavefronts, or the times do not converge.

    Notes
    -----
    The unknown of the scheme is the difference from the time along a straight ray at the velocity of the source
    [Luo and Qian 2012]: times are exact in a constant velocity, and next to a source the curvature of the wavefront
    does not add to the error. Differences are upwind, of second order where two points precede, else of first. Times
    within a few cells of a source are integrals of the slowness along straight rays.

    Anisotropic media carry qP waves by Alkhalifah's acoustic dispersion relation [Alkhalifah 2000], which needs no
    velocity of shear waves. The straight rays have the group velocity of the source's medium, so that times are exact
    in a homogeneous anisotropic medium as well. The scheme replaces the slowness surface of a point by an ellipsoid
    that touches it, and repeats this where the solution is [Waheed et al. 2015]; a ray comes from the neighbours
    towards which its group velocity points [Qian et al. 2007].

    References
    ----------
    Alkhalifah, T., "An acoustic wave equation for anisotropic media", Geophysics, 65(4), pp. 1239-1250, 2000.

    Zhao, H., "A fast sweeping method for eikonal equations", Mathematics of Computation, 74(250), pp. 603-627, 2005.

    Luo, S. and Qian, J., "Fast sweeping methods for factored anisotropic eikonal equations: multiplicative and additive
    factors", Journal of Scientific Computing, 52, pp. 360-382, 2012.

    Qian, J., Zhang, Y.-T., and Zhao, H.-K., "A fast sweeping method for static convex Hamilton-Jacobi equations",
    Journal of Scientific Computing, 31, pp. 237-271, 2007.

    Waheed, U. bin, Yarman, C. E., and Flagg, G., "An iterative, fast-sweeping-based eikonal solver for 3D tilted
    anisotropic media", Geophysics, 80(3), pp. C49-C58, 2015.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.seismic.kirchhoff import first_arrivals
    >>> x, z = 10.0 * np.arange(31), 10.0 * np.arange(41)
    >>> (times,) = first_arrivals((x, z), [(0.0, 0.0)], np.full((31, 41), 2000.0), engine="numpy")
    >>> round(float(times[30, 40]), 6)  # 500 m at 2000 m/s
    0.25
    >>> medium = {"velocity": np.full((31, 41), 2000.0), "epsilon": 0.2, "delta": 0.1}
    >>> (times,) = first_arrivals((x, z), [(0.0, 0.0)], **medium, engine="numpy")
    >>> round(float(times[30, 0]), 6)  # 300 m across the axis, 1.4 ** 0.5 times as fast
    0.126773
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
    anisotropy = parameters_of(grid, epsilon, delta, tilt, azimuth)
    kernels, medium = _kernels_of(engine_called(engine)), Medium.of(grid, speed, np.dtype(dtype), anisotropy)
    sources = (Source.at(position, grid, speed, anisotropy) for position in places)
    yield from kernels.arrivals(medium, sources, threads)
