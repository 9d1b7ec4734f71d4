"""Post-stack inversion for acoustic impedance, with a lateral Laplacian, by CGLS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np

from collops.errors import InputError
from collops.extend.applications import (
    METHOD,
    Findings,
    Gradient,
    Iterations,
    Job,
    NotNegative,
    Out,
    Url,
    gather_rows,
    largest_amplitude,
    local_stage,
    located,
    option,
    symmetric_limit,
)
from collops.extend.communication import raised_together
from collops.seismic.volume.files import Cube, check_array_file, open_volume, read_values
from collops.seismic.volume.modelling import convolution, reflection
from collops.seismic.volume.problem import (
    Image,
    Inversion,
    Kind,
    Problem,
    Volume,
    VolumeOptions,
    draw_images,
    findings,
    prepare,
    section_of,
)

if TYPE_CHECKING:
    from collops import Communicator, DistributedArray, LinearOperator
    from collops.extend.arrays import Array

_KIND = Kind(
    matrix=lambda wavelet, samples: convolution(wavelet, samples) @ reflection(samples),
    model=np.log,
    extents=(60, 48),
    samples=240,
    noise=0.1,
)
_BACKGROUND_NAMES = ("background", "impedance")  # in a Zarr group
# The smooth background has the frequencies below about 5 Hz that are missing in the data.
_SMOOTH_SECONDS = 0.06
_WEIGHT, _DAMP = 0.05, 0.01
# If the data determine both: limits of a common factor, and the iterations for each candidate.
_MAX_STRENGTH, _MIN_STRENGTH, _TRIAL_ITERATIONS = 16.0, 0.25, 15


@dataclass(frozen=True, kw_only=True)
class Options(VolumeOptions):
    """The options of ``collops poststack``."""

    segy_results = ("impedance", "predicted", "residual")

    background: Annotated[
        str | None,
        option(
            "Background impedance: smooth (the smoothed impedance of the synthetic volume), a constant, or a file of "
            "the volume's shape.",
            METHOD,
            metavar="smooth|NUMBER|FILE",
            show_default="smooth for synthetic data, else 1 (relative impedance)",
        ),
    ] = None
    weight: Annotated[
        float | None,
        option(
            "Weight of the lateral Laplacian, relative to the norm of the operator.",
            METHOD,
            show_default="from the noise of the data, or 0.05 with --damp",
        ),
        NotNegative,
    ] = None
    damp: Annotated[
        float | None,
        option(
            "Damping towards the background, relative to the norm of the operator.",
            METHOD,
            show_default="a fifth of --weight, or 0.01 with --weight",
        ),
        NotNegative,
    ] = None
    iterations: Iterations = 60
    out: Out = "collops-poststack"

    def results(self) -> list[Path]:
        """Return the files and folders that the application may write, for any data."""
        return [*super().results(), Path(self.out) / "map.png"]

    def check(self) -> None:
        """Raise `InputError` for invalid or contradictory values; read only headers of files."""
        super().check()
        if self.background == "smooth" and self.volume is not None:
            raise InputError("--background smooth needs synthetic data: pass a number or a file")
        if self.background is not None:
            _parse_background(self.background)


def run(job: Job[Options]) -> Findings:
    """Invert stacked data for laterally smooth acoustic impedance, with CGLS.

    By default it inverts a synthetic volume of folded and faulted layers with a channel and compares the result with
    the true impedance. With --volume it inverts a volume from a file. Writes image.png, map.png (of a volume),
    convergence.png and result.zarr; for a volume in SEG-Y also the SEG-Y files impedance, predicted and residual.
    """
    problem = prepare(job, _KIND)
    background = log_background(job, problem.volume)
    explained = problem.values(problem.operator.forward(problem.vector(background)))
    inversion = invert(job, problem, problem.volume.traces - explained)
    problem, inversion = judge(job.options, problem, inversion)
    return describe(job.options, problem, inversion, background)


def judge(options: Options, problem: Problem, inversion: Inversion) -> tuple[Problem, Inversion]:
    """Check reflection coefficients; see `Problem.plausible`. Collective."""
    coefficients = inversion.model @ reflection(problem.volume.cube.samples).T.toarray()
    constant = not isinstance(_parse_background(options.background or "1"), Path | Url)
    return problem.plausible(inversion, coefficients, assumed=constant)


def describe(options: Options, problem: Problem, inversion: Inversion, background: np.ndarray) -> Findings:
    """Return the results for the recipe, which writes them. Collective."""
    volume, comm, choice = problem.volume, problem.job.comm, inversion.choice
    weight, damp = _weights(options, choice.weight if choice else 1.0)
    with np.errstate(over="ignore"), raised_together():
        impedance = np.exp(background + inversion.model)
        if not np.isfinite(largest_amplitude(impedance, comm)):
            raise InputError("the impedance overflows: raise --damp, or check the amplitudes of the wavelet")
    unit = "1" if volume.truth is None else "1e6 kg/(m2 s)"
    arrays = {"impedance": (impedance, unit), "background": (np.exp(background), unit)}
    if volume.truth is not None:
        arrays["truth"] = np.exp(volume.truth), unit
    arrays |= {"data": (volume.traces, "1"), "residual": (inversion.unexplained, "1")}
    return findings(
        problem,
        inversion,
        None if volume.truth is None else volume.truth - background,
        title="post-stack inversion",
        subject="impedance",
        residual_of=" with roughness",
        error_of=" of the difference from the background",
        numbers={
            "misfit": inversion.misfit,
            "weight": weight,
            "damp": damp,
            "noise_estimate": None if choice is None else choice.noise,
            **problem.numbers(),
            "background": options.background,
        },
        rows=[("volume", volume.cube.describe())],
        more_rows=[
            ("misfit", f"{100 * inversion.misfit:.1f} % of the data that the background leaves unexplained"),
            *([] if choice is None else [("weight, damp", f"{weight:.3g}, {damp:.3g}: {choice.why}")]),
        ],
        arrays=arrays,
        draw=_pictures(problem, inversion, impedance, unit),
        exports=[("ACOUSTIC IMPEDANCE (RELATIVE TO 1 WITHOUT A BACKGROUND)", impedance)],
        source="IMPEDANCE",
    )


def _pictures(problem: Problem, inversion: Inversion, impedance: np.ndarray, unit: str) -> Callable[[Path], list[Path]]:
    """Gather a section and a map, and return the function that draws them. Collective."""
    volume, cube, comm = problem.volume, problem.volume.cube, problem.job.comm
    known = volume.truth is not None
    parts = [volume.traces, inversion.unexplained if volume.truth is None else np.exp(volume.truth), impedance]
    sections, maps, sample = [section_of(part, comm) for part in parts], [], 0
    if len(cube.lateral) == 2:
        sample = _liveliest_sample(inversion.model, comm)
        maps = [gather_rows(part[..., sample], comm) for part in parts]

    def draw(folder: Path) -> list[Path]:
        scale = unit if known else "relative to the background"
        title = f"impedance, {len(inversion.solution.residuals) - 1} iterations"
        files = [draw_images(folder / "image.png", cube, _images(sections, title, scale, known))]
        if maps:
            images = _images(maps, f"impedance at {cube.times[sample]:.3g} s", scale, known)
            files.append(draw_images(folder / "map.png", cube, images, maps=True))
        return files

    return draw


def _weights(options: Options, factor: float) -> tuple[float, float]:
    """Return the weight of the Laplacian and the damping: the options, else `factor` times the defaults."""
    weight = factor * _WEIGHT if options.weight is None else options.weight
    return weight, factor * _DAMP if options.damp is None else options.damp


def invert(job: Job[Options], problem: Problem, traces: np.ndarray) -> Inversion:
    r"""Find the smallest smooth change of the model that explains the data. Collective.

    `traces` are this rank's part of the data minus the data of the background.

    Notes
    -----
    With the options weight, :math:`w`, and damp, :math:`\epsilon`, or multiples of 0.05 and 0.01 for which the residual
    equals the noise:

    .. math:: \min_\delta \|d - A \delta\|^2 + (w \|A\|)^2 \|\nabla^2 \delta\|^2 + (\epsilon \|A\|)^2 \|\delta\|^2

    An iteration takes two halo exchanges of the Laplacian and two scalar allreduces.
    """
    from collops import cgls

    operator, data = problem.operator, problem.vector(traces)
    gradient = Gradient.from_data(operator, data)

    def equations(factor: float) -> tuple[LinearOperator, Array, float]:
        weight, damp = _weights(job.options, factor)
        return *regularised(problem, operator, data, weight * gradient.norm), damp * gradient.norm

    def solve(factor: float, x0: Array | None) -> Array:
        stack, stacked, damp = equations(factor)
        return cgls(stack, stacked, x0, niter=_TRIAL_ITERATIONS, damp=damp, tol=0.0, progress=False).x

    choice = None
    if job.options.weight is None and job.options.damp is None:
        choice = problem.choose(data, solve, _MAX_STRENGTH, _MIN_STRENGTH)
    stack, stacked, damp = equations(choice.weight if choice else 1.0)
    solution = job.solve(cgls, stack, stacked, writes=problem.result_bytes, damp=damp, tol=0.0)
    return problem.inversion(data, gradient, solution, choice)


def regularised(
    problem: Problem, operator: LinearOperator, data: DistributedArray, weight: float
) -> tuple[LinearOperator, Array]:
    """Stack the weighted lateral Laplacian below the operator, and zeros below the data.

    Axes with fewer than three traces are not regularised. With a zero weight or without such axes, operator and data
    are returned unchanged.
    """
    from collops import Laplacian, StackedArray, StackedVStack, zeros_like

    cube, comm = problem.volume.cube, operator.comm
    axes = tuple(axis for axis, extent in enumerate(cube.shape[:-1]) if extent > 2)
    if not (weight and axes):
        return operator, data
    ones = (1.0,) * len(axes)
    laplacian = Laplacian(
        cube.layout(comm.size), axes=axes, weights=ones, sampling=ones, comm=comm, dtype=operator.dtype
    ).flat
    return StackedVStack([operator, weight * laplacian]), StackedArray([data, zeros_like(data)])


def _parse_background(text: str) -> float | Path | Url | None:
    """Return a constant impedance, the path of a file, or None for the smoothed truth."""
    if text == "smooth":
        return None
    try:
        value = float(text)
    except ValueError:
        check_array_file(text, _BACKGROUND_NAMES)
        return located(text)
    if not 0 < value < float("inf"):
        raise InputError(f"--background must be a positive impedance, not {text}")
    return value


def log_background(job: Job[Options], volume: Volume) -> np.ndarray:
    """Return the logarithm of the background on this rank's part of the volume. Collective."""
    with local_stage(job.comm):
        values = _own_background(job, volume)
    if volume.truth is None and job.options.background is None:
        job.listener.note("the background is 1: impedances are relative (--background)")
    return values


