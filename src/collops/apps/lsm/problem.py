"""Put a migration problem together from the options and the files: geometry, grid, velocity and wavelet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.apps.lsm.grid import Grid, cover
from collops.apps.lsm.line import Line
from collops.apps.lsm.mute import mute_direct
from collops.apps.lsm.options import Options
from collops.apps.lsm.segy import read_headers, read_traces
from collops.apps.lsm.survey import Geometry, Survey, shots_of
from collops.apps.lsm.synthetic import default_frequency, fixed_spread, reflectivity
from collops.apps.lsm.velocity import Gradient, Section, on_grid, parse_velocity, read_npy, read_section
from collops.apps.memory import check_memory
from collops.apps.stages import local_stage, raised_together
from collops.apps.wavelet import frequency_from_power, power_spectrum
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["Problem", "made_up", "recorded"]

_MODE = "eikonal"
_SYNTHETIC_VELOCITY = "1500+0.6z"
_NX, _NZ, _SPACING = 241, 121, 12.5
_SHOTS, _RECEIVERS = 24, 81


@dataclass(frozen=True)
class Problem:
    """All that defines the operator and the data of a migration.

    Parameters
    ----------
    geometry : Geometry
        Of all shots.
    shots : range
        Those whose traces this rank owns.
    grid : Grid
        The image grid.
    velocity : numpy.ndarray
        float64, shape ``(nx, nz)``, m/s.
    expression : str or None
        The velocity as text, where it has one.
    mode : str
        ``"eikonal"`` or ``"analytic"``.
    frequency : float
        Peak frequency of the Ricker wavelet in hertz.
    truth : numpy.ndarray or None
        The reflectivity to be found; None for a recorded survey.
    traces : list of numpy.ndarray or None
        One array per own shot; None for a survey that is still to be modelled.
    line : Line
        Where the line lies on the map.
    notes : list of str
        What was decided, in sentences for the user.
    """

    geometry: Geometry
    shots: range
    grid: Grid
    velocity: np.ndarray
    expression: str | None
    mode: str
    frequency: float
    truth: np.ndarray | None = None
    traces: list[np.ndarray] | None = None
    line: Line = field(default_factory=Line)
    notes: list[str] = field(default_factory=list)


def made_up(options: Options, comm: Communicator) -> Problem:
    """Make the synthetic problem; its data are still to be modelled. Collective.

    Raises
    ------
    InputError
        On every rank, if the options do not fit together.
    """
    notes: list[str] = []
    # Velocities that become infinite are refused where they are put on the grid.
    with np.errstate(over="ignore", invalid="ignore"), local_stage(comm):
        model = _load_velocity(options.velocity or _SYNTHETIC_VELOCITY, options.inline)
        nx, nz = model.shape if isinstance(model, np.ndarray) else (_NX, _NZ)
        grid = Grid(
            options.nx or nx,
            options.nz or nz,
            options.dx or _SPACING,
            options.dz or _SPACING,
            options.x0 or 0.0,
        )
        _check_memory(grid, (options.shots or _SHOTS) + (options.receivers or _RECEIVERS), options.dtype)
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
        options.mode or _MODE,
        frequency,
        truth,
        notes=notes,
    )


def recorded(options: Options, comm: Communicator) -> Problem:
    """Read a survey and a velocity from files, each rank its own traces. Collective.

    Raises
    ------
    InputError
        On every rank, if a file or an option cannot be used, also when only one rank sees that.
    """
    path = str(options.survey)
    with np.errstate(over="ignore", invalid="ignore"), local_stage(comm):
        headers = read_headers(path)
        geometry, line, notes = headers.geometry, headers.line, headers.notes
        said = _Defaults(path, headers.defaults)
        text = options.velocity or said.text("velocity")
        if text is None:
            raise InputError(f"{path} does not say the velocity: give one with --velocity, such as 1500+0.6z")
        model = _load_velocity(text, options.inline)
        mode = options.mode or said.text("mode") or _MODE
        if mode == "analytic" and not (isinstance(model, Gradient) and model.gradient == 0):
            raise InputError("--mode analytic needs a constant velocity: give one such as --velocity 1800")
        grid = _grid_for(geometry, model, options, said, notes)
        _check_memory(grid, geometry.shots + sum(r.shape[1] for r in geometry.distinct_receivers()), options.dtype)
        grid.check_contains(geometry)
        velocity = on_grid(model, grid, line, notes)
        frequency = options.frequency or said.number("frequency", float)
        shots = shots_of(comm.rank, geometry.shots, comm.size)
        traces = [shot.astype(options.dtype) for shot in read_traces(path, headers, shots)]
        survey = Survey(geometry, shots, traces, line, notes)
        power = power_spectrum(survey.traces, geometry.samples)
    power = comm.allreduce(power)
    with raised_together():
        if not power.any():
            raise InputError(f"{path} holds nothing but zeros: there is nothing to migrate")
        if frequency is None:
            frequency = float(f"{frequency_from_power(power, geometry.samples, geometry.interval):.3g}")
            notes.append(f"wavelet: Ricker of {frequency:g} Hz, from the spectrum of the data (--frequency)")
        _check_frequency(frequency, geometry)
    if options.mute is not None:
        mute_direct(traces, geometry, shots, options.mute, 1 / frequency)
    notes.insert(0, f"read {geometry.shots} shots, {geometry.traces} traces of {geometry.samples} samples")
    notes.append(f"image: {grid.nx} x {grid.nz} points, {grid.dx:g} x {grid.dz:g} m, from {grid.x0:g} m on the line")
    expression = str(model) if isinstance(model, Gradient) else None
    return Problem(geometry, shots, grid, velocity, expression, mode, frequency, None, traces, line, notes)


class _Defaults:
    """The options that a survey's own header names."""

    def __init__(self, path: str, values: dict[str, str]) -> None:
        self._path = path
        self._values = values

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def number(self, name: str, kind: Callable[[str], Any]) -> Any:
        text = self._values.get(name)
        try:
            return None if text is None else kind(text)
        except ValueError:
            raise InputError(f"{self._path} says {name.upper()}={text} in its text header: give --{name}") from None


