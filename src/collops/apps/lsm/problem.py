"""A migration problem from the options and the files: geometry, grid, velocity and wavelet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np

from collops.apps.lsm.synthetic import default_frequency, fixed_spread, reflectivity
from collops.apps.options import (
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
    option,
)
from collops.apps.segy import SegyFile, fits_segy, segy_bytes
from collops.apps.stages import local_stage, raised_together
from collops.apps.survey import Grid, Survey, read
from collops.apps.survey.checks import check_speed
from collops.apps.survey.geometry import mute_direct
from collops.apps.survey.survey import check_tables, mode_of
from collops.apps.survey.velocity import Gradient, Model, load_velocity, on_grid, parse_velocity
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["Options", "Problem", "synthetic"]

SEGY_RESULTS = ("image", "adjoint", "predicted", "residual")
"""The SEG-Y files that a migration of a recorded survey writes."""

_FILES, _IMAGE = "Survey and velocity", "Image"
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
        option("Write the synthetic survey to a SEG-Y file.", SYNTHETIC, metavar="FILE.sgy"),
        SyntheticOnly(),
    ] = None
    frequency: Annotated[
        float | None,
        option("Peak frequency of the Ricker wavelet, Hz.", METHOD, show_default="from the data"),
        Positive,
    ] = None
    mute: Annotated[
        float | None,
        option(
            "Mute the direct wave: set samples to zero until offset / SPEED (m/s) plus the length of a wavelet.",
            METHOD,
            metavar="SPEED",
        ),
        Positive,
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
    outliers: Annotated[
        float,
        option(
            "Leave out dead traces, and those more than this many times as strong as their neighbours; 0 keeps all.",
            METHOD,
        ),
        NotNegative,
    ] = 10.0
    gathers: Annotated[
        int | None,
        option(
            "Image so many classes of offset by themselves: common-image gathers, their moveout, and spectra, in "
            "quality.png.",
            METHOD,
            metavar="CLASSES",
        ),
        AtLeast(2),
    ] = None
    out: Out = "collops-lsm"

    def results(self) -> list[Path]:
        """Return the files and folders that the application writes, with those that it writes for some data only."""
        survey = [] if self.write_survey is None else [Path(self.write_survey)]
        segy = [] if self.survey is None else [Path(self.out) / f"{name}.sgy" for name in SEGY_RESULTS]
        quality = [] if self.gathers is None else [Path(self.out) / "quality.png"]
        return [*super().results(), Path(self.out) / "result.html", *quality, *segy, *survey]

    def check(self) -> None:
        """Raise `InputError` if a value is not allowed or options contradict each other; read only heads of files."""
        super().check()
        if self.survey is not None:
            SegyFile.inspect(self.survey)
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

    @property
    def segy_bytes(self) -> int:
        """Bytes of the SEG-Y files of the results."""
        if self.survey.headers is None:
            return 0
        geometry = self.survey.geometry
        image, shots = (self.grid.points // self.grid.nz, self.grid.nz), (geometry.traces, geometry.samples)
        return 2 * (segy_bytes(*image) + segy_bytes(*shots))


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
        check_tables(grid, stations, 0, np.dtype(options.dtype), comm)
        velocity = on_grid(model, grid, None, notes)
        frequency = options.frequency or default_frequency(velocity, grid)
        geometry = fixed_spread(
            grid, velocity, options.shots or _SHOTS, options.receivers or _RECEIVERS, options.samples
        )
        survey = Survey(geometry, comm)
        survey.check(velocity, grid, frequency)
        survey.notes, survey.warnings = notes, warnings
        truth = reflectivity(grid, velocity, frequency)
    return Problem(survey, grid, velocity, *_described(model, options.mode), frequency, truth)


def recorded(options: Options, comm: Communicator) -> Problem:
    """Read a survey and a velocity from files, each rank its own traces. Collective."""
    sizes = {name: getattr(options, name) for name in ("nx", "ny", "nz", "dx", "dy", "dz", "x0", "y0")}
    across = any(sizes[name] is not None for name in ("ny", "dy", "y0"))
    survey = read(str(options.survey), comm, dims=options.dims or (3 if across else None))
    geometry, notes = survey.geometry, survey.notes
    text = options.velocity or survey.defaults.get("velocity")
    with raised_together():
        if text is None:
            raise InputError(f"{options.survey} names no velocity: give one with --velocity, such as 1500+0.6z")
    model = survey.model(text, inline=options.inline)
    with raised_together():
        described = _described(model, options.mode, survey.defaults.get("mode"))
    grid = survey.grid(model, **sizes)
    velocity = survey.velocity(model, grid)
    traces = survey.traces
    frequency = options.frequency or survey.frequency(outliers=options.outliers)
    with raised_together():
        survey.check(velocity, grid, frequency)
    if not fits_segy(grid.dz / 1e3, grid.nz):
        survey.warnings.append(
            "SEG-Y holds depth steps up to 65.535 m: image.sgy and adjoint.sgy are left out (choose a smaller --dz)"
        )
    if options.mute is not None:
        mute_direct(traces, geometry, survey.shots, options.mute, 1 / frequency)
        left = comm.allreduce(np.array(float(any(shot.any() for shot in traces))), "max")
        with raised_together():
            if not left:
                raise InputError(
                    f"--mute {options.mute:g} leaves nothing of the data, which end before offset / SPEED: give the "
                    "speed of the direct wave in m/s, such as 1500"
                )
    notes.insert(0, f"read {geometry.shots} shots, {geometry.traces} traces of {geometry.samples} samples")
    across = "" if grid.ny is None else f" and {grid.y0:g} m across"
    notes.append(f"image: {grid}, from {grid.x0:g} m on the line{across}")
    return Problem(survey, grid, velocity, *described, frequency)


def _described(model: Model, asked: str | None, header: str | None = None) -> tuple[str | None, str]:
    """Return the velocity as text, where it has one, and how to compute travel times."""
    return str(model) if isinstance(model, Gradient) else None, mode_of(model, asked, header)
