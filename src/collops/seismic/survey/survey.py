"""A distributed survey: traces, grid, velocity, weights, the operator from an image to the traces, and output files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from collops.errors import InputError
from collops.extend.applications import is_zarr, local_stage, write_result
from collops.extend.communication import raised_together
from collops.extend.engines import Engine
from collops.extend.engines import engine as engine_called
from collops.seismic.conditioning import sound_traces
from collops.seismic.segy import write_together
from collops.seismic.signals import (
    check_unbiased,
    count_biased,
    frequency_from_power,
    frequency_of,
    highest_frequency,
    power_spectrum,
    ricker,
)
from collops.seismic.streams import Source, Stream, located
from collops.seismic.su import is_su
from collops.seismic.survey import segy, zarr
from collops.seismic.survey.checks import check_frequency, check_reach, check_speed, table_factor
from collops.seismic.survey.choices import choose_grid, choose_weighting, grid_of_array, mode_of
from collops.seismic.survey.geometry import Geometry, Grid, Line, check_traces
from collops.seismic.survey.headers import SurveyHeaders, read_traces
from collops.seismic.survey.selection import offset_classes
from collops.seismic.survey.statics import Statics
from collops.seismic.survey.velocity import Model, load_velocity, on_grid

if TYPE_CHECKING:
    from collops import Communicator, DistributedArray, Layout, LinearOperator
    from collops.seismic.kirchhoff import FixedTables, Thomsen, Weighting
    from collops.seismic.kirchhoff.weights import Amplitude
    from collops.seismic.survey.normal import NormalEquations, Weights
    from collops.seismic.survey.operator import SurveyModelling


def read(
    path: Source,
    comm: Communicator | None = None,
    *,
    dims: int | None = None,
    statics: Statics | None = None,
    header: Sequence[str] = (),
    geometry: Sequence[Source] = (),
) -> Survey:
    """Read the geometry of a survey from a SEG-Y file or a Zarr store. Collective.

    Every rank reads the headers of all traces. Each rank reads the samples of its own shots when they are first needed
    (`Survey.traces`).

    Parameters
    ----------
    path : str, Path or file object
        A SEG-Y file of shots, revision 0 to 2, or SU (suffix .su); or a Zarr group, or the array of traces in a group,
        that xarray, MDIO (version 1) or this library wrote: the array's last axis is time, and the arrays
        source_coord_x, source_coord_y, group_coord_x and group_coord_y have some of its other axes. Folders, and paths
        with the suffix .zarr, are read as Zarr. All may be URLs for the package fsspec. SEG-Y and SU may be an open
        binary file object, with the methods read and seek, that stays open while traces are read: on every rank an
        object of its own, with the same bytes. SU needs an attribute ``name`` with its suffix.
    comm : Communicator, optional
        The ranks that share the survey; the world by default.
    dims : {2, 3}, optional
        2 for a line, 3 for an area. By default 3 if stations lie further off the best-fitting line than a quarter of
        its length, or a tenth if inline and crossline numbers vary.
    statics : Statics, optional
        Static corrections of the traces, and a datum for the stations; by default none.
    header : sequence of str
        Fields of SEG-Y trace headers that are not at their standard bytes, such as ``"source_x=181"``, or
        ``"source_x=181:f4"`` with a type i2, i4, i8, f4 or f8. Bytes after 240 are in additional headers.
    geometry : sequence of str, Path or file object
        Files with the positions, instead of the trace headers of SEG-Y: the S, R and X files of SPS, or P1/90 files.

    Returns
    -------
    Survey
        The survey; `Survey.notes` explain the interpretation of the headers.

    Raises
    ------
    InputError
        On every rank, if the file cannot be read or its headers do not describe shots.

    Examples
    --------
    >>> import collops
    >>> collops.seismic.survey.read("line.sgy")
    Traceback (most recent call last):
    collops.errors.InputError: line.sgy does not exist: check the path of the SEG-Y file
    """
    from collops.extend.communication import communicator_or_world

    comm = communicator_or_world(comm)
    with local_stage(comm):
        location = located(path)
        if isinstance(location, Stream) or not is_zarr(location):
            headers = segy.read_headers(location, dims, statics, header, geometry)
        elif header or geometry:
            raise InputError(f"--header and --geometry are for SEG-Y and SU, not for {path}: omit them")
        else:
            headers = zarr.read_headers(location, dims, statics)
    return Survey(headers.geometry, comm, headers)


class Survey:
    """The geometry of all shots, the same on every rank, and the traces of each rank's own shots.

    Each rank has a block of consecutive shots; the first ranks may have one shot more. Data are in the order of shots,
    their receivers, and samples.

    Parameters
    ----------
    geometry : Geometry
        Positions and sampling.
    comm : Communicator, optional
        The ranks; the world by default.
    headers : SurveyHeaders, optional
        The headers of the file with the traces, from `read`. Without them `traces` must be set.

    Attributes
    ----------
    geometry, comm, headers
        The parameters.
    shots, shares : range and list of range
        The shots of this rank, and of every rank.
    filter : callable, optional
        Applied to the traces of a shot, of shape ``(receivers, samples)``, when they are read from the file. `geometry`
        describes the sampling of the filtered traces.
    line : Line
        The axes of the survey on the map: x along it, and in 3-D y across it.
    notes, warnings : list of str
        Decisions and warnings, in sentences for the user.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.seismic.survey import Geometry, Grid, Survey
    >>> sources = np.array([[50.0, 150.0], [0.0, 0.0]])  # x and z, in metres
    >>> receivers = [np.array([[0.0, 100.0, 200.0], [0.0, 0.0, 0.0]])] * 2
    >>> survey = Survey(Geometry(sources, receivers, samples=100, interval=0.004))
    >>> A = survey.operator(1500.0, Grid(nx=21, nz=11, dx=10.0, dz=10.0), frequency=25.0)
    >>> A.shape
    (600, 231)
    """

    def __init__(
        self, geometry: Geometry, comm: Communicator | None = None, headers: SurveyHeaders | None = None
    ) -> None:
        from collops.extend.communication import communicator_or_world

        self.geometry, self.comm, self.headers = geometry, communicator_or_world(comm), headers
        self.shares = geometry.shares(self.comm.size)
        self.shots = self.shares[self.comm.rank]
        self.line = Line() if headers is None else headers.line
        self.notes: list[str] = [] if headers is None else headers.notes
        self.warnings: list[str] = [] if headers is None else headers.warnings
        self.filter: Callable[[np.ndarray], np.ndarray] | None = None
        self._traces: list[np.ndarray] | None = None

    def __repr__(self) -> str:
        shots, traces, samples = self.geometry.shots, self.geometry.traces, self.geometry.samples
        return f"<Survey {self.geometry.dims}-D: {shots} shots, {traces} traces of {samples} samples>"

    @property
    def traces(self) -> list[np.ndarray]:
        """The traces of this rank: an array of shape ``(receivers, samples)`` for each of its shots.

        Collective when they are first needed: each rank then reads the traces of its shots from the file. Setting them
        is not collective.

        Raises
        ------
        InputError
            On every rank, if there is no file, or if samples are not finite, all zero, or do not oscillate about zero.
            On this rank, if new traces have other shapes.
        """
        if self._traces is None:
            with local_stage(self.comm):
                traces = self.read_shots(self.shots)
                counts = count_biased(traces)
            self.check_counts(counts)
            self._traces = traces
        return self._traces

    @traces.setter
    def traces(self, traces: Iterable[np.ndarray]) -> None:
        traces = list(traces)
        shapes, needed = [np.shape(values) for values in traces], self._shapes()
        if shapes != needed:
            raise InputError(f"the traces of rank {self.comm.rank} must have the shapes {needed}, not {shapes}")
        self._traces = traces

    def read_shots(self, shots: range) -> list[np.ndarray]:
        """Return the traces of some shots of this rank, from memory, or else from the file without keeping them.

        Raises
        ------
        InputError
            On this rank, if there is no file, or if samples are not finite.
        """
        if self._traces is not None:
            return self._traces[shots.start - self.shots.start : shots.stop - self.shots.start]
        if self.headers is None:
            raise InputError("the survey has no traces: set its traces, or read it from a file")
        traces = read_traces(self.headers, shots)
        check_traces(shots, traces)
        if (placement := self.headers.placement) is not None:
            traces = [placement.on_axis(shot, values) for shot, values in zip(shots, traces, strict=True)]
        return traces if self.filter is None else [self.filter(values) for values in traces]

    def check_counts(self, counts: np.ndarray) -> None:
        """Raise `InputError` if the counts of `count_biased` for this rank's traces are not plausible. Collective."""
        counts, name = (
            self.comm.allreduce(counts),
            "the survey" if self.headers is None else str(self.headers.file.path),
        )
        with raised_together():
            if not counts[1]:
                raise InputError(f"all samples of {name} are zero")
            check_unbiased(counts, name)

    def data(self, *, dtype: DTypeLike = "float32", engine: str | Engine | None = None) -> DistributedArray:
        """Return the traces of all shots in the range of the operator. Collective when they are first needed.

        Parameters
        ----------
        dtype : dtype
            float32 or float64.
        engine : str, optional
            ``"numpy"`` or ``"cupy"``; by default the environment's COLLOPS_ENGINE, or NumPy.

        Returns
        -------
        DistributedArray
            1-D, split by shots.
        """
        return self.array(self.traces, dtype=dtype, engine=engine)

    def array(
        self, parts: list[np.ndarray], *, dtype: DTypeLike = "float32", engine: str | Engine | None = None
    ) -> DistributedArray:
        """Return an array in the range of the operator, from an array for each shot of this rank, such as weights."""
        from collops import DistributedArray

        flat = np.concatenate([np.empty(0, dtype), *(np.ravel(part) for part in parts)]).astype(dtype, copy=False)
        return DistributedArray(self.layout, self.comm, engine_called(engine).from_host(flat))

    @property
    def layout(self) -> Layout:
        """The layout of the data: 1-D, split by shots."""
        return self.geometry.layout(self.comm.size)

    @property
    def defaults(self) -> Mapping[str, str]:
        """The parameters of a migration that `save` stored in the file, by name."""
        return {} if self.headers is None else self.headers.defaults

    def by_shot(self, flat: np.ndarray) -> list[np.ndarray]:
        """Cut this rank's part of the data into one array per shot, of shape ``(receivers, samples)``."""
        shapes = self._shapes()
        ends = np.cumsum([rows * samples for rows, samples in shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=False)]

    def model(self, velocity: Model | float | Source | tuple[str, Source], *, inline: int | None = None) -> Model:
        """Read a velocity and check its units. Collective.

        Parameters
        ----------
        velocity : number, str, Path, file object, tuple or array
            Metres per second: a number, a text such as ``"1500+0.6z"``, a file ``.npy``, ``.sgy`` or ``.segy``, a text
            or SEG-Y file as ``"depth:FILE"``, ``"time:FILE"`` or ``"rms:FILE"``, or values on the grid. ``FILE`` may be
            a URL for the package fsspec. An open binary file object holds text or SEG-Y in depth; ``("time", file)``
            and ``("rms", file)`` are the other kinds.
        inline : int, optional
            Inline of a SEG-Y velocity volume for a 2-D survey; by default the middle one.

        Returns
        -------
        Gradient, Section, Volume or array
            A velocity that the other methods accept.
        """
        name = "array" if isinstance(velocity, np.ndarray) else str(velocity)
        with local_stage(self.comm):
            model = load_velocity(velocity, self.geometry.dims, inline)
            self._warn(check_speed(model, name))
        return model

    def grid(self, velocity: Model | float | Source | tuple[str, Source], **numbers: Any) -> Grid:
        """Choose an image grid that covers the survey; numbers that are not None are kept. Collective.

        Parameters
        ----------
        velocity
            As for `model`; it determines the depth of the last echoes.
        **numbers
            Any of nx, ny, nz, dx, dy, dz, x0 and y0, as for `Grid`; None leaves the choice to this method. If all are
            None, the numbers stored in the file apply, if this package wrote it.

        Returns
        -------
        Grid
            By default, columns are at the bins of a 3-D survey, or else half a receiver spacing apart, and rows are at
            most a quarter of the shortest wavelength in the data apart.
        """
        model = self.model(velocity)
        if self.headers is not None and all(value is None for value in numbers.values()):
            # Use all stored numbers or none: a mixture with arguments would describe neither grid.
            kinds = {item.name: int if item.name[0] == "n" else float for item in fields(Grid) if item.name != "z0"}
            with raised_together():
                numbers = {name: self.headers.number(name, kind) for name, kind in kinds.items()}
        highest = 0.0
        if not isinstance(model, np.ndarray) and numbers.get("dz") is None and numbers.get("nz") is None:
            geometry = self.geometry
            highest = highest_frequency(self.spectrum(), geometry.samples, geometry.interval)
        with np.errstate(over="ignore", invalid="ignore"), local_stage(self.comm):
            if isinstance(model, np.ndarray):
                grid = grid_of_array(self.geometry, self.headers, model, numbers, self.notes)
            else:
                numbers = numbers | {"highest": highest, "notes": self.notes}
                grid = choose_grid(self.geometry, self.headers, model, numbers)
        return grid

    def velocity(self, velocity: Model | float | Source | tuple[str, Source], grid: Grid) -> np.ndarray:
        """Return a velocity at the points of a grid that contains the survey: float64, m/s. Collective."""
        model = self.model(velocity)
        with np.errstate(over="ignore", invalid="ignore"), local_stage(self.comm):
            table_factor(grid, 0, np.dtype(np.float32), self.comm)
            grid.check_contains(self.geometry)
            values = on_grid(model, grid, self.line, self.notes)
        return values

    def spectrum(self, *, outliers: float = 10.0) -> np.ndarray:
        """Return the summed power spectrum of all traces, of shape ``(samples // 2 + 1,)``. Collective.

        It excludes the same traces as `frequency`. Traces that are not in memory are read shot by shot. The spectrum is
        zero if the survey has neither a file nor traces.
        """
        samples = self.geometry.samples
        power = np.zeros(samples // 2 + 1)
        with local_stage(self.comm):
            for shot in self.shots if self.headers is not None or self._traces is not None else ():
                (traces,) = self.read_shots(range(shot, shot + 1))
                power += power_spectrum([traces[sound_traces(traces, outliers)]], samples)
        return self.comm.allreduce(power)

    def frequency(self, *, outliers: float = 10.0) -> float:
        """Return the peak frequency of the wavelet in Hz, from the file if this package wrote it, else from the data.

        Collective. The spectra of a Ricker wavelet of this frequency and of the data have the same centre of mass. Dead
        traces are excluded, and traces more than `outliers` times as strong as their neighbours; 0 includes all.
        """
        with local_stage(self.comm):
            known = self.headers and self.headers.number("frequency", float)
        if known is not None:
            return known
        samples, interval = self.geometry.samples, self.geometry.interval
        frequency = float(f"{frequency_from_power(self.spectrum(outliers=outliers), samples, interval):.3g}")
        note = f"wavelet: Ricker of {frequency:g} Hz, from the spectrum of the data (--frequency)"
        self.notes += [note] if note not in self.notes else []
        return frequency

    def check(self, velocity: np.ndarray, grid: Grid, frequency: float) -> None:
        """Check a velocity on a grid and the frequency of a wavelet against the survey; add to `warnings`.

        Raises
        ------
        InputError
            If the wavelet does not suit the traces, or no wave reaches any receiver within the record.
        """
        check_frequency(frequency, self.geometry)
        self._warn(check_reach(self.geometry, grid, velocity, frequency))

    def operator(
        self,
        velocity: Model | float | Source | tuple[str, Source],
        grid: Grid,
        *,
        frequency: float | None = None,
        wavelet: tuple[np.ndarray, int] | None = None,
        mode: str | None = None,
        dtype: DTypeLike = "float32",
        engine: str | Engine | None = None,
        weighting: Weighting | None = None,
        antialias: bool = False,
        coarsen: int | None = None,
        streamed: bool = False,
        folder: str | Path | None = None,
        split: bool | None = None,
        kept: list[FixedTables] | None = None,
        target: Grid | None = None,
        thomsen: Thomsen | None = None,
        tolerance: float | None = None,
    ) -> LinearOperator:
        """Make the Kirchhoff operator from an image to the traces of all shots. Collective.

        For each position, one of the ranks that need its travel times computes them. Consecutive shots with the same
        receivers form one local operator; for its equation see :class:`collops.seismic.kirchhoff.LocalKirchhoff`.

        Parameters
        ----------
        velocity, grid
            As for `model`; the grid of the velocity, and without `target` of the image. It contains all stations.
        frequency : float, optional
            Peak frequency of the Ricker wavelet in Hz; by default `frequency` of the data.
        wavelet : tuple of array and int, optional
            Instead of `frequency`: the taps of a wavelet, at the interval of the traces, and the index of time zero.
        mode : {"eikonal", "analytic"}, optional
            Travel times by fast sweeping, or by the formula for a velocity that is constant or increases linearly with
            depth; by default the formula if the velocity is a number or a text.
        dtype, engine
            As for `data`.
        weighting : Weighting, optional
            Amplitudes and apertures; by default none. For recorded data use the result of `weighting`.
        antialias : bool
            Whether to filter against operator aliasing.
        coarsen, tolerance : optional
            As for :class:`collops.seismic.kirchhoff.TravelTimes`. `coarsen` is by default the first of 1, 2, 4 and 8
            with which the tables fit into the memory; `tolerance` does not apply to formulas, as a note says.
        streamed : bool
            Whether to keep the tables in a file instead of memory. An application then reads the tables of one shot
            after the other, or of as many shots as receivers if they have the same receivers. Traces stay in memory.
        folder : str or Path, optional
            A folder for this file, which all ranks share; by default the folder for temporary files. If it is passed,
            tables that do not fit into the memory are streamed; otherwise they raise an error.
        split : bool, optional
            Whether to split the image over the ranks along its first axis: a rank then has tables of its points only.
            By default the image is split if neither it nor coarser tables fit into the memory.
        kept : list, optional
            The travel times of each local operator are appended to it.
        target : Grid, optional
            The grid of an image of a part of the model, from `Grid.part`: tables hold its points only, but rays and
            eikonal times are computed in the whole model.
        thomsen : Thomsen, optional
            Anisotropy of the medium, whose times are computed by fast sweeping; its arrays have the shape of `grid`.
            Amplitudes and dips assume an isotropic medium with the velocity along the symmetry axis.

        Returns
        -------
        LinearOperator
            Its domain has the shape of the image's grid, its range is the layout of the data. It communicates like
            :class:`collops.seismic.kirchhoff.KirchhoffOperator`, or `SplitKirchhoff` if the image is split.

        Raises
        ------
        InputError
            On every rank, if an argument cannot be used.
        """
        options = frequency, wavelet, weighting, antialias, dtype, engine
        modelling = self._modelling(self.model(velocity), mode, thomsen, (grid, target or grid), *options)
        return modelling.operator(coarsen, folder, streamed, split, tolerance, kept)

    def _modelling(
        self,
        model: Model,
        mode: str | None,
        thomsen: Thomsen | None,
        grids: tuple[Grid, Grid],
        frequency: float | None,
        wavelet: tuple[np.ndarray, int] | None,
        weighting: Weighting | None,
        antialias: bool,
        dtype: DTypeLike,
        engine: str | Engine | None,
    ) -> SurveyModelling:
        """Choose the mode and the wavelet, and check them with the velocity and the weights. Collective.

        `grids` are the grids of the velocity and of the image.
        """
        from collops.seismic.host_kernels import threads_of_rank
        from collops.seismic.kirchhoff import Weighting
        from collops.seismic.kirchhoff.geometry import ImageGrid, checked_wavelet
        from collops.seismic.survey.operator import SurveyModelling

        comm, geometry, grid = self.comm, self.geometry, grids[0]
        with raised_together():
            mode = mode_of(model, mode, self.defaults.get("mode"), thomsen)
        velocity = self.velocity(model, grid)
        with local_stage(comm):
            grid.box(grids[1])
            if wavelet is not None:
                if frequency is not None:
                    raise InputError("frequency and wavelet exclude each other: omit one of them")
                frequency = frequency_of(checked_wavelet(*wavelet)[0], geometry.interval)
        if frequency is None:
            frequency = self.frequency()
        with local_stage(comm):
            weighting = weighting or Weighting()
            weighting.check(len(grid.shape))
            self.check(velocity, grid, frequency)
            taps, centre = weighting.wavelet(*(wavelet or ricker(frequency, geometry.interval)), geometry.interval)
            compute, kind = engine_called(engine), np.dtype(dtype)
            if thomsen is not None:
                thomsen.parameters(ImageGrid.from_axes(*map(grid.axes.get, "zxy")))  # raises if it cannot be used
        medium, kernels = (velocity, mode, thomsen), (taps, centre, weighting, antialias, kind, compute)
        return SurveyModelling(geometry, comm, self.notes, *grids, *medium, *kernels, threads_of_rank(comm, compute))

    def weighting(
        self,
        grid: Grid,
        *,
        amplitude: Amplitude | None = None,
        aperture: float | None = None,
        max_dip: float | None = None,
    ) -> Weighting:
        r"""Choose the weights of the operator; the choice for recorded data adds a note.

        Recorded data are data from a file that this package did not write as a synthetic survey. Their amplitude is for
        point sources, ``"2.5d"`` or ``"3d"``, with the phase of reflections. The maximum dip is 60 degrees: the echo of
        a steeper plane takes more than twice the time of a horizontal plane at the same depth. The aperture is
        :math:`z \sin 60° + h`, with the depth :math:`z` of the image and the largest half offset :math:`h`: the maximum
        distance of the midpoint of an echo from a plane with this dip, if it arrives within the record.

        Parameters
        ----------
        grid : Grid
            The image grid.
        amplitude : str, optional
            Another amplitude. Aperture and dip are then unlimited by default.
        aperture, max_dip : float, optional
            Other limits, in metres and degrees.

        Returns
        -------
        Weighting
            For `operator`.
        """
        return choose_weighting(self.geometry, self.headers, grid, amplitude, aperture, max_dip, self.notes)

    def normal_equations(
        self, operator: LinearOperator, *, weights: Weights | None = None, engine: str | Engine | None = None
    ) -> NormalEquations:
        """Return the normal equations of the data, for surveys whose traces do not fit into the memory. Collective.

        Each shot is read once, migrated, and discarded. Vectors of :func:`collops.cg` on these equations are images: an
        iteration models the traces of a few shots (as many as receivers, if the shots have the same receivers),
        migrates them and overwrites them. Iterates agree with :func:`collops.cgls` with the data in memory, up to
        rounding.

        Parameters
        ----------
        operator : LinearOperator
            From `operator`.
        weights : callable, optional
            Takes the number of a shot and returns the weight of its traces: a number or an array that broadcasts to
            ``(receivers, samples)``, such as a mute. Called for each shot in each iteration; not collective.
        engine : str, optional
            Engine of the operator.

        Raises
        ------
        LayoutError
            On every rank, if the operator is not from this survey.
        InputError
            On every rank, if traces cannot be read or are not plausible, as for `traces`.
        """
        from collops.seismic.survey.normal import normal_equations

        survey, run = (self.geometry, self.comm), (operator, weights, engine_called(engine))
        return normal_equations(*survey, *run, self.read_shots, check=self.check_counts)

    def by_offset(
        self,
        operator: LinearOperator,
        classes: int = 8,
        *,
        traces: list[np.ndarray] | None = None,
        engine: str | Engine | None = None,
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Migrate each class of offsets separately, to common-offset images. Collective.

        The same column of all images is a common-image gather: with the correct velocity, its reflectors are flat.

        Parameters
        ----------
        operator : LinearOperator
            From `operator`.
        classes : int
            Number of classes with about the same number of traces; fewer if there are fewer distinct offsets.
        traces : list of arrays, optional
            The traces to migrate, for each shot of this rank; by default `traces` of the survey.
        engine : str, optional
            Engine of the operator.

        Returns
        -------
        offsets : array
            Mean distance from source to receiver of each class, in metres, increasing.
        images : list of arrays
            The adjoint image of each class, of the grid's shape, in host memory.
        """
        geometry, traces = self.geometry, self.traces if traces is None else traces
        offsets, number = offset_classes(geometry, classes)
        ends = np.cumsum([part.shape[1] for part in geometry.receivers])[:-1]
        of_shot = np.split(number, ends)[self.shots.start : self.shots.stop]
        images = []
        for which in range(len(offsets)):
            parts = [
                np.where((part == which)[:, None], values, 0) for part, values in zip(of_shot, traces, strict=True)
            ]
            image = operator.adjoint(self.array(parts, dtype=operator.dtype, engine=engine))
            images.append(image.engine.to_host(image.gather()))
        return offsets, images

    def save(self, path: str | Path, grid: Grid, **defaults: object) -> Path:
        """Write positions and traces to a file for `read` and ``collops lsm``. Collective.

        In SEG-Y, positions are along a line, or along axes that point east and north; they are stored to a tenth of a
        millimetre if they are below 214 km. In Zarr, positions are map coordinates in float64. Samples are float32.

        Parameters
        ----------
        path : str or Path
            A file, which is replaced: SEG-Y, which the first rank writes, or a Zarr store with the suffix .zarr.
        grid : Grid
            The default image grid for migrations of this file.
        **defaults
            Other defaults for ``collops lsm``: velocity, mode and frequency; None is not stored.
        """
        texts = {name: str(value) for name, value in (defaults | grid.numbers).items() if value is not None}
        if is_zarr(path):
            all_shots = range(self.geometry.shots)
            fields = zarr.trace_fields(self.geometry, self.headers, self.comm, all_shots, data=self.traces)
            return write_result(Path(path), self.comm, fields, {zarr.DEFAULTS: texts})
        with local_stage(self.comm):
            if is_su(path):
                raise InputError(
                    f"surveys are written as SEG-Y or Zarr, not as {path}: choose the suffix .sgy or .zarr"
                )
            traces = segy.survey_traces(self.geometry, self.shots, self.traces, texts)
        return write_together(Path(path), self.comm, *traces)

    def write(
        self,
        path: str | Path,
        image: np.ndarray | DistributedArray,
        grid: Grid,
        title: str = "IMAGE",
        *,
        revision: int = 1,
    ) -> Path:
        """Write an image as SEG-Y, one trace for each column at its map position; return the path. Collective.

        Parameters
        ----------
        path : str or Path
            The file, which is replaced.
        image : array or DistributedArray
            The image, in the grid's shape, the same on every rank or split over the ranks. The first rank writes it.
        grid : Grid
            Its grid; in revision 1 the depth step must be (nearly) whole millimetres and at most 65.535 m.
        title : str
            First line of the textual header.
        revision : {1, 2}
            Revision of the SEG-Y standard.
        """
        from collops import DistributedArray

        if isinstance(image, DistributedArray):
            image = image.engine.to_host(image.gather())
        with local_stage(self.comm):
            if self.headers is None:
                raise InputError("only a survey that was read from a file has map positions for its image")
            if np.shape(image) != grid.shape:
                raise InputError(f"the image must have the shape of the grid, {grid.shape}, not {np.shape(image)}")
            if revision not in (1, 2):
                raise InputError(f"the revision of SEG-Y must be 1 or 2, not {revision}")
            traces = segy.image_traces(title, image, grid, self.headers, self.comm.rank, revision)
        return write_together(Path(path), self.comm, traces)

    def trace_shape(self, shot: int) -> tuple[int, int]:
        """Return the shape of the traces of a shot: ``(receivers, samples)``."""
        return self.geometry.trace_shape(shot)

    def _shapes(self) -> list[tuple[int, int]]:
        return [self.trace_shape(shot) for shot in self.shots]

    def _warn(self, warnings: list[str]) -> None:
        self.warnings += [warning for warning in warnings if warning not in self.warnings]
