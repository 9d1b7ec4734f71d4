"""A migration problem from the options and the files: geometry, grid, velocity and wavelet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from collops.apps.conditioning import (
    Conditioned,
    Conditioning,
    ShotHeaders,
    bandpass,
    parse_gain,
    parse_mute,
    parse_range,
    read_table,
    sound_traces,
)
from collops.apps.lsm.checks import check_reach, check_speed
from collops.apps.lsm.segy import SurveyHeaders, read_headers, read_traces
from collops.apps.lsm.survey import Geometry, Grid, Line, check_traces, cover, shots_of
from collops.apps.lsm.synthetic import default_frequency, fixed_spread, reflectivity
from collops.apps.lsm.velocity import Gradient, Section, on_grid, parse_velocity, read_npy, read_section
from collops.apps.options import (
    METHOD,
    SYNTHETIC,
    AtLeast,
    CommonOptions,
    Finite,
    NotNegative,
    OneOf,
    Out,
    Positive,
    RecordedOnly,
    SyntheticOnly,
    option,
)
from collops.apps.segy import SegyFile, fits_segy, segy_bytes, whole_interval
from collops.apps.signals import check_unbiased, count_biased, frequency_from_power, power_spectrum, ricker
from collops.apps.stages import check_memory, local_stage, raised_together
from collops.apps.volume.wavelet import from_power, make_wavelet, parse_wavelet
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.comm import Communicator
    from collops.operators.kirchhoff import Weighting

__all__ = ["Options", "Problem", "synthetic"]

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

    survey: Annotated[
        str | None, option("SEG-Y survey to migrate; by default a synthetic one.", _FILES, metavar="FILE.sgy")
    ] = None
    velocity: Annotated[
        str | None,
        option(
            "Velocity in m/s: a number, a gradient such as 1500+0.6z, or a file in depth, as .npy of shape (nx, nz).",
            _FILES,
            metavar="FILE.npy|FILE.sgy|EXPRESSION",
            show_default="1500+0.6z for the synthetic survey",
        ),
    ] = None
    inline: Annotated[int | None, option("Inline of a SEG-Y velocity.", _FILES, show_default="the middle one")] = None
    nx: Annotated[int | None, option("Image points along the line.", _IMAGE), AtLeast(2)] = None
    nz: Annotated[int | None, option("Image points in depth.", _IMAGE), AtLeast(2)] = None
    dx: Annotated[float | None, option("Spacing of image points along the line, m.", _IMAGE), Positive] = None
    dz: Annotated[float | None, option("Spacing of image points in depth, m.", _IMAGE), Positive] = None
    x0: Annotated[float | None, option("Position of the first column, m.", _IMAGE), Finite] = None
    shots: Annotated[int | None, option("Number of shots.", SYNTHETIC), AtLeast(1), SyntheticOnly()] = None
    receivers: Annotated[int | None, option("Number of receivers.", SYNTHETIC), AtLeast(1), SyntheticOnly()] = None
    samples: Annotated[int | None, option("Samples of a trace (4 ms).", SYNTHETIC), AtLeast(2), SyntheticOnly()] = None
    write_survey: Annotated[
        str | None,
        option("Write the synthetic survey to a SEG-Y file.", SYNTHETIC, metavar="FILE.sgy"),
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
            metavar="SPEED|SPEED,DELAY|FILE",
        ),
        RecordedOnly(),
    ] = None
    window: Annotated[
        str | None,
        option("Use samples between two times, in s.", _CONDITIONING, metavar="FIRST,LAST"),
        RecordedOnly(),
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
            "Divide by the root of the diagonal of the normal operator: exact (illumination), or estimated (diagonal).",
            METHOD,
        ),
        OneOf("illumination", "diagonal"),
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
        str,
        option(
            "Amplitudes of the operator: none (travel times only), 2d (line sources) or 2.5d (point sources).", METHOD
        ),
        OneOf("none", "2d", "2.5d"),
    ] = "none"
    aperture: Annotated[
        float | None,
        option(
            "Largest horizontal distance of an image point from source and receiver, m.", METHOD, show_default="any"
        ),
        Positive,
    ] = None
    max_dip: Annotated[
        float | None,
        option("Steepest dip of the image in degrees, below 90.", METHOD, show_default="any"),
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
    out: Out = "collops-lsm"

    def results(self) -> list[Path]:
        """Return the files and folders that the application writes, with those that it writes for some data only."""
        survey = [] if self.write_survey is None else [Path(self.write_survey)]
        names = (*SEGY_RESULTS, *([] if self.uncertainty is None else ["deviation"]))
        segy = [] if self.survey is None else [Path(self.out) / f"{name}.sgy" for name in names]
        return [*super().results(), Path(self.out) / "result.html", *segy, *survey]

    @property
    def weighting(self) -> Weighting:
        """The weights of the operator."""
        from collops.operators.kirchhoff import Weighting

        return Weighting(self.amplitude, self.aperture, self.max_dip)  # type: ignore[arg-type]

    def check(self) -> None:
        """Raise `InputError` if a value is not allowed or options contradict each other; read only heads of files."""
        super().check()
        _ = self.weighting
        if self.survey is not None:
            SegyFile.inspect(self.survey)
        if self.polarity != "normal" and self.survey is None:
            raise InputError("--polarity belongs to recorded data: leave it out, or name a file with --survey")
        if self.wavelet is not None:
            parse_wavelet(self.wavelet)
            if self.frequency is not None:
                raise InputError("--wavelet and --frequency both name a wavelet: leave one of them out")
        self.conditioning()
        if self.precondition == "illumination" and (self.antialias or not self.weighting.none):
            raise InputError(
                "--precondition illumination is for operators without --amplitude, --aperture, --max-dip and "
                "--antialias: use --precondition diagonal"
            )
        if self.weight is not None and self.regularise is None:
            raise InputError("--weight is that of a regularisation: name one with --regularise, or leave it out")
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
            _mode_for(model, self.mode)

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
            None if self.mute is None else parse_mute(self.mute),
            None if self.gain is None else parse_gain(self.gain),
            weights,
        )


@dataclass(frozen=True)
class Problem:
    """The operator's parameters and the data of a migration."""

    geometry: Geometry  # of all shots
    shots: range  # those whose traces this rank owns
    grid: Grid  # the image grid
    velocity: np.ndarray  # float64, shape ``(nx, nz)``, m/s
    expression: str | None  # the velocity as text, where it has one
    mode: str  # ``"eikonal"`` or ``"analytic"``
    frequency: float  # peak frequency of the Ricker wavelet in hertz
    truth: np.ndarray | None = None  # the true reflectivity; None for a recorded survey
    # of the shots of this rank; None until a synthetic survey is modelled
    conditioned: list[Conditioned] | None = None
    line: Line = field(default_factory=Line)  # position of the line on the map
    notes: list[str] = field(default_factory=list)  # decisions, in sentences for the user
    warnings: list[str] = field(default_factory=list)  # doubts, in sentences for the user
    headers: SurveyHeaders | None = None  # of a recorded survey
    conditioning: str = ""  # what was done to the traces, in words
    # time zero is its middle sample; a Ricker wavelet of `frequency` by default
    given_wavelet: np.ndarray | None = None

    @property
    def wavelet(self) -> tuple[np.ndarray, int]:
        """The wavelet and the index of its time zero."""
        given = self.given_wavelet
        return ricker(self.frequency, self.geometry.interval) if given is None else (given, len(given) // 2)

    def condition(self, conditioning: Conditioning, traces: list[np.ndarray]) -> list[Conditioned]:
        """Condition the traces of this rank's shots, an array for each, that have the sampling of the geometry."""
        geometry, known = self.geometry, self.headers
        records = np.arange(geometry.shots) + 1 if known is None else known.records
        found = []
        for shot, values in zip(self.shots, traces, strict=True):
            offsets = np.abs(geometry.receivers[shot][0] - geometry.sources[0, shot])
            channels = np.arange(len(values)) + 1 if known is None else known.channels[shot]
            headers = ShotHeaders(offsets, channels, geometry.times, shot, records)
            found.append(conditioning.conditioned(values, headers, 1 / self.frequency))
        return found

    @property
    def segy_bytes(self) -> int:
        """Bytes of the SEG-Y files of the results."""
        if self.headers is None:
            return 0
        image, shots = (self.grid.nx, self.grid.nz), (self.geometry.traces, self.geometry.samples)
        return 2 * (segy_bytes(*image) + segy_bytes(*shots))

    def by_shot(self, flat: np.ndarray) -> list[np.ndarray]:
        """Cut this rank's part of the data into one array per shot, shape ``(receivers, samples)``."""
        shapes = [(self.geometry.receivers[shot].shape[1], self.geometry.samples) for shot in self.shots]
        ends = np.cumsum([rows * samples for rows, samples in shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=False)]


def synthetic(options: Options, comm: Communicator) -> Problem:
    """Synthesise a problem; its data are not modelled yet. Collective."""
    notes: list[str] = []
    # `on_grid` raises if velocities become infinite.
    with np.errstate(over="ignore", invalid="ignore"), local_stage(comm):
        model = _load_velocity(options.velocity or _SYNTHETIC_VELOCITY, options.inline)
        warnings = check_speed(model, options.velocity or _SYNTHETIC_VELOCITY)
        nx, nz = model.shape if isinstance(model, np.ndarray) else (_NX, _NZ)
        grid = Grid(
            options.nx or nx, options.nz or nz, options.dx or _SPACING, options.dz or _SPACING, options.x0 or 0.0
        )
        positions = (options.shots or _SHOTS) + (options.receivers or _RECEIVERS)
        _check_memory(grid, positions, options, comm)
        velocity = on_grid(model, grid, None, notes)
        frequency = options.frequency or default_frequency(velocity, grid)
        geometry = fixed_spread(
            grid, velocity, options.shots or _SHOTS, options.receivers or _RECEIVERS, options.samples
        )
        _check_frequency(frequency, geometry)
        truth = reflectivity(grid, velocity, frequency)
    return Problem(
        geometry,
        shots_of(comm.rank, geometry.shots, comm.size),
        grid,
        velocity,
        str(model) if isinstance(model, Gradient) else None,
        _mode_for(model, options.mode),
        frequency,
        truth,
        notes=notes,
        warnings=warnings,
    )


def recorded(options: Options, comm: Communicator) -> Problem:
    """Read a survey and a velocity from files, each rank its own traces. Collective."""
    path = str(options.survey)
    with np.errstate(over="ignore", invalid="ignore"), local_stage(comm):
        headers = read_headers(path)
        geometry, line, notes = headers.geometry, headers.line, headers.notes
        text = options.velocity or headers.defaults.get("velocity")
        if text is None:
            raise InputError(f"{path} names no velocity: give one with --velocity, such as 1500+0.6z")
        model = _load_velocity(text, options.inline)
        warnings = headers.warnings + check_speed(model, text)
        mode = _mode_for(model, options.mode, headers.defaults.get("mode"))
        grid = _grid_for(headers, model, options)
        positions = geometry.shots + sum(r.shape[1] for r in geometry.distinct_receivers())
        _check_memory(grid, positions, options, comm)
        grid.check_contains(geometry)
        velocity = on_grid(model, grid, line, notes)
        shots = shots_of(comm.rank, geometry.shots, comm.size)
        traces = read_traces(headers, shots)
        check_traces(shots, traces)
        biased = count_biased(traces)
        conditioning = options.conditioning()
        interval, samples = conditioning.sampling(geometry.interval, geometry.samples)
        whole_interval(interval, samples)
        traces = [conditioning.filtered(shot.astype(options.dtype), geometry.interval) for shot in traces]
        geometry = replace(geometry, interval=interval, samples=samples)
        headers = replace(headers, geometry=geometry)
        power = power_spectrum([shot[sound_traces(shot, options.outliers)] for shot in traces], samples)
    power, biased = comm.allreduce(power), comm.allreduce(biased)
    with raised_together():
        if not power.any():
            raise InputError(f"{path} holds nothing but zeros: there is nothing to migrate")
        check_unbiased(biased, path)
        wavelet, frequency = _wavelet_for(options, headers, power, conditioning.band)
        _check_frequency(frequency, geometry)
        warnings += check_reach(geometry, grid, velocity, frequency)
        if not fits_segy(grid.dz / 1e3, grid.nz):
            warnings.append(
                "SEG-Y holds depth steps up to 65.535 m: image.sgy and adjoint.sgy are left out (choose a smaller --dz)"
            )
    notes.insert(0, f"read {geometry.shots} shots, {geometry.traces} traces of {headers.file.samples} samples")
    notes.append(f"image: {grid.nx} x {grid.nz} points, {grid.dx:g} x {grid.dz:g} m, from {grid.x0:g} m on the line")
    said = conditioning.describe()
    notes += [f"conditioning: {said}"] if said else []
    problem = Problem(
        *(geometry, shots, grid, velocity, str(model) if isinstance(model, Gradient) else None, mode, frequency),
        line=line,
        notes=notes,
        warnings=warnings,
        headers=headers,
        conditioning=said,
        given_wavelet=wavelet,
    )
    with local_stage(comm):
        conditioned = problem.condition(conditioning, traces)
    left = any((each.traces[each.trust > 0] != 0).any() for each in conditioned)
    left = comm.allreduce(np.array(float(left)), "max")
    with raised_together():
        if not left:
            names = ("offsets", "mute", "window", "trace_weights")
            given = [(name, value) for name in names if (value := getattr(options, name)) is not None]
            which = " and ".join(f"--{name.replace('_', '-')} {value}" for name, value in given) or "--outliers"
            raise InputError(
                f"{which} leaves nothing of the data, which last from {geometry.start:g} to {geometry.times[-1]:g} s: "
                "give times in s, offsets in m, and the speed of a mute in m/s, such as 1500"
            )
    return replace(problem, conditioned=conditioned)


def _wavelet_for(
    options: Options, headers: SurveyHeaders, power: np.ndarray, band: tuple[float, float] | None
) -> tuple[np.ndarray | None, float]:
    """Return the wavelet, or None for a Ricker wavelet, and its frequency in hertz.

    A wavelet that is given is that of the data as they were read, and is filtered like them. One that comes from the
    spectrum of the filtered data is not.
    """
    geometry, asked = headers.geometry, options.wavelet
    interval, samples = geometry.interval, geometry.samples
    kind = None if asked is None else parse_wavelet(asked)
    number = kind if isinstance(kind, float) else options.frequency
    if number is None and asked is None:
        number = _header_number("frequency", float, headers)
    if number is not None:
        _check_frequency(number, geometry)
        if band is None:
            return None, number
        wavelet = ricker(number, interval)[0]
    elif isinstance(kind, Path):
        wavelet = make_wavelet(kind, samples, interval)
    elif asked is not None:
        wavelet, band = from_power(power, samples, interval), None
    else:
        number = float(f"{frequency_from_power(power, samples, interval):.3g}")
        headers.notes.append(f"wavelet: Ricker of {number:g} Hz, from the spectrum of the data (--frequency)")
        return None, number
    if band is not None:
        # Until the filter has decayed; the kernels omit what is below the rounding error.
        wavelet = bandpass(
            np.pad(wavelet, min(round(6 / ((band[0] or band[1]) * interval)), samples)), interval, band, 0
        )
    size = 8 * len(wavelet)
    padded = np.pad(wavelet, (0, size - len(wavelet)))[None]
    return wavelet, number or frequency_from_power(power_spectrum([padded], size), size, interval)


def _header_number(name: str, kind: Callable[[str], Any], headers: SurveyHeaders) -> Any:
    """Return a number that the text header of a survey names, or None."""
    text = headers.defaults.get(name)
    try:
        return None if text is None else kind(text)
    except ValueError:
        raise InputError(f"{headers.file.path} says {name.upper()}={text} in its text header: give --{name}") from None


def _mode_for(model: object, asked: str | None, header: str | None = None) -> str:
    """Return how to compute travel times: as the user asks, else as the survey's header, else by the formula.

    Where the velocity decreases with depth, the rays of the formula would leave the ground.
    """
    formula = isinstance(model, Gradient) and model.gradient >= 0
    if asked == "analytic" and not formula:
        raise InputError(
            "--mode analytic needs a velocity that is constant or increases linearly with depth: "
            "give one such as --velocity 1800 or 1500+0.6z"
        )
    return asked or ("analytic" if formula and header != "eikonal" else "eikonal")


def _load_velocity(text: str, inline: int | None) -> Gradient | Section | np.ndarray:
    model = parse_velocity(text)
    if isinstance(model, Gradient):
        return model
    return read_npy(model) if model.suffix.lower() == ".npy" else read_section(model, inline)


def _grid_for(headers: SurveyHeaders, model: Gradient | Section | np.ndarray, options: Options) -> Grid:
    """Choose the grid from the options, else from the shape of the velocity file, else from the survey."""
    geometry = headers.geometry
    nx, nz, dx, dz, x0 = options.nx, options.nz, options.dx, options.dz, options.x0
    if isinstance(model, np.ndarray):
        nx, nz = nx or model.shape[0], nz or model.shape[1]
        profile = Gradient(float(model.mean()))
        if dx is None or dz is None:
            # A .npy file holds no distances: columns cover the line, and cells are square.
            dx = dx or cover(geometry, profile, nx=nx, nz=nz, dz=1.0).dx
            dz = dz or dx
            headers.notes.append(
                "the velocity file names no spacing: "
                f"{dx:g} m along the line and {dz:g} m in depth are assumed (--dx, --dz, --x0)"
            )
        return cover(geometry, profile, nx=nx, nz=nz, dx=dx, dz=dz, x0=x0)
    if all(value is None for value in (nx, nz, dx, dz, x0)):
        # All or none: one of them combined with an option would describe neither grid.
        nx, nz = (_header_number(name, int, headers) for name in ("nx", "nz"))
        dx, dz, x0 = (_header_number(name, float, headers) for name in ("dx", "dz", "x0"))
    return cover(geometry, model, nx=nx, nz=nz, dx=dx, dz=dz, x0=x0)


def _check_frequency(frequency: float, geometry: Geometry) -> None:
    # A wavelet must fit into the record, and two samples into its period.
    lowest, highest = 2 / (geometry.samples * geometry.interval), 0.5 / geometry.interval
    if lowest >= highest:
        raise InputError(f"a record of {geometry.samples} samples is too short for any wavelet: at least 5 are needed")
    if not lowest <= frequency < highest:
        raise InputError(
            f"a wavelet of {frequency:g} Hz does not fit {geometry.samples} samples of {geometry.interval * 1e3:g} ms: "
            f"choose a --frequency of {lowest:.3g} to {highest:g} Hz"
        )


def _check_memory(grid: Grid, positions: int, options: Options, comm: Communicator) -> None:
    tables = max(positions, 8) * (1 + options.weighting.fields(2))
    check_memory(
        grid.nx * grid.nz * tables * np.dtype(options.dtype).itemsize,
        f"the travel times of {positions} stations on an image of {grid.nx} x {grid.nz} points",
        "choose a smaller --nx or --nz",
        processes=comm.local_size,
    )
