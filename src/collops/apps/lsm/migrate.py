"""Migrate by least squares: Kirchhoff modelling from travel times, inverted by CGLS, and the results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.apps.files import Field, check_writable
from collops.apps.lsm.page import write_page
from collops.apps.lsm.problem import SEGY_RESULTS, Options, Problem, recorded, synthetic
from collops.apps.pictures import Panel, balanced, draw_panels, gather_rows, symmetric_limit
from collops.apps.recipe import Findings, Gradient, Job, Solution, best_relative_error, relative_error
from collops.apps.segy import Traces, fits_segy, write_together
from collops.apps.signals import noise_from_power, power_spectrum, ricker, with_noise
from collops.apps.stages import local_stage
from collops.apps.survey.segy import image_traces, shot_traces, survey_traces
from collops.apps.survey.selection import held_out, sound_traces
from collops.apps.survey.traveltimes import travel_times
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["invert", "kirchhoff", "model_traces", "run", "some_gathers"]

_NOISE = 0.1
_SHOTS, _TRACES, _SAMPLES = 3, 64, 250  # of the gathers, at most
_ITERATIONS = 30  # with --damp, and at most where the data determine them


def run(job: Job[Options]) -> Findings:
    """Migrate a seismic survey by least squares, with a Kirchhoff operator and CGLS.

    By default it synthesises a survey over faulted, dipping layers and compares the image with the true reflectivity.
    With --survey and --velocity it migrates a survey from a file. Without --iterations and --damp, it chooses the
    number of iterations after which an image of some shots predicts the others best. Writes image.png, convergence.png,
    result.zarr, and result.html, an interactive page; for a survey from a file also image, adjoint, predicted and
    residual as SEG-Y.
    """
    options, comm = job.options, job.comm
    written = None if options.write_survey is None else Path(options.write_survey)
    with local_stage(comm):
        if comm.rank == 0 and written is not None:
            check_writable(written)
    with job.stage("reading" if options.survey else "synthesising the survey"):
        problem = recorded(options, comm) if options.survey else synthetic(options, comm)
    for note in problem.notes:
        job.listener.note(note)
    for warning in problem.warnings:
        job.listener.warn(warning)
    job.warn_of_idle_ranks(problem.geometry.shots, "shots")
    with job.stage("travel times"):
        operator = kirchhoff(job, problem)
    traces, noise_norm, geometry, grid = problem.traces, None, problem.geometry, problem.grid
    if traces is None:
        with job.stage("modelling the survey"):
            noise = _NOISE if options.noise is None else options.noise
            traces, noise_norm = with_noise(
                model_traces(job, problem, operator), problem.shots, noise, options.seed, comm
            )
            # SEG-Y holds float32. Rounded likewise, a survey gives the same image with and without a file.
            traces = [shot.astype(np.float32).astype(options.dtype) for shot in traces]
            if written is not None:
                _write_survey(written, job, problem, traces)

    reduced, believed, left_out = _leave_out(job, problem, operator, traces)
    held = None
    if options.iterations is None and options.damp is None:
        whole = held_out(geometry, float(problem.velocity[:, 0].mean()) / problem.frequency)
        held = whole[problem.shots.start : problem.shots.stop]
    found = invert(job, reduced, believed, held, problem.segy_bytes)

    explained = job.on_host(operator.forward(job.array(operator.domain, found.image)))
    gathers = some_gathers(problem, traces, problem.by_shot(explained), comm)
    with local_stage(comm):
        segy = _segy(problem, found, traces, explained, comm.rank)
    error = relative_error(found.image, problem.truth)
    noise = noise_from_power(comm.allreduce(power_spectrum(believed, geometry.samples)), geometry.samples)
    shares, count = found.shares, len(found.solution.residuals) - 1
    numbers = {
        "damp": options.damp or 0.0,
        "held_out_residual": None if shares is None else float(shares[min(count, len(shares) - 1)]),
        "noise_estimate": noise,
        "traces_left_out": left_out,
        "mode": problem.mode,
        "frequency": problem.frequency,
        "shots": geometry.shots,
        "traces": geometry.traces,
        "samples": geometry.samples,
        "sample_interval": geometry.interval,
        **{name: getattr(grid, name) for name in ("nx", "nz", "dx", "dz", "x0")},
        "survey": options.survey,
        "velocity": options.velocity or problem.expression,
    }
    line = problem.line
    return Findings(
        title="least-squares migration",
        solution=found.solution,
        subject="image",
        adjoint="adjoint image",
        error=error,
        adjoint_error=best_relative_error(found.adjoint, problem.truth),
        numbers=numbers,
        rows=[
            ("survey", f"{geometry.shots} shots, {geometry.traces} traces of {geometry.samples} samples"),
            ("image", f"{grid.nx} x {grid.nz} points, {grid.dx:g} x {grid.dz:g} m"),
        ],
        more_rows=[
            ("iterations", _reason(job, count, shares)),
            ("noise", f"{noise:.4g}, estimated from the quietest frequencies"),
        ],
        fields=_fields(problem, found) | gathers,
        attributes={
            "line_origin": list(line.origin),
            "line_direction": list(line.direction),
            "kinds": list(found.solution.seconds),
        },
        draw=lambda folder: [draw(folder, problem, found, error)],
        noise_norm=noise_norm,
        page=write_page,
        files=[] if written is None else [written],
        segy=segy,
    )


@dataclass(frozen=True)
class Migration:
    """The result of a migration; images have shape ``(nx, nz)``."""

    image: np.ndarray  # the least-squares image
    adjoint: np.ndarray  # the adjoint image
    scaled_adjoint: np.ndarray  # the adjoint image at the scale that fits the data best
    solution: Solution  # of CGLS
    # where traces were held out: norm of their residual over their own, before the first iteration and after each
    shares: np.ndarray | None


def kirchhoff(job: Job[Options], problem: Problem) -> Any:
    """Build the operator from an image, the same on every rank, to the traces of each rank's shots. Collective.

    Travel times are computed once for each distinct position. The shots of a fixed spread form one local operator,
    other shots one each. The domain is replicated, of shape ``(nx, nz)``; the range is 1-D: rank by rank, the traces of
    its shots.
    """
    from collops.operators import VStack
    from collops.operators.kirchhoff import FixedTables, LocalKirchhoff, threads_of_rank

    comm, geometry, dtype = job.comm, problem.geometry, job.options.dtype
    receivers = geometry.distinct_receivers()
    positions = np.concatenate([geometry.sources, *receivers], axis=1)
    distinct, inverse = np.unique(positions, axis=1, return_inverse=True)
    tables = travel_times(distinct, problem.velocity, problem.grid, problem.mode, comm, dtype)
    of_position = inverse.reshape(-1)
    ends = np.cumsum([0, *(r.shape[1] for r in receivers)]) + geometry.shots
    of_receivers = {
        id(group): of_position[first:last] for group, first, last in zip(receivers, ends[:-1], ends[1:], strict=True)
    }
    wavelet, centre = ricker(problem.frequency, geometry.interval)
    threads = threads_of_rank(comm, job.engine.name)
    shots = problem.shots
    groups = [shots] if geometry.fixed_spread else [range(shot, shot + 1) for shot in shots]
    with local_stage(comm):
        operators = []
        for group in filter(None, groups):
            # The operator's time axis begins at the first sample: subtract its time.
            sources = tables[of_position[group.start : group.stop]] - geometry.start
            stations = tables[of_receivers[id(geometry.receivers[group.start])]]
            times = FixedTables.from_seconds(sources, stations, geometry.interval, geometry.samples, dtype)
            operators.append(
                LocalKirchhoff(times, problem.grid.shape, wavelet, centre, engine=job.engine, threads=threads)
            )
    return VStack(operators, comm, dims=problem.grid.shape)


def model_traces(job: Job[Options], problem: Problem, operator: Any) -> list[np.ndarray]:
    """Model the traces of the true reflectivity; return one array per shot of this rank. Collective."""
    if problem.truth is None:
        raise InputError("a recorded survey has no true reflectivity to model")
    return problem.by_shot(job.on_host(operator.forward(job.array(operator.domain, problem.truth))))


def invert(
    job: Job[Options],
    operator: Any,
    traces: list[np.ndarray],
    held: list[np.ndarray] | None = None,
    more_bytes: int = 0,
) -> Migration:
    r"""Find the image :math:`m` that minimises :math:`\|d - A m\|^2 + (\epsilon \|A\|)^2 \|m\|^2`. Collective.

    :math:`d` are the traces, one array per shot of this rank, and :math:`\epsilon` is the option damp. The norm of the
    operator :math:`A` is estimated from below (`Gradient`).

    The number of iterations is the option, or, if `held` names traces of these shots to hold out, the one after which
    an image of the other traces predicts them best. The amplitudes of a Kirchhoff operator are not those of recorded
    data, so that its residual does not fall to the noise, and it is as coherent as ground roll or multiples. Neither
    the discrepancy principle nor criteria for white noise apply; shots that the image has not seen are a test.
    """
    from collops.solvers import cgls, cross_validate

    data = _vector(job, operator, traces)
    gradient = Gradient.of(operator, data)
    # Of `_fields` four images of at most float64, and the gathers and their residual.
    writes = 4 * 8 * operator.domain.size + 2 * 4 * _SHOTS * _TRACES * _SAMPLES + more_bytes
    damp = (job.options.damp or 0.0) * gradient.norm
    niter, shares = job.options.iterations or _ITERATIONS, None
    if held is not None:
        with job.stage("choosing the number of iterations"):
            parts = [np.broadcast_to(each[:, None], shot.shape) for each, shot in zip(held, traces, strict=True)]
            live = job.listener.live
            shares = cross_validate(operator, data, _vector(job, operator, parts), niter=niter, tol=0.0, progress=live)
        niter = max(1, int(shares.argmin()))
    solution = job.solve(cgls, operator, data, writes=writes, niter=niter, damp=damp, tol=0.0)
    adjoint = job.on_host(gradient.x)
    return Migration(job.on_host(solution.x), adjoint, adjoint * gradient.step, solution, shares)


def _leave_out(
    job: Job[Options], problem: Problem, operator: Any, traces: list[np.ndarray]
) -> tuple[Any, list[np.ndarray], int]:
    """Remove the dead and the much too strong traces from operator and data; return them with their number."""
    from collops.operators import Diagonal

    sound = [sound_traces(shot, job.options.outliers) for shot in traces]
    left_out = int(job.comm.allreduce(np.array(float(sum(np.count_nonzero(~each) for each in sound))))[()])
    if not left_out:
        return operator, traces, 0
    job.listener.note(
        f"{left_out} of {problem.geometry.traces} traces are left out: they are dead, or more than "
        f"{job.options.outliers:g} times as strong as their neighbours (--outliers)"
    )
    believed = [np.where(each[:, None], shot, 0) for shot, each in zip(traces, sound, strict=True)]
    weights = [np.repeat(each, problem.geometry.samples) for each in sound]
    return Diagonal(_vector(job, operator, weights)) @ operator, believed, left_out


def _vector(job: Job[Options], operator: Any, parts: list[np.ndarray]) -> Any:
    """Return a vector in the range of the operator from one array per shot of this rank."""
    return job.array(operator.range, np.concatenate([np.empty(0), *(part.ravel() for part in parts)]))


def _reason(job: Job[Options], iterations: int, shares: np.ndarray | None) -> str:
    """Say in words how many iterations there were, and why."""
    if shares is None:
        return f"{iterations}, from the options"
    if not shares.argmin():
        job.listener.warn(
            "no image of some traces explains the others: the result is the adjoint image; "
            "check the velocity, the wavelet and the mute"
        )
        return "1, the adjoint image: no image of other traces explains any of those that were held out"
    why = "the most without --iterations" if iterations == _ITERATIONS else "more would fit noise"
    left = f"{100 * shares[iterations]:.3g} % of the traces that were held out"
    return f"{iterations}, {why}: an image of other traces then leaves {left} unexplained"


def some_gathers(
    problem: Problem, traces: list[np.ndarray], explained: list[np.ndarray], comm: Communicator
) -> dict[str, Field]:
    """Choose traces of shots along the line, and gather them on the first rank. Collective.

    `explained` are the traces modelled from the image. The data and their residual (the data less those modelled) have
    the shape ``(shots, traces, samples)`` there.
    """
    geometry = problem.geometry
    count = min(_SHOTS, geometry.shots)
    chosen = np.unique(np.linspace(0, geometry.shots - 1, count + 2).round().astype(int)[1:-1])
    fewest = min(_TRACES, *(geometry.receivers[shot].shape[1] for shot in chosen))
    picked = {
        int(shot): np.linspace(0, geometry.receivers[shot].shape[1] - 1, fewest).round().astype(int) for shot in chosen
    }
    samples = np.arange(0, geometry.samples, -(-geometry.samples // _SAMPLES))
    own = [
        np.stack([part[picked[shot]][:, samples] for part in (measured, measured - modelled)])[None]
        for shot, measured, modelled in zip(problem.shots, traces, explained, strict=False)
        if shot in picked
    ]
    nothing = np.empty((0, 2, fewest, len(samples)))
    both = gather_rows(np.concatenate([nothing, *own]).astype(np.float32), comm)
    offsets = [geometry.receivers[shot][0, rows] - geometry.sources[0, shot] for shot, rows in picked.items()]
    gather = ("shot", "trace", "time")
    records, channels = chosen + 1, [rows + 1 for rows in picked.values()]
    if problem.headers is not None:
        records = problem.headers.records[chosen]
        channels = [problem.headers.channels[shot][rows] for shot, rows in picked.items()]
    return {
        "shot": Field(chosen, ("shot",), "1"),
        "time": Field(geometry.start + geometry.interval * samples, ("time",), "s"),
        "offset": Field(np.stack(offsets), ("shot", "trace"), "m", True),  # horizontal, from source to receiver
        "field_record": Field(records, ("shot",), "1", True),
        "channel": Field(np.stack(channels), ("shot", "trace"), "1", True),
        "data": Field(both[:, 0], gather, "1"),
        "data_residual": Field(both[:, 1], gather, "1"),
    }


def _fields(problem: Problem, found: Migration) -> dict[str, Field]:
    grid, image = problem.grid, ("x", "z")
    fields = {
        "x": Field(grid.x, ("x",), "m"),
        "z": Field(grid.z, ("z",), "m"),
        "image": Field(found.image, image, "1"),
        "adjoint_image": Field(found.adjoint, image, "1"),
        "velocity": Field(problem.velocity, image, "m/s"),
        "seconds": Field(np.stack(list(found.solution.seconds.values()), 1), ("rank", "kind"), "s"),
    }
    if problem.headers is not None:
        east, north = problem.line.position(grid.x)
        fields |= {"cdp_x": Field(east, ("x",), "m", True), "cdp_y": Field(north, ("x",), "m", True)}
    if found.shares is not None:
        fields["held_out_residuals"] = Field(found.shares, ("tried",), "1")
    if problem.truth is not None:
        fields["truth"] = Field(problem.truth, image, "1")
    return fields


def _segy(
    problem: Problem, found: Migration, traces: list[np.ndarray], explained: np.ndarray, rank: int
) -> dict[str, Traces]:
    """Return the SEG-Y files of the results of a recorded survey."""
    if (headers := problem.headers) is None:
        return {}
    grid, shots, images = problem.grid, problem.shots, []
    if fits_segy(grid.dz / 1e3, grid.nz):
        depth = f"DEPTH IN STEPS OF {grid.dz:g} M BELOW {headers.datum:g} M ABOVE SEA LEVEL"
        images = [
            image_traces(f"LEAST-SQUARES IMAGE, {depth}", found.image, grid, headers, rank),
            image_traces(f"ADJOINT (KIRCHHOFF) IMAGE, {depth}", found.adjoint, grid, headers, rank),
        ]
    modelled = explained.reshape(-1, problem.geometry.samples)
    residual = np.concatenate([modelled[:0], *traces])
    residual -= modelled
    traces_of_shots = [
        shot_traces("TRACES MODELLED FROM THE LEAST-SQUARES IMAGE", headers, shots, modelled),
        shot_traces("RESIDUAL: RECORDED (AND MUTED) LESS MODELLED TRACES", headers, shots, residual),
    ]
    return dict(zip(SEGY_RESULTS[-2:] + SEGY_RESULTS[:-2], traces_of_shots + images, strict=False))


def _write_survey(path: Path, job: Job[Options], problem: Problem, traces: list[np.ndarray]) -> None:
    """Write the traces of all ranks. Collective."""
    defaults = {name: getattr(problem.grid, name) for name in ("nx", "nz", "dx", "dz", "x0")}
    defaults = {"velocity": problem.expression, "mode": problem.mode, "frequency": problem.frequency} | defaults
    texts = {name: str(value) for name, value in defaults.items() if value is not None}
    with local_stage(job.comm):
        survey = survey_traces(problem.geometry, problem.shots, traces, texts)
    write_together(path, job.comm, *survey)


def draw(folder: Path, problem: Problem, found: Migration, error: float | None) -> Path:
    """Draw the truth (for recorded data the velocity), the adjoint image and the image; return the picture."""
    grid, truth, velocity = problem.grid, problem.truth, problem.velocity
    wide, deep = float(grid.x[-1] - grid.x[0]), float(grid.z[-1])
    to_scale = 0.5 < wide / deep < 4  # other panels would be narrow strips
    scale, unit = (1000, "km") if wide > 2000 else (1, "m")
    extent = float(grid.x[0]) / scale, float(grid.x[-1]) / scale, 0.0, deep / scale

    def panel(image: np.ndarray, title: str, limits: float | tuple[float, float], colors: str = "") -> Panel:
        return Panel(image, title, extent, (f"distance ({unit})", f"depth ({unit})"), limits, colors, to_scale)

    count = len(found.solution.residuals) - 1
    title = f"least-squares image, {count} iteration{'s' * (count != 1)}"
    if truth is None:
        adjoint, image = balanced(found.scaled_adjoint), balanced(found.image)
        panels = [
            panel(velocity, "velocity", (float(velocity.min()), float(velocity.max())), "m/s"),
            panel(adjoint, "adjoint image, amplitudes balanced", symmetric_limit(adjoint)),
            panel(image, title, symmetric_limit(image)),
        ]
    else:
        # All three have the same scale, which shows the low amplitudes of the adjoint image.
        limit = symmetric_limit(truth, 99.5)
        panels = [
            panel(truth, "true reflectivity", limit),
            panel(found.scaled_adjoint, "adjoint image", limit),
            panel(found.image, title if error is None else f"{title}, error {100 * error:.0f} %", limit),
        ]
    size = 5.2, 0.92 * 5.2 * deep / wide + 0.8 if to_scale else 3.2
    return draw_panels(folder / "image.png", panels, size)