def _load_velocity(text: str, inline: int | None) -> Gradient | Section | np.ndarray:
    model = parse_velocity(text)
    if isinstance(model, Gradient):
        return model
    return read_npy(model) if model.suffix.lower() == ".npy" else read_section(model, inline)


def _grid_for(
    geometry: Geometry,
    model: Gradient | Section | np.ndarray,
    options: Options,
    said: _Defaults,
    notes: list[str],
) -> Grid:
    """Take the grid from the options, else from the velocity file's shape, else from the survey."""
    nx, nz = options.nx, options.nz
    dx, dz, x0 = options.dx, options.dz, options.x0
    if isinstance(model, np.ndarray):
        nx, nz = nx or model.shape[0], nz or model.shape[1]
        if dx is None or dz is None:
            # A .npy file knows no distances: columns cover the line, and cells are square.
            dx = dx or cover(geometry, lambda z: np.full_like(z, model.mean()), nx=nx, nz=nz, dz=1.0).dx
            dz = dz or dx
            notes.append(
                "the velocity file names no spacing: "
                f"{dx:g} m along the line and {dz:g} m in depth are assumed (--dx, --dz, --x0)"
            )
        return cover(geometry, lambda z: np.full_like(z, model.mean()), nx=nx, nz=nz, dx=dx, dz=dz, x0=x0)
    if all(value is None for value in (nx, nz, dx, dz, x0)):
        # Taken together or not at all: one of them beside an option would describe neither grid.
        nx, nz = said.number("nx", int), said.number("nz", int)
        dx, dz, x0 = (said.number(name, float) for name in ("dx", "dz", "x0"))
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


def _check_memory(grid: Grid, positions: int, dtype: str) -> None:
    check_memory(
        grid.nx * grid.nz * max(positions, 8) * np.dtype(dtype).itemsize,
        f"the travel times of {positions} stations on an image of {grid.nx} x {grid.nz} points",
        "choose a smaller --nx or --nz",
    )
