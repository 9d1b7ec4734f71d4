"""Migrate by least squares: Kirchhoff modelling from travel times, inverted by CGLS, and the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.errors import InputError
from collops.extend.applications import (
    Field,
    Findings,
    Gradient,
    Job,
    Panel,
    Solution,
    balanced,
    best_relative_error,
    check_writable,
    draw_panels,
    local_stage,
    relative_error,
    symmetric_limit,
)
from collops.seismic.conditioning import Conditioned, Conditioning
from collops.seismic.kirchhoff.split import SplitImage
from collops.seismic.lsm.page import section, write_page
from collops.seismic.lsm.problem import SEGY_RESULTS, Options, Problem, StreamedShots, recorded, synthetic
from collops.seismic.lsm.quality import Quality, examine, field_bytes
from collops.seismic.lsm.regularisation import (
    METHODS,
    TRIED,
    Penalty,
    inverse_root,
    local_inverse_root,
    probed_diagonal,
)
from collops.seismic.lsm.uncertainty import Uncertainty, uncertainty
from collops.seismic.segy import Traces, fits_segy, segy_bytes
from collops.seismic.signals import noise_from_power, power_spectrum, with_noise
from collops.seismic.survey.geometry import Geometry
from collops.seismic.survey.segy import image_traces, shot_traces
from collops.seismic.survey.selection import held_out
from collops.seismic.survey.zarr import trace_fields

if TYPE_CHECKING:
    from collops.seismic.lsm.streamed import StreamedSurvey
    from collops.seismic.survey import Survey

_NOISE = 0.1
_SAMPLES = 32_000_000  # of the shots in result.zarr, at most
_ITERATIONS = 30  # with --damp, and at most where the data determine them
_PATIENCE = 5  # iterations without a better prediction, after which the data stop the search


def run(job: Job[Options]) -> Findings:
    """Migrate a seismic survey by least squares, with a Kirchhoff operator and CGLS (or FISTA or ADMM: --regularise).

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
        problem = recorded(options, comm, job.engine) if options.survey else synthetic(options, comm)
    survey, geometry, grid = problem.survey, problem.survey.geometry, problem.grid
    job.note(survey.notes)
    for warning in survey.warnings:
        job.listener.warn(warning)
    tables: list[Any] = []
    with job.stage("travel times"):
        exact = problem.weighting.none and not options.antialias
        illuminated = options.precondition in ("illumination", "diagonal") or options.gathers is not None
        operator = kirchhoff(job, problem, tables if illuminated and exact else None)
    split = not operator.domain.is_replicated
    job.warn_of_idle_ranks(grid.shape[0] if split else geometry.shots, "columns of the image" if split else "shots")
    conditioned, noise_norm = problem.conditioned, None
    if conditioned is None:
        with job.stage("modelling the survey"):
            noise = _NOISE if options.noise is None else options.noise
            traces, noise_norm = with_noise(
                model_traces(job, problem, operator), survey.shots, noise, options.seed, comm
            )
            # SEG-Y holds float32. Rounded likewise, a survey gives the same image with and without a file.
            survey.traces = [shot.astype(np.float32) for shot in traces]
            if written is not None:
                parameters = {"velocity": problem.expression, "mode": problem.mode, "frequency": problem.frequency}
                parameters["amplitude"] = options.amplitude
                survey.save(written, grid, **parameters)
        traces = [shot.astype(options.dtype) for shot in survey.traces]
        conditioned = problem.condition(Conditioning(outliers=options.outliers), traces)

    stream, reduced, believed = None, None, []
    if isinstance(conditioned, StreamedShots):
        from collops.seismic.lsm.streamed import StreamedSurvey

        left_out, _ = _left_out(job, problem, conditioned)
        with job.stage("migrating the traces"):
            stream = StreamedSurvey(job, problem, operator)
        normal = stream.whole.operator
    else:
        reduced, believed, left_out = _weighted(job, problem, operator, conditioned)
        normal = reduced.H @ reduced
    preconditioner = diagonal = None
    if illuminated:
        with job.stage("illumination"):
            probed = not exact or options.precondition == "diagonal"
            diagonal = probed_diagonal(job, normal) if probed else _illumination(problem, operator, tables, conditioned)
        tables.clear()
    if options.precondition == "spectra":
        with job.stage("local spectra"):
            wavelength = float(problem.velocity.mean()) / problem.frequency
            preconditioner = local_inverse_root(job, normal, wavelength, problem.grid)
    elif diagonal is not None and options.precondition is not None:
        preconditioner = inverse_root(job, normal, diagonal)
    held = None
    if (options.iterations is None and options.damp is None) or (options.regularise and options.weight is None):
        held = held_out(geometry, float(problem.velocity[..., 0].mean()) / problem.frequency)
        held = held[survey.shots.start : survey.shots.stop]
    more_bytes = problem.segy_bytes + field_bytes(problem, options.gathers)
    # Data and residual, and the same on the page with 4/3 bytes a sample.
    more_bytes += 11 * geometry.samples * sum(geometry.receivers[shot].shape[1] for shot in kept_shots(geometry))
    if options.uncertainty is not None:
        more_bytes += 8 * grid.points + segy_bytes(grid.points // grid.nz, grid.nz)
    if stream is None:
        found = invert(job, reduced, believed, held, more_bytes, preconditioner)
    else:
        found = invert_streamed(job, stream, held, more_bytes, preconditioner)

    spread = None
    if options.uncertainty is not None:
        counted = sum(int(np.count_nonzero(each.weights)) for each in conditioned)
        residual, count = float(found.solution.residuals[-1]), options.uncertainty
        spread = uncertainty(job, count, reduced, found.image, residual, counted, found.damp, preconditioner)
    if stream is None:
        explained = survey.by_shot(job.on_host(operator.forward(job.spread(operator.domain, found.image))))
        # Undo gain and polarity; what is muted stays so, in both.
        survey.traces = [each.without_gain for each in conditioned]
        for values, each in zip(explained, conditioned, strict=False):
            values *= each.mute / each.gain
        compared: Iterable[tuple[int, np.ndarray, np.ndarray]] = zip(
            survey.shots, survey.traces, explained, strict=False
        )
    else:
        explained, compared = [], stream.compared(found.image)
    gathers = shot_fields(survey, compared)
    quality = None
    if options.gathers is not None:
        with job.stage("common-image gathers"):
            images = {"adjoint_image": found.adjoint, "image": found.image}
            # As in the adjoint image, of which a gather is a part, mutes and weights count twice.
            twice = [own * each.weights for own, each in zip(believed, conditioned, strict=True)]
            quality = examine(problem, operator, twice, explained, images, options.gathers, job.engine)
    with local_stage(comm):
        rows = _rows(survey, explained) if stream is None else stream.rows(found.image)
        segy = _segy(problem, found, spread, *rows)
        power = power_spectrum(believed if stream is None else stream.believed(), geometry.samples)
    error = relative_error(found.image, problem.truth)
    noise = noise_from_power(comm.allreduce(power))
    shares, count = found.shares, len(found.solution.residuals) - 1
    numbers = {
        "damp": options.damp or 0.0,
        "weight": found.weight,
        "held_out_residual": None if shares is None else float(shares[min(count, len(shares) - 1)]),
        "noise_estimate": noise,
        "velocity_ratio": None if quality is None else quality.offsets.ratio,
        "angle_velocity_ratio": None if quality is None else quality.angles.ratio,
        "traces_left_out": left_out,
        "streamed": stream is not None,
        "image_split": split,
        "noise_deviation": None if spread is None else spread.noise,
        "prior_deviation": None if spread is None else spread.prior,
        "conditioning": problem.conditioning or None,
        "mode": problem.mode,
        "amplitude": problem.weighting.amplitude,
        "aperture": problem.weighting.aperture,
        "max_dip": problem.weighting.dip,
        "frequency": problem.frequency,
        "shots": geometry.shots,
        "traces": geometry.traces,
        "samples": geometry.samples,
        "sample_interval": geometry.interval,
        **grid.numbers,
        "survey": options.survey,
        "velocity": options.velocity or problem.expression,
    }
    line = survey.line
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
            ("image", str(grid)),
        ],
        more_rows=[
            ("iterations", _reason(job, count, shares)),
            *([] if found.weight is None else [("weight", f"{found.weight:g} of --regularise {options.regularise}")]),
            ("noise", f"{noise:.4g}, estimated from the quietest frequencies"),
            *([] if spread is None else [("uncertainty", _described(spread, options.uncertainty))]),
            *([] if quality is None else [("gathers", _flatness(quality))]),
        ],
        fields=_fields(problem, found, spread, diagonal) | gathers | ({} if quality is None else quality.fields()),
        attributes={
            "line_origin": list(line.origin),
            "line_direction": list(line.direction),
            "kinds": list(found.solution.seconds),
            "adjoint_scale": found.adjoint_scale,
        },
        draw=lambda folder: [draw(folder, problem, found, error)] + ([] if quality is None else quality.draw(folder)),
        residual_of=" with the penalty" if options.regularise not in (None, "l1") else "",
        curve=METHODS[options.regularise],
        noise_norm=noise_norm,
        page=write_page,
        files=[] if written is None else [written],
        exports={f"{name}.sgy": traces.export for name, traces in segy.items()},
    )


