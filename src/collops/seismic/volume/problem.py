"""The problem of post-stack applications: options, recorded or synthetic data, operator, and panels of figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from collops.errors import InputError
from collops.extend.applications import (
    DATA,
    METHOD,
    SYNTHETIC,
    AtLeast,
    CommonOptions,
    Exporter,
    Field,
    Findings,
    Gradient,
    Job,
    Panel,
    Positive,
    RecordedOnly,
    Solution,
    SyntheticOnly,
    Url,
    best_relative_error,
    check_memory,
    digits,
    draw_panels,
    gather_rows,
    largest_amplitude,
    local_stage,
    located,
    option,
    relative_error,
)
from collops.extend.communication import raised_together
from collops.seismic.signals import check_unbiased, count_biased, noise_from_power, power_spectrum, with_noise
from collops.seismic.volume.earth import impedance
from collops.seismic.volume.files import DATA_NAMES, Axis, Cube, Stack, check_array_file, open_volume, read_values
from collops.seismic.volume.modelling import trace_operator
from collops.seismic.volume.wavelet import from_power, make_wavelet, parse_wavelet

if TYPE_CHECKING:
    from collops import Communicator, DistributedArray, LinearOperator
    from collops.extend.arrays import Array

__all__ = [
    "Image",
    "Inversion",
    "Kind",
    "Problem",
    "Volume",
    "VolumeOptions",
    "draw_images",
    "findings",
    "prepare",
    "section_of",
]

_INTERVAL, _WAVELET, _STRENGTH = 0.004, "ricker:25", 0.05
# The largest reflection coefficient if their scale is an assumption, and a value that hardly occurs in the earth.
_MAX_COEFFICIENT, _IMPLAUSIBLE = 0.25, 0.5
_ARRAYS = 12  # number of arrays of the size of the data that exist at once
_PANEL_SIZE = (4.6, 4.2)  # inches


@dataclass(frozen=True, kw_only=True)
class VolumeOptions(CommonOptions):
    """The options of all applications on stacked data."""

    recorded = "volume"
    segy_results: ClassVar[tuple[str, ...]] = ()  # names of the SEG-Y files that are written for data in SEG-Y

    volume: Annotated[
        str | None,
        option(
            "Stacked volume or section, with samples along the last axis; by default synthetic.",
            DATA,
            metavar="FILE.sgy|FILE.npy|STORE.zarr",
        ),
    ] = None
    interval: Annotated[
        float | None, option("Sample interval, ms.", DATA, show_default="from the file, else 4"), Positive
    ] = None
    inline_byte: Annotated[
        int | None,
        option("First byte of the inline number in SEG-Y trace headers.", DATA, show_default="189"),
        AtLeast(1),
        RecordedOnly(),
    ] = None
    crossline_byte: Annotated[
        int | None,
        option("First byte of the crossline number in SEG-Y trace headers.", DATA, show_default="193"),
        AtLeast(1),
        RecordedOnly(),
    ] = None
    inlines: Annotated[
        int | None,
        option("Number of inlines of the synthetic volume, or of traces of the section.", SYNTHETIC),
        AtLeast(1),
        SyntheticOnly(),
    ] = None
    crosslines: Annotated[
        int | None,
        option("Number of crosslines of the synthetic volume; 1 for a section.", SYNTHETIC),
        AtLeast(1),
        SyntheticOnly(),
    ] = None
    samples: Annotated[int | None, option("Number of samples per trace.", SYNTHETIC), AtLeast(8), SyntheticOnly()] = (
        None
    )
    wavelet: Annotated[
        str | None,
        option(
            "Wavelet: a Ricker wavelet; a file, with time zero at the middle sample; or data: zero phase, with the "
            "spectrum of the data.",
            METHOD,
            metavar="ricker:HZ|FILE.npy|data",
            show_default="ricker:25 for synthetic data, else data",
        ),
    ] = None
    strength: Annotated[
        float | None,
        option(
            "Assumed root mean square of the reflection coefficients, unless the wavelet is from a file.",
            METHOD,
            show_default="0.05, or less so that the maximum is 0.25",
        ),
        Positive,
        RecordedOnly(),
    ] = None

    def results(self) -> list[Path]:
        """Return the files and folders that the application may write, for any data."""
        return [*super().results(), *(Path(self.out) / f"{name}.sgy" for name in self.segy_results)]

    def check(self) -> None:
        """Raise `InputError` for invalid or contradictory values; read only headers of files."""
        super().check()
        if self.wavelet is not None:
            parse_wavelet(self.wavelet)
        if self.volume is not None:
            check_array_file(self.volume, DATA_NAMES)


T = TypeVar("T", bound=VolumeOptions)


class Kind(NamedTuple):
    """The differences between applications on stacked data."""

    # from the wavelet and the number of samples, the sparse matrix that models a trace
    matrix: Callable[[np.ndarray, int], Any]
    # from impedances in 10^6 kg/(m^2 s), samples along the last axis, the true model
    model: Callable[[np.ndarray], np.ndarray]
    extents: tuple[int, ...]  # traces of the synthetic volume along its lateral axes
    samples: int  # of its traces
    noise: float  # in its data, relative to the signal


@dataclass(frozen=True)
class Volume:
    """The data of a job: this rank's rows."""

    cube: Cube  # of all ranks
    traces: np.ndarray  # this rank's rows, with all samples; zero for missing traces
    live: np.ndarray  # bool, the lateral shape of this rank's rows: False for missing traces
    wavelet: np.ndarray  # time zero at the middle sample; in the units of the data
    truth: np.ndarray | None = None  # the true model, of the shape of `traces`; None for recorded data
    noise_norm: float | None = None  # norm of the noise of all ranks, if known
    notes: list[str] = field(default_factory=list)  # decisions, in sentences for the user
    stack: Stack | None = None  # of data in SEG-Y


