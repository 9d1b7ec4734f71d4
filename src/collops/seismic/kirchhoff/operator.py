"""The distributed Kirchhoff operator: each rank models and migrates its own shots, or its own part of the image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from collops import Communicator, Layout, VStack
from collops.errors import LayoutError, type_name
from collops.extend.communication import collective_errors, communicator_or_world
from collops.extend.engines import Engine
from collops.extend.engines import engine as engine_called
from collops.seismic.host_kernels import threads_of_rank
from collops.seismic.kirchhoff.eikonal import Thomsen
from collops.seismic.kirchhoff.fixed_point import FixedTables, Scale
from collops.seismic.kirchhoff.geometry import Geometry, checked_wavelet
from collops.seismic.kirchhoff.local import LocalKirchhoff, StreamedKirchhoff
from collops.seismic.kirchhoff.nodes import checked_factor
from collops.seismic.kirchhoff.split import SplitImage, boxes_of, shot_blocks
from collops.seismic.kirchhoff.stations import distinct_rows, tables_of_stations
from collops.seismic.kirchhoff.traveltimes import Mode, TravelTimes, interpolates_alike
from collops.seismic.kirchhoff.weights import Amplitude, Bands, Weighting, Weights, checked_antialias


@dataclass(frozen=True)
class KirchhoffOptions:
    """Wavelet, weights and engine of a Kirchhoff operator.

    Parameters
    ----------
    wavelet : array
        Taps of the wavelet, at the sampling interval. With an amplitude, the wavelet of the direct wave.
    wavelet_center : int
        Index of the tap at time zero.
    weighting : Weighting
        Amplitude, aperture and dip limit; none by default.
    antialias : bool or float
        Whether to filter each arrival with a triangle as long as its delay between neighbouring receivers, which
        prevents operator aliasing. A number is the receiver spacing in metres; by default it is the distance to the
        nearest receiver.
    dtype : dtype
        float32 or float64.
    engine, kernels, threads, deterministic : optional
        As for :class:`LocalKirchhoff`. By default the ranks on one node share its cores.

    Examples
    --------
    >>> from collops.seismic.kirchhoff import KirchhoffOptions, Weighting
    >>> KirchhoffOptions([1.0], 0, Weighting("2.5d", aperture=800.0)).antialias
    False
    """

    wavelet: ArrayLike
    wavelet_center: int
    weighting: Weighting = field(default_factory=Weighting)
    antialias: bool | float = False
    dtype: DTypeLike = "float64"
    engine: str | None = None
    kernels: str | None = None
    threads: int | None = None
    deterministic: bool = False


@dataclass(frozen=True)
class _Modelling:
    """Tables of this rank's stations; `local` makes the operator of some shots from them."""

    geometry: Geometry
    options: KirchhoffOptions
    engine: Engine
    scale: Scale
    wavelet: tuple[np.ndarray, int]
    shares: list[range]  # shots of each rank
    tables: FixedTables  # of this rank's shots; of all shots if the image is split
    weights: Weights | None
    bands: Bands | None
    source_rows: np.ndarray  # row of each source in the tables
    receiver_rows: np.ndarray
    threads: int | None
    swept: tuple[int, float]  # every how many-th point has computed times, and their error in seconds

    @classmethod
    def create(
        cls,
        geometry: Geometry,
        travel_times: TravelTimes,
        options: KirchhoffOptions,
        comm: Communicator,
        boxes: Sequence[tuple[slice, ...]] | None = None,
    ) -> _Modelling:
        """Check the arguments and compute the tables; with `boxes`, of all stations at this rank's points. Collective.

        One of the ranks that need a table computes it and sends it to the others.
        """
        grid, sources = geometry.grid, len(geometry.sources)
        with collective_errors(comm):
            scale = Scale(geometry.interval, geometry.samples, 0, np.dtype(options.dtype))
            options.weighting.check(len(grid.axes))
            filters, spacing = checked_antialias(options.antialias)
            taps, center = checked_wavelet(options.wavelet, options.wavelet_center)
            wavelet = options.weighting.wavelet(taps, center, geometry.interval)
            engine = engine_called(options.engine)
            times = travel_times.fitted(geometry, options.weighting.traces_rays)
            slices = [part for (part,) in map(Layout.split((sources,), comm.size).slices, range(comm.size))]
            early = times.early(geometry, slices[comm.rank] if boxes is None else slice(None))
            positions = np.concatenate([geometry.sources, geometry.receivers])
            number = np.arange(len(positions))
            if times.arrays is None:
                positions, number = distinct_rows(positions)
        if times.arrays is not None:
            scale = replace(scale, early=int(comm.allreduce(np.array(early), "max")))
        shots = slices if boxes is None else [slice(sources)] * comm.size
        threads = options.threads
        if threads is None:
            threads = threads_of_rank(comm, engine, options.kernels)
        needed = [np.unique(np.concatenate([number[:sources][part], number[sources:]])) for part in shots]
        arguments = geometry, positions, engine, scale.dtype, threads
        bent = times.thomsen is not None and options.weighting.traces_rays
        step, error = times.coarsest_grid(*arguments, comm)
        tables, weights, rows = tables_of_stations(
            times.seconds(*arguments, step),
            positions,
            np.broadcast_to(times.velocity, grid.shape),
            grid,
            scale,
            needed,
            comm,
            factor=checked_factor(times.coarsen),
            weighting=options.weighting,
            boxes=boxes,
            error=error / scale.interval,
            measured=not interpolates_alike(times.coarsen, step, (0,), times.thomsen),
            of_rays=replace(times, thomsen=None).seconds(*arguments) if bent else None,
        )
        source_rows, receiver_rows = rows[number[:sources]], rows[number[sources:]]
        tables, bands = tables.select(source_rows[slices[comm.rank]], receiver_rows), None
        if filters:
            (bands,) = Bands.between([tables], positions[needed[comm.rank]], spacing, np.size(wavelet[0]))
        shares = [range(part.start, part.stop) for part in slices]
        stations = tables, weights, bands, source_rows, receiver_rows
        return cls(geometry, options, engine, scale, wavelet, shares, *stations, threads, (step, error))

    def on_engine(self) -> _Modelling:
        """Return a copy with its tables in the memory of the engine, where several operators share them."""
        engine = self.engine
        weights, bands = self.weights and self.weights.to_engine(engine), self.bands and self.bands.to_engine(engine)
        return replace(self, tables=self.tables.to_engine(engine), weights=weights, bands=bands)

    def tables_of(self, shots: range) -> FixedTables:
        """Return the tables of some shots."""
        return self.tables.select(self.source_rows[shots.start : shots.stop], self.receiver_rows)

    def local(self, shots: range) -> LocalKirchhoff:
        """Return the local operator of some shots."""
        options = self.options
        return LocalKirchhoff(
            self.tables_of(shots),
            self.tables.nodes.shape,
            *self.wavelet,
            weights=self.weights,
            bands=self.bands,
            engine=self.engine,
            kernels=options.kernels,
            threads=self.threads,
            deterministic=options.deterministic,
        )


