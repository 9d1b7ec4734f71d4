"""The options of ``collops lsm``, and the values that do not depend on its data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np

from collops.errors import InputError
from collops.extend.applications import (
    METHOD,
    SYNTHETIC,
    AtLeast,
    Finite,
    Must,
    NotNegative,
    OneOf,
    Out,
    Positive,
    RecordedOnly,
    SyntheticOnly,
    is_zarr,
    option,
)
from collops.seismic.conditioning import Conditioning, parse_gain, parse_mute, parse_range, read_table
from collops.seismic.kirchhoff.eikonal import Thomsen
from collops.seismic.lsm.survey_options import CONDITIONING, FILES, SurveyOptions
from collops.seismic.segy import SegyFile, require_segyio
from collops.seismic.streams import located
from collops.seismic.survey.anisotropy import parse_parameter
from collops.seismic.survey.choices import mode_of
from collops.seismic.survey.segy import parse_places
from collops.seismic.survey.statics import Statics, parse_datum
from collops.seismic.survey.velocity import VelocityFile, parse_velocity
from collops.seismic.survey.zarr import ZarrShots
from collops.seismic.volume.wavelet import parse_wavelet

if TYPE_CHECKING:
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

SYNTHETIC_VELOCITY = "1500+0.6z"
"""Velocity of the synthetic survey by default."""

_IMAGE = "Image"


@dataclass(frozen=True, kw_only=True)
class Options(SurveyOptions):
    """The options of ``collops lsm``."""

    recorded = "survey"
    writes = "out", "checkpoint", "write_survey"

    velocity: Annotated[
        str | None,
        option(
            "Velocity in m/s: a number, a gradient such as 1500+0.6z (z in m), a SEG-Y file in depth, a .npy file of "
            "shape (nx, nz) or (ny, nx, nz), or a text or SEG-Y file of depths and velocities (depth:), two-way times "
            "and interval velocities (time:) or RMS velocities (rms:), which are converted to depth.",
            FILES,
            metavar="EXPRESSION|FILE|depth:FILE|time:FILE|rms:FILE",
            show_default="1500+0.6z for the synthetic survey",
        ),
    ] = None
    smooth_velocity: Annotated[
        float | None,
        option("Smooth the slowness with a Gaussian of this standard deviation, m.", FILES, metavar="METRES"),
        Positive,
    ] = None
    epsilon: Annotated[
        str | None,
        option(
            "Thomsen's epsilon of an anisotropic medium: a number, a .npy file, or a text or SEG-Y file in depth. The "
            "velocity is then the speed of P waves along the symmetry axis.",
            FILES,
            metavar="NUMBER|FILE|depth:FILE",
            show_default="0",
        ),
    ] = None
    delta: Annotated[
        str | None, option("Thomsen's delta, likewise.", FILES, metavar="NUMBER|FILE|depth:FILE", show_default="0")
    ] = None
    tilt: Annotated[
        str | None,
        option(
            "Angle of the symmetry axis from the vertical in degrees, likewise; its lower end is turned towards x.",
            FILES,
            metavar="NUMBER|FILE|depth:FILE",
            show_default="0, a vertical axis",
        ),
    ] = None
    azimuth: Annotated[
        str | None,
        option(
            "Direction of the tilt in a 3-D survey, in degrees from x towards y, likewise.",
            FILES,
            metavar="NUMBER|FILE|depth:FILE",
            show_default="0",
        ),
    ] = None
    inline: Annotated[
        int | None,
        option("Inline of a SEG-Y velocity volume, for a 2-D survey.", FILES, show_default="the middle inline"),
    ] = None
    dims: Annotated[
        int | None,
        option("Dimensions of the survey: 2 (line) or 3 (area).", FILES, show_default="from the positions"),
        Must("be 2 or 3", lambda value: value in (2, 3)),
        RecordedOnly(),
    ] = None
    statics: Annotated[
        str | None,
        option(
            "Static corrections to add to the times: of source and receiver from the trace headers (headers), their "
            "total (total), the total with the opposite sign where it was applied (undo), or from a text file with "
            "lines of field record and ms, or of field record, channel and ms.",
            FILES,
            metavar="headers|total|undo|FILE",
        ),
        RecordedOnly(),
    ] = None
    datum: Annotated[
        str | None,
        option(
            "Move sources and receivers to this elevation in m, or to a floating datum: the mean elevation over this "
            "length in m. Needs --replacement-velocity.",
            FILES,
            metavar="ELEVATION|floating:LENGTH",
        ),
        RecordedOnly(),
    ] = None
    replacement_velocity: Annotated[
        float | None,
        option("Velocity between the stations and --datum, m/s.", FILES),
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
    outliers: Annotated[
        float,
        option(
            "Exclude dead traces, and traces more than this factor stronger than their neighbours, in total or in a "
            "tenth of the frequencies. 0 includes all traces.",
            CONDITIONING,
        ),
        NotNegative,
    ] = 10.0
    mute: Annotated[
        str | None,
        option(
            "Mute samples before the time offset / SPEED + DELAY (m/s, s; DELAY is by default the length of the "
            "wavelet), or before picked times: a text file with lines of offset (m) and time (s), or of field record, "
            "offset and time.",
            CONDITIONING,
            metavar="SPEED|SPEED,DELAY|FILE|none",
            show_default="the direct wave, at the surface velocity",
        ),
        RecordedOnly(),
    ] = None
    ground_roll: Annotated[
        str | None,
        option(
            "Mute samples between the arrivals of waves of these speeds, m/s, such as 150,600.",
            CONDITIONING,
            metavar="SLOW,FAST",
        ),
        RecordedOnly(),
    ] = None
    gain: Annotated[
        str | None,
        option(
            "Gain: a power of time, or automatic gain control (agc) with a window in s.",
            CONDITIONING,
            metavar="POWER|agc:SECONDS",
        ),
        RecordedOnly(),
    ] = None
    trace_weights: Annotated[
        str | None,
        option(
            "Weights of traces in the misfit: a text file with lines of field record, channel and weight (1 for other "
            "traces), or balance (the inverse root mean square of each trace).",
            CONDITIONING,
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
    time_tolerance: Annotated[
        float | None,
        option(
            "Sweep every 2nd, 4th or 8th point if the root mean square error of the times is at most this, in seconds.",
            METHOD,
            show_default="sweep all points",
        ),
        Positive,
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
    gather_lines: Annotated[
        int | None,
        option("Number of positions across the line (y) with common-image gathers, in 3-D.", METHOD, show_default="1"),
        AtLeast(1),
        RecordedOnly(),
    ] = None
    avo: Annotated[
        bool,
        option("Fit intercept and gradient to the amplitudes of the angle gathers. Writes avo.png.", METHOD, "--avo"),
    ] = False
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
    def gather_counts(self) -> tuple[int | None, int | None]:
        """The numbers of positions of gathers along the line and across it."""
        return self.gather_columns, self.gather_lines

    @property
    def survey_files(self) -> list[Path]:
        """The file of the synthetic survey, with --write-survey."""
        return [] if self.write_survey is None else [Path(self.write_survey)]

    @property
    def thomsen(self) -> dict[str, str]:
        """The parameters of an anisotropic medium that were chosen."""
        names = "epsilon", "delta", "tilt", "azimuth"
        return {name: text for name in names if (text := getattr(self, name)) is not None}

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
        self.check_weighting(self.weighting)
        for name in ("gather-columns", "gather-lines"):
            if getattr(self, name.replace("-", "_")) is not None and self.gathers is None:
                raise InputError(f"--{name} needs --gathers: pass both, or omit it")
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
        text = self.velocity or (SYNTHETIC_VELOCITY if self.survey is None else None)
        model = None if text is None else parse_velocity(text)
        if isinstance(model, VelocityFile):
            model.check()
        elif self.smooth_velocity is not None and model is not None:
            raise InputError(f"--smooth-velocity is for velocities from files, and {text} is smooth: omit it")
        for name, text in self.thomsen.items():
            parameter = parse_parameter(name, text)
            if isinstance(parameter, VelocityFile):
                parameter.check()
        if self.thomsen and self.epsilon is None and self.delta is None:
            raise InputError(f"--{min(self.thomsen)} needs --epsilon or --delta: pass one of them, or omit it")
        if self.inline is not None and not (isinstance(model, VelocityFile) and model.is_segy):
            raise InputError("--inline needs a SEG-Y velocity: pass it with --velocity, or omit --inline")
        if model is not None:
            mode_of(model, self.mode, thomsen=Thomsen() if self.thomsen else None)

    def check_weighting(self, weighting: Weighting) -> None:
        """Raise `InputError` if weights exclude the exact illumination or the tolerance of the travel times."""
        if self.time_tolerance is not None and weighting.traces_rays:
            raise InputError(
                "--time-tolerance does not support --amplitude and --max-dip, which need times of all points: omit it, "
                "or use --amplitude none"
            )
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
        edits = None if self.edit is None else read_table(located(self.edit), (3,), "field record, channel and 0 or -1")
        if edits is not None and not np.isin(edits[:, 2], (0, -1)).all():
            raise InputError(f"each line of {self.edit} must end with 0 (leave the trace out) or -1 (reverse it)")
        weights: np.ndarray | str | None = self.trace_weights
        if weights is not None and weights != "balance":
            weights = read_table(located(weights), (3,), "field record, channel and weight")
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