class Choice(NamedTuple):
    """The weight of a regularisation by the discrepancy principle."""

    weight: float
    noise: float  # estimated norm of the noise
    share: float  # noise in per cent of the norm of the data
    reached: bool  # whether the residual reaches the noise with the smallest candidate weight

    @property
    def why(self) -> str:
        """The reason for the choice in words."""
        noise = f"the estimated noise, {digits(self.share, 2)} % of the data"
        lowest = f"the smallest candidate; the residual exceeds {noise}"
        return f"the residual equals {noise}" if self.reached else lowest


class Inversion(NamedTuple):
    """The result of an inversion: arrays are this rank's parts, shaped as its part of the cube."""

    model: np.ndarray
    adjoint: np.ndarray  # the adjoint of the data
    unexplained: np.ndarray  # the residual of the data
    misfit: float  # norm of the residual over the norm of the data
    solution: Solution
    choice: Choice | None  # of the regularisation, if it was not an option


@dataclass(frozen=True)
class Problem:
    """A volume, and the operator from the ravelled model to its ravelled data."""

    job: Job[Any]
    volume: Volume
    operator: LinearOperator

    def vector(self, values: np.ndarray) -> DistributedArray:
        """Return this rank's part of an array on the cube as a ravelled distributed array."""
        return self.job.array(self.operator.domain, values.ravel())

    def values(self, vector: Array) -> np.ndarray:
        """Return this rank's part of a ravelled distributed array, shaped as its part of the cube."""
        return self.job.on_host(vector).reshape(self.volume.traces.shape)

    @property
    def result_bytes(self) -> int:
        """Size in bytes of the results: fields of model, data, residual and one more array, and the SEG-Y files."""
        volume, options = self.volume, self.job.options
        arrays = 4 if volume.truth is None else 5
        segy = 0 if volume.stack is None else len(options.segy_results) * volume.stack.size + 16 * volume.cube.traces
        return arrays * int(np.prod(volume.cube.shape)) * np.dtype(options.dtype).itemsize + segy

    def inversion(
        self, data: DistributedArray, gradient: Gradient, solution: Solution, choice: Choice | None
    ) -> Inversion:
        """Compare the solution with the data. Collective."""
        unexplained = data - self.operator.forward(solution.x)
        residual, total = float(unexplained.norm()), float(data.norm())
        misfit = residual / total if total else 0.0
        model, adjoint = self.values(solution.x), self.values(gradient.x)
        return Inversion(model, adjoint, self.values(unexplained), misfit, solution, choice)

    def choose(
        self, data: DistributedArray, solve: Callable[[float, Array | None], Array], largest: float, smallest: float
    ) -> Choice:
        """Choose the weight of a regularisation by the discrepancy principle. Collective.

        ``solve(weight, x0)`` returns an approximate solution; `x0` is the solution for the previous weight. The choice
        takes a few short runs of the solver.
        """
        from collops.extend.solvers import discrepancy

        volume, solution, norm = self.volume, None, 0.0
        power = power_spectrum([volume.traces[volume.live]], volume.cube.samples)
        noise = noise_from_power(self.job.comm.allreduce(power))

        def misfit(weight: float) -> float:
            nonlocal solution, norm
            solution = solve(weight, solution)
            norm = float((data - self.operator.forward(solution)).norm())
            return norm

        with self.job.stage("choosing the regularisation"):
            weight = discrepancy(misfit, noise, largest, smallest)
        return Choice(weight, noise, 100 * noise / (float(data.norm()) or 1.0), norm <= noise)

    def plausible(
        self, inversion: Inversion, coefficients: np.ndarray, *, assumed: bool = True
    ) -> tuple[Problem, Inversion]:
        """Limit reflection coefficients to 0.25 if their scale is an assumption; return problem and result. Collective.

        Model and wavelet are scaled in opposite directions, so that the modelled data do not change. Otherwise, or if
        `assumed` is false, coefficients above 0.5 give a warning.
        """
        options, listener = self.job.options, self.job.listener
        largest = largest_amplitude(coefficients, self.job.comm)
        kind = parse_wavelet(options.wavelet or "data")
        if options.volume is None or isinstance(kind, Path | Url) or options.strength is not None or not assumed:
            if largest > _IMPLAUSIBLE:
                listener.warn(
                    f"the largest reflection coefficient is {largest:.3g}, but few in the earth exceed "
                    f"{_IMPLAUSIBLE:g}: check the amplitude of the wavelet, or --strength"
                )
            return self, inversion
        if largest <= _MAX_COEFFICIENT:
            return self, inversion
        scale = _MAX_COEFFICIENT / largest
        listener.note(
            f"amplitudes: scaled by {scale:.3g}, so that the largest reflection coefficient is {_MAX_COEFFICIENT:g}; "
            "without a well tie, amplitudes are relative (--strength, or --wavelet with a file)"
        )
        volume = replace(self.volume, wavelet=self.volume.wavelet / scale)
        scaled = inversion._replace(model=inversion.model * scale, adjoint=inversion.adjoint / scale)
        return replace(self, volume=volume), scaled

    def numbers(self) -> dict[str, Any]:
        """Return the entries of the JSON output about the data."""
        options, cube = self.job.options, self.volume.cube
        return {
            "volume": options.volume,
            "wavelet": options.wavelet or (_WAVELET if options.volume is None else "data"),
            "wavelet_samples": len(self.volume.wavelet),
            "shape": list(cube.shape),
            "traces": cube.traces,
            "samples": cube.samples,
            "sample_interval": cube.interval,
        }

    def fields(self, arrays: dict[str, tuple[np.ndarray, str]]) -> dict[str, Field]:
        """Return fields of a result: arrays on the cube with their units, the coordinates, and the wavelet."""
        from collops import DistributedArray

        cube, comm = self.volume.cube, self.job.comm
        fields = cube.coordinates()
        if self.volume.stack is not None:
            fields |= self.volume.stack.coordinates(cube.lateral)
        for name, (values, unit) in arrays.items():
            fields[name] = Field(DistributedArray(cube.layout(comm.size), comm, values), cube.dimensions, unit)
        return fields | {"wavelet": Field(self.volume.wavelet, ("lag",), "1")}

    def exports(self, *arrays: tuple[str, np.ndarray]) -> dict[str, Exporter]:
        """Return the SEG-Y files of arrays, each with a title, if the data are from SEG-Y. Collective."""
        cube, stack, names = self.volume.cube, self.volume.stack, self.job.options.segy_results
        if stack is None:
            return {}
        with local_stage(self.job.comm):
            rows = self.job.share(cube.shape[0])
            made = [stack.traces(title, values, rows, cube.interval) for title, values in arrays]
        return {f"{name}.sgy": traces.export for name, traces in zip(names, made, strict=True)}