@dataclass(frozen=True)
class Migration:
    """The result of a migration; images have the shape of the grid."""

    image: np.ndarray  # the least-squares image
    adjoint: np.ndarray  # the adjoint image
    adjoint_scale: float  # with which the adjoint image fits the data best
    solution: Solution  # of the solver
    damp: float  # of the solution; not relative to the operator's norm
    weight: float | None  # of the regularisation
    # where traces were held out: norm of their residual over their own, before the first iteration and after each
    shares: np.ndarray | None


def kirchhoff(job: Job[Options], problem: Problem, kept: list[Any] | None = None) -> Any:
    """Build the operator from an image to the traces of each rank's shots; see `Survey.operator`. Collective.

    Tables that do not fit into the memory are streamed from a file in the folder of the results, or the one around it.
    The image is split where neither it nor they fit otherwise, unless the traces are streamed.
    """
    survey, out = problem.survey, Path(job.options.out).absolute()
    may_split = None if not isinstance(problem.conditioned, StreamedShots) else False
    before = len(survey.notes)
    operator = problem.operator(
        dtype=job.options.dtype,
        engine=job.engine,
        antialias=job.options.antialias,
        coarsen=job.options.coarsen,
        folder=next(each for each in (out, *out.parents) if each.is_dir()),
        split=job.options.split_image or may_split,
        kept=kept,
    )
    job.note(survey.notes[before:])
    return operator


