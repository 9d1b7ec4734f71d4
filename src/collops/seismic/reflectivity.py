"""Sparse reflectivity: deconvolve the wavelet by FISTA, with as few spikes as explain the data."""

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

_KIND = Kind(
    matrix=convolution,
    model=lambda impedance: np.log(impedance) @ reflection(impedance.shape[-1]).T.toarray(),
    extents=(150,),
    samples=250,
    noise=0.05,
)


# The range of the sparsity where the data determine it, as a share of the strongest event of all traces: the weakest
# that exceed the noise may be a thousand times weaker.
_MAX_STRENGTH, _MIN_STRENGTH = 0.2, 1e-4


@dataclass(frozen=True, kw_only=True)
class Options(VolumeOptions):
    """The options of ``collops reflectivity``."""

    segy_results = ("reflectivity", "impedance", "predicted", "residual")

    sparsity: Annotated[
        float | None,
        option(
            "Weight of the sparsity: 0 for none; 1 leaves no spikes.", METHOD, show_default="from the noise in the data"
        ),
        Must("lie between 0 and 1", lambda value: 0 <= value <= 1),
    ] = None
    threshold: Annotated[
        str, option("Thresholding of the spikes: soft, half or hard.", METHOD), OneOf("soft", "half", "hard")
    ] = "soft"
    iterations: Iterations = 100
    out: Out = "collops-reflectivity"


def run(job: Job[Options]) -> Findings:
    """Invert stacked data for sparse reflection coefficients, with FISTA.

    By default it synthesises a section over folded and faulted layers and compares the result with the true
    coefficients. With --volume it inverts data from a file. Writes image.png, convergence.png and result.zarr; for data
    in SEG-Y also reflectivity, impedance, predicted and residual as SEG-Y.
    """
    problem = prepare(job, _KIND)
    found = invert(job, problem)
    problem, found = problem.plausible(found, found.model)
    with job.stage("comparing"):
        spikes = judge(problem, found)
        sections = _sections(problem, found)
    return describe(job.options, problem, found, spikes, sections)


class Matches(NamedTuple):
    """Numbers of spikes of at least a tenth of the largest true one."""

    true: int
    found: int
    matched: int  # true ones with a found one of the same sign within one sample


class Spikes(NamedTuple):
    """How sparse a model is, and how many of the true spikes it has."""

    fraction: float  # of samples that are not zero
    matches: Matches | None  # for synthetic data


def judge(problem: Problem, found: Inversion) -> Spikes:
    """Count the spikes. Collective."""
    comm, truth = problem.job.comm, problem.volume.truth
    nonzero, samples = comm.allreduce(np.array([np.count_nonzero(found.model), found.model.size], np.float64))
    return Spikes(float(nonzero / samples), None if truth is None else match(found.model, truth, comm))


def _sections(problem: Problem, found: Inversion) -> list[np.ndarray]:
    """Gather the sections to draw: the data, the truth or the residual, and the model. Collective."""
    volume = problem.volume
    other = found.unexplained if volume.truth is None else volume.truth
    return [section_of(part, problem.job.comm) for part in (volume.traces, other, found.model)]


def describe(
    options: Options, problem: Problem, found: Inversion, spikes: Spikes, sections: list[np.ndarray]
) -> Findings:
    """Describe the results for the recipe, which writes them. Collective."""
    volume, choice, counts = problem.volume, found.choice, spikes.matches
    numbers = {
        "nonzero_fraction": spikes.fraction,
        "sparsity": choice.weight if choice else options.sparsity,
        "noise_estimate": choice.noise if choice else None,
        "misfit": found.misfit,
        "threshold": options.threshold,
        **problem.numbers(),
    }
    more_rows = [
        ("not zero", f"{100 * spikes.fraction:.1f} % of the samples"),
        ("misfit", f"{100 * found.misfit:.1f} % of the data"),
    ]
    if choice is not None:
        more_rows.append(("sparsity", f"{choice.weight:.3g}: {choice.why}"))
    arrays = {"reflectivity": found.model, "adjoint": found.adjoint, "data": volume.traces}
    arrays["residual"] = found.unexplained
    if counts is not None and volume.truth is not None:
        arrays["truth"] = volume.truth
        numbers |= {"spikes_true": counts.true, "spikes_found": counts.found, "spikes_matched": counts.matched}
        text = f"{counts.matched} of {counts.true} within one sample, {counts.found} found in all"
        more_rows.insert(0, ("spikes", text))
    return findings(
        problem,
        found,
        volume.truth,
        title="reflectivity inversion",
        subject="reflectivity",
        numbers=numbers,
        rows=[("section" if len(volume.cube.lateral) == 1 else "volume", volume.cube.describe())],
        more_rows=more_rows,
        arrays={name: (values, "1") for name, values in arrays.items()},
        draw=lambda folder: [_draw(folder, problem, sections, len(found.solution.residuals) - 1)],
        curve="FISTA",
        exports=[
            ("REFLECTION COEFFICIENTS", found.model),
            ("RELATIVE IMPEDANCE, ITS GEOMETRIC MEAN OVER A TRACE IS 1", relative_impedance(found.model)),
        ],
        source="REFLECTION COEFFICIENTS",
    )


