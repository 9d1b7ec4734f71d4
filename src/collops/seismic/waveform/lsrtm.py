"""The command ``collops lsrtm``: least-squares reverse-time migration by CGLS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from collops import DistributedArray, LinearOperator, cgls
from collops.extend.applications import (
    METHOD,
    AtLeast,
    Damp,
    Findings,
    Gradient,
    Job,
    OneOf,
    Out,
    Solution,
    best_relative_error,
    option,
    relative_error,
)
from collops.seismic.lsm.regularisation import inverse_root
from collops.seismic.waveform.imaging import born, illumination, reflections
from collops.seismic.waveform.options import Smooth, WaveOptions
from collops.seismic.waveform.problem import WaveProblem, prepare
from collops.seismic.waveform.results import Outcome, Picture, findings


@dataclass(frozen=True, kw_only=True)
class Options(WaveOptions):
    """The options of ``collops lsrtm``."""

    segy_results = ("image", "adjoint", "predicted", "residual")

    iterations: Annotated[int, option("Number of solver iterations."), AtLeast(1)] = 15
    damp: Damp = 0.0
    precondition: Annotated[
        str,
        option(
            "Preconditioner: none, or the inverse square root of the illumination, which takes eight linearised "
            "modellings and migrations.",
            METHOD,
        ),
        OneOf("none", "illumination"),
    ] = "illumination"
    smooth: Smooth = 60.0
    out: Out = "collops-lsrtm"

    def fixed_options(self) -> dict[str, Any]:
        """Return options of the survey that the application determines; --damp and the preconditioner are its own."""
        return {"iterations": None, "damp": None, "precondition": None}


def run(job: Job[Options]) -> Findings:
    """Migrate a seismic survey by least squares, with linearised waves and CGLS.

    By default it migrates a synthetic survey over folded and faulted layers in a smooth velocity, and compares the
    image with the true change of the velocity. With --survey and --velocity it migrates a survey from a file. Writes
    image.png, convergence.png, result.zarr, and the interactive page result.html; for a survey from a file also the
    SEG-Y files image, adjoint, predicted and residual.
    """
    waves = prepare(job)
    operator, data = born(job, waves), reflections(job, waves)
    gradient, diagonal = Gradient.from_data(operator, data), None
    if job.options.precondition == "illumination":
        diagonal = illumination(job, operator)
    solution = invert(job, waves, operator, data, gradient, diagonal)
    return describe(job, waves, operator, data, gradient, diagonal, solution)


def invert(
    job: Job[Options],
    waves: WaveProblem,
    operator: LinearOperator,
    data: DistributedArray,
    gradient: Gradient,
    diagonal: np.ndarray | None,
) -> Solution:
    r"""Find the image m that minimises :math:`\|d - A m\|^2 + (\epsilon \|A\|)^2 \|m\|^2`. Collective.

    :math:`\epsilon` is the option damp, and the norm of the operator is estimated from below.
    """
    root = None if diagonal is None else inverse_root(job, operator, diagonal)
    damp = job.options.damp * gradient.norm
    return job.solve(cgls, operator, data, writes=waves.result_bytes(), damp=damp, tol=0.0, M=root)


def describe(
    job: Job[Options],
    waves: WaveProblem,
    operator: LinearOperator,
    data: DistributedArray,
    gradient: Gradient,
    diagonal: np.ndarray | None,
    solution: Solution,
) -> Findings:
    """Return the results for the recipe, which writes them. Collective."""
    with job.stage("modelling the image"):
        modelled: Any = operator.forward(solution.x)
    image, adjoint, velocity = job.gather(solution.x), job.gather(gradient.x), waves.problem.velocity
    pictures = {
        "image": Picture(image, f"least squares, {len(solution.residuals) - 1} iterations", "1"),
        "adjoint_image": Picture(gradient.step * adjoint, "adjoint of the data, at its best scale"),
        "velocity": Picture(velocity, "velocity", "m/s", drawn=waves.truth is None),
    }
    error = adjoint_error = None
    if diagonal is not None:
        shown = np.sqrt(diagonal / (diagonal.max() or 1.0))
        pictures["illumination"] = Picture(shown, "illumination", drawn=False)
    if waves.truth is not None:
        truth = waves.truth - velocity
        pictures["truth"] = Picture(truth, "true change of velocity")
        error, adjoint_error = relative_error(image, truth), best_relative_error(adjoint, truth)
    misfit = float((data - modelled).norm()) / (float(data.norm()) or 1.0)
    return findings(
        job,
        waves,
        Outcome(
            title="least-squares reverse-time migration",
            subject="image",
            solution=solution,
            pictures=pictures,
            data=data,
            modelled=modelled,
            segy={
                "image": ("LEAST-SQUARES IMAGE: CHANGE OF VELOCITY", image),
                "adjoint": ("REVERSE-TIME MIGRATION: ADJOINT OF THE DATA", adjoint),
            },
            numbers={"damp": job.options.damp, "misfit": misfit, "precondition": job.options.precondition},
            rows=[("misfit", f"{100 * misfit:.1f} % of the data")],
            curve="CGLS",
            error=error,
            adjoint_error=adjoint_error,
        ),
    )