def findings(
    problem: Problem,
    inversion: Inversion,
    truth: np.ndarray | None,
    *,
    subject: str,
    numbers: dict[str, Any],
    more_rows: list[tuple[str, str]],
    arrays: dict[str, tuple[np.ndarray, str]],
    exports: Sequence[tuple[str, np.ndarray]],
    source: str,
    **extra: Any,
) -> Findings:
    """Return the findings of an inversion. Collective.

    `truth` is compared with the model of `inversion`. `arrays` are fields with their units. `exports` are SEG-Y files
    of the results; files of the data modelled from the `source` and of the residual follow. `extra` are fields of
    `Findings`.
    """
    volume, comm = problem.volume, problem.job.comm
    traces = f"DATA MODELLED FROM THE {source}", volume.traces - inversion.unexplained
    residual = "RESIDUAL: DATA LESS MODELLED DATA", inversion.unexplained
    return Findings(
        solution=inversion.solution,
        subject=subject,
        adjoint="adjoint",
        error=relative_error(inversion.model, truth, comm),
        adjoint_error=best_relative_error(inversion.adjoint, truth, comm),
        numbers=numbers,
        more_rows=more_rows,
        fields=problem.fields(arrays),
        noise_norm=volume.noise_norm,
        exports=problem.exports(*exports, traces, residual),
        **extra,
    )


