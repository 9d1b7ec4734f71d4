"""First arrivals from several sources in one velocity model, a batch of sources at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
    [Luo and Qian 2012]: times are exact in a constant velocity, to 1e-4 of the time of a cell, where sweeps stop, and
    next to a source the curvature of the wavefront does not add to the error. Differences are upwind, of second order
    where two points precede, else of first. Times within a few cells of a source are integrals of the slowness along
    straight rays.

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
    computed = Arrivals.of(axes, velocity, (epsilon, delta, tilt, azimuth), engine, dtype, threads)
    indices = None if indices is None else _checked_indices(indices, computed.grid.shape)
    yield from computed.times(positions, checked_factor(coarsen), indices)


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
    options = dict(options)
    anisotropy = tuple(options.pop(name, 0.0) for name in ("epsilon", "delta", "tilt", "azimuth"))
    return Arrivals.of(axes, velocity, anisotropy, **options).error(positions, coarsen)


@dataclass(frozen=True, eq=False)
class Arrivals:
    """First arrivals in one velocity model, which is checked once for any number of calls.

    Parameters
    ----------
    grid : ImageGrid
        The points.
    velocity : array
        Velocity at the points.
    anisotropy : array or None
        From `parameters_of`.
    engine, dtype, threads
        As for `first_arrivals`.
    """

    grid: ImageGrid
    velocity: np.ndarray
    anisotropy: np.ndarray | None
    engine: Engine
    dtype: np.dtype
    threads: int | None

    @classmethod
    def of(
        cls,
        axes: Sequence[ArrayLike],
        velocity: ArrayLike,
        anisotropy: tuple[ArrayLike, ...] = (0.0, 0.0, 0.0, 0.0),
        engine: Engine | str | None = None,
        dtype: DTypeLike = "float64",
        threads: int | None = None,
    ) -> Arrivals:
        """Return the arrivals for arguments of `first_arrivals`, after checking them."""
        if len(axes) not in (2, 3):
            raise InputError(f"axes must be (x, z) or (y, x, z), not {len(axes)} arrays")
        grid = ImageGrid.from_axes(*reversed(axes))
        speed = finite_array("velocity", velocity)
        if speed.shape != grid.shape:
            raise InputError(f"velocity must have the shape {grid.shape}, not {speed.shape}")
        if not (speed > 0).all():
            raise InputError("velocity must be positive everywhere")
        return cls(grid, speed, parameters_of(grid, *anisotropy), engine_called(engine), np.dtype(dtype), threads)

    def times(
        self, positions: ArrayLike, factor: int = 1, indices: tuple[np.ndarray, ...] | None = None
    ) -> Iterator[LocalArray]:
        """Yield the times from each position, from every `factor`-th point, at points with these indices."""
        places = self._checked_positions(positions)
        kernels, coarse = _kernels_of(self.engine), CoarseGrid(self.grid, factor)
        swept, speed, anisotropy = self.grid, self.velocity, self.anisotropy
        if factor > 1:
            swept, speed = coarse.grid, coarse.sampled(speed)
            if anisotropy is not None:
                values = anisotropy.reshape(*self.grid.shape, -1)
                anisotropy = coarse.sampled(values).reshape(-1, values.shape[-1])
            indices = np.ix_(*map(np.arange, self.grid.shape)) if indices is None else indices
        medium = Medium.of(swept, speed, self.dtype, anisotropy)
        sources, again = tee(Source.at(place, swept, speed, anisotropy) for place in places)
        at_points: Callable[[Source, LocalArray], LocalArray] | None = None
        for times, source in zip(kernels.arrivals(medium, sources, self.threads), again, strict=True):
            if indices is None:
                yield times
                continue
            if at_points is None:
                at_points = _at_points(coarse, indices, engine_of(times), times.dtype)
            yield at_points(source, times)

    def error(self, positions: ArrayLike, coarsen: int) -> float:
        """Return the result of `arrivals_error`."""
        if checked_factor(coarsen) % 2:
            raise InputError(f"coarsen must be even to estimate its error, not {coarsen}")
        half = coarsen // 2
        every = np.ix_(*(np.arange(0, n, half) for n in self.grid.shape))
        pairs = zip(*(self.times(positions, factor, every) for factor in (coarsen, half)), strict=True)
        largest, in_memory = 0.0, np.asarray
        for one, other in pairs:
            largest, in_memory = max(largest, float(((one - other) ** 2).mean())), engine_of(one).from_host
        anisotropy = None if self.anisotropy is None else in_memory(self.anisotropy)
        of_lines = CoarseGrid(self.grid, coarsen).line_error(1 / in_memory(self.velocity), anisotropy)
        return max((2 - 2 / coarsen) * math.sqrt(largest), of_lines)

    def _checked_positions(self, positions: ArrayLike) -> np.ndarray:
        """Return the positions, (sources, axes), after checking that they lie within the grid."""
        grid = self.grid
        places = finite_array("positions", positions).reshape(-1, len(grid.axes))
        for name, axis, spacing, values in zip(grid.names, grid.axes, grid.spacing, places.T, strict=True):
            if ((values < axis[0] - 1e-3 * spacing) | (values > axis[-1] + 1e-3 * spacing)).any():
                raise InputError(f"positions must lie within the grid: {name} from {axis[0]:g} to {axis[-1]:g} m")
        return places


def _at_points(
    coarse: CoarseGrid, indices: tuple[np.ndarray, ...], engine: Engine, dtype: np.dtype
) -> Callable[[Source, LocalArray], LocalArray]:
    """Return a function of a source and its times at all points of a coarse grid: the times at some points."""
    if coarse.factor > 1:
        return coarse.interpolation(indices, engine, dtype)
    numbers = tuple(map(engine.from_host, indices))
    return lambda source, times: times[numbers]


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
