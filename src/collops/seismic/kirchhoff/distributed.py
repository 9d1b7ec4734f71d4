"""The Kirchhoff operator on all ranks: each models and migrates its own shots."""

from __future__ import annotations

import importlib.util
import math
import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from collops import Communicator, Layout, LinearOperator, VStack
from collops.errors import InputError, LayoutError, type_name
from collops.extend.communication import available_cores, collective_errors, communicator_or_world
from collops.extend.engines import engine as engine_called
from collops.extend.operators import Direction
from collops.seismic.kirchhoff.fixed_point import Scale, early_samples
from collops.seismic.kirchhoff.geometry import (
    Grid,
    analytic,
    checked_positions,
    checked_time_axis,
    checked_velocity,
    checked_wavelet,
    eikonal,
    require_eikonal_solver,
)
from collops.seismic.kirchhoff.local import LocalKirchhoff, StreamedKirchhoff
from collops.seismic.kirchhoff.nodes import checked_factor
from collops.seismic.kirchhoff.split import SplitImage, boxes_of, shot_blocks
from collops.seismic.kirchhoff.stations import distinct_rows, tables_of_stations
from collops.seismic.kirchhoff.weights import Amplitude, Bands, Weighting, checked_antialias

Mode = Literal["analytic", "eikonal", "byot"]


