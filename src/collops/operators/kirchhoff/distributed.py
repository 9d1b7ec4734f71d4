"""The Kirchhoff operator on all ranks: each models and migrates its own shots."""

from __future__ import annotations

import importlib.util
import platform
from typing import Any, Literal

import numpy as np

from collops.array import Layout
from collops.backend import engine as engine_called
from collops.comm import Communicator
from collops.comm.agreement import collective_errors
from collops.comm.cores import available_cores
from collops.comm.given import communicator_or_world
from collops.errors import InputError
from collops.operators.kirchhoff.fixed_point import FixedTables, Scale
from collops.operators.kirchhoff.geometry import (
    Grid,
    analytic,
    checked_positions,
    checked_time_axis,
    checked_velocity,
    checked_wavelet,
    eikonal,
    require_eikonal_solver,
)
from collops.operators.kirchhoff.local import LocalKirchhoff
from collops.operators.kirchhoff.weights import Amplitude, Bands, Weighting, Weights, checked_antialias
from collops.operators.stacks import VStack

__all__ = ["Kirchhoff"]

Mode = Literal["analytic", "eikonal", "byot"]


class Kirchhoff(VStack):
    r"""Kirchhoff demigration (forward) and migration (adjoint), the shots spread over the ranks.

    The image is replicated; the data are split by shots, the first ``sources % ranks`` ranks having one shot more.
    Ranks without shots have no rows. Forward sends no message, adjoint one allreduce of the image. By default results
    agree with ``pylops.waveeqprocessing.Kirchhoff`` without amplitudes.

    Collective. Every rank passes the same arguments. Each rank computes the travel times of its own sources.
    All ranks need the receiver times: in mode ``"eikonal"``, where they are expensive, each distinct grid point of the
    receivers is solved for by one rank, and the tables are gathered; otherwise every rank computes them. The ranks also
    share the tables of the receivers' weights, if there are any.

    Parameters
    ----------
    z, x : array
        Axes of the image, uniform and increasing.
    t : array
        Time axis of the data in seconds, uniform, from 0.
    sources, receivers : array
        Shapes (2, sources) and (2, receivers) with rows x, z; in 3-D (3, …) with rows y, x, z.
    velocity : float or array
        A number, or (mode ``"eikonal"``) an array of the image's shape, in metres per second. Mode ``"byot"``
        takes either, and only needs it for `amplitude` and `max_dip`.
    wavelet : array
        Taps of the wavelet, at the interval of `t`. With an `amplitude`, the wavelet of a wave that came straight
        from a source.
    wavelet_center : int
        Index of the tap at time zero.
    y : array, optional
        First axis of a 3-D image.
    mode : {"eikonal", "analytic", "byot"}
        First arrivals in a velocity model (needs scikit-fmm; positions move to their nearest grid points), straight
        rays in a constant velocity, or given travel times.
    travel_times : tuple of two arrays, optional
        Mode ``"byot"``: seconds, shapes (points, sources) and (points, receivers), points in C order of the image.
        Of the sources only this rank's columns are read. Infinity means that nothing arrives.
    amplitude : {"none", "2d", "2.5d", "3d"}, optional
        ``"none"`` models travel times only. The others model the amplitudes of reflected waves (see Notes):
        ``"2d"`` from line sources, ``"2.5d"`` from point sources above a medium that does not vary in y, both for 2-D
        images, and ``"3d"`` for 3-D images.
    aperture : float, optional
        Horizontal distance in metres from the source and from the receiver at which weights fall to zero,
        from four fifths of it on. By default there is no limit.
    max_dip : float, optional
        Dip in degrees, below 90, at which weights fall to zero, from four fifths of it on. It is that of a
        reflector which bisects the two rays. By default there is no limit.
    antialias : bool or float, optional
        Whether to filter each arrival by a triangle as long as its delay from one receiver to the next, so that the
        operator is not steeper than the receivers sample. A number is their spacing in metres; by default it is the
        distance to the nearest receiver.
    comm : Communicator, optional
        The ranks; the world by default.
    engine : str, optional
        ``"numpy"`` or ``"cupy"``; by default the environment's COLLOPS_ENGINE, or NumPy.
    dtype : dtype, optional
        float32 or float64.
    kernels, threads, deterministic : optional
        As for :class:`LocalKirchhoff`. By default the ranks on one node share its cores.

    Attributes
    ----------
    dims, dimsd : tuple of int
        Shapes of the image, ((ny,) nx, nz), and of all ranks' data, (sources, receivers, samples).
    shots : range
        The sources of this rank.
    local : LocalKirchhoff
        The operator of this rank; its notes have the equation.

    Raises
    ------
    InputError
        On every rank, if an argument cannot be used.
    UnsupportedTypeError
        On every rank, for other types and engines.

    Notes
    -----
    With an `amplitude` the data are those of the Kirchhoff approximation [1]_: for cells of size :math:`\Delta V` and
    half the angle :math:`\theta` between the two rays at a point,

    .. math::
        d(s, r, t) = \sum_p m(p)\, \Delta V\, \frac{2 \cos\theta}{v(p)}\, A(s, p)\, A(r, p)\,
        D w(t - \tau(s, p) - \tau(r, p)).

    The image is the reflection coefficient per metre across the reflector, :math:`R\, \delta(n)`: an interface with
    coefficient R in one row of the image, :math:`\Delta z` thick, has the value :math:`R / \Delta z` there.

    ========== ============================================== ===============
    amplitude  :math:`A` in a constant velocity               :math:`D`
    ========== ============================================== ===============
    ``"2d"``   :math:`\sqrt{v / (8 \pi r)}`                   half-derivative
    ``"2.5d"`` as 2-D, and the product of both is divided     half-derivative
               by :math:`\sqrt{2 \pi (\sigma_s + \sigma_r)}`,
               where :math:`\sigma = v r`
    ``"3d"``   :math:`1 / (4 \pi r)`                          derivative
    ========== ============================================== ===============

    A plane reflector below a constant velocity thus returns the wavelet times its coefficient and the amplitude of a
    straight ray from the mirror image of the source. Where the velocity varies, amplitudes and spreadings follow from
    the first arrivals and the transport equation [2]_, [3]_; they are those of ray theory, without transmission losses.
    Smooth the velocity over a wavelength: where two wavefronts meet, and at interfaces, amplitudes are
    limited to 0.14 to 7.4 times those of straight rays. With weights the tables take 3 to 5 times the memory.

    The triangle filters against aliasing [4]_ are applied to copies of the traces, from which each image point
    takes one [5]_; lengths grow by factors of 1.4. All weights and filters are in forward and adjoint alike.

    References
    ----------
    .. [1] Bleistein, N., Cohen, J. K., and Stockwell, J. W., "Mathematics of Multidimensional Seismic Imaging,
       Migration and Inversion", Springer, 2000.
    .. [2] Vidale, J. E., and Houston, H., "Rapid calculation of seismic amplitudes", Geophysics, 55(11),
       pp. 1504-1507, 1990.
    .. [3] Luo, S., and Qian, J., "Factored singularities and high-order Lax-Friedrichs sweeping schemes for
       point-source traveltimes and amplitudes", Journal of Computational Physics, 230(12), pp. 4742-4755, 2011.
    .. [4] Lumley, D. E., Claerbout, J. F., and Bevc, D., "Anti-aliased Kirchhoff 3-D migration", SEG Technical Program
       Expanded Abstracts, pp. 1282-1285, 1994.
    .. [5] Gray, S. H., "Frequency-selective design of the Kirchhoff migration operator", Geophysical Prospecting,
       40(5), pp. 565-571, 1992.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> z, x, t = np.arange(5) * 10.0, np.arange(6) * 10.0, np.arange(50) * 0.004
    >>> surface = np.array([[0.0, 20.0, 50.0], [0.0, 0.0, 0.0]])
    >>> K = collops.Kirchhoff(z, x, t, surface, surface, 1500.0, np.ones(1), 0, mode="analytic", kernels="numpy")
    >>> K.dims, K.dimsd
    ((6, 5), (3, 3, 50))
    """

    def __init__(
        self,
        z: Any,
        x: Any,
        t: Any,
        sources: Any,
        receivers: Any,
        velocity: Any,
        wavelet: Any,
        wavelet_center: int,
        *,
        y: Any = None,
        mode: Mode = "eikonal",
        travel_times: tuple[Any, Any] | None = None,
        amplitude: Amplitude = "none",
        aperture: float | None = None,
        max_dip: float | None = None,
        antialias: bool | float = False,
        comm: Communicator | None = None,
        engine: str | None = None,
        dtype: Any = "float64",
        kernels: str | None = None,
        threads: int | None = None,
        deterministic: bool = False,
    ) -> None:
        comm = communicator_or_world(comm)
        with collective_errors(comm):
            if mode not in ("analytic", "eikonal", "byot"):
                raise InputError(f"mode must be 'analytic', 'eikonal' or 'byot', not {mode!r}")
            grid = Grid.from_axes(z, x, y)
            interval, samples = checked_time_axis(t)
            scale = Scale(interval, samples, 0, np.dtype(dtype))
            sources = checked_positions("sources", sources, grid, inside=mode != "byot")
            receivers = checked_positions("receivers", receivers, grid, inside=mode != "byot")
            weighting = Weighting(amplitude, aperture, max_dip)
            weighting.check(len(grid.axes))
            filters, spacing = checked_antialias(antialias)
            wavelet, wavelet_center = weighting.wavelet(*checked_wavelet(wavelet, wavelet_center), interval)
            engine_name = engine_called(engine).name
            (own,) = Layout.split(len(sources), comm.size).slices(comm.rank)
            if travel_times is not None and mode != "byot":
                raise InputError(f"travel_times are for mode 'byot'; mode {mode!r} computes them")
            if mode == "byot" and weighting.traces_rays and velocity is None:
                raise InputError("amplitudes and max_dip need the velocity also in mode 'byot'")
            speed = checked_velocity(velocity, grid, "eikonal" if mode == "byot" and weighting.traces_rays else mode)
            tables = None
            if mode == "byot":
                outward, back = _given_tables(travel_times, grid, len(sources), len(receivers))
                tables = FixedTables.from_seconds(outward[:, own].T, back.T, interval, samples, dtype)
            elif mode == "analytic":
                outward, back = (
                    scale.table(analytic(grid, points, speed), len(points), grid.points)
                    for points in (sources[own], receivers)
                )
                tables = FixedTables(outward, back, scale)
            elif mode == "eikonal":
                require_eikonal_solver()
        if tables is None:
            outward = _first_arrivals(grid, sources[own], speed, scale, None)
            tables = FixedTables(outward, _first_arrivals(grid, receivers, speed, scale, comm), scale)
            sources, receivers = (grid.coordinates(grid.nearest_nodes(where)) for where in (sources, receivers))
        weights = bands = None
        if not weighting.none:
            unit = interval * 2.0**-tables.scale.fraction_bits
            speed = np.broadcast_to(1.0 if speed is None else speed, grid.shape)
            weights = Weights(
                weighting.table(tables.sources, unit, grid, sources[own], speed, dtype),
                weighting.table(tables.receivers, unit, grid, receivers, speed, dtype, comm),
                weighting,
            )
        if filters:
            bands = Bands.between(tables, receivers, spacing, np.size(wavelet))

        self.shots = range(own.start, own.stop)
        self.dims = grid.shape
        self.dimsd = (len(sources), len(receivers), samples)
        if threads is None:
            threads = threads_of_rank(comm, engine_name, kernels)
        options: dict[str, Any] = {"kernels": kernels, "threads": threads, "deterministic": deterministic}
        options |= {"weights": weights, "bands": bands}
        with collective_errors(comm):
            self.local = LocalKirchhoff(tables, self.dims, wavelet, wavelet_center, engine=engine, **options)
        super().__init__([self.local], comm, dims=self.dims)