def model_traces(job: Job[Options], problem: Problem, operator: Any) -> list[np.ndarray]:
    """Model the traces of the true reflectivity; return one array per shot of this rank. Collective."""
    if problem.truth is None:
        raise InputError("a recorded survey has no true reflectivity to model")
    return problem.survey.by_shot(job.on_host(operator.forward(job.spread(operator.domain, problem.truth))))


def invert(
    job: Job[Options],
    operator: Any,
    traces: list[np.ndarray],
    held: list[np.ndarray] | None = None,
    more_bytes: int = 0,
    preconditioner: Any = None,
) -> Migration:
    r"""Find the image :math:`m` that minimises :math:`\|d - A m\|^2 + (\epsilon \|A\|)^2 \|m\|^2`. Collective.

    :math:`d` are the traces, one array per shot of this rank, and :math:`\epsilon` is the option damp. The norm of the
    operator :math:`A` is estimated from below (`Gradient`). `Penalty` has the terms of the option regularise.

    The number of iterations is the option, or, if `held` names traces of these shots to hold out, the one after which
    an image of the other traces predicts them best; likewise the weight of the penalty. The amplitudes of a Kirchhoff
    operator are not those of recorded data, so that its residual does not fall to the noise, and it is as coherent as
    ground roll or multiples. Neither the discrepancy principle nor criteria for white noise apply; shots that the image
    has not seen are a test.
    """
    from collops.extend.solvers import cross_validate

    data = _vector(job, operator, traces)
    penalty = Penalty(job.options.regularise, job, operator, Gradient.of(operator, data))
    damp = (job.options.damp or 0.0) * penalty.gradient.norm

    def method(weight: float) -> Any:
        return penalty.method(weight, damp, preconditioner)

    choose = None
    if held is not None:
        parts = [np.broadcast_to(each[:, None], shot.shape) for each, shot in zip(held, traces, strict=True)]
        out = _vector(job, operator, parts)
        choose = partial(cross_validate, operator, data, out)
    return _minimised(job, operator, data, penalty, damp, method, choose, more_bytes)


