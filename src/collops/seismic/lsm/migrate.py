"""Least-squares migration: Kirchhoff modelling from travel times, inverted by CGLS, and the results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from collops import LinearOperator
from collops.errors import InputError
from collops.extend.applications import Findings, Job, check_writable, local_stage
from collops.seismic.conditioning import Conditioning
from collops.seismic.kirchhoff import FixedTables
from collops.seismic.lsm.amplitudes import Amplitudes, amplitudes, realisations
from collops.seismic.lsm.inversion import Migration
from collops.seismic.lsm.options import Options
from collops.seismic.lsm.problem import Problem
from collops.seismic.lsm.quality import Quality, examine
from collops.seismic.lsm.regularisation import inverse_root, local_inverse_root, probed_diagonal
from collops.seismic.lsm.resident import ResidentSurvey
from collops.seismic.lsm.results import Judgement, findings, result_bytes, shot_fields
from collops.seismic.lsm.setup import recorded, synthetic
from collops.seismic.lsm.uncertainty import Uncertainty
from collops.seismic.signals import onset_times, with_noise
from collops.seismic.survey.selection import held_out

_NOISE = 0.1


def run(job: Job[Options]) -> Findings:
    """Migrate a seismic survey by least squares, with a Kirchhoff operator and CGLS (or FISTA or ADMM: --regularise).

    By default it migrates a synthetic survey over faulted, dipping layers and compares the image with the true
    reflectivity. With --survey and --velocity it migrates a survey from a file. Without --iterations and --damp, it
    chooses the number of iterations after which an image of some shots best predicts the others. Writes image.png,
    convergence.png, result.zarr, and the interactive page result.html; for a survey from a file also the SEG-Y files
    image, adjoint, predicted and residual.
    """
    problem = read(job)
    tables: list[FixedTables] | None = [] if _illuminates(job.options) and _exact(job.options, problem) else None
    operator = kirchhoff(job, problem, tables)
    problem = condition(job, problem, operator)
    data = weigh(job, problem, operator)
    diagonal, preconditioner = precondition(job, problem, data, tables)
    migration = data.invert(_held_out(job, problem), result_bytes(problem, job.options), preconditioner)
    deviation = None
    if job.options.uncertainty is not None:
        deviation = data.deviation(job.options.uncertainty, migration, preconditioner)
    data.explain(migration.image)
    shots = shot_fields(problem.survey, data.compared())
    quality = judge(job, problem, data, migration)
    avo = measure(job, problem, data, migration, quality, deviation)
    return findings(job, problem, data, migration, Judgement(diagonal, deviation, quality, avo, shots))


def read(job: Job[Options]) -> Problem:
    """Read or synthesise the survey; a synthetic survey has no data yet. Collective."""
    options, comm = job.options, job.comm
    with local_stage(comm):
        if comm.rank == 0:
            for file in options.survey_files:
                check_writable(file)
    with job.stage("reading" if options.survey else "synthesising the survey"):
        problem = recorded(options, comm, job.engine) if options.survey else synthetic(options, comm)
    job.note(problem.survey.notes)
    for warning in problem.survey.warnings:
        job.listener.warn(warning)
    return problem


def kirchhoff(job: Job[Options], problem: Problem, tables: list[FixedTables] | None = None) -> LinearOperator:
    """Build the operator from an image to the traces of each rank's shots; see `Survey.operator`. Collective.

    Tables that do not fit into the memory are streamed from a file in the folder of the results, or its parent. The
    image is split if neither it nor the tables fit otherwise, unless the traces are streamed. Travel times are appended
    to `tables`.
    """
    options, survey, grid = job.options, problem.survey, problem.image_grid
    out, before = Path(options.out).absolute(), len(survey.notes)
    with job.stage("travel times"):
        operator = problem.operator(
            dtype=options.dtype,
            engine=job.engine,
            antialias=options.antialias,
            coarsen=options.coarsen,
            tolerance=options.time_tolerance,
            folder=next(folder for folder in (out, *out.parents) if folder.is_dir()),
            split=options.split_image or (False if problem.streamed else None),
            kept=tables,
        )
        job.note(survey.notes[before:])
    split = not operator.domain.is_replicated
    parts = grid.shape[0] if split else survey.geometry.shots
    job.warn_of_idle_ranks(parts, "columns of the image" if split else "shots")
    return operator


def condition(job: Job[Options], problem: Problem, operator: LinearOperator) -> Problem:
    """Return the problem with its traces conditioned; a synthetic survey is modelled first. Collective."""
    options, survey = job.options, problem.survey
    if problem.conditioned is not None:
        return problem
    with job.stage("modelling the survey"):
        noise = _NOISE if options.noise is None else options.noise
        if problem.target is not None:  # echoes come from the whole model
            operator = kirchhoff(job, replace(problem, target=None))
        clean = model_traces(job, problem, operator)
        traces, norm = with_noise(clean, survey.shots, noise, options.seed, job.comm)
        # SEG-Y holds float32: round, so that a survey gives the same image with and without a file.
        survey.traces = [shot.astype(np.float32) for shot in traces]
        for file in options.survey_files:
            parameters = {"velocity": problem.expression, "mode": problem.mode, "frequency": problem.frequency}
            survey.save(file, problem.grid, **parameters, amplitude=options.amplitude)
    traces = [shot.astype(options.dtype) for shot in survey.traces]
    conditioned = problem.condition(Conditioning(outliers=options.outliers), traces)
    onsets = [onset_times(shot, survey.geometry.times) for shot in traces]
    return replace(problem, conditioned=conditioned, noise_norm=norm, onsets=onsets)


def model_traces(job: Job[Options], problem: Problem, operator: LinearOperator) -> list[np.ndarray]:
    """Model the traces of the true reflectivity; return one array per shot of this rank. Collective."""
    if problem.truth is None:
        raise InputError("modelling needs a synthetic survey: a recorded survey has no true reflectivity")
    return problem.survey.by_shot(job.on_host(operator.forward(job.distribute(operator.domain, problem.truth))))


def weigh(job: Job[Options], problem: Problem, operator: LinearOperator) -> Any:
    """Return the weighted data: a `ResidentSurvey`, or a `StreamedSurvey` with the same interface. Collective."""
    if not problem.streamed:
        return ResidentSurvey(job, problem, operator)
    from collops.seismic.lsm.streamed import StreamedSurvey

    return StreamedSurvey(job, problem, operator)


def precondition(
    job: Job[Options], problem: Problem, data: Any, tables: list[FixedTables] | None
) -> tuple[np.ndarray | None, LinearOperator | None]:
    """Return the diagonal of the normal operator and a preconditioner, each None unless needed. Collective."""
    options, diagonal = job.options, None
    if _illuminates(options):
        with job.stage("illumination"):
            if options.precondition == "diagonal" or tables is None:
                diagonal = probed_diagonal(job, data.normal)
            else:
                diagonal = illumination(problem, data.modelling, tables)
        if tables is not None:
            tables.clear()  # their memory is no longer needed
    if options.precondition == "spectra":
        with job.stage("local spectra"):
            wavelength = float(problem.velocity.mean()) / problem.frequency
            return diagonal, local_inverse_root(job, data.normal, wavelength, problem.image_grid)
    if diagonal is None or options.precondition is None:
        return diagonal, None
    return diagonal, inverse_root(job, data.normal, diagonal)


def _illuminates(options: Options) -> bool:
    """Return whether the diagonal of the normal operator is needed."""
    return options.precondition in ("illumination", "diagonal") or options.gathers is not None


def _exact(options: Options, problem: Problem) -> bool:
    """Return whether the diagonal can be computed from travel times alone."""
    return problem.weighting.none and not options.antialias


def _held_out(job: Job[Options], problem: Problem) -> list[np.ndarray] | None:
    """Return masks of held-out traces for each shot of this rank, or None if all options are given."""
    options, survey = job.options, problem.survey
    if (options.iterations is None and options.damp is None) or (options.regularise and options.weight is None):
        held = held_out(survey.geometry, float(problem.velocity[..., 0].mean()) / problem.frequency)
        return held[survey.shots.start : survey.shots.stop]
    return None


def judge(job: Job[Options], problem: Problem, data: Any, migration: Migration) -> Quality | None:
    """Make common-image gathers and spectra with the option gathers, which needs traces in memory. Collective."""
    if job.options.gathers is None:
        return None
    with job.stage("common-image gathers"):
        images = {"adjoint_image": migration.adjoint, "image": migration.image}
        traces, sizes = (data.twice_weighted(), data.explained), (job.options.gathers, job.options.gather_counts)
        return examine(problem, data.modelling, *traces, images, *sizes, job.engine)


def measure(
    job: Job[Options],
    problem: Problem,
    data: Any,
    migration: Migration,
    quality: Quality | None,
    deviation: Uncertainty | None,
) -> Amplitudes | None:
    """Fit amplitudes to angles with the option avo; the noise of the data is known with --uncertainty. Collective."""
    if not job.options.avo or quality is None:
        return None
    with job.stage("amplitudes and angles"):
        noise = []
        if deviation is not None:
            noise = realisations(data.weights, problem.survey.shots.start, deviation.noise, job.options.seed)
        traces = data.twice_weighted(), data.explained_twice_weighted()
        return amplitudes(problem, quality, *traces, migration.image, noise)


def illumination(problem: Problem, operator: LinearOperator, tables: list[FixedTables]) -> np.ndarray:
    """Return the squared norm of the data of each image point. Collective; `tables` are from `kirchhoff`."""
    from collops.seismic.kirchhoff.illumination import normal_diagonal

    if not operator.domain.is_replicated:
        return _split_illumination(problem, operator, tables)
    grid, comm, conditioned = problem.image_grid, problem.survey.comm, problem.conditioned or ()
    diagonal = np.zeros(grid.points)
    with local_stage(comm):
        first = 0
        for table in tables:
            last = first + len(table.sources)
            part = np.stack([conditioned[number].weights for number in range(first, last)])
            diagonal += normal_diagonal(table, *problem.wavelet, None if (part == 1).all() else part)
            first = last
    return comm.allreduce(diagonal).reshape(grid.shape)


def _split_illumination(problem: Problem, operator: Any, tables: list[FixedTables]) -> np.ndarray:
    """Do the same for a split image: each rank computes it at its points, for the traces of all ranks."""
    from collops import DistributedArray
    from collops.seismic.kirchhoff.illumination import normal_diagonal

    parts = [shot.weights for shot in problem.conditioned or ()]
    weights = problem.survey.array(parts, dtype=operator.dtype, engine="numpy")
    diagonal = np.zeros(tables[0].nodes.points)
    gathered = operator.gathered(weights.local_array, weights.engine)  # nothing on ranks without points
    for (_, counts), table in zip(gathered, tables, strict=False):
        diagonal += normal_diagonal(table, *problem.wavelet, None if (counts == 1).all() else counts)
    layout: Any = operator.domain
    return DistributedArray(layout, operator.comm, operator.own_points(diagonal)).gather()
