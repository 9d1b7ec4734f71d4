"""The options of ``collops lsm``, and the migration problem that they describe: geometry, grid, velocity, wavelet."""

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
    digits,
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
from collops.seismic.signals import count_biased, frequency_from_power, frequency_of, onset_times, ricker
from collops.seismic.survey import Grid, Survey, read
from collops.seismic.survey.checks import check_frequency, check_speed, table_factor, too_many_traces
from collops.seismic.survey.segy import parse_places, shot_traces
from collops.seismic.survey.statics import Statics, parse_datum
from collops.seismic.survey.survey import mode_of
from collops.seismic.survey.velocity import (
    Gradient,
    Model,
    VelocityFile,
    load_velocity,
    on_grid,
    parse_velocity,
    smoothed,
)
from collops.seismic.survey.zarr import ZarrShots
from collops.seismic.volume.wavelet import from_power, make_wavelet, parse_wavelet

if TYPE_CHECKING:
    from collops import Communicator, LinearOperator
    from collops.seismic.kirchhoff import Weighting

SEGY_RESULTS = ("image", "adjoint", "predicted", "residual")
"""The SEG-Y files that a migration of a recorded survey writes."""

AVO_RESULTS = (
    "avo_gathers",
    "avo_intercept",
    "avo_gradient",
    "avo_intercept_deviation",
    "avo_gradient_deviation",
)
"""The SEG-Y files that a migration of a recorded survey writes with the option avo."""

