"""The whole job, from options to pictures: what ``collops lsm`` runs on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.apps.job import Listener, begin, warn_of_idle_ranks
from collops.apps.lsm.files import write_pictures
from collops.apps.lsm.gathers import Gathers, some_gathers
from collops.apps.lsm.migrate import Migration, kirchhoff, least_squares, model_traces
from collops.apps.lsm.options import Options
from collops.apps.lsm.page import write_page
from collops.apps.lsm.problem import Problem, made_up, recorded
from collops.apps.lsm.segy import write_survey
from collops.apps.noise import with_noise
from collops.apps.outputs import Field, atomic, check_writable, write_result
from collops.apps.report import Outcome, best_relative_error, common_numbers, common_rows, relative_error
from collops.apps.stages import local_stage

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["run"]

_NOISE = 0.1


def run(options: Options, comm: Communicator, listener: Listener) -> Outcome:
    """Migrate as `options` say, and write the results; see `collops.apps.job.Job`. Collective."""
    folder = Path(options.out)
    compute = begin(options, comm)
    with local_stage(comm):
        if comm.rank == 0 and options.write_survey is not None:
            check_writable(Path(options.write_survey))

    listener.stage("reading" if options.survey else "making the survey")
    problem = recorded(options, comm) if options.survey else made_up(options, comm)
    for note in problem.notes:
        listener.note(note)
    warn_of_idle_ranks(listener, comm, problem.geometry.shots, "shots")

    listener.stage("travel times")
    operator = kirchhoff(problem, comm, compute, options.dtype)
    traces, noise_norm = problem.traces, None
    if traces is None:
        listener.stage("modelling")
        noise = _NOISE if options.noise is None else options.noise
        traces, noise_norm = _synthetic_traces(problem, operator, comm, compute, options.dtype, noise, options.seed)
        if options.write_survey is not None:
            _write_survey(Path(options.write_survey), problem, traces, comm)

    listener.stage(None)
    migration = least_squares(
        operator,
        traces,
        comm,
        compute,
        dtype=options.dtype,
        iterations=options.iterations,
        damp=options.damp,
        **options.run(listener.live),
    )

    listener.stage("writing")
    numbers = _numbers(options, problem, migration, comm, compute)
    files: list[Path] = []
    with local_stage(comm):
        if comm.rank == 0:
            files = _draw(folder, problem, migration, noise_norm, numbers)
    gathers = some_gathers(problem, operator, traces, migration.image, comm, compute)
    files.append(_write(folder, problem, migration, gathers, numbers, comm))
    with local_stage(comm):
        if comm.rank == 0:
            files.append(write_page(folder))
    files += [Path(options.write_survey)] if options.write_survey else []
    listener.stage(None)
    return Outcome(numbers, _rows(problem, numbers), migration.costs.split, files)


def _synthetic_traces(
    problem: Problem, operator: Any, comm: Communicator, compute: Engine, dtype: str, noise: float, seed: int
) -> tuple[list[np.ndarray], float]:
    """Model the data of the truth and add noise; return them with the norm of the noise over all ranks. Collective."""
    clean = model_traces(operator, problem, comm, compute, dtype)
    noisy, norm = with_noise(clean, problem.shots, noise, seed, comm)
    # What a SEG-Y file would hold of the data is all that the migration gets, so that both ways give one
    # image.
    rounded = [shot.astype(np.float32).astype(dtype) for shot in noisy]
    return rounded, norm


def _write_survey(path: Path, problem: Problem, traces: list[np.ndarray], comm: Communicator) -> None:
    """Collect the traces on the first rank and write them. Collective."""
    geometry, grid = problem.geometry, problem.grid
    own = np.concatenate([np.empty((0, geometry.samples), np.float32), *traces]).astype(np.float32)
    counts = [int(n) for n in comm.allgather(np.array(len(own)))]
    together = comm.gatherv(own, counts, root=0)
    with local_stage(comm):
        if comm.rank == 0:
            ends = np.cumsum([receivers.shape[1] for receivers in geometry.receivers])[:-1]
            defaults = {
                "velocity": problem.expression,
                "mode": problem.mode,
                "frequency": problem.frequency,
                "nx": grid.nx,
                "nz": grid.nz,
                "dx": grid.dx,
                "dz": grid.dz,
                "x0": grid.x0,
            }
            said = {name: str(value) for name, value in defaults.items() if value is not None}
            with atomic(path) as temporary:
                write_survey(temporary, geometry, np.split(together, ends), said)


def _draw(
    folder: Path, problem: Problem, migration: Migration, noise_norm: float | None, numbers: dict[str, Any]
) -> list[Path]:
    return write_pictures(
        folder,
        problem.grid,
        truth=problem.truth,
        velocity=problem.velocity,
        adjoint=migration.scaled_adjoint,
        image=migration.image,
        residuals=migration.residuals,
        noise_norm=noise_norm,
        error=numbers["relative_error"],
    )


def _write(
    folder: Path,
    problem: Problem,
    migration: Migration,
    gathers: Gathers,
    numbers: dict[str, Any],
    comm: Communicator,
) -> Path:
    """Write all numbers. Collective."""
    grid, image, gather = problem.grid, ("x", "z"), ("shot", "trace", "time")
    fields = {
        "x": Field(grid.x, ("x",), "m"),
        "z": Field(grid.z, ("z",), "m"),
        "image": Field(migration.image, image, "1"),
        "adjoint_image": Field(migration.adjoint, image, "1"),
        "velocity": Field(problem.velocity, image, "m/s"),
        "residual_norms": Field(migration.residuals, ("iteration",), "1"),
        "shot": Field(gathers.shots, ("shot",), "1"),
        "time": Field(gathers.times, ("time",), "s"),
        "offset": Field(gathers.offsets, ("shot", "trace"), "m"),
        "data": Field(gathers.data, gather, "1"),
        "data_residual": Field(gathers.residual, gather, "1"),
        "seconds": Field(migration.costs.split.seconds, ("rank", "kind"), "s"),
    }
    if problem.truth is not None:
        fields["truth"] = Field(problem.truth, image, "1")
    attributes = {
        "title": "least-squares migration",
        "line_origin": list(problem.line.origin),
        "line_direction": list(problem.line.direction),
        "kinds": list(migration.costs.split.kinds),
        **numbers,
    }
    return write_result(folder / "result.zarr", comm, fields, attributes)


def _numbers(
    options: Options, problem: Problem, migration: Migration, comm: Communicator, compute: Engine
) -> dict[str, Any]:
    geometry, grid = problem.geometry, problem.grid
    common = common_numbers(
        options,
        comm,
        compute,
        residuals=migration.residuals,
        error=relative_error(migration.image, problem.truth),
        adjoint_error=best_relative_error(migration.adjoint, problem.truth),
        costs=migration.costs,
    )
    return common | {
        "damp": options.damp,
        "mode": problem.mode,
        "frequency": problem.frequency,
        "shots": geometry.shots,
        "traces": geometry.traces,
        "samples": geometry.samples,
        "sample_interval": geometry.interval,
        "nx": grid.nx,
        "nz": grid.nz,
        "dx": grid.dx,
        "dz": grid.dz,
        "x0": grid.x0,
        "survey": options.survey,
        "velocity": options.velocity or problem.expression,
    }


def _rows(problem: Problem, numbers: dict[str, Any]) -> list[tuple[str, str]]:
    geometry, grid = problem.geometry, problem.grid
    return [
        ("survey", f"{geometry.shots} shots, {geometry.traces} traces of {geometry.samples} samples"),
        ("image", f"{grid.nx} x {grid.nz} points, {grid.dx:g} x {grid.dz:g} m"),
        *common_rows(numbers, "image", "adjoint image"),
    ]
