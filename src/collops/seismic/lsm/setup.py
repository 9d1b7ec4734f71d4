"""Make the migration problem that the options of ``collops lsm`` describe, recorded or synthetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collops.errors import InputError
from collops.extend.applications import Url, digits, local_stage
from collops.extend.communication import raised_together
from collops.extend.engines import Engine, engine
from collops.seismic.conditioning import Conditioned, Conditioning, Mute, bandpass
from collops.seismic.lsm.options import SYNTHETIC_VELOCITY, Options
from collops.seismic.lsm.problem import Problem, StreamedShots
from collops.seismic.lsm.synthetic import default_frequency, fixed_spread, reflectivity
from collops.seismic.segy import fits_segy
from collops.seismic.signals import count_biased, frequency_from_power, frequency_of, onset_times, ricker
from collops.seismic.survey import Grid, Survey, read
from collops.seismic.survey.anisotropy import thomsen_on
from collops.seismic.survey.checks import check_frequency, check_speed, table_factor, too_many_traces
from collops.seismic.survey.choices import mode_of
from collops.seismic.survey.segy import shot_traces
from collops.seismic.survey.velocity import Gradient, Model, load_velocity, on_grid, smoothed
from collops.seismic.volume.wavelet import from_power, make_wavelet, parse_wavelet

if TYPE_CHECKING:
    from collops import Communicator
    from collops.seismic.kirchhoff import Thomsen, Weighting

_NX, _NZ, _SPACING = 241, 121, 12.5
_SHOTS, _RECEIVERS = 24, 81


def synthetic(options: Options, comm: Communicator) -> Problem:
    """Synthesise a problem without its data. Collective."""
    # `on_grid` raises if velocities become infinite.
    with np.errstate(over="ignore", invalid="ignore"), local_stage(comm):
        text = options.velocity or SYNTHETIC_VELOCITY
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
        thomsen = _thomsen(options, survey, grid, options.weighting)
    described = _described(model, options.mode, None, thomsen)
    problem = Problem(survey, grid, velocity, *described, frequency, truth, weighting=options.weighting, target=target)
    return replace(problem, thomsen=thomsen)


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
    model = _velocity_of(options, survey)
    conditioning = _filter(options, survey, streamed)
    power = survey.spectrum(outliers=options.outliers)
    grid = survey.grid(model, **sizes)
    velocity = _smoothed(options, survey.velocity(model, grid), grid, notes)
    with raised_together():
        if options.gather_lines is not None and grid.ny is None:
            raise InputError("--gather-lines needs a 3-D survey: omit it, or pass --dims 3")
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
        options.check_weighting(weighting)
        thomsen = _thomsen(options, survey, grid, weighting)
        described = _described(model, options.mode, survey.defaults.get("mode"), thomsen)
    steps = conditioning.describe()
    notes += [f"conditioning: {steps}"] if steps else []
    problem = Problem(survey, grid, velocity, *described, frequency, conditioning=steps, custom_wavelet=wavelet)
    problem = replace(problem, weighting=weighting, target=target, thomsen=thomsen)
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


def _thomsen(options: Options, survey: Survey, grid: Grid, weighting: Weighting) -> Thomsen | None:
    """Return the anisotropy on a grid, or None without any; add sentences to the notes of the survey."""
    thomsen = thomsen_on(grid, survey.line, options.thomsen, options.inline, survey.notes)
    if thomsen is not None and weighting.traces_rays:
        survey.notes.append("amplitudes and dips assume an isotropic medium with this velocity")
    return thomsen


def _velocity_of(options: Options, survey: Survey) -> Model:
    """Return the velocity. Collective."""
    text = options.velocity or survey.defaults.get("velocity")
    with raised_together():
        if text is None:
            raise InputError(f"{options.survey} does not store a velocity: pass --velocity, such as 1500+0.6z")
    model = survey.model(text, inline=options.inline)
    with raised_together():
        _described(model, options.mode, survey.defaults.get("mode"))  # raises before the traces are read
    return model


def _smoothed(options: Options, velocity: np.ndarray, grid: Grid, notes: list[str]) -> np.ndarray:
    """Smooth a velocity with --smooth-velocity, and add a sentence to `notes`."""
    if (length := options.smooth_velocity) is None:
        return velocity
    result = smoothed(velocity, grid, length)
    change = float(np.abs(result / velocity - 1).max())
    notes.append(
        f"slowness smoothed by a Gaussian of {length:g} m: velocities change by up to {digits(100 * change, 2)} %"
    )
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
            sums[0] += np.count_nonzero(ready.traces[sound])
            if mutes_by_default:
                energies = [np.square(part, dtype=np.float64).sum(axis=1) for part in (shot, shot * ready.mute)]
                sums[1:] += [energy[sound].sum() for energy in energies]
    nonzero, total_energy, muted_energy = survey.comm.allreduce(sums)
    if mutes_by_default and nonzero:
        share = 100 * (1 - muted_energy / total_energy)
        others = any((conditioning.bottom, conditioning.ground_roll, conditioning.window))
        what = "the direct wave and other muted samples" if others else "the direct wave"
        survey.notes.append(f"mute: {what}, {digits(share, 2)} % of the energy (--mute none keeps the direct wave)")
    with raised_together():
        if not nonzero:
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
    elif isinstance(kind, Path | Url):
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


def _described(
    model: Model, mode: str | None, header: str | None = None, thomsen: Thomsen | None = None
) -> tuple[str | None, str]:
    """Return the velocity as text if it is a formula, else None, and the mode of travel times."""
    return str(model) if isinstance(model, Gradient) else None, mode_of(model, mode, header, thomsen)
