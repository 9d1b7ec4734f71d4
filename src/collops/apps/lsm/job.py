"""The whole job, from options to pictures: what ``collops lsm`` runs on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from collops.apps.lsm.files import write_pictures, write_result
from collops.apps.lsm.migrate import Migration, kirchhoff, least_squares, model_traces
from collops.apps.lsm.options import Options
from collops.apps.lsm.problem import Problem, made_up, recorded
from collops.apps.lsm.segy import write_survey
from collops.apps.lsm.synthetic import add_noise
from collops.apps.outputs import atomic, check_writable, prepare_folder
from collops.apps.report import Outcome, versions
from collops.apps.stages import local_stage, raised_together
from collops.backend import Engine, engine
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["Listener", "run"]

_NOISE = 0.1


class Listener(Protocol):
    """Who hears how far the job is."""

    live: bool
    """Whether this rank shows progress as it happens."""

    def note(self, text: str) -> None:
        """Hear what was decided."""

    def warn(self, text: str) -> None:
        """Hear what the user should know."""

    def stage(self, text: str | None) -> None:
        """Hear that a stage begins; None ends the last one."""


def run(options: Options, comm: Communicator, listener: Listener) -> Outcome:
    """Migrate as `options` say, and write the results. Collective.

    Parameters
    ----------
    options : Options
        The same on every rank.
    comm : Communicator
        The ranks.
    listener : Listener
        Hears of the progress, on every rank.

    Returns
    -------
    Outcome
        The same on every rank, but for the list of files, which are written by the first one.

    Raises
    ------
    InputError
        On every rank, if something the user gave cannot be used.
    """
    folder = Path(options.out)
    with local_stage(comm):
        options.check()
        if comm.rank == 0:
            prepare_folder(folder)
            if options.write_survey is not None:
                check_writable(Path(options.write_survey))
    compute = _engine(options.engine, comm)

    listener.stage("reading" if options.survey else "making the survey")
    problem = recorded(options, comm) if options.survey else made_up(options, comm)
    for note in problem.notes:
        listener.note(note)
    if comm.size > problem.geometry.shots:
        idle = comm.size - problem.geometry.shots
        listener.warn(f"{problem.geometry.shots} shots for {comm.size} ranks: {idle} of them have nothing to do")

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
        progress=listener.live,
    )

    listener.stage("writing")
    noise_level = noise_norm / migration.residuals[0] if noise_norm and migration.residuals[0] else None
    numbers = _numbers(options, problem, migration, comm, compute)
    files: list[Path] = []
    with local_stage(comm):
        if comm.rank == 0:
            files = _write(folder, problem, migration, noise_level, numbers)
    files += [Path(options.write_survey)] if options.write_survey else []
    listener.stage(None)
    return Outcome(numbers, _rows(problem, migration, numbers, compute), migration.split, files)


def _engine(name: str, comm: Communicator) -> Engine:
    """Return the engine that all ranks use. Collective: no message, because the wires were agreed upon."""
    with raised_together():
        # A wire for device arrays means that every rank has a device.
        if name == "auto":
            name = "cupy" if comm.device_transport is not None else "numpy"
        elif name == "cupy" and comm.device_transport is None:
            raise InputError("--engine cupy needs CuPy and a GPU on every rank: use --engine numpy")
        return engine(name)


def _synthetic_traces(
    problem: Problem, operator: Any, comm: Communicator, compute: Engine, dtype: str, noise: float, seed: int
) -> tuple[list[np.ndarray], float]:
    """Model the data of the truth and add noise; return them with the norm of the noise over all ranks. Collective."""
    clean = model_traces(operator, problem, comm, compute, dtype)
    own = sum(float((shot.astype(np.float64) ** 2).sum()) for shot in clean)
    signal = float(comm.allreduce(np.array(own))[()])
    samples = problem.geometry.traces * problem.geometry.samples
    deviation = noise * float(np.sqrt(signal / samples))
    noisy = [shot.copy() for shot in clean]
    if deviation > 0:
        add_noise(noisy, problem.shots, deviation, seed)
    own = sum(float(((a - b).astype(np.float64) ** 2).sum()) for a, b in zip(noisy, clean, strict=True))
    # What a SEG-Y file would hold of the data is all that the migration gets, so that both ways give one
    # image.
    rounded = [shot.astype(np.float32).astype(dtype) for shot in noisy]
    return rounded, float(np.sqrt(comm.allreduce(np.array(own))[()]))


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


def _write(
    folder: Path, problem: Problem, migration: Migration, noise_level: float | None, numbers: dict[str, Any]
) -> list[Path]:
    written = write_pictures(
        folder,
        problem.grid,
        truth=problem.truth,
        velocity=problem.velocity,
        adjoint=migration.scaled_adjoint,
        image=migration.image,
        residuals=migration.residuals,
        noise_level=noise_level,
        error=numbers["relative_error"],
    )
    arrays = {
        "image": migration.image,
        "adjoint_image": migration.adjoint,
        "velocity": problem.velocity,
        "residual_norms": migration.residuals,
    }
    if problem.truth is not None:
        arrays["truth"] = problem.truth
    units = {"image": "1", "adjoint_image": "1", "velocity": "m/s", "residual_norms": "1", "truth": "1"}
    attributes = {
        "title": "least-squares migration",
        "line_origin": list(problem.line.origin),
        "line_direction": list(problem.line.direction),
        **numbers,
    }
    return [*written, write_result(folder / "result.zarr", problem.grid, arrays, units, attributes)]


def _numbers(
    options: Options, problem: Problem, migration: Migration, comm: Communicator, compute: Engine
) -> dict[str, Any]:
    first, last = float(migration.residuals[0]), float(migration.residuals[-1])
    geometry, grid = problem.geometry, problem.grid
    return {
        "residual_initial": first,
        "residual_final": last,
        "residual_reduction": last / first if first else 0.0,
        "relative_error": _relative_error(migration.image, problem.truth),
        "adjoint_relative_error": _best_relative_error(migration.adjoint, problem.truth),
        "seconds_per_iteration": migration.seconds_per_iteration,
        "seconds_split": migration.split.summary(),
        "messages_per_iteration": migration.messages_per_iteration,
        "execution": migration.execution,
        "transport": comm.transport if compute.memory == "device" else comm.host_transport,
        "engine": compute.name,
        "ranks": comm.size,
        "iterations": len(migration.residuals) - 1,
        "damp": options.damp,
        "dtype": options.dtype,
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
        "versions": versions(),
    }


def _rows(problem: Problem, migration: Migration, numbers: dict[str, Any], compute: Engine) -> list[tuple[str, str]]:
    geometry, grid = problem.geometry, problem.grid
    rows = [
        ("survey", f"{geometry.shots} shots, {geometry.traces} traces of {geometry.samples} samples"),
        ("image", f"{grid.nx} x {grid.nz} points, {grid.dx:g} x {grid.dz:g} m"),
        ("ranks", f"{numbers['ranks']} ({compute.name}, messages by {numbers['transport']})"),
        (
            "residual",
            f"{numbers['residual_initial']:.4g} -> {numbers['residual_final']:.4g} in {numbers['iterations']} "
            f"iterations, {numbers['residual_reduction']:.3g} of the first",
        ),
    ]
    if numbers["relative_error"] is not None:
        rows.append(
            (
                "image error",
                f"{100 * numbers['relative_error']:.1f} % "
                f"(adjoint image at its best scale: {100 * numbers['adjoint_relative_error']:.1f} %)",
            )
        )
    rows.append(("time", f"{1e3 * migration.seconds_per_iteration:.3g} ms an iteration ({migration.execution})"))
    rows.append(("messages", f"{migration.messages_per_iteration:g} an iteration"))
    return rows


def _relative_error(image: np.ndarray, truth: np.ndarray | None) -> float | None:
    """Return ``||image - truth|| / ||truth||``; nothing is rescaled, so that wrong amplitudes count."""
    if truth is None or not truth.any():
        return None
    return float(np.linalg.norm(image - truth) / np.linalg.norm(truth))


def _best_relative_error(image: np.ndarray, truth: np.ndarray | None) -> float | None:
    """Return the same for the multiple of `image` that is closest to the truth: an adjoint has no scale of its own."""
    if truth is None or not truth.any() or not image.any():
        return None
    image = image.astype(np.float64)
    return _relative_error(image * (np.vdot(image, truth) / np.vdot(image, image)), truth)
