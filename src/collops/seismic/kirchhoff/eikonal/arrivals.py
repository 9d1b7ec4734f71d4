"""First arrivals from several sources in one velocity model, a batch of sources at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import tee
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from collops.errors import InputError
from collops.extend.arrays import LocalArray
from collops.extend.engines import Engine, engine_of, kernel_table
from collops.extend.engines import engine as engine_called
from collops.seismic.kirchhoff.eikonal.anisotropy import parameters_of
from collops.seismic.kirchhoff.eikonal.coarse import CoarseGrid
from collops.seismic.kirchhoff.eikonal.medium import Medium, Source
from collops.seismic.kirchhoff.geometry import ImageGrid
from collops.seismic.kirchhoff.nodes import checked_factor
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
    coarsen: int = 1,
    indices: tuple[np.ndarray, ...] | None = None,
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
    epsilon, delta, tilt, azimuth : float or array
        Anisotropy, as for :class:`Thomsen`, whose notes have the method: numbers, or arrays of the shape of the grid.
    coarsen : int
        Sweep a grid of every `coarsen`-th point along each axis, and interpolate. The sweep does not see the model
        between these points: :func:`arrivals_error` estimates the error.
    indices : tuple of arrays, optional
        Points at which to return the times, in the form that :func:`numpy.ix_` returns; by default all. Negative
        numbers count from the end.
    engine : str or Engine, optional
        The engine that computes: ``"cupy"`` on its current device, all others on the host.
    dtype : dtype
        float32 or float64: the type in which devices compute. Hosts compute in float64.
    threads : int, optional
        Sources that a host with Numba computes at once; by default 1.

    Yields
    ------
    array
        Times in seconds, of the shape of the grid or of the broadcast `indices`, in the memory of the engine.

    Raises
    ------
    InputError
        If an axis is not uniform, a position is outside of the grid, the velocity is not positive, an array has another
        shape, the anisotropy or the indices cannot be used, or the times do not converge.

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
    model = _checked(axes, positions, velocity, epsilon, delta, tilt, azimuth)
    indices = None if indices is None else _checked_indices(indices, model[0].shape)
    yield from _arrivals(*model, checked_factor(coarsen), indices, engine, np.dtype(dtype), threads)


def arrivals_error(
    axes: Sequence[ArrayLike], positions: ArrayLike, velocity: ArrayLike, coarsen: int, **options: Any
) -> float:
    """Estimate the error of `first_arrivals` with `coarsen`, relative to the times without. Not collective.

    Parameters
    ----------
    axes, positions, velocity, **options
        As for :func:`first_arrivals`, without `indices`.
    coarsen : int
        The factor, an even number.

    Returns
    -------
    float
        The root mean square error in seconds, over the points of the finer grid, of the position with the largest.

    Raises
    ------
    InputError
        As by `first_arrivals`, or if `coarsen` is odd.

    Notes
    -----
    The times of `coarsen` / 2 are subtracted. If errors grow at least in proportion to the spacing, the error is
    about 2 - 2 / `coarsen` times the difference or less [Richardson 1911]; with `coarsen` 2 it is the difference. As
    both grids may miss a thin layer, the result is at least the error of times along grid lines, which are integrals of
    the slowness. Waves that run along a layer are on none of these lines: if both grids miss a thin fast layer, the
    error may be 30 times the result, so use a factor only if the estimates of all smaller powers of 2 are small too.
    Largest errors, where two wavefronts meet or next to interfaces, are several times the root mean square.

    References
    ----------
    Richardson, L. F., "The approximate arithmetical solution by finite differences of physical problems involving
    differential equations", Philosophical Transactions of the Royal Society A, 210, pp. 307-357, 1911.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.seismic.kirchhoff import arrivals_error
    >>> x, z = 10.0 * np.arange(31), 10.0 * np.arange(41)
    >>> velocity = np.broadcast_to(1500 + 0.6 * z, (31, 41))
    >>> 1e-6 < arrivals_error((x, z), [(0.0, 0.0)], velocity, 2, engine="numpy") < 1e-4
    True
    """
    if checked_factor(coarsen) % 2:
        raise InputError(f"coarsen must be even to estimate its error, not {coarsen}")
    anisotropy = (options.get(name, 0.0) for name in ("epsilon", "delta", "tilt", "azimuth"))
    grid, speed, _, parameters = _checked(axes, positions, velocity, *anisotropy)
    half = coarsen // 2
    every = np.ix_(*(np.arange(0, n, half) for n in grid.shape))
    coarse, fine = (
        first_arrivals(axes, positions, speed, coarsen=factor, indices=every, **options) for factor in (coarsen, half)
    )
    squares = [float(((one - other) ** 2).mean()) for one, other in zip(coarse, fine, strict=True)]
    differences = (2 - 2 / coarsen) * float(np.sqrt(max(squares, default=0.0)))
    return max(differences, CoarseGrid(grid, coarsen).line_error(1 / speed, parameters))


_Model = tuple[ImageGrid, np.ndarray, np.ndarray, np.ndarray | None]
"""The grid, the velocity, the positions of the sources, and the anisotropy from `parameters_of`."""


def _checked(axes: Sequence[ArrayLike], positions: ArrayLike, velocity: ArrayLike, *anisotropy: ArrayLike) -> _Model:
    """Return the arguments of `first_arrivals` after checking them."""
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
    epsilon, delta, tilt, azimuth = anisotropy
    return grid, speed, places, parameters_of(grid, epsilon, delta, tilt, azimuth)


def _checked_indices(indices: object, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Return indices of points, none negative, after checking that they have the form that `numpy.ix_` returns."""
    parts = tuple(map(np.asarray, indices)) if isinstance(indices, tuple | list) else ()
    if len(parts) != len(shape) or any(
        part.dtype.kind not in "iu" or part.ndim != len(shape) or part.size != part.shape[axis]
        for axis, part in enumerate(parts)
    ):
        raise InputError(f"indices must be a tuple from numpy.ix_, one array of integers for each of {len(shape)} axes")
    for part, size in zip(parts, shape, strict=True):
        if ((part < -size) | (part >= size)).any():
            raise InputError(
                f"indices must lie within the grid of shape {shape}, not reach from {part.min()} to {part.max()}"
            )
    return tuple(part.astype(np.intp) % size for part, size in zip(parts, shape, strict=True))


def _arrivals(
    grid: ImageGrid,
    speed: np.ndarray,
    places: np.ndarray,
    anisotropy: np.ndarray | None,
    factor: int,
    indices: tuple[np.ndarray, ...] | None,
    engine: Engine | str | None,
    dtype: np.dtype,
    threads: int | None,
) -> Iterator[LocalArray]:
    """Yield the times at points with these indices from each place."""
    kernels, coarse, swept = _kernels_of(engine_called(engine)), CoarseGrid(grid, factor), grid
    if factor > 1:
        swept, speed = coarse.grid, coarse.sampled(speed)
        if anisotropy is not None:
            anisotropy = coarse.sampled(anisotropy.reshape(*grid.shape, -1)).reshape(-1, anisotropy.shape[-1])
        indices = np.ix_(*map(np.arange, grid.shape)) if indices is None else indices
    medium = Medium.of(swept, speed, dtype, anisotropy)
    sources, again = tee(Source.at(position, swept, speed, anisotropy) for position in places)
    for times, source in zip(kernels.arrivals(medium, sources, threads), again, strict=True):
        if indices is None:
            yield times
        elif factor == 1:
            yield times[tuple(map(engine_of(times).from_host, indices))]
        else:
            yield coarse.interpolated(source, times, indices)