class KirchhoffOperator(VStack):
    r"""Kirchhoff modelling (forward) and migration (adjoint) of a replicated image, the shots split over the ranks.

    Forward does not communicate, adjoint takes one allreduce of the image. Collective; every rank passes the same
    arguments.

    Parameters
    ----------
    geometry : Geometry
        Sources, receivers, image grid and time axis.
    travel_times : TravelTimes
        The travel-time table.
    options : KirchhoffOptions
        Wavelet, weights and engine.
    comm : Communicator, optional
        The ranks; the world by default.

    Attributes
    ----------
    dims, dimsd : tuple of int
        Shapes of the image, ((ny,) nx, nz), and of all ranks' data, (sources, receivers, samples).
    shots : range
        The sources of this rank.
    local : LocalKirchhoff
        The operator of this rank; its notes have the equation.
    swept : tuple of int and float
        The choice for the `tolerance` of the travel times: they are computed at every so-many-th image point along each
        axis, with this root mean square error in seconds. ``(1, 0.0)`` for all points.

    Raises
    ------
    InputError
        On every rank, if an argument cannot be used.
    UnsupportedTypeError
        On every rank, for other types and engines.

    Notes
    -----
    With an `amplitude` the data follow the Kirchhoff approximation [1]_: for cells of size :math:`\Delta V` and
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

    The echo of a plane reflector below a constant velocity is thus the wavelet times the reflection coefficient and the
    amplitude of a straight ray from the mirror image of the source. Where the velocity varies, amplitudes and spreading
    are computed from the first arrivals by the transport equation [2]_, [3]_: ray theory, without transmission losses.
    Smooth the velocity over a wavelength: where wavefronts cross, and at interfaces, amplitudes are clipped to 0.14 to
    7.4 times the amplitudes of straight rays. With weights the tables take 3 to 5 times the memory.

    The triangle filters against aliasing [4]_ are applied to copies of the traces, and each image point uses one of the
    copies [5]_; their lengths grow by factors of 1.4. Forward and adjoint apply the same weights and filters.

    In an anisotropic medium, times belong to qP waves; amplitudes and the dip limit assume an isotropic medium
    with the velocity along the symmetry axis.

    With `coarsen` c, tables take 1/c² of the memory in 2-D and 1/c³ in 3-D. Kernels interpolate the difference from
    the time of the straight ray, which is exact in a constant velocity. Weights are interpolated directly, and are
    accurate only beyond a few nodes from a station.

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
    >>> from collops.seismic.kirchhoff import Geometry, KirchhoffOperator, KirchhoffOptions, TravelTimes
    >>> surface = np.array([[0.0, 20.0, 50.0], [0.0, 0.0, 0.0]])
    >>> z, x, t = np.arange(5) * 10.0, np.arange(6) * 10.0, np.arange(50) * 0.004
    >>> geometry = Geometry.from_axes(z, x, t, surface, surface)
    >>> options = KirchhoffOptions(np.ones(1), 0, kernels="numpy")
    >>> KirchhoffOperator(geometry, TravelTimes("analytic", 1500.0), options).dimsd
    (3, 3, 50)
    """

    def __init__(
        self,
        geometry: Geometry,
        travel_times: TravelTimes,
        options: KirchhoffOptions,
        *,
        comm: Communicator | None = None,
    ) -> None:
        comm = communicator_or_world(comm)
        modelling = _Modelling.create(geometry, travel_times, options, comm)
        self.dims, self.dimsd, self.shots = geometry.grid.shape, geometry.data_shape, modelling.shares[comm.rank]
        self.swept = modelling.swept
        with collective_errors(comm):
            self.local = modelling.local(self.shots)
        super().__init__([self.local], comm, dims=self.dims)


