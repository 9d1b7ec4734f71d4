"""A migration problem from the options and the files: geometry, grid, velocity and wavelet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from collops.apps.lsm.synthetic import default_frequency, fixed_spread, reflectivity
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
    SyntheticOnly,
    option,
)
from collops.apps.segy import SegyFile, fits_segy, segy_bytes
from collops.apps.signals import check_unbiased, count_biased, frequency_from_power, power_spectrum
from collops.apps.stages import check_memory, local_stage, raised_together
from collops.apps.survey.checks import check_reach, check_speed
from collops.apps.survey.geometry import Geometry, Grid, Line, check_traces, cover, mute_direct, shots_of
from collops.apps.survey.segy import SurveyHeaders, read_headers, read_traces
from collops.apps.survey.selection import sound_traces
from collops.apps.survey.velocity import Gradient, Section, on_grid, parse_velocity, read_npy, read_section
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
    out: Out = "collops-lsm"

    def results(self) -> list[Path]:
        """Return the files and folders that the application writes, with those that it writes for some data only."""
        survey = [] if self.write_survey is None else [Path(self.write_survey)]
        segy = [] if self.survey is None else [Path(self.out) / f"{name}.sgy" for name in SEGY_RESULTS]
        return [*super().results(), Path(self.out) / "result.html", *segy, *survey]

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
            _mode_for(model, self.mode)


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
    traces: list[np.ndarray] | None = None  # one array per shot of this rank; None until a synthetic survey is modelled
    line: Line = field(default_factory=Line)  # position of the line on the map
    notes: list[str] = field(default_factory=list)  # decisions, in sentences for the user
    warnings: list[str] = field(default_factory=list)  # doubts, in sentences for the user
    headers: SurveyHeaders | None = None  # of a recorded survey

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
        _check_memory(grid, (options.shots or _SHOTS) + (options.receivers or _RECEIVERS), options.dtype, comm)
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
        _check_memory(grid, positions, options.dtype, comm)
        grid.check_contains(geometry)
        velocity = on_grid(model, grid, line, notes)
        frequency = options.frequency or _header_number("frequency", float, headers)
        shots = shots_of(comm.rank, geometry.shots, comm.size)
        traces = [shot.astype(options.dtype) for shot in read_traces(headers, shots)]
        check_traces(shots, traces)
        power = power_spectrum([shot[sound_traces(shot, options.outliers)] for shot in traces], geometry.samples)
        biased = count_biased(traces)
    power, biased = comm.allreduce(power), comm.allreduce(biased)
    with raised_together():
        if not power.any():
            raise InputError(f"{path} holds nothing but zeros: there is nothing to migrate")
        check_unbiased(biased, path)
        if frequency is None:
            frequency = float(f"{frequency_from_power(power, geometry.samples, geometry.interval):.3g}")
            notes.append(f"wavelet: Ricker of {frequency:g} Hz, from the spectrum of the data (--frequency)")
        _check_frequency(frequency, geometry)
        warnings += check_reach(geometry, grid, velocity, frequency)
        if not fits_segy(grid.dz / 1e3, grid.nz):
            warnings.append(
                "SEG-Y holds depth steps up to 65.535 m: image.sgy and adjoint.sgy are left out (choose a smaller --dz)"
            )
    if options.mute is not None:
        mute_direct(traces, geometry, shots, options.mute, 1 / frequency)
        left = comm.allreduce(np.array(float(any(shot.any() for shot in traces))), "max")
        with raised_together():
            if not left:
                raise InputError(
                    f"--mute {options.mute:g} leaves nothing of the data, which end before offset / SPEED: give the "
                    "speed of the direct wave in m/s, such as 1500"
                )
    notes.insert(0, f"read {geometry.shots} shots, {geometry.traces} traces of {geometry.samples} samples")
    notes.append(f"image: {grid.nx} x {grid.nz} points, {grid.dx:g} x {grid.dz:g} m, from {grid.x0:g} m on the line")
    expression = str(model) if isinstance(model, Gradient) else None
    return Problem(
        geometry, shots, grid, velocity, expression, mode, frequency, None, traces, line, notes, warnings, headers
    )


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


def _check_memory(grid: Grid, positions: int, dtype: str, comm: Communicator) -> None:
    check_memory(
        grid.nx * grid.nz * max(positions, 8) * np.dtype(dtype).itemsize,
        f"the travel times of {positions} stations on an image of {grid.nx} x {grid.nz} points",
        "choose a smaller --nx or --nz",
        processes=comm.local_size,
    )