def _own_background(job: Job[Options], volume: Volume) -> np.ndarray:
    text = job.options.background or ("1" if volume.truth is None else "smooth")
    kind = _parse_background(text)
    if isinstance(kind, Path | Url):
        return np.log(_read_background(kind, job, volume.cube)).astype(volume.traces.dtype)
    if kind is not None:
        return np.full_like(volume.traces, np.log(kind))
    if volume.truth is None or not volume.truth.size:
        return np.zeros_like(volume.traces)
    from scipy.ndimage import gaussian_filter1d

    return gaussian_filter1d(volume.truth, _SMOOTH_SECONDS / volume.cube.interval, axis=-1, mode="nearest")


def _read_background(path: Path | Url, job: Job[Options], cube: Cube) -> np.ndarray:
    options = job.options
    reader = open_volume(path, cube.interval, _BACKGROUND_NAMES, options.inline_byte, options.crossline_byte)
    if reader.cube.shape != cube.shape:
        raise InputError(
            f"{path} must have the shape of the volume, {cube.shape}, not {reader.cube.shape}: resample it"
        )
    values, live = read_values(reader, job.share(cube.shape[0]), str(path))
    if not live.all() or (values <= 0).any():
        raise InputError(f"impedances in {path} must be positive and complete")
    return values


def _images(arrays: Sequence[np.ndarray], title: str, unit: str, known: bool) -> list[Image]:
    data, second, result = arrays
    # Truth and result have the same colour scale.
    low, high = np.percentile(second if known else result, [0.5, 99.5])
    limits, amplitude = (float(low), float(high)), symmetric_limit(data)
    truth, residual = Image(second, "true impedance", limits, unit), Image(second, "data not explained", amplitude)
    return [Image(data, "data", amplitude), truth if known else residual, Image(result, title, limits, unit)]


def _liveliest_sample(update: np.ndarray, comm: Communicator) -> int:
    """Return the sample with the largest lateral variance of the model. Collective."""
    moments = comm.allreduce(np.stack([update.sum(axis=(0, 1)), (update**2).sum(axis=(0, 1))]).astype(np.float64))
    traces = comm.allreduce(np.array(float(np.prod(update.shape[:2]))))
    return int(np.argmax(moments[1] - moments[0] ** 2 / traces))