def _given_tables(travel_times: Any, grid: Grid, sources: int, receivers: int) -> list[np.ndarray]:
    """Return the tables of travel times, (points, sources) and (points, receivers), after checking their shapes."""
    if not isinstance(travel_times, tuple | list) or len(travel_times) != 2:
        raise InputError("mode 'byot' needs travel_times: a tuple of the sources' and the receivers' table")
    tables = [np.asarray(table) for table in travel_times]
    for what, table, count in zip(("source", "receiver"), tables, (sources, receivers), strict=True):
        if table.shape != (grid.points, count):
            raise InputError(
                f"the {what} travel times have shape {table.shape}; they need (image points, {what}s) = "
                f"{(grid.points, count)}"
            )
    return tables


def _first_arrivals(
    grid: Grid, positions: np.ndarray, velocity: Any, scale: Scale, comm: Communicator | None
) -> np.ndarray:
    """Solve once for each distinct grid point; with a communicator, the ranks share the work and gather the tables."""
    distinct, row_of = np.unique(grid.nearest_nodes(positions), axis=0, return_inverse=True)
    ranks, rank = (1, 0) if comm is None else (comm.size, comm.rank)
    split = Layout.split(len(distinct), ranks)
    mine = distinct[split.slices(rank)]
    table = scale.table(eikonal(grid, mine, velocity), len(mine), grid.points)
    if comm is not None and comm.size > 1:
        table = comm.allgatherv(table, split.sizes[0])
    row_of = row_of.reshape(-1)
    return table if np.array_equal(row_of, np.arange(len(table))) else table[row_of]


def threads_of_rank(comm: Communicator, engine: str, kernels: str | None = None) -> int | None:
    """Return the threads of this rank's CPU kernels: its share of the node's cores. Collective: one metadata message.

    ``None`` if the rank uses kernels without threads.
    """
    if engine != "numpy" or kernels == "numpy" or importlib.util.find_spec("numba") is None:
        comm.allgather_metadata(None)
        return None
    from collops.operators.kirchhoff.cpu import thread_count

    places = comm.allgather_metadata([platform.node(), sorted(available_cores())])
    here = places.pop(comm.rank)
    return thread_count(tuple(frozenset(place[1]) for place in places if place is not None and place[0] == here[0]))
