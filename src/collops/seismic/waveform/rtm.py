"""The command ``collops rtm``: reverse-time migration, the adjoint of linearised modelling."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from collops import DistributedArray, LinearOperator
from collops.errors import InputError
from collops.extend.applications import METHOD, Findings, Job, Must, Out, Solution, best_relative_error, digits, option
from collops.seismic.waveform.imaging import born, compensated, illumination, laplacian, reflections
from collops.seismic.waveform.options import Smooth, WaveOptions
from collops.seismic.waveform.problem import WaveProblem, prepare
from collops.seismic.waveform.results import Outcome, Picture, findings


@dataclass(frozen=True, kw_only=True)
class Options(WaveOptions):
    """The options of ``collops rtm``."""

    segy_results = ("image", "predicted", "residual")

    compensate: Annotated[
        bool,
        option(
            "Divide the image by its illumination, which takes eight linearised modellings and migrations.",
            METHOD,
            "--compensate/--no-compensate",
        ),
    ] = True
    laplacian: Annotated[
        bool, option("Apply the negative Laplacian to the image, which removes its smooth part.", METHOD, "--laplacian")
    ] = False
    # There is no solver.
    iterations: Annotated[int, option("", hidden=True), Must("be 1: migration does not iterate", lambda n: n == 1)] = 1
    smooth: Smooth = 60.0
    out: Out = "collops-rtm"

    def check(self) -> None:
        """Raise `InputError` for invalid or contradictory values; read only headers of files."""
        super().check()
        for name in ("checkpoint", "profile"):
            if getattr(self, name):
                raise InputError(f"--{name} is for solvers, and migration does not iterate: omit it, or use lsrtm")

    def fixed_options(self) -> dict[str, Any]:
        """Return options of the survey that the application determines."""
        return {"iterations": None}


class Images(NamedTuple):
    """The images of a migration."""

    image: np.ndarray
    adjoint: np.ndarray  # of the data, without compensation and filter
    diagonal: np.ndarray | None  # the illumination


def run(job: Job[Options]) -> Findings:
    """Migrate a seismic survey by reverse-time migration, the adjoint of linearised modelling.

    By default it migrates a synthetic survey over folded and faulted layers in a smooth velocity. With --survey and
    --velocity it migrates a survey from a file. Writes image.png, convergence.png, result.zarr, and the interactive
    page result.html; for a survey from a file also the SEG-Y files image, predicted and residual.
    """
    waves = prepare(job)
    operator, data = born(job, waves), reflections(job, waves)
    adjoint, solution, predicted = migrate(job, operator, data)
    image, diagonal = adjoint, None
    if job.options.compensate:
        diagonal = illumination(job, operator)
        image = compensated(adjoint, diagonal)
    if job.options.laplacian:
        image = laplacian(image, waves.grid, waves.water)
    return describe(job, waves, Images(image, adjoint, diagonal), solution, data, predicted)


def migrate(
    job: Job[Options], operator: LinearOperator, data: DistributedArray
) -> tuple[np.ndarray, Solution, DistributedArray]:
    """Return the adjoint of the data, its misfit at its best scale, and the traces modelled from it. Collective."""
    begin = time.perf_counter()
    with job.stage("migrating"):
        image = operator.adjoint(data)
    seconds = job.comm.allgather(np.array(time.perf_counter() - begin))
    with job.stage("modelling the image"):
        modelled = operator.forward(image)
    square = float(modelled.dot(modelled))
    scale = float(modelled.dot(data)) / square if square else 0.0
    predicted = scale * modelled
    norms = np.array([float(data.norm()), float((data - predicted).norm())])
    solution = Solution(image, norms, "converged", "eager", None, {"iteration": seconds}, None, {"scale": scale})
    return job.gather(image), solution, predicted


def describe(
    job: Job[Options],
    waves: WaveProblem,
    images: Images,
    solution: Solution,
    data: DistributedArray,
    predicted: DistributedArray,
) -> Findings:
    """Return the results for the recipe, which writes them. Collective."""
    options, velocity, (image, adjoint, diagonal) = job.options, waves.problem.velocity, images
    pictures = {
        "image": Picture(image, "reverse-time migration"),
        "adjoint_image": Picture(adjoint, "adjoint of the data", drawn=False),
        "velocity": Picture(velocity, "velocity", "m/s"),
    }
    error = None
    if diagonal is not None:
        shown = np.sqrt(diagonal / (diagonal.max() or 1.0))
        pictures["illumination"] = Picture(shown, "illumination", drawn=False)
    if waves.truth is not None:
        change = waves.truth - velocity
        pictures["truth"] = Picture(
            laplacian(change, waves.grid, waves.water) if options.laplacian else change, "true change"
        )
        error = best_relative_error(image, pictures["truth"].values)
    fitted = {"image_scale": solution.details["scale"], "compensated": options.compensate}
    filtered = "THE NEGATIVE LAPLACIAN OF " * options.laplacian
    remaining = solution.residuals[1] / (solution.residuals[0] or 1.0)
    return findings(
        job,
        waves,
        Outcome(
            title="reverse-time migration",
            subject="image",
            solution=solution,
            pictures=pictures,
            data=data,
            modelled=predicted,
            segy={"image": (f"{filtered}REVERSE-TIME MIGRATION", image)},
            numbers={**fitted, "laplacian": options.laplacian},
            rows=[("adjoint", f"at its best scale it leaves {digits(100 * remaining)} % of the data")],
            curve="reverse-time migration, at its best scale",
            error=error,
        ),
    )