def prepare(job: Job[T], kind: Kind) -> Problem:
    """Read or synthesise the data, and build the operator. Collective."""
    with job.stage("reading" if job.options.volume else "modelling the data"):
        if job.options.volume is None:
            problem = _synthetic(job, kind)
        else:
            volume = recorded(job)
            matrix = kind.matrix(volume.wavelet, volume.cube.samples)
            problem = Problem(job, volume, trace_operator(job, matrix, volume.live))
    job.note(problem.volume.notes)
    first = problem.volume.cube.lateral[0]
    job.warn_of_idle_ranks(len(first.values), f"{first.name}s")
    return problem


def recorded(job: Job[T]) -> Volume:
    """Read data from a file, and choose the wavelet. Collective."""
    options, comm = job.options, job.comm
    path = located(str(options.volume))
    # Squares of large amplitudes may overflow, which a check below detects.
    with np.errstate(over="ignore", invalid="ignore"), local_stage(comm):
        interval = None if options.interval is None else options.interval / 1e3
        reader = open_volume(path, interval, DATA_NAMES, options.inline_byte, options.crossline_byte)
        cube = reader.cube
        _check_size(job, cube)
        traces, live = read_values(reader, job.share(cube.shape[0]), str(path))
        traces = traces.astype(options.dtype)
        kind = parse_wavelet(options.wavelet or "data")
        known_wavelet = None if kind is None else make_wavelet(kind, cube.samples, cube.interval)
        power, biased = power_spectrum([traces[live]], cube.samples), count_biased([traces[live]])
        sums = np.array([(traces.astype(np.float64) ** 2).sum(), float(live.sum())])
    energy, count = comm.allreduce(sums)
    power, biased = comm.allreduce(power), comm.allreduce(biased)
    notes = [f"read {cube.describe()}", *reader.notes]
    with raised_together():
        if not np.isfinite(energy):
            raise InputError(f"the amplitudes of {path} are too large for {options.dtype}: scale the data")
        if not energy:
            raise InputError(
                f"all samples of {path} are zero, or so small that their squares underflow: scale the data"
            )
        check_unbiased(biased, str(path))
        wavelet = from_power(power, cube.samples, cube.interval) if known_wavelet is None else known_wavelet
    if known_wavelet is None:
        notes.append(
            f"wavelet: zero phase, {len(wavelet)} samples, with the amplitude spectrum of the data (--wavelet)"
        )
    if not isinstance(kind, Path | Url):
        # Without a well tie, amplitudes are relative: their scale is an assumption.
        strength = options.strength or _STRENGTH
        wavelet = wavelet / np.linalg.norm(wavelet) * np.sqrt(energy / (count * cube.samples)) / strength
        notes.append(f"amplitudes: reflection coefficients of {strength:g} (root mean square) are assumed (--strength)")
    return Volume(cube, traces, live, wavelet, notes=notes, stack=reader.stack)