def invert_streamed(
    job: Job[Options],
    stream: StreamedSurvey,
    held: list[np.ndarray] | None = None,
    more_bytes: int = 0,
    preconditioner: Any = None,
) -> Migration:
    """Find the same image as `invert` by normal equations. Collective."""
    from collops.seismic.lsm.streamed import cross_validated

    whole = stream.whole
    x = whole.right
    gradient = Gradient.of_products(x, (x, whole.operator.forward(x)), whole.energy)
    penalty = Penalty(job.options.regularise, job, whole.operator, gradient)
    damp = (job.options.damp or 0.0) * gradient.norm

    def method(weight: float) -> Any:
        return penalty.normal_method(weight, damp, preconditioner)

    choose = None
    if held is not None:
        with job.stage("migrating the traces that are held out, and the others"):
            out, used = (stream.equations(part) for part in (held, [~each for each in held]))
        choose = partial(cross_validated, used, out)
    found = _minimised(job, whole.operator, x, penalty, damp, method, choose, more_bytes)
    explained = found.solution.details["explained"]
    residuals = np.sqrt(np.maximum(0, whole.energy - explained))
    return replace(found, solution=replace(found.solution, residuals=residuals))


def _minimised(
    job: Job[Options],
    operator: Any,
    right: Any,
    penalty: Penalty,
    damp: float,
    method: Callable[[float], Any],
    shares_of: Callable[..., np.ndarray] | None,
    more_bytes: int,
) -> Migration:
    """Choose iterations and weight, by the shares of held-out traces if `shares_of` returns them, and solve."""
    options, gradient = job.options, penalty.gradient
    # Of `_fields` four images of at most float64, and their sections on the page.
    writes = 2 * 4 * 8 * operator.domain.size + more_bytes
    niter, weight, shares = options.iterations or _ITERATIONS, options.weight, None
    if shares_of is not None:
        with job.stage("choosing the number of iterations" if penalty.kind is None else "choosing the regularisation"):
            # Where the number of iterations is given, the image after the last one counts.
            run = {"patience": _PATIENCE if options.iterations is None else niter, "progress": job.listener.live}
            tried = {
                each: shares_of(method=method(each or 0.0), niter=niter, **run)
                for each in (TRIED if penalty.kind and weight is None else (weight,))
            }
        best = min if options.iterations is None else lambda norms: norms[-1]
        weight, shares = min(tried.items(), key=lambda trial: best(trial[1]))
        if options.iterations is None and options.damp is None:
            niter = max(1, int(shares.argmin()))
    solution = job.solve(method(weight or 0.0), operator, right, writes=writes, niter=niter)
    solution = replace(solution, residuals=penalty.residuals(solution))
    adjoint = job.whole(gradient.x)
    return Migration(job.whole(solution.x), adjoint, gradient.step, solution, damp, weight, shares)


def _illumination(problem: Problem, operator: Any, tables: list[Any], conditioned: Sequence[Conditioned]) -> np.ndarray:
    """Return the squared norm of the data of each image point. Collective; `tables` are those of `kirchhoff`."""
    from collops.seismic.kirchhoff.illumination import normal_diagonal

    if isinstance(operator, SplitImage):
        return _split_illumination(problem, operator, tables, conditioned)
    diagonal, comm = np.zeros(problem.grid.points), problem.survey.comm
    with local_stage(comm):
        first = 0
        for table in tables:
            last = first + len(table.sources)
            part = np.stack([conditioned[number].weights for number in range(first, last)])
            diagonal += normal_diagonal(table, *problem.wavelet, None if (part == 1).all() else part)
            first = last
    return comm.allreduce(diagonal).reshape(problem.grid.shape)


def _split_illumination(
    problem: Problem, operator: SplitImage, tables: list[Any], conditioned: Sequence[Conditioned]
) -> np.ndarray:
    """Do the same for a split image: each rank finds it at its points, for the traces of all ranks."""
    from collops import DistributedArray
    from collops.seismic.kirchhoff.illumination import normal_diagonal

    weights = problem.survey.array([each.weights for each in conditioned], dtype=operator.dtype, engine="numpy")
    diagonal = np.zeros(tables[0].nodes.points)
    gathered = operator.gathered(weights.local_array, weights.engine)  # nothing on ranks without points
    for (_, counts), table in zip(gathered, tables, strict=False):
        diagonal += normal_diagonal(table, *problem.wavelet, None if (counts == 1).all() else counts)
    own: Any = operator.domain
    return DistributedArray(own, operator.comm, operator.own_points(diagonal)).gather()


