"""Sparse reflectivity: deconvolution of the wavelet by FISTA, with the fewest spikes that explain the data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from collops.extend.applications import (
    METHOD,
    Findings,
    Gradient,
    Iterations,
    Job,
    Must,
    OneOf,
    Out,
    largest_amplitude,
    option,
    symmetric_limit,
)
from collops.seismic.volume.modelling import convolution, reflection
from collops.seismic.volume.problem import (
    Image,
    Inversion,
    Kind,
    Problem,
    VolumeOptions,
    draw_images,
    findings,
    prepare,
    section_of,
)

if TYPE_CHECKING:
    from collops import Communicator
    from collops.extend.arrays import Array

_KIND = Kind(
    matrix=convolution,
    model=lambda impedance: np.log(impedance) @ reflection(impedance.shape[-1]).T.toarray(),
    extents=(150,),
    samples=250,
    noise=0.05,
)


# The range of the sparsity if the data determine it, relative to the strongest event of all traces: events above the
# noise may be a thousand times weaker.
_MAX_STRENGTH, _MIN_STRENGTH = 0.2, 1e-4


@dataclass(frozen=True, kw_only=True)
class Options(VolumeOptions):
    """The options of ``collops reflectivity``."""

    segy_results = ("reflectivity", "impedance", "predicted", "residual")

    sparsity: Annotated[
        float | None,
        option(
            "Weight of the sparsity penalty, 0 to 1: 0 for none; with 1 all coefficients are zero.",
            METHOD,
            show_default="from the noise of the data",
        ),
        Must("lie between 0 and 1", lambda value: 0 <= value <= 1),
    ] = None
    threshold: Annotated[
        str, option("Thresholding of the coefficients: soft, half or hard.", METHOD), OneOf("soft", "half", "hard")
    ] = "soft"
    iterations: Iterations = 100
    out: Out = "collops-reflectivity"


def run(job: Job[Options]) -> Findings:
    """Invert stacked data for sparse reflection coefficients, with FISTA.

    By default it inverts a synthetic section over folded and faulted layers and compares the result with the true
    coefficients. With --volume it inverts data from a file. Writes image.png, convergence.png and result.zarr; for data
    in SEG-Y also the SEG-Y files reflectivity, impedance, predicted and residual.
    """
    problem = prepare(job, _KIND)
    inversion = invert(job, problem)
    problem, inversion = problem.plausible(inversion, inversion.model)
    with job.stage("comparing"):
        spikes = judge(problem, inversion)
        sections = _sections(problem, inversion)
    return describe(job.options, problem, inversion, spikes, sections)


class Matches(NamedTuple):
    """Numbers of spikes of at least a tenth of the largest true spike."""

    true: int
    detected: int
    matched: int  # true spikes with a detected spike of the same sign within one sample


class Spikes(NamedTuple):
    """The sparsity of a model, and the number of true spikes in it."""

    fraction: float  # of samples that are not zero
    matches: Matches | None  # for synthetic data


def judge(problem: Problem, inversion: Inversion) -> Spikes:
    """Count the spikes. Collective."""
    comm, truth = problem.job.comm, problem.volume.truth
    nonzero, samples = comm.allreduce(np.array([np.count_nonzero(inversion.model), inversion.model.size], np.float64))
    return Spikes(float(nonzero / samples), None if truth is None else match(inversion.model, truth, comm))


def _sections(problem: Problem, inversion: Inversion) -> list[np.ndarray]:
    """Gather the sections to draw: the data, the truth or the residual, and the model. Collective."""
    volume = problem.volume
    reference = inversion.unexplained if volume.truth is None else volume.truth
    return [section_of(part, problem.job.comm) for part in (volume.traces, reference, inversion.model)]


def describe(
    options: Options, problem: Problem, inversion: Inversion, spikes: Spikes, sections: list[np.ndarray]
) -> Findings:
    """Return the results for the recipe, which writes them. Collective."""
    volume, choice, counts = problem.volume, inversion.choice, spikes.matches
    numbers = {
        "nonzero_fraction": spikes.fraction,
        "sparsity": choice.weight if choice else options.sparsity,
        "noise_estimate": choice.noise if choice else None,
        "misfit": inversion.misfit,
        "threshold": options.threshold,
        **problem.numbers(),
    }
    more_rows = [
        ("nonzero", f"{100 * spikes.fraction:.1f} % of the samples"),
        ("misfit", f"{100 * inversion.misfit:.1f} % of the data"),
    ]
    if choice is not None:
        more_rows.append(("sparsity", f"{choice.weight:.3g}: {choice.why}"))
    arrays = {"reflectivity": inversion.model, "adjoint": inversion.adjoint, "data": volume.traces}
    arrays["residual"] = inversion.unexplained
    if counts is not None and volume.truth is not None:
        arrays["truth"] = volume.truth
        numbers |= {"spikes_true": counts.true, "spikes_found": counts.detected, "spikes_matched": counts.matched}
        text = f"{counts.matched} of {counts.true} within one sample, {counts.detected} found in all"
        more_rows.insert(0, ("spikes", text))
    return findings(
        problem,
        inversion,
        volume.truth,
        title="reflectivity inversion",
        subject="reflectivity",
        numbers=numbers,
        rows=[("section" if len(volume.cube.lateral) == 1 else "volume", volume.cube.describe())],
        more_rows=more_rows,
        arrays={name: (values, "1") for name, values in arrays.items()},
        draw=lambda folder: [_draw(folder, problem, sections, len(inversion.solution.residuals) - 1)],
        curve="FISTA",
        exports=[
            ("REFLECTION COEFFICIENTS", inversion.model),
            ("RELATIVE IMPEDANCE, ITS GEOMETRIC MEAN OVER A TRACE IS 1", relative_impedance(inversion.model)),
        ],
        source="REFLECTION COEFFICIENTS",
    )


def invert(job: Job[Options], problem: Problem) -> Inversion:
    r"""Find few reflection coefficients that explain the data. Collective.

    Notes
    -----
    .. math:: \min_r \tfrac12 \|d - W r\|^2 + \lambda \|W^T d\|_\infty \|r\|_1

    with the option sparsity as :math:`\lambda`, by default such that the residual equals the noise. This is the penalty
    of the soft threshold; the half threshold penalises the square roots of the absolute values, the hard threshold the
    number of nonzero coefficients. The traces are independent, but share step and stopping rule: an iteration takes one
    allreduce of three numbers.
    """
    from collops import fista
    from collops.extend.solvers import find_threshold

    operator, volume, threshold = problem.operator, problem.volume, job.options.threshold
    data = problem.vector(volume.traces)
    gradient = Gradient.from_data(operator, data)
    spectrum = np.fft.rfft(volume.wavelet, 8 * len(volume.wavelet))
    # The norm of a convolution is at most its largest amplitude; the margin covers frequencies between samples.
    step = 1 / (1.01 * float((np.abs(spectrum) ** 2).max()))
    largest = float(gradient.x.norm(np.inf))

    def method(sparsity: float) -> dict[str, Any]:
        # Each step sets values below `cut` to zero, a fraction of the largest value of the first step. The penalty of
        # FISTA counts twice, as its misfit is not halved.
        cut = sparsity * step * largest
        weight = 2 * find_threshold(threshold, None).parameter(cut) / step
        return {"eps": weight, "alpha": step, "tol": 0.0, "threshkind": threshold}

    def solve(sparsity: float, x0: Array | None) -> Array:
        # With fewer iterations, a trial would explain less than the result with the same sparsity.
        return fista(operator, data, x0, niter=job.options.iterations, progress=False, **method(sparsity)).x

    sparsity, choice = job.options.sparsity, None
    if sparsity is None:
        choice = problem.choose(data, solve, _MAX_STRENGTH, _MIN_STRENGTH)
        sparsity = choice.weight
    solution = job.solve(fista, operator, data, writes=problem.result_bytes, **method(sparsity))
    return problem.inversion(data, gradient, solution, choice)


def relative_impedance(coefficients: np.ndarray) -> np.ndarray:
    """Return the impedance of the layer above each coefficient, relative to its geometric mean over the trace.

    Small coefficients are half the differences of its logarithm. Samples are along the last axis.
    """
    logarithm = np.zeros(coefficients.shape, np.float64)
    np.cumsum(2.0 * coefficients[..., :-1], axis=-1, out=logarithm[..., 1:])
    logarithm -= logarithm.mean(axis=-1, keepdims=True)
    return np.exp(np.clip(logarithm, -80, 80))  # float32 ends there


def match(model: np.ndarray, truth: np.ndarray, comm: Communicator) -> Matches:
    """Compare this rank's traces, samples along the last axis, with the true ones. Collective."""
    largest = largest_amplitude(truth, comm)
    counts = np.zeros(3)
    if largest and truth.size:
        signs_true, signs_found = (np.sign(v) * (np.abs(v) >= 0.1 * largest) for v in (truth, model))
        padded = np.pad(signs_found, [(0, 0)] * (truth.ndim - 1) + [(1, 1)])
        near = [padded[..., shift : shift + truth.shape[-1]] == signs_true for shift in range(3)]
        matched = (signs_true != 0) & np.logical_or.reduce(near)
        counts[:] = [np.count_nonzero(signs) for signs in (signs_true, signs_found, matched)]
    return Matches(*(int(n) for n in comm.allreduce(counts)))


def _draw(folder: Path, problem: Problem, sections: list[np.ndarray], iterations: int) -> Path:
    data, reference, spikes = sections
    known = problem.volume.truth is not None
    amplitude = symmetric_limit(data)
    shown = reference if known else spikes
    strength = symmetric_limit(shown[shown != 0] if shown.any() else shown, 95)
    images = [
        Image(data, "data", amplitude),
        Image(reference, "true reflectivity", strength) if known else Image(reference, "data not explained", amplitude),
        Image(spikes, f"reflectivity, {iterations} iterations", strength),
    ]
    return draw_images(folder / "image.png", problem.volume.cube, images)