def invert(job: Job[Options], problem: Problem) -> Inversion:
    r"""Find few reflection coefficients that explain the data. Collective.

    Notes
    -----
    .. math:: \min_r \tfrac12 \|d - W r\|^2 + \lambda \|W^T d\|_\infty \|r\|_1

    with the option sparsity as :math:`\lambda`, by default such that the residual is as large as the noise. This is for
    the soft threshold; the half threshold replaces the absolute values of the coefficients by their roots, the hard one
    by their number. The traces are independent, but share step and stopping rule: an iteration sends one allreduce of
    three numbers.
    """
    from collops import fista
    from collops.extend.solvers import find_threshold

    operator, volume, threshold = problem.operator, problem.volume, job.options.threshold
    data = problem.vector(volume.traces)
    gradient = Gradient.of(operator, data)
    spectrum = np.fft.rfft(volume.wavelet, 8 * len(volume.wavelet))
    # The norm of a convolution is at most its largest amplitude; the margin covers frequencies between samples.
    step = 1 / (1.01 * float((np.abs(spectrum) ** 2).max()))
    largest = float(gradient.x.norm(np.inf))

    def method(sparsity: float) -> dict[str, Any]:
        # Each step sets values below `cut` to zero: a share of the largest value of the first step. The penalty of
        # FISTA counts twice, as its misfit is not halved.
        cut = sparsity * step * largest
        weight = 2 * find_threshold(threshold, None).parameter(cut) / step
        return {"eps": weight, "alpha": step, "tol": 0.0, "threshkind": threshold}

    def solve(sparsity: float, x0: Any) -> Any:
        # With fewer iterations than the result, a trial would not explain as much with the same sparsity.
        return fista(operator, data, x0, niter=job.options.iterations, progress=False, **method(sparsity)).x

    sparsity, choice = job.options.sparsity, None
    if sparsity is None:
        choice = problem.choose(data, solve, _MAX_STRENGTH, _MIN_STRENGTH)
        sparsity = choice.weight
    solution = job.solve(fista, operator, data, writes=problem.result_bytes, **method(sparsity))
    return problem.inversion(data, gradient, solution, choice)


def relative_impedance(coefficients: np.ndarray) -> np.ndarray:
    """Return the impedance above which each reflection coefficient lies, relative to its geometric mean over the trace.

    Small coefficients are half the differences of its logarithm. Samples are along the last axis.
    """
    logarithm = np.zeros(coefficients.shape, np.float64)
    np.cumsum(2.0 * coefficients[..., :-1], axis=-1, out=logarithm[..., 1:])
    logarithm -= logarithm.mean(axis=-1, keepdims=True)
    return np.exp(np.clip(logarithm, -80, 80))  # float32 ends there


def match(found: np.ndarray, truth: np.ndarray, comm: Communicator) -> Matches:
    """Compare this rank's traces, samples along the last axis, with the true ones. Collective."""
    largest = largest_amplitude(truth, comm)
    counts = np.zeros(3)
    if largest and truth.size:
        signs_true, signs_found = (np.sign(v) * (np.abs(v) >= 0.1 * largest) for v in (truth, found))
        padded = np.pad(signs_found, [(0, 0)] * (truth.ndim - 1) + [(1, 1)])
        near = [padded[..., shift : shift + truth.shape[-1]] == signs_true for shift in range(3)]
        matched = (signs_true != 0) & np.logical_or.reduce(near)
        counts[:] = [np.count_nonzero(each) for each in (signs_true, signs_found, matched)]
    return Matches(*(int(n) for n in comm.allreduce(counts)))


def _draw(folder: Path, problem: Problem, sections: list[np.ndarray], iterations: int) -> Path:
    data, other, spikes = sections
    known = problem.volume.truth is not None
    amplitude = symmetric_limit(data)
    shown = other if known else spikes
    strength = symmetric_limit(shown[shown != 0] if shown.any() else shown, 95)
    images = [
        Image(data, "data", amplitude),
        Image(other, "true reflectivity", strength) if known else Image(other, "data not explained", amplitude),
        Image(spikes, f"reflectivity, {iterations} iterations", strength),
    ]
    return draw_images(folder / "image.png", problem.volume.cube, images)