class Kirchhoff(LinearOperator):
    r"""Kirchhoff demigration (forward) and migration (adjoint), the shots spread over the ranks.

    The data are split by shots, the first ``sources % ranks`` ranks having one shot more. Ranks without shots have no
    rows. Without amplitudes, results agree with ``pylops.waveeqprocessing.Kirchhoff`` for the same travel times. Those
    of mode ``"eikonal"`` differ: PyLops moves stations to grid points, and its times are half a cell too short.

    The image is replicated: forward sends no message, adjoint one allreduce of the image. A rank has tables of its
    sources and of all receivers, one for each distinct position. An image that is too large for that is split, by its
    `layout`: a rank has its points only, with tables of all stations there. Forward then sends one reduce-scatter, and
    adjoint one allgather, of the traces of each block of shots of about 64 million samples.

    Collective. Every rank passes the same arguments. Each table is computed by one of the ranks that need it, and sent
    to the others.

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
        First arrivals in a velocity model (needs scikit-fmm), straight rays in a constant velocity, or given travel
        times. Positions may be between grid points in all modes. Around a station, eikonal times are those of straight
        rays; beyond, they are too late by less than half the time in which a wave crosses a cell, if cells are about
        as wide as they are deep.
    travel_times : tuple of two arrays, optional
        Mode ``"byot"``: seconds, shapes (points, sources) and (points, receivers), points in C order of the image.
        Each rank reads only the columns of its own sources, or all if the image is split. Infinity means that nothing
        arrives.
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
    coarsen : int, optional
        Keep tables at every so many image points along each axis only, between which the kernels interpolate (see
        Notes). Not in mode ``"byot"``.
    layout : Layout, optional
        Layout of the image: replicated (the default), or split over the ranks along any axes, such as by
        ``Layout.split(dims, comm.size)``.
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
    local : LocalKirchhoff or None
        The operator of this rank, whose notes have the equation; None if the image is split.

    Raises
    ------
    InputError
        On every rank, if an argument cannot be used.
    LayoutError
        On every rank, if `layout` is not that of an image of these axes on these ranks.
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

    With `coarsen` c, tables take 1/c² of the memory in 2-D and 1/c³ in 3-D. Kernels add times of straight rays
    to interpolated differences from them, which are exact in a constant velocity. Weights are interpolated as they
    are, so that they are only right beyond some nodes from a station.

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
    >>> from collops.seismic import Kirchhoff
    >>> z, x, t = np.arange(5) * 10.0, np.arange(6) * 10.0, np.arange(50) * 0.004
    >>> surface = np.array([[0.0, 20.0, 50.0], [0.0, 0.0, 0.0]])
    >>> K = Kirchhoff(z, x, t, surface, surface, 1500.0, np.ones(1), 0, mode="analytic", kernels="numpy")
    >>> K.dims, K.dimsd
    ((6, 5), (3, 3, 50))

    The same with a split image:

    >>> comm = collops.world()
    >>> options = {"mode": "analytic", "kernels": "numpy", "layout": collops.Layout.split((6, 5), comm.size)}
    >>> S = collops.seismic.Kirchhoff(z, x, t, surface, surface, 1500.0, np.ones(1), 0, **options)
    >>> bool(np.allclose((S @ collops.ones(S.domain)).gather(), (K @ collops.ones(K.domain)).gather()))
    True
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
        coarsen: int = 1,
        layout: Layout | None = None,
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
            layout = _checked_layout(layout, grid, comm)
            split, shares = not layout.is_replicated, Layout.split(len(sources), comm.size)
            (own,) = shares.slices(comm.rank)
            if travel_times is not None and mode != "byot":
                raise InputError(f"travel_times are for mode 'byot'; mode {mode!r} computes them")
            if mode == "byot" and weighting.traces_rays and velocity is None:
                raise InputError("amplitudes and max_dip need the velocity also in mode 'byot'")
            speed = checked_velocity(velocity, grid, "eikonal" if mode == "byot" and weighting.traces_rays else mode)
            early, outward, back = 0, np.empty((0, 0)), np.empty((0, 0))
            speeds = np.broadcast_to(1.0 if speed is None else speed, grid.shape)
            if mode == "byot":
                outward, back = _given_tables(travel_times, grid, len(sources), len(receivers))
                early = early_samples(outward if split else outward[:, own], back, interval)
            elif mode == "eikonal":
                require_eikonal_solver()
            if coarsen != 1 and mode == "byot":
                raise InputError("coarsen is not for times that are given: compute them, or give a coarser image")
            factor = checked_factor(coarsen)
            boxes = boxes_of(layout, factor, comm.size) if split else None
            positions = np.concatenate([sources, receivers])
            number = np.arange(len(positions))
            if mode != "byot":
                positions, number = distinct_rows(positions)
        if mode == "byot":
            scale = replace(scale, early=int(comm.allreduce(np.array(early), "max")))

        def seconds(station: int, at: tuple[np.ndarray, ...], speed: Any = speed) -> np.ndarray:
            if mode == "analytic":
                return analytic(grid, positions[station], speed, at)
            if mode == "byot":
                given = outward[:, station] if station < len(sources) else back[:, station - len(sources)]
                return given.reshape(grid.shape)[at]
            return eikonal(grid, positions[station], speed)[at]

        needed = [
            np.unique(number if split else np.concatenate([number[: len(sources)][each], number[len(sources) :]]))
            for each in (shares.slices(rank) for rank in range(comm.size))
        ]
        tables, weights, rows = tables_of_stations(
            seconds, positions, speeds, grid, scale, needed, comm, factor=factor, weighting=weighting, boxes=boxes
        )
        sources_of, receivers_of = rows[number[: len(sources)]], rows[number[len(sources) :]]
        tables = tables.of(sources_of[own], receivers_of)
        bands = None
        if filters:
            (bands,) = Bands.between([tables], positions[needed[comm.rank]], spacing, np.size(wavelet))

        self.shots = range(own.start, own.stop)
        self.dims = grid.shape
        self.dimsd = (len(sources), len(receivers), samples)
        if threads is None:
            threads = threads_of_rank(comm, engine_name, kernels)
        if split:  # several operators share them, which a device copies unless they are there
            there = engine_called(engine)
            tables, weights, bands = tables.on(there), weights and weights.on(there), bands and bands.on(there)
        options: dict[str, Any] = {"engine": engine, "kernels": kernels, "threads": threads}
        options |= {"deterministic": deterministic, "weights": weights, "bands": bands}

        def local(shots: Sequence[int] | slice) -> LocalKirchhoff:
            these = tables.of(sources_of[shots], receivers_of)
            return LocalKirchhoff(these, tables.nodes.shape, wavelet, wavelet_center, **options)

        self.local = None
        if boxes is None:
            with collective_errors(comm):
                self.local = local(own)
            operator: LinearOperator = VStack([self.local], comm, dims=self.dims)
        else:
            blocks = shot_blocks(
                [range(each.start, each.stop) for (each,) in map(shares.slices, range(comm.size))],
                math.prod(self.dimsd),
            )
            points, a_shot = tables.nodes.points, len(receivers) * samples

            def of_rank(shots: range) -> list[Any]:
                if not (points and len(shots)):
                    return []
                if len(blocks) == 1:
                    return [local(shots)]
                # Only the traces of one block are in the memory of kernels at a time.
                return [StreamedKirchhoff(partial(local, shots), tables.of(sources_of[shots], receivers_of), points)]

            with collective_errors(comm):
                operators = [[of_rank(shots) for shots in block] for block in blocks]
            sizes = [[a_shot * len(shots) for shots in block] for block in blocks]
            operator = SplitImage(layout, boxes, operators, sizes, scale.dtype, engine_called(engine), comm)
        super().__init__(operator.domain, operator.range, operator.dtype, comm)
        self._inherit([operator])
        self._operator = operator

    def _direction(self, adjoint: bool) -> Direction:
        return self._operator._directions[adjoint]

    def _forward(self, x: Any, out: Any) -> Any:
        return self._operator._forward(x, out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return self._operator._adjoint(y, out)


def _checked_layout(layout: Any, grid: Grid, comm: Communicator) -> Layout:
    """Return the layout of the image, by default replicated, after checking its shape and its ranks."""
    if layout is None:
        return Layout.replicated(grid.shape, comm.size)
    if not isinstance(layout, Layout):
        raise LayoutError(f"the layout of the image is a Layout, not {type_name(layout)}")
    if layout.shape != grid.shape or layout.ranks != comm.size:
        raise LayoutError(
            f"an image of shape {grid.shape} on {comm.size} ranks has another layout than {layout}: "
            f"take Layout.split({grid.shape}, {comm.size})"
        )
    return layout


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


def threads_of_rank(comm: Communicator, engine: str, kernels: str | None = None) -> int | None:
    """Return the threads of this rank's CPU kernels: its share of the node's cores. Collective: one metadata message.

    ``None`` if the rank uses kernels without threads.
    """
    if engine != "numpy" or kernels == "numpy" or importlib.util.find_spec("numba") is None:
        comm.allgather_metadata(None)
        return None
    from collops.seismic.kirchhoff.cpu import thread_count

    places = comm.allgather_metadata([platform.node(), sorted(available_cores())])
    here = places.pop(comm.rank)
    return thread_count(tuple(frozenset(place[1]) for place in places if place is not None and place[0] == here[0]))