MOVEOUT_RESULTS = ("offset_moveout.txt", "angle_moveout.txt")
"""The files of picks that a migration with gathers writes."""

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
        option(
            "Prestack survey, in SEG-Y, SU or Zarr; by default a synthetic survey.",
            _FILES,
            metavar="FILE.sgy|FILE.su|URL|STORE",
        ),
    ] = None
    header: Annotated[
        list[str] | None,
        option(
            "First byte of a field of the trace headers that is not at its standard place, such as source_x=181 or "
            "source_x=181:f4 (i2, i4, i8, f4 or f8). May be repeated.",
            _FILES,
            metavar="NAME=BYTE",
        ),
        RecordedOnly(),
    ] = None
    velocity: Annotated[
        str | None,
        option(
            "Velocity in m/s: a number, a gradient such as 1500+0.6z (z in m), a SEG-Y file in depth, a .npy file of "
            "shape (nx, nz) or (ny, nx, nz), or a text or SEG-Y file of depths and velocities (depth:), two-way times "
            "and interval velocities (time:) or RMS velocities (rms:), which are converted to depth.",
            _FILES,
            metavar="EXPRESSION|FILE|depth:FILE|time:FILE|rms:FILE",
            show_default="1500+0.6z for the synthetic survey",
        ),
    ] = None
    smooth_velocity: Annotated[
        float | None,
        option("Smooth the slowness with a Gaussian of this standard deviation, m.", _FILES, metavar="METRES"),
        Positive,
    ] = None
    inline: Annotated[
        int | None,
        option("Inline of a SEG-Y velocity volume, for a 2-D survey.", _FILES, show_default="the middle inline"),
    ] = None
    dims: Annotated[
        int | None,
        option("Dimensions of the survey: 2 (line) or 3 (area).", _FILES, show_default="from the positions"),
        Must("be 2 or 3", lambda value: value in (2, 3)),
        RecordedOnly(),
    ] = None
    geometry: Annotated[
        list[str] | None,
        option(
            "File with the positions of sources and receivers: the S, R and X files of SPS, or P1/90. May be repeated.",
            _FILES,
            metavar="FILE",
        ),
        RecordedOnly(),
    ] = None
    statics: Annotated[
        str | None,
        option(
            "Static corrections to add to the times: of source and receiver from the trace headers (headers), their "
            "total (total), the total with the opposite sign where it was applied (undo), or from a text file with "
            "lines of field record and ms, or of field record, channel and ms.",
            _FILES,
            metavar="headers|total|undo|FILE",
        ),
        RecordedOnly(),
    ] = None
    datum: Annotated[
        str | None,
        option(
            "Move sources and receivers to this elevation in m, or to a floating datum: the mean elevation over this "
            "length in m. Needs --replacement-velocity.",
            _FILES,
            metavar="ELEVATION|floating:LENGTH",
        ),
        RecordedOnly(),
    ] = None
    replacement_velocity: Annotated[
        float | None,
        option("Velocity between the stations and --datum, m/s.", _FILES),
        Positive,
        RecordedOnly(),
    ] = None
    nx: Annotated[int | None, option("Number of image points along the line (x).", _IMAGE), AtLeast(2)] = None
    ny: Annotated[
        int | None, option("Number of image points across the line (y), in 3-D.", _IMAGE), AtLeast(2), RecordedOnly()
    ] = None
    nz: Annotated[int | None, option("Number of image points in depth (z).", _IMAGE), AtLeast(2)] = None
    dx: Annotated[float | None, option("Spacing of image points in x, m.", _IMAGE), Positive] = None
    dy: Annotated[float | None, option("Spacing of image points in y, m.", _IMAGE), Positive, RecordedOnly()] = None
    dz: Annotated[float | None, option("Spacing of image points in z, m.", _IMAGE), Positive] = None
    x0: Annotated[float | None, option("First x of the image, m.", _IMAGE), Finite] = None
    y0: Annotated[float | None, option("First y of the image, m.", _IMAGE), Finite, RecordedOnly()] = None
    image_x: Annotated[
        str | None,
        option("Range of the image along the line, m; stations may be outside.", _IMAGE, metavar="FIRST,LAST"),
    ] = None
    image_y: Annotated[
        str | None,
        option("Range of the image across the line, m, in 3-D.", _IMAGE, metavar="FIRST,LAST"),
        RecordedOnly(),
    ] = None
    image_z: Annotated[str | None, option("Range of the image in depth, m.", _IMAGE, metavar="FIRST,LAST")] = None
    shots: Annotated[int | None, option("Number of shots.", SYNTHETIC), AtLeast(1), SyntheticOnly()] = None
    receivers: Annotated[int | None, option("Number of receivers.", SYNTHETIC), AtLeast(1), SyntheticOnly()] = None
    samples: Annotated[
        int | None, option("Number of samples per trace, 4 ms each.", SYNTHETIC), AtLeast(2), SyntheticOnly()
    ] = None
    write_survey: Annotated[
        str | None,
        option("Write the synthetic survey to this file, as SEG-Y or Zarr.", SYNTHETIC, metavar="FILE.sgy|STORE.zarr"),
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
            "Wavelet: a Ricker wavelet; a file, at the interval of the traces, with time zero at the middle sample; or "
            "data: zero phase, with the spectrum of the data.",
            METHOD,
            metavar="ricker:HZ|FILE.npy|data",
            show_default="a Ricker wavelet of --frequency",
        ),
        RecordedOnly(),
    ] = None
    polarity: Annotated[
        str,
        option("Polarity of the traces: normal, or reversed (changes their sign).", _CONDITIONING),
        OneOf("normal", "reversed"),
        RecordedOnly(),
    ] = "normal"
    interval: Annotated[
        float | None,
        option("Resample to this interval in ms, with an anti-alias filter.", _CONDITIONING, metavar="MS"),
        Positive,
        RecordedOnly(),
    ] = None
    bandpass: Annotated[
        str | None,
        option(
            "Zero-phase band-pass filter in Hz, for the traces and the wavelet. One end may be missing.",
            _CONDITIONING,
            metavar="LOW,HIGH",
        ),
        RecordedOnly(),
    ] = None
    outliers: Annotated[
        float,
        option(
            "Exclude dead traces, and traces more than this factor stronger than their neighbours, in total or in a "
            "tenth of the frequencies. 0 includes all traces.",
            _CONDITIONING,
        ),
        NotNegative,
    ] = 10.0
    offsets: Annotated[
        str | None,
        option("Range of offsets to use, m.", _CONDITIONING, metavar="NEAR,FAR"),
        RecordedOnly(),
    ] = None
    mute: Annotated[
        str | None,
        option(
            "Mute samples before the time offset / SPEED + DELAY (m/s, s; DELAY is by default the length of the "
            "wavelet), or before picked times: a text file with lines of offset (m) and time (s), or of field record, "
            "offset and time.",
            _CONDITIONING,
            metavar="SPEED|SPEED,DELAY|FILE|none",
            show_default="the direct wave, at the surface velocity",
        ),
        RecordedOnly(),
    ] = None
    bottom_mute: Annotated[
        str | None,
        option(
            "Mute samples after the time offset / SPEED + DELAY, or after picked times; as for --mute.",
            _CONDITIONING,
            metavar="SPEED|SPEED,DELAY|FILE",
        ),
        RecordedOnly(),
    ] = None
    ground_roll: Annotated[
        str | None,
        option(
            "Mute samples between the arrivals of waves of these speeds, m/s, such as 150,600.",
            _CONDITIONING,
            metavar="SLOW,FAST",
        ),
        RecordedOnly(),
    ] = None
    edit: Annotated[
        str | None,
        option(
            "Traces to leave out or to reverse: a text file with lines of field record, channel and 0 (leave out) or "
            "-1 (reverse).",
            _CONDITIONING,
            metavar="FILE",
        ),
        RecordedOnly(),
    ] = None
    window: Annotated[
        str | None, option("Range of times to use, s.", _CONDITIONING, metavar="FIRST,LAST"), RecordedOnly()
    ] = None
    gain: Annotated[
        str | None,
        option(
            "Gain: a power of time, or automatic gain control (agc) with a window in s.",
            _CONDITIONING,
            metavar="POWER|agc:SECONDS",
        ),
        RecordedOnly(),
    ] = None
    trace_weights: Annotated[
        str | None,
        option(
            "Weights of traces in the misfit: a text file with lines of field record, channel and weight (1 for other "
            "traces), or balance (the inverse root mean square of each trace).",
            _CONDITIONING,
            metavar="FILE|balance",
        ),
        RecordedOnly(),
    ] = None
    regularise: Annotated[
        str | None,
        option(
            "Penalty: roughness (laplacian), variation along reflectors (dip), total variation (tv), or the L1 norm "
            "(l1).",
            METHOD,
        ),
        OneOf("laplacian", "dip", "tv", "l1"),
    ] = None
    weight: Annotated[
        float | None,
        option(
            "Weight of --regularise, relative to the operator (laplacian, dip) or the adjoint image (tv, l1).",
            METHOD,
            show_default="from the data",
        ),
        Positive,
    ] = None
    precondition: Annotated[
        str | None,
        option(
            "Preconditioner: the inverse square root of the normal operator's diagonal, exact (illumination) or "
            "estimated (diagonal), or of its local spectra (spectra).",
            METHOD,
        ),
        OneOf("illumination", "diagonal", "spectra"),
    ] = None
    mode: Annotated[
        str | None,
        option(
            "Travel times: eikonal (fast sweeping), or analytic (for a velocity such as 1800 or 1500+0.6z).",
            METHOD,
            show_default="analytic if possible",
        ),
        OneOf("eikonal", "analytic"),
    ] = None
    coarsen: Annotated[
        int | None,
        option(
            "Coarsening factor of the travel-time tables along each axis; times between are interpolated.",
            METHOD,
            show_default="the first of 1, 2, 4 and 8 that fits into the memory",
        ),
        AtLeast(1),
    ] = None
    split_image: Annotated[
        bool,
        option(
            "Split the image over the ranks, to reduce the memory per rank.",
            METHOD,
            "--split-image",
            show_default="if image or travel times do not fit into the memory",
        ),
    ] = False
    iterations: Annotated[
        int | None,
        option("Number of solver iterations.", show_default="from held-out traces, or 30 with --damp"),
        AtLeast(1),
    ] = None
    damp: Annotated[
        float | None,
        option("Damping, relative to the norm of the operator.", METHOD, show_default="none: early stopping instead"),
        NotNegative,
    ] = None
    amplitude: Annotated[
        str | None,
        option(
            "Amplitudes of the operator: none (travel times only), 2d (line sources), 2.5d or 3d (point sources).",
            METHOD,
            show_default="2.5d or 3d for a recorded survey, none for a synthetic survey",
        ),
        OneOf("none", "2d", "2.5d", "3d"),
    ] = None
    aperture: Annotated[
        float | None,
        option(
            "Maximum horizontal distance of an image point from source and receiver, m.",
            METHOD,
            show_default="unlimited; from depth, dip and offsets for a recorded survey without --amplitude",
        ),
        Positive,
    ] = None
    max_dip: Annotated[
        float | None,
        option(
            "Maximum dip of the image in degrees, below 90.",
            METHOD,
            show_default="unlimited; 60 for a recorded survey without --amplitude",
        ),
        Positive,
    ] = None
    antialias: Annotated[bool, option("Filter against operator aliasing.", METHOD, "--antialias")] = False
    uncertainty: Annotated[
        int | None,
        option("Estimate the standard deviation of the image from this number of posterior samples.", METHOD),
        AtLeast(2),
    ] = None
    gathers: Annotated[
        int | None,
        option(
            "Make common-image gathers with this number of offset and angle classes, and measure their residual "
            "moveout, the illumination and spectra. Writes quality.png and angles.png.",
            METHOD,
            metavar="CLASSES",
        ),
        AtLeast(2),
    ] = None
    gather_columns: Annotated[
        int | None,
        option("Number of positions along the line with common-image gathers.", METHOD, show_default="5"),
        AtLeast(1),
    ] = None
    avo: Annotated[
        bool,
        option("Fit intercept and gradient to the amplitudes of the angle gathers. Writes avo.png.", METHOD, "--avo"),
    ] = False
    segy_revision: Annotated[
        int,
        option("Revision of the SEG-Y files of the results: 1 or 2."),
        Must("be 1 or 2", lambda value: value in (1, 2)),
        RecordedOnly(),
    ] = 1
    out: Out = "collops-lsm"

    def results(self) -> list[Path]:
        """Return the files and folders that the application may write, for any data."""
        segy = *SEGY_RESULTS, "deviation", "offset_gathers", "angle_gathers", *AVO_RESULTS
        names = *(f"{name}.sgy" for name in segy), "quality.png", "angles.png", "avo.png", *MOVEOUT_RESULTS
        return [
            *super().results(),
            *(Path(self.out) / name for name in ("result.html", "shots", *names)),
            *self.survey_files,
        ]

    @property
    def survey_files(self) -> list[Path]:
        """The file of the synthetic survey, with --write-survey."""
        return [] if self.write_survey is None else [Path(self.write_survey)]

    @property
    def weighting(self) -> Weighting:
        """The weights of the operator of a synthetic survey."""
        from collops.seismic.kirchhoff import Weighting

        return Weighting(self.amplitude or "none", self.aperture, self.max_dip)  # type: ignore[arg-type]

    def check(self) -> None:
        """Raise `InputError` for invalid or contradictory values; read only headers of files."""
        super().check()
        _ = self.weighting
        if self.survey is not None:
            (ZarrShots if is_zarr(self.survey) else SegyFile).inspect(self.survey)
            require_segyio()  # of the results
            parse_places(self.header or ())
        if self.wavelet is not None:
            parse_wavelet(self.wavelet)
            if self.frequency is not None:
                raise InputError("--wavelet and --frequency exclude each other: omit one of them")
        self.conditioning()
        self.image_ranges()
        self.corrections()
        self.check_illumination(self.weighting)
        if self.gather_columns is not None and self.gathers is None:
            raise InputError("--gather-columns needs --gathers: pass both, or omit it")
        if self.avo and (self.gathers or 0) < 3:
            raise InputError("--avo needs --gathers with at least 3 classes: pass it, or omit --avo")
        if self.weight is not None and self.regularise is None:
            raise InputError("--weight needs --regularise: pass both, or omit it")
        if self.uncertainty is not None and self.regularise is not None:
            raise InputError("--uncertainty assumes white reflectivity, unlike --regularise: omit one of them")
        if self.regularise in ("tv", "l1"):
            for name in ("damp", "precondition"):
                if getattr(self, name) is not None:
                    raise InputError(
                        f"--{name} needs a quadratic penalty, unlike --regularise {self.regularise}: omit one of them"
                    )
        # A survey that this package wrote may store its velocity; `recorded` reads it.
        text = self.velocity or (_SYNTHETIC_VELOCITY if self.survey is None else None)
        model = None if text is None else parse_velocity(text)
        if isinstance(model, VelocityFile):
            model.check()
        elif self.smooth_velocity is not None and model is not None:
            raise InputError(f"--smooth-velocity is for velocities from files, and {text} is smooth: omit it")
        if self.inline is not None and not (isinstance(model, VelocityFile) and model.is_segy):
            raise InputError("--inline needs a SEG-Y velocity: pass it with --velocity, or omit --inline")
        if model is not None:
            mode_of(model, self.mode)

    def check_illumination(self, weighting: Weighting) -> None:
        """Raise `InputError` if the exact illumination is requested for an operator with weights."""
        if self.precondition == "illumination" and (self.antialias or not weighting.none):
            raise InputError(
                "--precondition illumination does not support --amplitude, --aperture, --max-dip and --antialias: use "
                "--precondition diagonal, or --amplitude none"
            )

    def image_ranges(self) -> dict[str, tuple[float, float]]:
        """Return the ranges of the image along the axes that have one, in metres."""
        texts = {axis: getattr(self, f"image_{axis}") for axis in "yxz"}
        return {
            axis: parse_range(f"--image-{axis}", text, "m", -np.inf) for axis, text in texts.items() if text is not None
        }

    def corrections(self) -> Statics | None:
        """Return the static corrections of the survey, or None without any. Raises `InputError`."""
        if self.statics is None and self.datum is None and self.replacement_velocity is None:
            return None
        datum = None if self.datum is None else parse_datum(self.datum)
        statics = Statics(self.statics, datum, self.replacement_velocity)
        _ = statics.table  # raises if the file cannot be read
        return statics

    def conditioning(self) -> Conditioning:
        """Return the conditioning of the traces. Reads the files of picks and weights, and raises `InputError`."""
        ranges = {
            name: parse_range(f"--{name}", text, unit)
            for name, unit in (("bandpass", "Hz"), ("offsets", "m"), ("window", "s"), ("ground-roll", "m/s"))
            if (text := getattr(self, name.replace("-", "_"))) is not None
        }
        if "ground-roll" in ranges and not 0 < ranges["ground-roll"][0] < ranges["ground-roll"][1] < np.inf:
            raise InputError(f"--ground-roll needs two positive speeds in m/s, such as 150,600, not {self.ground_roll}")
        edits = None if self.edit is None else read_table(Path(self.edit), (3,), "field record, channel and 0 or -1")
        if edits is not None and not np.isin(edits[:, 2], (0, -1)).all():
            raise InputError(f"each line of {self.edit} must end with 0 (leave the trace out) or -1 (reverse it)")
        weights: np.ndarray | str | None = self.trace_weights
        if weights is not None and weights != "balance":
            weights = read_table(Path(weights), (3,), "field record, channel and weight")
            if (weights[:, 2] < 0).any():
                raise InputError(f"weights in {self.trace_weights} must not be negative: use 0 to exclude traces")
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
            None if self.bottom_mute is None else parse_mute(self.bottom_mute, "--bottom-mute"),
            ranges.get("ground-roll"),
            edits,
        )


