"""A migration problem from the options and the files: geometry, grid, velocity and wavelet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from collops.errors import InputError
from collops.extend.applications import (
    METHOD,
    SYNTHETIC,
    AtLeast,
    CommonOptions,
    Finite,
    Must,
    NotNegative,
    OneOf,
    Out,
    Positive,
    RecordedOnly,
    SyntheticOnly,
    is_zarr,
    local_stage,
    option,
)
from collops.extend.communication import raised_together
from collops.extend.engines import Engine, engine
from collops.seismic.conditioning import (
    Conditioned,
    Conditioning,
    Mute,
    ShotHeaders,
    bandpass,
    parse_gain,
    parse_mute,
    parse_range,
    read_table,
)
from collops.seismic.lsm.synthetic import default_frequency, fixed_spread, reflectivity
from collops.seismic.segy import SegyFile, fits_segy, require_segyio, segy_bytes
from collops.seismic.signals import count_biased, frequency_from_power, frequency_of, ricker
from collops.seismic.survey import Grid, Survey, read
from collops.seismic.survey.checks import check_frequency, check_speed, table_factor, too_many_traces
from collops.seismic.survey.segy import shot_traces
from collops.seismic.survey.survey import mode_of
from collops.seismic.survey.velocity import Gradient, Model, load_velocity, on_grid, parse_velocity
from collops.seismic.survey.zarr import ZarrShots
from collops.seismic.volume.wavelet import from_power, make_wavelet, parse_wavelet

if TYPE_CHECKING:
    from collops import Communicator, LinearOperator
    from collops.seismic.kirchhoff import Weighting

SEGY_RESULTS = ("image", "adjoint", "predicted", "residual")
"""The SEG-Y files that a migration of a recorded survey writes."""

_FILES, _IMAGE, _CONDITIONING = "Survey and velocity", "Image", "Conditioning of the traces"
_SYNTHETIC_VELOCITY = "1500+0.6z"
_NX, _NZ, _SPACING = 241, 121, 12.5
_SHOTS, _RECEIVERS = 24, 81


@dataclass(frozen=True, kw_only=True)
class Options(CommonOptions):
    """The options of ``collops lsm``."""

    recorded = "survey"
    writes = "out", "checkpoint", "write_survey"

    survey: Annotated[
        str | None,
        option("Survey to migrate, in SEG-Y or Zarr; by default a synthetic one.", _FILES, metavar="FILE.sgy|STORE"),
    ] = None
    velocity: Annotated[
        str | None,
        option(
            "Velocity in m/s: a number, a gradient such as 1500+0.6z, or a file in depth, as .npy of shape (nx, nz) or "
            "(ny, nx, nz).",
            _FILES,
            metavar="FILE.npy|FILE.sgy|EXPRESSION",
            show_default="1500+0.6z for the synthetic survey",
        ),
    ] = None
    inline: Annotated[int | None, option("Inline of a SEG-Y velocity.", _FILES, show_default="the middle one")] = None
    dims: Annotated[
        int | None,
        option("2 for a survey along a line, 3 on an area.", _FILES, show_default="from the positions"),
        Must("be 2 or 3", lambda value: value in (2, 3)),
        RecordedOnly(),
    ] = None
    nx: Annotated[int | None, option("Image points along the line.", _IMAGE), AtLeast(2)] = None
    ny: Annotated[int | None, option("Image points across the line, in 3-D.", _IMAGE), AtLeast(2), RecordedOnly()] = (
        None
    )
    nz: Annotated[int | None, option("Image points in depth.", _IMAGE), AtLeast(2)] = None
    dx: Annotated[float | None, option("Spacing of image points along the line, m.", _IMAGE), Positive] = None
    dy: Annotated[float | None, option("Spacing of image points across, m.", _IMAGE), Positive, RecordedOnly()] = None
    dz: Annotated[float | None, option("Spacing of image points in depth, m.", _IMAGE), Positive] = None
    x0: Annotated[float | None, option("Position of the first column, m.", _IMAGE), Finite] = None
    y0: Annotated[float | None, option("Position of the first one across, m.", _IMAGE), Finite, RecordedOnly()] = None
    shots: Annotated[int | None, option("Number of shots.", SYNTHETIC), AtLeast(1), SyntheticOnly()] = None
    receivers: Annotated[int | None, option("Number of receivers.", SYNTHETIC), AtLeast(1), SyntheticOnly()] = None
    samples: Annotated[int | None, option("Samples of a trace (4 ms).", SYNTHETIC), AtLeast(2), SyntheticOnly()] = None
    write_survey: Annotated[
        str | None,
        option("Write the synthetic survey as SEG-Y or Zarr.", SYNTHETIC, metavar="FILE.sgy|STORE.zarr"),
        SyntheticOnly(),
    ] = None
    frequency: Annotated[
        float | None,
        option("Peak frequency of the Ricker wavelet, Hz.", METHOD, show_default="from the data"),
        Positive,
    ] = None
    wavelet: Annotated[
        str | None,
        option(
            "A Ricker wavelet; one from a file, at the interval of the traces, with time zero at its middle sample; or "
            "a zero-phase one with the spectrum of the data.",
            METHOD,
            metavar="ricker:HZ|FILE.npy|data",
            show_default="a Ricker wavelet of --frequency",
        ),
        RecordedOnly(),
    ] = None
    polarity: Annotated[
        str,
        option("normal, or reversed: change the sign of all traces.", _CONDITIONING),
        OneOf("normal", "reversed"),
        RecordedOnly(),
    ] = "normal"
    interval: Annotated[
        float | None,
        option("Resample to this many milliseconds, after an anti-alias filter.", _CONDITIONING, metavar="MS"),
        Positive,
        RecordedOnly(),
    ] = None
    bandpass: Annotated[
        str | None,
        option(
            "Zero-phase band-pass in Hz, for the traces and for a wavelet that is given; one end may be missing.",
            _CONDITIONING,
            metavar="LOW,HIGH",
        ),
        RecordedOnly(),
    ] = None
    outliers: Annotated[
        float,
        option(
            "Leave out dead traces, and those that are more than this many times as strong as their neighbours, at all "
            "frequencies or within a tenth of them; 0 keeps all.",
            _CONDITIONING,
        ),
        NotNegative,
    ] = 10.0
    offsets: Annotated[
        str | None,
        option("Use traces with offsets between two, in m.", _CONDITIONING, metavar="NEAR,FAR"),
        RecordedOnly(),
    ] = None
    mute: Annotated[
        str | None,
        option(
            "Set samples to zero until offset / SPEED (m/s) plus DELAY (s; by default the length of a wavelet), or "
            "until picked times: a text file with lines of offset and time, or field record, offset and time.",
            _CONDITIONING,
            metavar="SPEED|SPEED,DELAY|FILE|none",
            show_default="the direct wave, at the velocity of the surface",
        ),
        RecordedOnly(),
    ] = None
    window: Annotated[
        str | None, option("Use samples between two times, in s.", _CONDITIONING, metavar="FIRST,LAST"), RecordedOnly()
    ] = None
    gain: Annotated[
        str | None,
        option(
            "Multiply by a power of time, or by an automatic gain control with a window in s.",
            _CONDITIONING,
            metavar="POWER|agc:SECONDS",
        ),
        RecordedOnly(),
    ] = None
    trace_weights: Annotated[
        str | None,
        option(
            "Weights of traces in the misfit: a text file with lines of field record, channel and weight (others have "
            "1), or balance: the inverse of their root mean square.",
            _CONDITIONING,
            metavar="FILE|balance",
        ),
        RecordedOnly(),
    ] = None
    regularise: Annotated[
        str | None,
        option(
            "Penalise roughness (laplacian), changes along reflectors (dip), total variation (tv), or amplitudes (l1).",
            METHOD,
        ),
        OneOf("laplacian", "dip", "tv", "l1"),
    ] = None
    weight: Annotated[
        float | None,
        option(
            "Weight of --regularise, relative to the operator or the adjoint image.",
            METHOD,
            show_default="from the data",
        ),
        Positive,
    ] = None
    precondition: Annotated[
        str | None,
        option(
            "Divide by the root of the normal operator's diagonal, exact (illumination) or estimated (diagonal), or of "
            "its local spectra (spectra).",
            METHOD,
        ),
        OneOf("illumination", "diagonal", "spectra"),
    ] = None
    mode: Annotated[
        str | None,
        option(
            "Travel times: eikonal (fast marching), or analytic (a velocity such as 1800 or 1500+0.6z).",
            METHOD,
            show_default="analytic where possible",
        ),
        OneOf("eikonal", "analytic"),
    ] = None
    coarsen: Annotated[
        int | None,
        option(
            "Keep travel times at every so many image points along each axis, and interpolate between them.",
            METHOD,
            show_default="1, or the first of 2, 4 and 8 that fits into the memory",
        ),
        AtLeast(1),
    ] = None
    split_image: Annotated[
        bool,
        option(
            "Split the image over the ranks, with the travel times of all stations to their part of it.",
            METHOD,
            "--split-image",
            show_default="where neither fits into the memory otherwise",
        ),
    ] = False
    iterations: Annotated[
        int | None,
        option("Iterations of the solver.", show_default="chosen from the data, or 30 with --damp"),
        AtLeast(1),
    ] = None
    damp: Annotated[
        float | None,
        option("Damping relative to the operator's norm.", METHOD, show_default="none: the iterations are limited"),
        NotNegative,
    ] = None
    amplitude: Annotated[
        str | None,
        option(
            "Amplitudes of the operator: none (travel times only), 2d (line sources), 2.5d or 3d (point sources).",
            METHOD,
            show_default="2.5d or 3d for a recorded survey, none for a synthetic one",
        ),
        OneOf("none", "2d", "2.5d", "3d"),
    ] = None
    aperture: Annotated[
        float | None,
        option(
            "Largest horizontal distance of an image point from source and receiver, m.",
            METHOD,
            show_default="any; from depth, dip and offsets for a recorded survey without --amplitude",
        ),
        Positive,
    ] = None
    max_dip: Annotated[
        float | None,
        option(
            "Steepest dip of the image in degrees, below 90.",
            METHOD,
            show_default="any; 60 for a recorded survey without --amplitude",
        ),
        Positive,
    ] = None
    antialias: Annotated[bool, option("Filter what is steeper than the receivers sample.", METHOD, "--antialias")] = (
        False
    )
    uncertainty: Annotated[
        int | None,
        option("Find the standard deviation of the image from this many samples of the posterior.", METHOD),
        AtLeast(2),
    ] = None
    gathers: Annotated[
        int | None,
        option(
            "Image so many classes of offset and of angle by themselves: common-image gathers, their moveout, the "
            "illumination, and spectra, in quality.png and angles.png.",
            METHOD,
            metavar="CLASSES",
        ),
        AtLeast(2),
    ] = None
    out: Out = "collops-lsm"

    def results(self) -> list[Path]:
        """Return the files and folders that the application writes, with those that it writes for some data only."""
        names = (*(f"{name}.sgy" for name in (*SEGY_RESULTS, "deviation")), "quality.png", "angles.png")
        return [
            *super().results(),
            *(Path(self.out) / name for name in ("result.html", "shots", *names)),
            *self.survey_files,
        ]

    @property
    def survey_files(self) -> list[Path]:
        """The file of the synthetic survey, if it is written."""
        return [] if self.write_survey is None else [Path(self.write_survey)]

    @property
    def weighting(self) -> Weighting:
        """The weights of the operator of a synthetic survey."""
        from collops.seismic.kirchhoff import Weighting

        return Weighting(self.amplitude or "none", self.aperture, self.max_dip)  # type: ignore[arg-type]

    def check(self) -> None:
        """Raise `InputError` if a value is not allowed or options contradict each other; read only heads of files."""
        super().check()
        _ = self.weighting
        if self.survey is not None:
            (ZarrShots if is_zarr(self.survey) else SegyFile).inspect(self.survey)
            require_segyio()  # of the results
        if self.wavelet is not None:
            parse_wavelet(self.wavelet)
            if self.frequency is not None:
                raise InputError("--wavelet and --frequency both name a wavelet: leave one of them out")
        self.conditioning()
        self.check_illumination(self.weighting)
        if self.weight is not None and self.regularise is None:
            raise InputError("--weight belongs to a regularisation: name one with --regularise, or leave it out")
        if self.uncertainty is not None and self.regularise is not None:
            raise InputError(
                "--uncertainty takes the reflectivity for white, unlike --regularise: leave out one of them"
            )
        if self.regularise in ("tv", "l1"):
            for name in ("damp", "precondition"):
                if getattr(self, name) is not None:
                    raise InputError(
                        f"--{name} needs a quadratic penalty, which --regularise {self.regularise} is not: leave out "
                        "one of them"
                    )
        # A survey that this package wrote may name its velocity; `recorded` reads it.
        text = self.velocity or (_SYNTHETIC_VELOCITY if self.survey is None else None)
        model = None if text is None else parse_velocity(text)
        if isinstance(model, Path):
            if model.suffix.lower() != ".npy":
                SegyFile.inspect(model)
            elif not model.is_file():
                raise InputError(f"{model} does not exist: check the name of the velocity file")
        if self.inline is not None and (not isinstance(model, Path) or model.suffix.lower() == ".npy"):
            raise InputError(
                "--inline chooses a section of a SEG-Y velocity: give one with --velocity, or leave it out"
            )
        if model is not None:
            mode_of(model, self.mode)

    def check_illumination(self, weighting: Weighting) -> None:
        """Raise `InputError` if the exact illumination is asked for with an operator that has weights."""
        if self.precondition == "illumination" and (self.antialias or not weighting.none):
            raise InputError(
                "--precondition illumination is for operators without --amplitude, --aperture, --max-dip and "
                "--antialias: use --precondition diagonal, or --amplitude none"
            )

    def conditioning(self) -> Conditioning:
        """Return how traces are conditioned. Reads the files of picks and weights, and raises `InputError`."""
        ranges = {
            name: parse_range(f"--{name}", text, unit)
            for name, unit in (("bandpass", "Hz"), ("offsets", "m"), ("window", "s"))
            if (text := getattr(self, name)) is not None
        }
        weights: np.ndarray | str | None = self.trace_weights
        if weights is not None and weights != "balance":
            weights = read_table(Path(weights), (3,), "field record, channel and weight")
            if (weights[:, 2] < 0).any():
                raise InputError(f"{self.trace_weights} has negative weights: give 0 for traces that do not count")
        return Conditioning(
            self.polarity == "reversed",
            None if self.interval is None else self.interval / 1e3,
            ranges.get("bandpass"),
            self.outliers,
            ranges.get("offsets"),
            ranges.get("window"),
            None if self.mute in (None, "none") else parse_mute(self.mute),
            None if self.gain is None else parse_gain(self.gain),
            weights,
        )


def _travel_times_only() -> Weighting:
    from collops.seismic.kirchhoff import Weighting

    return Weighting()


@dataclass(frozen=True)
class Problem:
    """The operator's parameters and the data of a migration."""

    survey: Survey  # the geometry, and the traces of a recorded one
    grid: Grid  # the image grid
    velocity: np.ndarray  # float64, of the grid's shape, m/s
    expression: str | None  # the velocity as text, where it has one
    mode: str  # ``"eikonal"`` or ``"analytic"``
    frequency: float  # peak frequency of the Ricker wavelet in hertz
    truth: np.ndarray | None = None  # the true reflectivity; None for a recorded survey
    # of the shots of this rank, `StreamedShots` if they do not fit into the memory; None until a synthetic survey is
    # modelled
    conditioned: Sequence[Conditioned] | None = None
    conditioning: str = ""  # what was done to the traces, in words
    # time zero is its middle sample; a Ricker wavelet of `frequency` by default
    given_wavelet: np.ndarray | None = None
    weighting: Weighting = field(default_factory=_travel_times_only)  # of the operator
    noise_norm: float | None = None  # norm of the noise of all ranks in a synthetic survey

    @property
    def streamed(self) -> bool:
        """Whether the traces are read whenever they are needed."""
        return isinstance(self.conditioned, StreamedShots)

    @property
    def wavelet(self) -> tuple[np.ndarray, int]:
        """The wavelet and the index of its time zero."""
        given = self.given_wavelet
        return ricker(self.frequency, self.survey.geometry.interval) if given is None else (given, len(given) // 2)

    def operator(self, **options: Any) -> LinearOperator:
        """Make the operator from an image to the traces of all shots, with options of `Survey.operator`. Collective."""
        return self.survey.operator(
            self.velocity, self.grid, wavelet=self.wavelet, mode=self.mode, weighting=self.weighting, **options
        )

    def condition(self, conditioning: Conditioning, traces: list[np.ndarray]) -> list[Conditioned]:
        """Condition the traces of this rank's shots, an array for each, that have the sampling of the geometry."""
        return [
            conditioning.conditioned(values, self.shot_headers(shot), 1 / self.frequency)
            for shot, values in zip(self.survey.shots, traces, strict=True)
        ]

    def shot_headers(self, shot: int) -> ShotHeaders:
        """Return what the headers say of the traces of a shot."""
        geometry, known = self.survey.geometry, self.survey.headers
        records = np.arange(geometry.shots) + 1 if known is None else known.records
        channels = np.arange(geometry.receivers[shot].shape[1]) + 1 if known is None else known.channels[shot]
        return ShotHeaders(np.abs(geometry.offsets(shot)), channels, geometry.times, shot, records)

    @property
    def segy_bytes(self) -> int:
        """Bytes of the SEG-Y files of the results."""
        if self.survey.headers is None:
            return 0
        geometry = self.survey.geometry
        image, shots = (self.grid.points // self.grid.nz, self.grid.nz), (geometry.traces, geometry.samples)
        return 2 * (segy_bytes(*image) + segy_bytes(*shots))


@dataclass(frozen=True)
class StreamedShots(Sequence[Conditioned]):
    """The conditioned traces of this rank's shots, each of which is read from the file whenever it is needed."""

    problem: Problem
    conditioning: Conditioning
    # Of each shot that has been read. Unlike mutes, they depend on the samples.
    _trust: dict[int, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.problem.survey.shots)

    def __getitem__(self, number: Any) -> Any:
        survey = self.problem.survey
        shot = survey.shots[number]
        (traces,) = survey.read_shots(range(shot, shot + 1))
        headers, period = self.problem.shot_headers(shot), 1 / self.problem.frequency
        found = self.conditioning.conditioned(traces, headers, period)
        self._trust[shot] = found.trust
        return found

    def weights(self, shot: int) -> np.ndarray:
        """Return mute times trust of a shot that has been read, by its number in the survey."""
        mute = self.conditioning.muting(self.problem.shot_headers(shot), 1 / self.problem.frequency)
        return mute * self._trust[shot][:, None]


def synthetic(options: Options, comm: Communicator) -> Problem:
    """Synthesise a problem; its data are not modelled yet. Collective."""
    # `on_grid` raises if velocities become infinite.
    with np.errstate(over="ignore", invalid="ignore"), local_stage(comm):
        text = options.velocity or _SYNTHETIC_VELOCITY
        model = load_velocity(text, 2, options.inline)
        warnings, notes = check_speed(model, text), []
        nx, nz = model.shape if isinstance(model, np.ndarray) else (_NX, _NZ)
        grid = Grid(
            options.nx or nx, options.nz or nz, options.dx or _SPACING, options.dz or _SPACING, options.x0 or 0.0
        )
        stations = (options.shots or _SHOTS) + (options.receivers or _RECEIVERS)
        table_factor(grid, stations, np.dtype(options.dtype), comm, options.weighting.fields(2), parts=comm.size)
        velocity = on_grid(model, grid, None, notes)
        frequency = options.frequency or default_frequency(velocity, grid)
        geometry = fixed_spread(
            grid, velocity, options.shots or _SHOTS, options.receivers or _RECEIVERS, options.samples
        )
        survey = Survey(geometry, comm)
        survey.check(velocity, grid, frequency)
        survey.notes, survey.warnings = notes, warnings
        truth = reflectivity(grid, velocity, frequency)
    return Problem(
        survey, grid, velocity, *_described(model, options.mode), frequency, truth, weighting=options.weighting
    )


def recorded(options: Options, comm: Communicator, compute: Engine | None = None) -> Problem:
    """Read a survey and a velocity from files, each rank its own traces. Collective.

    Traces that do not fit into the memory, also that of the engine `compute`, are read whenever they are needed.
    """
    sizes = {name: getattr(options, name) for name in ("nx", "ny", "nz", "dx", "dy", "dz", "x0", "y0")}
    across = any(sizes[name] is not None for name in ("ny", "dy", "y0"))
    survey = read(str(options.survey), comm, dims=options.dims or (3 if across else None))
    notes, samples = survey.notes, survey.geometry.samples
    streamed = _streams(options, survey, compute or engine("numpy"))
    model, described = _velocity_of(options, survey)
    conditioning = _filter(options, survey, streamed)
    power = survey.spectrum(outliers=options.outliers)
    grid = survey.grid(model, **sizes)
    velocity = survey.velocity(model, grid)
    with raised_together():
        wavelet, frequency = _wavelet_for(options, survey, power, conditioning.band)
        survey.check(velocity, grid, frequency)
    if not fits_segy(grid.dz / 1e3, grid.nz):
        survey.warnings.append(
            "SEG-Y holds depth steps of whole millimetres up to 65.535 m: image.sgy and adjoint.sgy are left out "
            "(choose another --dz)"
        )
    notes.insert(0, f"read {survey.geometry.shots} shots, {survey.geometry.traces} traces of {samples} samples")
    between = "" if grid.ny is None else f" and {grid.y0:g} m across"
    notes.append(f"image: {grid}, from {grid.x0:g} m on the line{between}")
    # Surveys that this package wrote have no direct wave.
    by_default = options.mute is None and not survey.defaults
    if by_default:
        speed = float(f"{velocity[..., 0].mean():.4g}")
        conditioning = replace(conditioning, mute=Mute(f"{speed:g}", speed))
    with raised_together():
        limits = {"amplitude": options.amplitude, "aperture": options.aperture, "max_dip": options.max_dip}
        weighting = survey.weighting(grid, **limits)  # type: ignore[arg-type]
        options.check_illumination(weighting)
    said = conditioning.describe()
    notes += [f"conditioning: {said}"] if said else []
    problem = Problem(survey, grid, velocity, *described, frequency, conditioning=said, given_wavelet=wavelet)
    problem = replace(problem, weighting=weighting)
    return _conditioned(options, problem, conditioning, streamed, by_default)


def _streams(options: Options, survey: Survey, compute: Engine) -> bool:
    """Return whether traces are read whenever they are needed, as they do not fit into the memory. Collective."""
    comm, needs_all = survey.comm, _not_streamed(options)
    own = survey.layout.local_shape(comm.rank)[0]
    too_many = too_many_traces(own, np.dtype(options.dtype), comm, compute, 0 if needs_all else 2)
    too_many = next(filter(None, comm.allgather_metadata(too_many)), None)
    if too_many is None:
        return False
    with raised_together():
        if needs_all:
            raise InputError(f"{too_many}, which {needs_all} cannot: leave it out, or use more memory or machines")
    survey.notes.append(too_many)
    return True


def _velocity_of(options: Options, survey: Survey) -> tuple[Model, tuple[str | None, str]]:
    """Return the velocity, and what `_described` says of it. Collective."""
    text = options.velocity or survey.defaults.get("velocity")
    with raised_together():
        if text is None:
            raise InputError(f"{options.survey} names no velocity: give one with --velocity, such as 1500+0.6z")
    model = survey.model(text, inline=options.inline)
    with raised_together():
        return model, _described(model, options.mode, survey.defaults.get("mode"))


def _filter(options: Options, survey: Survey, streamed: bool) -> Conditioning:
    """Filter and resample the traces, also those that are read later; return how to condition them. Collective."""
    comm, headers, before = survey.comm, survey.headers, survey.geometry
    traces: list[np.ndarray] = [] if streamed else survey.traces
    if streamed:
        counts = np.zeros(2)
        with local_stage(comm):
            for shot in survey.shots:
                counts += count_biased(survey.read_shots(range(shot, shot + 1)))
        survey.check_counts(counts)
    with local_stage(comm):
        conditioning = options.conditioning()
        interval, samples = conditioning.sampling(before.interval, before.samples)
        geometry = replace(before, interval=interval, samples=samples)
        if headers is not None:
            headers = replace(headers, geometry=geometry)
            shot_traces("", headers, range(0), np.empty((0, samples)))  # raises if SEG-Y cannot hold the results
        survey.geometry, survey.headers = geometry, headers
        survey.filter = lambda shot: conditioning.filtered(shot.astype(options.dtype), before.interval)
        if not streamed:
            survey.traces = [survey.filter(shot) for shot in traces]
    return conditioning


def _conditioned(
    options: Options, problem: Problem, conditioning: Conditioning, streamed: bool, mutes_by_default: bool
) -> Problem:
    """Return the problem with its conditioned traces, or raise `InputError` if nothing is left of them. Collective."""
    survey, geometry, sums = problem.survey, problem.survey.geometry, np.zeros(3)
    with local_stage(survey.comm):
        conditioned: Sequence[Conditioned] = (
            StreamedShots(problem, conditioning) if streamed else problem.condition(conditioning, survey.traces)
        )
        for number, each in zip(survey.shots, conditioned, strict=True):
            (shot,) = survey.read_shots(range(number, number + 1))
            sound = each.trust > 0
            parts = each.traces[sound] != 0, shot[sound], shot[sound] * each.mute[sound if len(each.mute) > 1 else 0]
            sums += np.array([np.linalg.norm(part.astype(np.float64)) ** 2 for part in parts])
    left, whole, after_mute = survey.comm.allreduce(sums)
    if mutes_by_default and left:
        share = 100 * (1 - after_mute / whole)
        survey.notes.append(
            f"mute: until the direct wave has passed, {share:.2g} % of the energy (--mute none keeps it)"
        )
    with raised_together():
        if not left:
            names = ("offsets", "mute", "window", "trace_weights")
            values = {name: getattr(options, name) for name in names}
            values["mute"] = values["mute"] or (conditioning.mute and conditioning.mute.text)
            chosen = [(name, value) for name, value in values.items() if value is not None]
            which = " and ".join(f"--{name.replace('_', '-')} {value}" for name, value in chosen) or "--outliers"
            raise InputError(
                f"{which} leaves nothing of the data, which last from {geometry.start:g} to {geometry.times[-1]:g} s: "
                "give times in s, offsets in m, and the speed of a mute in m/s, such as 1500"
            )
    return replace(problem, conditioned=conditioned)


def _not_streamed(options: Options) -> str | None:
    """Return an option that needs all traces at once, or None."""
    given = [f"--{name}" for name in ("gathers", "uncertainty") if getattr(options, name) is not None]
    given += [f"--regularise {options.regularise}"] * (options.regularise in ("tv", "l1"))
    given += ["--split-image"] * options.split_image
    return given[0] if given else None


def _wavelet_for(
    options: Options, survey: Survey, power: np.ndarray, band: tuple[float, float] | None
) -> tuple[np.ndarray | None, float]:
    """Return the wavelet, or None for a Ricker wavelet, and its frequency in hertz.

    A wavelet that is given is that of the data as they were read, and is filtered like them. One that comes from the
    spectrum of the filtered data is not.
    """
    geometry, asked = survey.geometry, options.wavelet
    interval, samples = geometry.interval, geometry.samples
    kind = None if asked is None else parse_wavelet(asked)
    number = kind if isinstance(kind, float) else options.frequency
    if number is None and asked is None and survey.headers is not None:
        number = survey.headers.number("frequency", float)
    if number is not None:
        check_frequency(number, geometry)
        if band is None:
            return None, number
        wavelet = ricker(number, interval)[0]
    elif isinstance(kind, Path):
        wavelet = make_wavelet(kind, samples, interval)
    elif asked is not None:
        wavelet, band = from_power(power, samples, interval), None
    else:
        number = float(f"{frequency_from_power(power, samples, interval):.3g}")
        survey.notes.append(f"wavelet: Ricker of {number:g} Hz, from the spectrum of the data (--frequency)")
        return None, number
    if band is not None:
        # Until the filter has decayed; the kernels omit what is below the rounding error.
        wavelet = bandpass(
            np.pad(wavelet, min(round(6 / ((band[0] or band[1]) * interval)), samples)), interval, band, 0
        )
    return wavelet, number or frequency_of(wavelet, interval)


def _described(model: Model, asked: str | None, header: str | None = None) -> tuple[str | None, str]:
    """Return the velocity as text, where it has one, and how to compute travel times."""
    return str(model) if isinstance(model, Gradient) else None, mode_of(model, asked, header)