def _left_out(job: Job[Options], problem: Problem, conditioned: Iterable[Conditioned]) -> tuple[int, bool]:
    """Return how many traces do not count, and whether any has weights or a mute. Collective."""
    sums = np.zeros(2)
    with local_stage(job.comm):
        for each in conditioned:
            sums += np.count_nonzero(each.trust == 0), (each.trust != 1).any() or (each.mute != 1).any()
    out, changes = job.comm.allreduce(sums)
    if out:
        options = job.options
        reasons = [f"dead, or more than {options.outliers:g} times as strong as their neighbours (--outliers)"]
        reasons += ["outside of --offsets"] * (options.offsets is not None)
        reasons += ["without a weight (--trace-weights)"] * (options.trace_weights is not None)
        job.listener.note(
            f"{int(out)} of {problem.survey.geometry.traces} traces are left out: they are {', or '.join(reasons)}"
        )
    return int(out), bool(changes)


def _weighted(
    job: Job[Options], problem: Problem, operator: Any, conditioned: Sequence[Conditioned]
) -> tuple[Any, list[np.ndarray], int]:
    """Weigh the operator and the data; return them with the number of traces that do not count. Collective."""
    from collops import Diagonal

    out, changes = _left_out(job, problem, conditioned)
    if not changes:
        return operator, [each.traces for each in conditioned], 0
    weighted = [(each.traces * each.trust[:, None]).astype(each.traces.dtype) for each in conditioned]
    return Diagonal(_vector(job, operator, [each.weights for each in conditioned])) @ operator, weighted, out


def _vector(job: Job[Options], operator: Any, parts: list[np.ndarray]) -> Any:
    """Return a vector in the range of the operator from one array per shot of this rank."""
    return job.array(operator.range, np.concatenate([np.empty(0), *(part.ravel() for part in parts)]))


def _described(spread: Uncertainty, samples: int | None) -> str:
    """Say in words how uncertain the image is, and by what standards."""
    return (
        f"{np.median(spread.deviation) / spread.prior:.2g} times that of the prior, {spread.prior:.4g}, in the median; "
        f"noise of {spread.noise:.4g}; {samples} samples in {spread.iterations} iterations"
    )


def _flatness(quality: Quality) -> str:
    """Say in words for which velocities the gathers are flattest."""
    ratios = quality.offsets.ratio, quality.angles.ratio
    return "flattest at a velocity divided by {:.2f} by their offsets, by {:.2f} by their angles".format(*ratios)


def _reason(job: Job[Options], iterations: int, shares: np.ndarray | None) -> str:
    """Say in words how many iterations there were, and why."""
    if shares is None or job.options.iterations is not None or job.options.damp is not None:
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