def _travel_times_only() -> Weighting:
    from collops.seismic.kirchhoff import Weighting

    return Weighting()


@dataclass(frozen=True)
class Problem:
    """The operator's parameters and the data of a migration."""

    survey: Survey  # the geometry, and the traces of a recorded survey
    grid: Grid  # of the velocity; without a target, the image grid
    velocity: np.ndarray  # float64, of the grid's shape, m/s
    expression: str | None  # the velocity as text, if it is a formula
    mode: str  # ``"eikonal"`` or ``"analytic"``
    frequency: float  # peak frequency of the Ricker wavelet in hertz
    truth: np.ndarray | None = None  # the true reflectivity, of the grid's shape; None for a recorded survey
    # the shots of this rank, `StreamedShots` if they do not fit into the memory; None before a synthetic survey is
    # modelled
    conditioned: Sequence[Conditioned] | None = None
    conditioning: str = ""  # description of the conditioning
    # time zero is the middle sample; None for a Ricker wavelet of `frequency`
    custom_wavelet: np.ndarray | None = None
    weighting: Weighting = field(default_factory=_travel_times_only)  # of the operator
    noise_norm: float | None = None  # norm of the noise of all ranks in a synthetic survey
    target: Grid | None = None  # the image grid, if the image is a part of the grid
    # `onset_times` of the traces of each shot of this rank, before mutes; None before a synthetic survey is modelled
    onsets: list[np.ndarray] | None = None

    @property
    def image_grid(self) -> Grid:
        """The grid of the image."""
        return self.target or self.grid

    def at_image(self, values: np.ndarray) -> np.ndarray:
        """Return values of the grid's shape at the points of the image."""
        return values if self.target is None else values[self.grid.box(self.target)]

    @property
    def streamed(self) -> bool:
        """Whether the traces are read from the file for each use."""
        return isinstance(self.conditioned, StreamedShots)

    @property
    def wavelet(self) -> tuple[np.ndarray, int]:
        """The wavelet and the index of its time zero."""
        taps = self.custom_wavelet
        return ricker(self.frequency, self.survey.geometry.interval) if taps is None else (taps, len(taps) // 2)

    def operator(self, **options: Any) -> LinearOperator:
        """Make the operator from an image to the traces of all shots, with options of `Survey.operator`. Collective."""
        fixed = {"wavelet": self.wavelet, "mode": self.mode, "weighting": self.weighting, "target": self.target}
        return self.survey.operator(self.velocity, self.grid, **fixed, **options)  # type: ignore[arg-type]

    def condition(self, conditioning: Conditioning, traces: list[np.ndarray]) -> list[Conditioned]:
        """Condition the traces of this rank's shots, an array for each shot, with the sampling of the geometry."""
        return [
            conditioning.conditioned(values, self.shot_headers(shot), 1 / self.frequency)
            for shot, values in zip(self.survey.shots, traces, strict=True)
        ]

    def shot_headers(self, shot: int) -> ShotHeaders:
        """Return the headers of the traces of a shot."""
        geometry, known = self.survey.geometry, self.survey.headers
        records = np.arange(geometry.shots) + 1 if known is None else known.records
        channels = np.arange(geometry.receivers[shot].shape[1]) + 1 if known is None else known.channels[shot]
        placement = None if known is None else known.placement
        window = None if placement is None else placement.window(shot)
        return ShotHeaders(np.abs(geometry.offsets(shot)), channels, geometry.times, shot, records, window)

    @property
    def segy_bytes(self) -> int:
        """Bytes of the SEG-Y files of the results."""
        if self.survey.headers is None:
            return 0
        geometry, grid = self.survey.geometry, self.image_grid
        image, shots = (grid.points // grid.nz, grid.nz), (geometry.traces, geometry.samples)
        return 2 * (segy_bytes(*image) + segy_bytes(*shots))


@dataclass(frozen=True)
class StreamedShots(Sequence[Conditioned]):
    """The conditioned traces of this rank's shots, read from the file for each use."""

    problem: Problem
    conditioning: Conditioning
    # `Conditioned.trust` of each shot that has been read: unlike mutes, it depends on the samples.
    _trust: dict[int, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.problem.survey.shots)

    def __getitem__(self, number: Any) -> Any:
        survey = self.problem.survey
        shot = survey.shots[number]
        (traces,) = survey.read_shots(range(shot, shot + 1))
        headers, period = self.problem.shot_headers(shot), 1 / self.problem.frequency
        result = self.conditioning.conditioned(traces, headers, period)
        self._trust[shot] = result.trust
        return result

    def weights(self, shot: int) -> np.ndarray:
        """Return mute times trust of a shot that has been read; `shot` is its number in the survey."""
        mute = self.conditioning.muting(self.problem.shot_headers(shot), 1 / self.problem.frequency)
        return mute * self._trust[shot][:, None]


def synthetic(options: Options, comm: Communicator) -> Problem:
    """Synthesise a problem without its data. Collective."""
    # `on_grid` raises if velocities become infinite.
    with np.errstate(over="ignore", invalid="ignore"), local_stage(comm):
        text = options.velocity or _SYNTHETIC_VELOCITY
        model = load_velocity(text, 2, options.inline)
        warnings, notes = check_speed(model, text), []
        nx, nz = model.shape if isinstance(model, np.ndarray) else (_NX, _NZ)
        grid = Grid(
            options.nx or nx, options.nz or nz, options.dx or _SPACING, options.dz or _SPACING, options.x0 or 0.0
        )
        target = _target(options, grid)
        stations = (options.shots or _SHOTS) + (options.receivers or _RECEIVERS)
        table_factor(grid, stations, np.dtype(options.dtype), comm, options.weighting.fields(2), parts=comm.size)
        velocity = _smoothed(options, on_grid(model, grid, None, notes), grid, notes)
        frequency = options.frequency or default_frequency(velocity, grid)
        geometry = fixed_spread(
            grid, velocity, options.shots or _SHOTS, options.receivers or _RECEIVERS, options.samples
        )
        survey = Survey(geometry, comm)
        survey.check(velocity, grid, frequency)
        survey.notes, survey.warnings = notes, warnings
        truth = reflectivity(grid, velocity, frequency)
    described = _described(model, options.mode)
    return Problem(survey, grid, velocity, *described, frequency, truth, weighting=options.weighting, target=target)


def recorded(options: Options, comm: Communicator, compute: Engine | None = None) -> Problem:
    """Read a survey and a velocity from files, each rank its own traces. Collective.

    Traces that do not fit into host memory, or into the memory of the engine `compute`, are read for each use.
    """
    sizes = {name: getattr(options, name) for name in ("nx", "ny", "nz", "dx", "dy", "dz", "x0", "y0")}
    across = any(sizes[name] is not None for name in ("ny", "dy", "y0"))
    with local_stage(comm):
        statics = options.corrections()
    dims = options.dims or (3 if across else None)
    files = {"header": options.header or (), "geometry": options.geometry or ()}
    survey = read(str(options.survey), comm, dims=dims, statics=statics, **files)
    notes, samples = survey.notes, survey.geometry.samples
    streamed = _streams(options, survey, compute or engine("numpy"))
    model, described = _velocity_of(options, survey)
    conditioning = _filter(options, survey, streamed)
    power = survey.spectrum(outliers=options.outliers)
    grid = survey.grid(model, **sizes)
    velocity = _smoothed(options, survey.velocity(model, grid), grid, notes)
    with raised_together():
        target = _target(options, grid)
        wavelet, frequency = _wavelet_for(options, survey, power, conditioning.band)
        survey.check(velocity, grid, frequency)
    if options.segy_revision == 1 and not fits_segy(grid.dz / 1e3, (target or grid).nz):
        survey.warnings.append(
            "SEG-Y needs depth steps of whole millimetres up to 65.535 m: image.sgy and adjoint.sgy are not written "
            "(choose another --dz, or --segy-revision 2)"
        )
    notes.insert(0, f"read {survey.geometry.shots} shots, {survey.geometry.traces} traces of {samples} samples")
    between = "" if grid.ny is None else f" and {grid.y0:g} m across"
    notes.append(f"{'image' if target is None else 'model'}: {grid}, from {grid.x0:g} m on the line{between}")
    if target is not None:
        starts = ", ".join(f"{axis} = {positions[0]:g} m" for axis, positions in target.axes.items())
        notes.append(f"image: {target}, from {starts}; echoes from other points of the model are not explained")
    # Synthetic surveys of this package have no direct wave.
    by_default = options.mute is None and not survey.defaults
    if by_default:
        speed = float(f"{velocity[..., 0].mean():.4g}")
        conditioning = replace(conditioning, mute=Mute(f"{speed:g}", speed))
    with raised_together():
        limits = {"amplitude": options.amplitude, "aperture": options.aperture, "max_dip": options.max_dip}
        weighting = survey.weighting(grid, **limits)  # type: ignore[arg-type]
        options.check_illumination(weighting)
    steps = conditioning.describe()
    notes += [f"conditioning: {steps}"] if steps else []
    problem = Problem(survey, grid, velocity, *described, frequency, conditioning=steps, custom_wavelet=wavelet)
    problem = replace(problem, weighting=weighting, target=target)
    return _conditioned(options, problem, conditioning, streamed, by_default)


def _target(options: Options, grid: Grid) -> Grid | None:
    """Return the part of the grid that the options choose for the image, if any."""
    return grid.part(**ranges) if (ranges := options.image_ranges()) else None


def _streams(options: Options, survey: Survey, compute: Engine) -> bool:
    """Return whether traces must be read for each use, as they do not fit into the memory. Collective."""
    comm, needs_all = survey.comm, _not_streamed(options)
    local_samples = survey.layout.local_shape(comm.rank)[0]
    too_many = too_many_traces(local_samples, np.dtype(options.dtype), comm, compute, 0 if needs_all else 2)
    too_many = next(filter(None, comm.allgather_metadata(too_many)), None)
    if too_many is None:
        return False
    with raised_together():
        if needs_all:
            raise InputError(f"{too_many}, which {needs_all} does not support: omit it, or use more memory or machines")
    survey.notes.append(too_many)
    return True


def _velocity_of(options: Options, survey: Survey) -> tuple[Model, tuple[str | None, str]]:
    """Return the velocity, and the result of `_described` for it. Collective."""
    text = options.velocity or survey.defaults.get("velocity")
    with raised_together():
        if text is None:
            raise InputError(f"{options.survey} does not store a velocity: pass --velocity, such as 1500+0.6z")
    model = survey.model(text, inline=options.inline)
    with raised_together():
        return model, _described(model, options.mode, survey.defaults.get("mode"))


def _smoothed(options: Options, velocity: np.ndarray, grid: Grid, notes: list[str]) -> np.ndarray:
    """Smooth a velocity with --smooth-velocity, and add a sentence to `notes`."""
    if (length := options.smooth_velocity) is None:
        return velocity
    result = smoothed(velocity, grid, length)
    change = float(np.abs(result / velocity - 1).max())
    notes.append(f"slowness smoothed by a Gaussian of {length:g} m: velocities change by up to {100 * change:.2g} %")
    return result


def _filter(options: Options, survey: Survey, streamed: bool) -> Conditioning:
    """Filter and resample the traces, also traces that are read later; return their conditioning. Collective."""
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
            shot_traces("", headers, range(0), np.empty((0, samples)))  # raises if SEG-Y cannot represent the results
        survey.geometry, survey.headers = geometry, headers
        survey.filter = lambda shot: conditioning.filtered(shot.astype(options.dtype), before.interval)
        if not streamed:
            survey.traces = [survey.filter(shot) for shot in traces]
    return conditioning


def _conditioned(
    options: Options, problem: Problem, conditioning: Conditioning, streamed: bool, mutes_by_default: bool
) -> Problem:
    """Return the problem with its conditioned traces; raise `InputError` if all of them are zero. Collective."""
    survey, geometry, sums = problem.survey, problem.survey.geometry, np.zeros(3)
    onsets = []
    with local_stage(survey.comm):
        conditioned: Sequence[Conditioned] = (
            StreamedShots(problem, conditioning) if streamed else problem.condition(conditioning, survey.traces)
        )
        for number, ready in zip(survey.shots, conditioned, strict=True):
            (shot,) = survey.read_shots(range(number, number + 1))
            sound = ready.trust > 0
            onsets.append(onset_times(shot, geometry.times))
            parts = ready.traces[sound] != 0, shot[sound], shot[sound] * ready.mute[sound if len(ready.mute) > 1 else 0]
            sums += np.array([np.linalg.norm(part.astype(np.float64)) ** 2 for part in parts])
    weighted_energy, total_energy, muted_energy = survey.comm.allreduce(sums)
    if mutes_by_default and weighted_energy:
        share = 100 * (1 - muted_energy / total_energy)
        others = any((conditioning.bottom, conditioning.ground_roll, conditioning.window))
        what = "the direct wave and other muted samples" if others else "the direct wave"
        survey.notes.append(f"mute: {what}, {digits(share, 2)} % of the energy (--mute none keeps the direct wave)")
    with raised_together():
        if not weighted_energy:
            names = ("offsets", "mute", "bottom_mute", "ground_roll", "edit", "window", "trace_weights")
            values = {name: getattr(options, name) for name in names}
            values["mute"] = values["mute"] or (conditioning.mute and conditioning.mute.text)
            chosen = [(name, value) for name, value in values.items() if value is not None]
            which = " and ".join(f"--{name.replace('_', '-')} {value}" for name, value in chosen) or "--outliers"
            raise InputError(
                f"{which} excludes all of the data, whose times are {geometry.start:g} to {geometry.times[-1]:g} s: "
                "pass times in s, offsets in m, and the speed of a mute in m/s, such as 1500"
            )
    return replace(problem, conditioned=conditioned, onsets=onsets)


def _not_streamed(options: Options) -> str | None:
    """Return an option that needs all traces at once, or None."""
    names = [f"--{name}" for name in ("gathers", "uncertainty") if getattr(options, name) is not None]
    names += [f"--regularise {options.regularise}"] * (options.regularise in ("tv", "l1"))
    names += ["--split-image"] * options.split_image
    return names[0] if names else None


def _wavelet_for(
    options: Options, survey: Survey, power: np.ndarray, band: tuple[float, float] | None
) -> tuple[np.ndarray | None, float]:
    """Return the wavelet, or None for a Ricker wavelet, and its frequency in hertz.

    A wavelet from the options is the wavelet of the unfiltered data, and is filtered like them. A wavelet from the
    spectrum of the filtered data is not.
    """
    geometry, text = survey.geometry, options.wavelet
    interval, samples = geometry.interval, geometry.samples
    kind = None if text is None else parse_wavelet(text)
    number = kind if isinstance(kind, float) else options.frequency
    if number is None and text is None and survey.headers is not None:
        number = survey.headers.number("frequency", float)
    if number is not None:
        check_frequency(number, geometry)
        if band is None:
            return None, number
        wavelet = ricker(number, interval)[0]
    elif isinstance(kind, Path):
        wavelet = make_wavelet(kind, samples, interval)
    elif text is not None:
        wavelet, band = from_power(power, samples, interval), None
    else:
        number = float(f"{frequency_from_power(power, samples, interval):.3g}")
        survey.notes.append(f"wavelet: Ricker of {number:g} Hz, from the spectrum of the data (--frequency)")
        return None, number
    if band is not None:
        # Pad until the filter has decayed; the kernels omit taps below the rounding error.
        wavelet = bandpass(
            np.pad(wavelet, min(round(6 / ((band[0] or band[1]) * interval)), samples)), interval, band, 0
        )
    return wavelet, number or frequency_of(wavelet, interval)


def _described(model: Model, mode: str | None, header: str | None = None) -> tuple[str | None, str]:
    """Return the velocity as text if it is a formula, else None, and the mode of travel times."""
    return str(model) if isinstance(model, Gradient) else None, mode_of(model, mode, header)