class SplitKirchhoff(SplitImage):
    """Kirchhoff modelling and migration of an image that is split over the ranks, if it does not fit on one rank.

    A rank holds its own points, with tables of all stations there. For each block of shots (about 64 million samples),
    forward takes one reduce-scatter of the traces, and adjoint one allgather. Collective.

    Parameters
    ----------
    geometry, travel_times, options, comm
        As for :class:`KirchhoffOperator`.
    layout : Layout
        Layout of the image, split over the ranks along any axes, such as ``Layout.split(dims, comm.size)``.

    Attributes
    ----------
    dims, dimsd, shots, swept
        As for :class:`KirchhoffOperator`.
    local : None

    Raises
    ------
    InputError
        On every rank, if an argument cannot be used.
    LayoutError
        On every rank, if `layout` does not split an image of these axes over these ranks.
    UnsupportedTypeError
        On every rank, for other types and engines.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.seismic.kirchhoff import Geometry, KirchhoffOptions, SplitKirchhoff, TravelTimes
    >>> z, x, t = np.arange(5) * 10.0, np.arange(6) * 10.0, np.arange(50) * 0.004
    >>> surface = np.array([[0.0, 20.0, 50.0], [0.0, 0.0, 0.0]])
    >>> values = Geometry.from_axes(z, x, t, surface, surface), TravelTimes("analytic", 1500.0)
    >>> layout = collops.Layout.split((6, 5), collops.world().size)
    >>> K = SplitKirchhoff(*values, KirchhoffOptions(np.ones(1), 0, kernels="numpy"), layout)
    >>> bool(K.adjoint(K.forward(collops.ones(K.domain))).norm() > 0)
    True
    """

    local = None

    def __init__(
        self,
        geometry: Geometry,
        travel_times: TravelTimes,
        options: KirchhoffOptions,
        layout: Layout,
        *,
        comm: Communicator | None = None,
    ) -> None:
        comm = communicator_or_world(comm)
        with collective_errors(comm):
            layout = _checked_layout(layout, geometry, comm)
            boxes = boxes_of(layout, checked_factor(travel_times.coarsen), comm.size)
        modelling = _Modelling.create(geometry, travel_times, options, comm, boxes).on_engine()
        blocks = shot_blocks(modelling.shares, math.prod(geometry.data_shape))
        points, a_shot = modelling.tables.nodes.points, len(geometry.receivers) * geometry.samples

        def of_shots(shots: range) -> list[LocalKirchhoff | StreamedKirchhoff]:
            if not (points and len(shots)):
                return []
            if len(blocks) == 1:
                return [modelling.local(shots)]
            # Kernels hold the traces of one block at a time.
            return [StreamedKirchhoff(partial(modelling.local, shots), modelling.tables_of(shots), points)]

        with collective_errors(comm):
            operators = [[of_shots(shots) for shots in block] for block in blocks]
        sizes = [[a_shot * len(shots) for shots in block] for block in blocks]
        super().__init__(layout, boxes, operators, sizes, modelling.scale.dtype, modelling.engine, comm)
        self.dims, self.dimsd, self.shots = geometry.grid.shape, geometry.data_shape, modelling.shares[comm.rank]
        self.swept = modelling.swept


