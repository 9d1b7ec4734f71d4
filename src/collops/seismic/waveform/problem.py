"""A survey whose waves are propagated: its traces, its grid, and its propagator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collops import DistributedArray, Layout
from collops.errors import InputError
from collops.extend.applications import Job, atomic, check_memory, check_writable, local_stage
from collops.extend.communication import raised_together
from collops.seismic import waves
from collops.seismic.conditioning import Conditioned
from collops.seismic.lsm import Problem, recorded
from collops.seismic.signals import onset_times, with_noise
from collops.seismic.survey import Geometry, Grid, Survey
from collops.seismic.waveform.earth import smooth_model, velocity_model, water_points
from collops.seismic.waveform.options import WaveOptions
from collops.seismic.waveform.recording import Recording, line_source, time_steps, wavelet_at_steps
from collops.seismic.waves import Propagator
from collops.seismic.waves.media.relaxation import Mechanisms

_NX, _NZ, _SPACING = 140, 50, 20.0
_FREQUENCY, _INTERVAL = 7.0, 0.004
_STATION_DEPTH = 1.0  # of sources and receivers of the synthetic survey, in grid points
_POINTS_PER_WAVELENGTH = 3.0  # of the highest frequency of a Ricker wavelet, below which dispersion is warned of
_COPIES = 4  # of the traces at all time steps, in a product
_LOSSLESS = 1e5  # the quality factor of water
_NYQUIST_SHARE = 0.45  # of the sampling frequency, at which the band of a quality factor ends at the latest
_HIGHEST = 2.5  # times the peak frequency: there the spectrum of a Ricker wavelet is 3 % of its peak


@dataclass(frozen=True)
class WaveProblem:
    """A survey with its traces and its propagator. Velocities have the shape of the grid: (nx, nz), or (ny, nx, nz).

    Attributes
    ----------
    problem : Problem
        The survey, the grid, the initial velocity, and the wavelet, as for ``collops lsm``.
    propagator : Propagator
        Models all time steps of all shots.
    recording : Recording
        From these to the samples of the survey.
    observed : DistributedArray
        The weighted traces, of shape (shots, receivers, samples), split by shots.
    receivers : list of int
        The receivers of each shot of this rank; more rows of `observed` are zeros.
    truth : numpy.ndarray or None
        The true velocity of a synthetic survey.
    water : numpy.ndarray
        Which points are water, and keep their velocity.
    own : bool
        Whether the traces were modelled by the propagator: their wavelet is known, and they have a direct wave.
    medium : dict
        Parameters of the propagator besides the velocity.
    """

    problem: Problem
    propagator: Propagator
    recording: Recording
    observed: DistributedArray
    receivers: list[int]
    truth: np.ndarray | None
    water: np.ndarray
    own: bool
    medium: dict[str, Any]

    @property
    def survey(self) -> Survey:
        """The survey."""
        return self.problem.survey

    @property
    def grid(self) -> Grid:
        """The grid of the velocity."""
        return self.problem.grid

    def model(self, job: Job[Any], velocity: np.ndarray) -> DistributedArray:
        """Return a velocity as the propagator takes it."""
        return job.distribute(self.propagator.domain, velocity)

    def modelled(self, job: Job[Any], velocity: np.ndarray) -> Any:
        """Return the traces of a velocity, as those observed. Collective."""
        return self.recording.forward(self.propagator(self.model(job, velocity)))

    def by_shot(self, job: Job[Any], traces: DistributedArray) -> list[np.ndarray]:
        """Return the traces of each shot of this rank on the host, without rows of zeros."""
        return [shot[:count] for shot, count in zip(job.on_host(traces), self.receivers, strict=True)]

    def result_bytes(self) -> int:
        """Return the size in bytes of the results: images, traces, and SEG-Y files with both."""
        geometry = self.survey.geometry
        return 12 * 8 * self.grid.points + 16 * 4 * geometry.traces * geometry.samples


def prepare(job: Job[Any], fastest: float | None = None, margin: float = 1.0) -> WaveProblem:
    """Read or model the survey, and set up its propagator. Collective.

    Its time step is stable for velocities up to `fastest` in metres per second, by default `margin` times the largest.
    """
    options: WaveOptions = job.options
    with local_stage(job.comm):
        if job.comm.rank == 0:
            for file in options.survey_files:
                check_writable(file)
    result = (_synthetic if options.survey is None else _recorded)(job, fastest, margin)
    job.note(result.survey.notes)
    for warning in result.survey.warnings:
        job.listener.warn(warning)
    return result


def _recorded(job: Job[Any], fastest: float | None, margin: float) -> WaveProblem:
    """Read a survey. Collective."""
    options: WaveOptions = job.options
    with job.stage("reading"):
        problem = recorded(options.survey_options(), job.comm, job.engine)
    with raised_together():
        if problem.streamed:
            raise InputError("the traces do not fit into the memory: use more memory or machines, or fewer shots")
    own = bool(problem.survey.defaults)
    traces = [shot.traces * shot.trust[:, np.newaxis] for shot in problem.conditioned or ()]
    weights = [shot.weights for shot in problem.conditioned or ()]
    flat = problem.survey.geometry.dims == 2
    with raised_together():
        if options.source == "line" and not flat:
            raise InputError("--source line is for surveys along a line: omit it, or pass --dims 2")
    if flat and not own and options.source == "point":
        problem.survey.notes.append("traces of point sources are converted to line sources (--source line to omit)")
        times, speed = problem.survey.geometry.times, float(problem.velocity[:, 0].mean())
        pairs = zip(problem.survey.traces, problem.conditioned or (), strict=True)
        # The conversion is a convolution: the mute follows it, as it follows the modelling.
        traces = [shot.weights * line_source(_reversed_as(shot, raw), times, speed) for raw, shot in pairs]
    highest = max(float(problem.velocity.max()), fastest or margin * float(problem.velocity.max()))
    return _set_up(job, problem, highest, traces, weights, own)


def _reversed_as(shot: Conditioned, raw: np.ndarray) -> np.ndarray:
    """Return the traces of a shot before its mute, reversed where the conditioned shot is."""
    return np.where(shot.gain < 0, -raw, raw)


def _synthetic(job: Job[Any], fastest: float | None, margin: float) -> WaveProblem:
    """Model a survey over a synthetic earth. Collective."""
    options, comm = job.options, job.comm
    with local_stage(comm):
        grid = Grid(options.nx or _NX, options.nz or _NZ, options.dx or _SPACING, options.dz or _SPACING)
        check_memory(12 * 8 * grid.points, f"models of {grid}", "choose a smaller --nx or --nz", None, comm.local_size)
        truth = velocity_model(grid, options.seed)
        velocity = smooth_model(truth, grid, options.smooth, water_points(grid))
        frequency = options.frequency or _FREQUENCY
        survey = Survey(_spread(options, grid, truth, frequency), comm)
        survey.check(truth, grid, frequency)
    traces = [np.zeros(survey.trace_shape(shot), options.dtype) for shot in survey.shots]
    problem = Problem(survey, grid, velocity, None, "eikonal", frequency, onsets=[])
    highest = max(float(truth.max()), fastest or margin * float(velocity.max()))
    result = _set_up(job, problem, highest, traces, [np.ones_like(t) for t in traces], True)
    result = replace(result, truth=truth)
    with job.stage("modelling the survey"):
        clean = result.by_shot(job, result.modelled(job, truth))
    traces, norm = with_noise(clean, survey.shots, options.noise or 0.0, options.seed, comm)
    # Files hold float32: round, so that a survey gives the same result with and without a file, and the same --whiten.
    survey.traces = [shot.astype(np.float32) for shot in traces]
    _save(options, survey, grid, velocity, frequency)
    onsets = [onset_times(shot, survey.geometry.times) for shot in survey.traces]
    problem = replace(problem, noise_norm=norm, onsets=onsets)
    return replace(result, problem=problem, observed=_observed(job, result.recording, survey.traces))


def _save(options: WaveOptions, survey: Survey, grid: Grid, velocity: np.ndarray, frequency: float) -> None:
    """Write the files of --write-survey. Collective."""
    if options.write_survey is None:
        return
    survey.save(options.write_survey, grid, frequency=frequency)
    with local_stage(survey.comm):
        if survey.comm.rank == 0:
            with atomic(options.survey_files[1]) as temporary, temporary.open("wb") as file:
                np.save(file, velocity)


def _spread(options: WaveOptions, grid: Grid, truth: np.ndarray, frequency: float) -> Geometry:
    """Return shots and receivers that are evenly spaced near the surface; all receivers record all shots."""
    depth = _STATION_DEPTH * grid.dz
    sources, receivers = (
        np.stack([np.round(np.linspace(margin, 1 - margin, count) * grid.x[-1], 4), np.full(count, depth)])
        for count, margin in ((options.shots, 0.03), (options.receivers, 0.0))
    )
    samples = options.samples
    if samples is None:  # an echo of the deepest point at an offset of 0.8 of the line
        column = truth[grid.nx // 2]
        seconds = 2 * np.hypot(grid.dz * (1 / column).sum(), 0.4 * grid.x[-1] / column.mean()) + 1 / frequency
        samples = 25 * int(np.ceil(seconds / _INTERVAL / 25)) + 1
    return Geometry(sources, [receivers] * options.shots, samples, _INTERVAL)


def _set_up(
    job: Job[Any],
    problem: Problem,
    fastest: float,
    traces: list[np.ndarray],
    weights: list[np.ndarray],
    own: bool,
) -> WaveProblem:
    """Make the propagator of a survey. Collective."""
    options, survey, grid, geometry = job.options, problem.survey, problem.grid, problem.survey.geometry
    with local_stage(job.comm):
        layers = waves.Layers(options.layers)
        wave_grid = waves.Grid(grid.shape, grid.spacing, options.order, layers, options.free_surface)
        water = np.broadcast_to(grid.z < (options.water_depth or 0.0), grid.shape)
        if options.survey is None:
            water = water_points(grid)
        medium, faster = _attenuation(options.quality_factor, problem.frequency, geometry.interval, water)
        fastest *= 1.0001 * faster  # margin: rounding to float32
        step = time_steps(geometry.interval, wave_grid.largest_step(fastest))
        shift = round(geometry.start / geometry.interval * step)
        taps, centre = problem.wavelet
        before = max(0, -(centre * step + shift))
        first = before + centre * step + shift
        steps = first + (geometry.samples - 1) * step + 1
        wavelet = wavelet_at_steps(taps, step, before, steps)
        origin = np.array([positions[0] for positions in grid.axes.values()])
        most = max(part.shape[1] for part in geometry.receivers)
        # The last receiver is repeated, with weight 0, where a shot has fewer than another one.
        receivers = np.stack([np.pad(r, ((0, 0), (0, most - r.shape[1])), "edge").T for r in geometry.receivers])
        positions = waves.Geometry(geometry.sources.T - origin, receivers - origin, wavelet, geometry.interval / step)
        if options.free_surface and (np.asarray(positions.sources)[:, -1] < 0.1 * grid.dz).any():
            raise InputError("a source at the free surface sends no waves: pass its depth, or omit --free-surface")
        if options.water_depth is not None and options.water_depth > grid.z[-1]:
            depth = f"{options.water_depth:g} m"
            raise InputError(f"--water-depth must be less than the depth of the grid, {grid.z[-1]:g} m, not {depth}")
        _check_dispersion(problem)
    propagator = make_propagator(job, wave_grid, positions, medium)
    with local_stage(job.comm):
        _check_traces(job, propagator)
    survey.notes.append(
        f"{steps} time steps of {1e3 * geometry.interval / step:.4g} ms; wavefields: {propagator.storage}"
    )
    job.warn_of_idle_ranks(geometry.shots, "shots")
    layout = Layout.split((*positions.shape[:2], geometry.samples), job.comm.size)
    recording = Recording(propagator, first, step, job.array(layout, _padded(weights, layout, job)))
    receivers_of = [survey.trace_shape(shot)[0] for shot in survey.shots]
    observed = _observed(job, recording, traces)
    return WaveProblem(problem, propagator, recording, observed, receivers_of, None, water, own, medium)


def make_propagator(job: Job[Any], grid: waves.Grid, geometry: waves.Geometry, medium: dict[str, Any]) -> Propagator:
    """Return a propagator with the options of the job and parameters of the medium. Collective."""
    options: WaveOptions = job.options
    return Propagator(
        grid,
        geometry,
        dtype=options.dtype,
        aperture=options.aperture,
        memory=_wavefield_bytes(options),
        wavefield_bits=options.wavefield_bits,
        comm=job.comm,
        **medium,
    )


def _wavefield_bytes(options: WaveOptions) -> int:
    return int(options.memory * 2**20)


def _attenuation(
    quality_factor: float | None, frequency: float, interval: float, water: np.ndarray
) -> tuple[dict[str, Any], float]:
    """Return the parameters of the propagator, and how much faster waves of the highest frequencies are.

    Steps may be shorter than the sampling interval of the survey; the fastest waves are then slower.
    """
    if quality_factor is None:
        return {}, 1.0
    if frequency > _NYQUIST_SHARE / interval:
        raise InputError(
            f"--quality-factor needs waves of at most {_NYQUIST_SHARE / interval:.5g} Hz at samples of "
            f"{1e3 * interval:g} ms, not {frequency:g} Hz: pass a lower --frequency or --wavelet, or omit it"
        )
    relaxation = waves.Relaxation(frequency, (frequency / 4, min(4 * frequency, _NYQUIST_SHARE / interval)))
    values = np.where(water, _LOSSLESS, quality_factor)
    largest = Mechanisms(relaxation, interval).filters(np.array([quality_factor])).largest
    return {"quality_factor": values, "relaxation": relaxation}, float(np.sqrt(largest))


def _check_traces(job: Job[Any], propagator: Propagator) -> None:
    """Raise `InputError` if the traces at all time steps, and the wavefields, do not fit into the memory."""
    shots, (_, receivers, steps) = max(propagator.range.sizes[0]), propagator.geometry.shape
    needed = _COPIES * np.dtype(job.options.dtype).itemsize * shots * receivers * steps + propagator.storage.bytes
    what = f"traces of {shots} shots at {steps} time steps, and wavefields,"
    check_memory(needed, what, "use more ranks, or a smaller --memory", job.engine, job.comm.local_size)


def _check_dispersion(problem: Problem) -> None:
    """Warn of a grid that is too coarse for the wavelet."""
    slowest, frequency = float(problem.velocity.min()), problem.frequency
    points = slowest / (_HIGHEST * frequency) / max(problem.grid.spacing)
    if points < _POINTS_PER_WAVELENGTH:
        problem.survey.warnings.append(
            f"the grid has {points:.2g} points per wavelength at {_HIGHEST * frequency:.3g} Hz: waves are dispersed; "
            "pass a smaller --dx and --dz, or a lower --frequency"
        )


def _observed(job: Job[Any], recording: Recording, traces: list[np.ndarray]) -> DistributedArray:
    return job.array(recording.traces, _padded(traces, recording.traces, job))


def _padded(parts: list[np.ndarray], layout: Any, job: Job[Any]) -> np.ndarray:
    """Return arrays of the shape (receivers, samples) for each shot as one, with rows of zeros after the last."""
    padded: np.ndarray = np.zeros(layout.local_shape(job.comm.rank), job.options.dtype)
    for row, part in zip(padded, parts, strict=True):
        row[: len(part)] = part
    return padded