def kept_shots(geometry: Geometry) -> range:
    """Return the shots whose traces are in ``result.zarr`` and on the page: all, or of a large survey some."""
    return range(0, geometry.shots, -(-geometry.traces * geometry.samples // _SAMPLES))


def shot_fields(survey: Survey, compared: Iterable[tuple[int, np.ndarray, np.ndarray]]) -> dict[str, Field]:
    """Return the data and the residual of `kept_shots` as arrays of shape ``(traces, samples)``. Collective.

    `compared` has the number of each shot of this rank, its traces, and those modelled from the image; the residual is
    the data less those.
    """
    kept = kept_shots(survey.geometry)
    with local_stage(survey.comm):
        own = [(measured, measured - modelled) for shot, measured, modelled in compared if shot in kept]
    data, residual = ([pair[kind] for pair in own] for kind in range(2))
    return trace_fields(survey, kept, data=data, data_residual=residual)


def _fields(
    problem: Problem, found: Migration, spread: Uncertainty | None, diagonal: np.ndarray | None
) -> dict[str, Field]:
    grid, image = problem.grid, tuple(problem.grid.axes)
    fields = {name: Field(axis, (name,), "m") for name, axis in grid.axes.items()}
    fields |= {
        "image": Field(found.image, image, "1"),
        "adjoint_image": Field(found.adjoint, image, "1"),
        "velocity": Field(problem.velocity, image, "m/s"),
        "seconds": Field(np.stack(list(found.solution.seconds.values()), 1), ("rank", "kind"), "s"),
    }
    if problem.survey.headers is not None:
        places = zip(("cdp_x", "cdp_y"), problem.survey.line.position(*grid.columns()), strict=True)
        fields |= {name: Field(each.reshape(grid.shape[:-1]), image[:-1], "m", True) for name, each in places}
    if spread is not None:
        fields["standard_deviation"] = Field(spread.deviation, image, "1")
    if diagonal is not None:
        # The root has the dimension of an amplitude.
        fields["illumination"] = Field(np.sqrt(np.maximum(diagonal, 0) / (diagonal.max() or 1.0)), image, "1")
    if found.shares is not None:
        fields["held_out_residuals"] = Field(found.shares, ("tried",), "1")
    if problem.truth is not None:
        fields["truth"] = Field(problem.truth, image, "1")
    return fields


def _rows(survey: Survey, explained: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the files of predicted traces and of the residual."""
    nothing = np.empty((0, survey.geometry.samples), np.float32)
    modelled, recorded = (np.concatenate([nothing, *parts], dtype=np.float32) for parts in (explained, survey.traces))
    return modelled, recorded - modelled


def _segy(
    problem: Problem, found: Migration, spread: Uncertainty | None, predicted: Any, residual: Any
) -> dict[str, Traces]:
    """Return the SEG-Y files of the results of a recorded survey; `_rows` has those of traces."""
    survey, grid, images = problem.survey, problem.grid, []
    if (headers := survey.headers) is None:
        return {}
    shots, rank = survey.shots, survey.comm.rank
    if fits_segy(grid.dz / 1e3, grid.nz):
        depth = f"DEPTH IN STEPS OF {grid.dz:g} M BELOW {headers.datum:g} M ABOVE SEA LEVEL"
        images = [
            image_traces(f"LEAST-SQUARES IMAGE, {depth}", found.image, grid, headers, rank),
            image_traces(f"ADJOINT (KIRCHHOFF) IMAGE, {depth}", found.adjoint, grid, headers, rank),
        ]
        if spread is not None:
            title = f"STANDARD DEVIATION OF THE LEAST-SQUARES IMAGE, {depth}"
            images.append(image_traces(title, spread.deviation, grid, headers, rank))
    traces_of_shots = [
        shot_traces("TRACES MODELLED FROM THE LEAST-SQUARES IMAGE, MUTED AS THE DATA", headers, shots, predicted),
        shot_traces("RESIDUAL: FILTERED, MUTED DATA WITHOUT GAIN LESS MODELLED TRACES", headers, shots, residual),
    ]
    names = *SEGY_RESULTS[-2:], *SEGY_RESULTS[:-2], "deviation"
    return dict(zip(names, traces_of_shots + images, strict=False))


def draw(folder: Path, problem: Problem, found: Migration, error: float | None) -> Path:
    """Draw the truth (for recorded data the velocity), the adjoint image and the image; return the picture.

    Of 3-D images it draws the section in the middle of the axis y.
    """
    grid, truth, velocity = problem.grid, problem.truth, section(problem.velocity)
    adjoint, image = found.adjoint_scale * section(found.adjoint), section(found.image)
    wide, deep = float(grid.x[-1] - grid.x[0]), float(grid.z[-1])
    to_scale = 0.5 < wide / deep < 4  # other panels would be narrow strips
    scale, unit = (1000, "km") if wide > 2000 else (1, "m")
    extent = float(grid.x[0]) / scale, float(grid.x[-1]) / scale, 0.0, deep / scale

    def panel(image: np.ndarray, title: str, limits: float | tuple[float, float], colors: str = "") -> Panel:
        return Panel(image, title, extent, (f"distance ({unit})", f"depth ({unit})"), limits, colors, to_scale)

    count = len(found.solution.residuals) - 1
    title = f"least-squares image, {count} iteration{'s' * (count != 1)}"
    if truth is None:
        adjoint, image = balanced(adjoint), balanced(image)
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
            panel(adjoint, "adjoint image", limit),
            panel(image, title if error is None else f"{title}, error {100 * error:.0f} %", limit),
        ]
    size = 5.2, 0.92 * 5.2 * deep / wide + 0.8 if to_scale else 3.2
    return draw_panels(folder / "image.png", panels, size)