def Kirchhoff(
    z: ArrayLike,
    x: ArrayLike,
    t: ArrayLike,
    sources: ArrayLike,
    receivers: ArrayLike,
    velocity: ArrayLike | None,
    wavelet: ArrayLike,
    wavelet_center: int,
    *,
    y: ArrayLike | None = None,
    mode: Mode = "eikonal",
    travel_times: tuple[ArrayLike, ArrayLike] | None = None,
    amplitude: Amplitude = "none",
    aperture: float | None = None,
    max_dip: float | None = None,
    antialias: bool | float = False,
    coarsen: int = 1,
    thomsen: Thomsen | None = None,
    tolerance: float | None = None,
    layout: Layout | None = None,
    comm: Communicator | None = None,
    engine: str | None = None,
    dtype: DTypeLike = "float64",
    kernels: str | None = None,
    threads: int | None = None,
    deterministic: bool = False,
) -> KirchhoffOperator | SplitKirchhoff:
    """Make a :class:`KirchhoffOperator` from the arguments of ``pylops.waveeqprocessing.Kirchhoff``. Collective.

    Parameters
    ----------
    z, x, t : array
        Axes of the image, uniform and increasing, and the time axis in seconds, from 0.
    sources, receivers : array
        Shapes (2, sources) and (2, receivers) with rows x, z; in 3-D (3, …) with rows y, x, z.
    velocity, mode, travel_times, coarsen, thomsen, tolerance
        As for :class:`TravelTimes`, where `travel_times` are its arrays.
    wavelet, wavelet_center, antialias, engine, dtype, kernels, threads, deterministic
        As for :class:`KirchhoffOptions`.
    y : array, optional
        First axis of a 3-D image.
    amplitude, aperture, max_dip
        As for :class:`Weighting`.
    layout : Layout, optional
        A split layout of the image makes a :class:`SplitKirchhoff`; replicated by default.
    comm : Communicator, optional
        The ranks; the world by default.

    Returns
    -------
    KirchhoffOperator or SplitKirchhoff
        With the attributes `dims` and `dimsd`, the shapes of the image and of the data, and `swept`, what `tolerance`
        chose. It raises as they do.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> z, x, t = np.arange(5) * 10.0, np.arange(6) * 10.0, np.arange(50) * 0.004
    >>> surface = np.array([[0.0, 20.0, 50.0], [0.0, 0.0, 0.0]])
    >>> collops.Kirchhoff(z, x, t, surface, surface, 1500.0, np.ones(1), 0, mode="analytic", kernels="numpy").dims
    (6, 5)
    """
    comm = communicator_or_world(comm)
    with collective_errors(comm):
        geometry = Geometry.from_axes(z, x, t, sources, receivers, y)
        times = TravelTimes(mode, velocity, travel_times, coarsen, thomsen, tolerance)
        weighting, execution = Weighting(amplitude, aperture, max_dip), (engine, kernels, threads, deterministic)
        options = KirchhoffOptions(wavelet, wavelet_center, weighting, antialias, dtype, *execution)
        layout = None if layout is None else _checked_layout(layout, geometry, comm)
    if layout is None or layout.is_replicated:
        return KirchhoffOperator(geometry, times, options, comm=comm)
    return SplitKirchhoff(geometry, times, options, layout, comm=comm)


def _checked_layout(layout: object, geometry: Geometry, comm: Communicator) -> Layout:
    """Return the layout of the image after checking its shape and its ranks."""
    shape = geometry.grid.shape
    if not isinstance(layout, Layout):
        raise LayoutError(f"the layout of the image must be a Layout, not {type_name(layout)}")
    if layout.shape != shape or layout.ranks != comm.size:
        raise LayoutError(
            f"an image of shape {shape} on {comm.size} ranks cannot have the layout {layout}: "
            f"use Layout.split({shape}, {comm.size})"
        )
    return layout