def _synthetic(job: Job[T], kind: Kind) -> Problem:
    """Synthesise a problem with a known solution. Collective."""
    options, comm = job.options, job.comm
    with local_stage(comm):
        inlines, crosslines = options.inlines or kind.extents[0], options.crosslines or (*kind.extents, 1)[1]
        names = (("trace", inlines),) if crosslines == 1 else (("inline", inlines), ("crossline", crosslines))
        interval = _INTERVAL if options.interval is None else options.interval / 1e3
        lateral = tuple(Axis(name, np.arange(extent) + 1) for name, extent in names)
        cube = Cube(lateral, options.samples or kind.samples, interval)
        _check_size(job, cube)
        wavelet = make_wavelet(parse_wavelet(options.wavelet or _WAVELET), cube.samples, cube.interval)
        rows = job.share(cube.shape[0])
        truth = kind.model(impedance(cube.shape, rows)).astype(options.dtype)
        live = np.ones(truth.shape[:-1], dtype=bool)
    operator = trace_operator(job, kind.matrix(wavelet, cube.samples), live)
    empty = Problem(job, Volume(cube, truth, live, wavelet), operator)
    clean = empty.values(operator.forward(empty.vector(truth)))
    noise = kind.noise if options.noise is None else options.noise
    noisy, norm = with_noise(list(clean), range(rows.start, rows.stop), noise, options.seed, comm)
    traces = np.stack(noisy) if noisy else clean
    notes = [f"synthesised {cube.describe()}, noise of {noise:g} of the signal"]
    return Problem(job, Volume(cube, traces, live, wavelet, truth, norm, notes), operator)


def _check_size(job: Job[T], cube: Cube) -> None:
    ranks = job.comm.size
    rows = -(-cube.shape[0] // ranks)
    check_memory(
        _ARRAYS * rows * int(np.prod(cube.shape[1:])) * np.dtype(job.options.dtype).itemsize,
        f"the arrays of {cube.describe()} on {ranks} ranks",
        "choose a smaller volume or more nodes",
        processes=job.comm.local_size,
    )


# Figures


def section_of(values: np.ndarray, comm: Communicator) -> np.ndarray:
    """Gather the section along the first lateral axis, in the middle of the second axis. Collective."""
    return gather_rows(values[:, values.shape[1] // 2] if values.ndim == 3 else values, comm)


class Image(NamedTuple):
    """A section or a map of a volume, to be drawn; see `Panel`."""

    values: np.ndarray
    title: str
    limits: float | tuple[float, float]
    unit: str = ""


def draw_images(path: Path, cube: Cube, images: Sequence[Image], *, maps: bool = False) -> Path:
    """Draw sections along the first lateral axis, or maps of both axes, in one row; return the path."""
    first = cube.lateral[0]
    down, label = (cube.lateral[1].values, cube.lateral[1].name) if maps else (cube.times, "time (s)")
    # An axis of equal steps cannot show trace numbers that are not evenly spaced.
    even = len(np.unique(np.diff(first.values))) <= 1
    across = first.values if even else np.arange(len(first.values)) + 1
    extent = float(across[0]), float(across[-1]), float(down[0]), float(down[-1])
    panels = [Panel(i.values, i.title, extent, (first.name, label), i.limits, i.unit) for i in images]
    return draw_panels(path, panels, _PANEL_SIZE)
