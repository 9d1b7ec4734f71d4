"""Deconvolve the upgoing field by the downgoing one with CGLS, and describe the results."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from collops import DistributedArray
from collops.errors import InputError
from collops.extend.applications import (
    DATA,
    METHOD,
    SYNTHETIC,
    AtLeast,
    CommonOptions,
    Damp,
    Field,
    Findings,
    Gradient,
    Job,
    Out,
    Panel,
    Positive,
    Solution,
    SyntheticOnly,
    best_relative_error,
    draw_panels,
    gather_rows,
    local_stage,
    located,
    open_array,
    option,
    relative_error,
    symmetric_limit,
)
from collops.extend.communication import raised_together
from collops.seismic.mdd.fields import (
    DOWN_NAMES,
    UP_NAMES,
    Acquisition,
    RecordedFields,
    SyntheticSea,
    frequencies_within,
    synthetic_response,
)
from collops.seismic.signals import with_noise

_NOISE = 0.05
_FILE = "FILE.npy|STORE.zarr"


@dataclass(frozen=True, kw_only=True)
class Options(CommonOptions):
    """The options of ``collops mdd``."""

    recorded = "down"

    down: Annotated[
        str | None,
        option(
            "Downgoing field, of shape (sources, receivers, samples); by default synthetic fields.",
            DATA,
            metavar=_FILE,
        ),
    ] = None
    up: Annotated[str | None, option("Upgoing field, of shape (sources, receivers, samples).", DATA, metavar=_FILE)] = (
        None
    )
    interval: Annotated[
        float | None, option("Sample interval, ms.", DATA, show_default="4 for synthetic fields"), Positive
    ] = None
    spacing: Annotated[
        float | None,
        option("Receiver spacing of the downgoing field, m.", DATA, show_default="15 for synthetic fields"),
        Positive,
    ] = None
    sources: Annotated[int | None, option("Number of sources.", SYNTHETIC), AtLeast(1), SyntheticOnly()] = None
    receivers: Annotated[int | None, option("Number of receivers.", SYNTHETIC), AtLeast(1), SyntheticOnly()] = None
    samples: Annotated[int | None, option("Number of samples per trace.", SYNTHETIC), AtLeast(2), SyntheticOnly()] = (
        None
    )
    fmax: Annotated[
        float | None,
        option("Maximum frequency, Hz.", METHOD, show_default="the highest frequency of the downgoing field"),
        Positive,
    ] = None
    damp: Damp = 0.01
    out: Out = "collops-mdd"

    def check(self) -> None:
        """Raise `InputError` for invalid or contradictory values; read only headers of files."""
        if (self.down is None) != (self.up is None):
            raise InputError("--down and --up need each other: pass both or none")
        super().check()
        if self.down is not None and self.up is not None:
            for name in ("interval", "spacing"):
                if getattr(self, name) is None:
                    raise InputError(f"--down and --up need --{name}, which the files do not store")
            for text, names in ((self.down, DOWN_NAMES), (self.up, UP_NAMES)):
                open_array(located(text), names)


def run(job: Job[Options]) -> Findings:
    """Deconvolve the upgoing field on a line of receivers by the downgoing one, with CGLS.

    By default it deconvolves synthetic fields at the sea bed, with water-layer reverberations, and compares the
    estimated response of the layers below with the true response. With --down and --up it deconvolves fields from
    files. Writes image.png, convergence.png and result.zarr.
    """
    problem = read(job)
    result = invert(job, problem)
    return describe(job, problem, result)


def read(job: Job[Options]) -> Problem:
    """Read or synthesise the fields, and make the operator. Collective."""
    with job.stage("reading" if job.options.down else "synthesising the fields"):
        problem = prepare(job)
    job.note(problem.notes)
    job.warn_of_idle_ranks(problem.frequencies, "frequencies")
    return problem


# The problem


@dataclass(frozen=True)
class Problem:
    """Data and operator."""

    acquisition: Acquisition  # sizes and samplings
    frequencies: int  # number of frequencies in use, from 0
    # convolution with the downgoing field; domain of shape ``(times, receivers, virtual sources)``, split by
    # receivers, range of shape ``(times, sources, virtual sources)``, split by sources
    operator: Any
    data: DistributedArray  # the upgoing field
    truth: np.ndarray | None = None  # this rank's part of the response; None for recorded fields
    noise_norm: float | None = None  # norm of the noise of all ranks, if known
    notes: list[str] = field(default_factory=list)  # decisions, in sentences for the user


def prepare(job: Job[Options]) -> Problem:
    """Read or synthesise the fields, and build the operator. Collective."""
    from collops import MDC

    options, comm = job.options, job.comm
    with local_stage(comm):
        recorded = RecordedFields(options) if options.down is not None else None
        down = recorded or SyntheticSea(options)
        acquisition = down.acquisition
        acquisition.check_memory(comm, options.dtype)
        power = down.power(job.share(acquisition.sources))
    power = comm.allreduce(power)
    notes = [f"{'read' if recorded else 'synthesised'} {acquisition.describe()}"]
    with raised_together():
        count = _count(options, acquisition, power, notes)
    with local_stage(comm):
        kernel = down.spectra(job.share(count))
    operator: Any = MDC(
        job.engine.from_host(kernel.astype(np.result_type(options.dtype, np.complex64))),
        acquisition.total,
        acquisition.virtual,
        dt=acquisition.interval,
        dr=acquisition.spacing,
        twosided=True,
        saveGt=False,
        model="split",
        data="split",
        comm=comm,
    )
    sources = operator.range.slices(comm.rank)[1]
    if recorded is not None:
        with local_stage(comm):
            values = recorded.upgoing(sources)
        return Problem(acquisition, count, operator, job.array(operator.range, values), notes=notes)
    truth = synthetic_response(acquisition, operator.domain.slices(comm.rank)[1]).astype(options.dtype)
    clean = job.on_host(operator.forward(job.array(operator.domain, truth)))
    noise = _NOISE if options.noise is None else options.noise
    numbers = range(sources.start, sources.stop)
    noisy, norm = with_noise(list(np.moveaxis(clean, 1, 0)), numbers, noise, options.seed, comm)
    data = job.array(operator.range, np.stack(noisy, axis=1) if noisy else clean)
    return Problem(acquisition, count, operator, data, truth, norm, notes)


def _count(options: Options, acquisition: Acquisition, power: np.ndarray, notes: list[str]) -> int:
    """Return the number of frequencies to use."""
    if not power.any():
        raise InputError(f"all samples of {options.down} are zero")
    frequencies = acquisition.frequencies
    if options.fmax is None:
        count = frequencies_within(power)
        notes.append(f"frequencies up to {frequencies[count - 1]:.3g} Hz, the highest of the downgoing field (--fmax)")
        return count
    if options.fmax > frequencies[-1]:
        raise InputError(
            f"--fmax must be at most {frequencies[-1]:.4g} Hz, the Nyquist frequency, not {options.fmax:g}"
        )
    return int(np.flatnonzero(frequencies <= options.fmax)[-1]) + 1


# The deconvolution


class _Deconvolution(NamedTuple):
    """The response and the cross-correlation on this rank, and the best scale of the cross-correlation."""

    response: np.ndarray
    correlation: np.ndarray
    scale: float
    solution: Solution


def invert(job: Job[Options], problem: Problem) -> _Deconvolution:
    r"""Find the response that maps the downgoing field to the upgoing field. Collective.

    Notes
    -----
    .. math:: U(s, v, t) = \int D(s, r, t) * R(r, v, t) \, dr

    is solved for :math:`R`. The adjoint of the operator correlates both fields.
    """
    from collops import cgls

    gradient = Gradient.from_data(problem.operator, problem.data)
    damp = job.options.damp * gradient.norm
    arrays = 2 if problem.truth is None else 3  # of `_fields`
    writes = arrays * problem.operator.domain.size * np.dtype(job.options.dtype).itemsize
    solution = job.solve(cgls, problem.operator, problem.data, writes=writes, damp=damp, tol=0.0)
    return _Deconvolution(job.on_host(solution.x), job.on_host(gradient.x), gradient.step, solution)


# The results


def describe(job: Job[Options], problem: Problem, result: _Deconvolution) -> Findings:
    """Return the results for the recipe, which writes them. Collective."""
    options, comm, acquisition = job.options, job.comm, problem.acquisition
    error = relative_error(result.response, problem.truth, comm)
    highest = float(acquisition.frequencies[problem.frequencies - 1])
    images = _images(job, problem, result)
    return Findings(
        title="multi-dimensional deconvolution",
        solution=result.solution,
        subject="response",
        adjoint="cross-correlation",
        error=error,
        adjoint_error=best_relative_error(result.correlation, problem.truth, comm),
        numbers={
            "damp": options.damp,
            "sources": acquisition.sources,
            "receivers": acquisition.receivers,
            "virtual_sources": acquisition.virtual,
            "samples": acquisition.samples,
            "sample_interval": acquisition.interval,
            "spacing": acquisition.spacing,
            "frequencies": problem.frequencies,
            "highest_frequency": highest,
            "down": options.down,
            "up": options.up,
        },
        rows=[("fields", acquisition.describe()), ("frequencies", f"{problem.frequencies}, up to {highest:.3g} Hz")],
        fields=_fields(problem, result),
        draw=lambda folder: [_draw(folder, problem, images, len(result.solution.residuals) - 1, error)],
        noise_norm=problem.noise_norm,
    )


def _fields(problem: Problem, result: _Deconvolution) -> dict[str, Field]:
    from collops import DistributedArray

    acquisition, operator = problem.acquisition, problem.operator
    names = ("time", "receiver", "virtual_source")
    cubes = {"response": (result.response, "1/(m s)"), "correlation": (result.correlation, "1")}
    if problem.truth is not None:
        cubes["truth"] = problem.truth, "1/(m s)"
    return {
        "time": Field(acquisition.times, ("time",), "s"),
        "receiver": Field(acquisition.positions, ("receiver",), "m"),
        "virtual_source": Field(np.arange(acquisition.virtual) + 1, ("virtual_source",), "1"),
        **{
            name: Field(DistributedArray(operator.domain, operator.comm, values), names, unit)
            for name, (values, unit) in cubes.items()
        },
    }


def _images(job: Job[Options], problem: Problem, result: _Deconvolution) -> list[np.ndarray]:
    """Gather the truth or the data, the correlation, and the response, for the virtual source in the middle."""
    samples, middle = problem.acquisition.samples, problem.acquisition.virtual // 2

    def image(values: np.ndarray, first: int) -> np.ndarray:
        return gather_rows(values[first : first + samples, :, middle].T, job.comm)

    now = samples - 1
    reference = image(job.on_host(problem.data), 0) if problem.truth is None else image(problem.truth, now)
    return [reference, image(result.correlation * result.scale, now), image(result.response, now)]


def _draw(folder: Path, problem: Problem, images: list[np.ndarray], iterations: int, error: float | None) -> Path:
    acquisition, known = problem.acquisition, problem.truth is not None
    first, correlation, response = images
    title = f"deconvolution, {iterations} iterations" + ("" if error is None else f", error {100 * error:.0f} %")
    line, end = float(acquisition.positions[-1]), acquisition.interval * (acquisition.samples - 1)
    receivers, sources = (0.0, line, 0.0, end), (1.0, float(acquisition.sources), 0.0, end)
    labels = "receiver (m)", "time (s)"
    limits = [symmetric_limit(image, 99.5) for image in images]
    if known:
        # One colour scale for truth and response shows differences of their amplitudes.
        limits[2] = limits[0]
        reference = Panel(first, "true response", receivers, labels, limits[0])
    else:
        reference = Panel(first, "upgoing field", sources, ("source", "time (s)"), limits[0])
    panels = [
        reference,
        Panel(correlation, "cross-correlation", receivers, labels, limits[1]),
        Panel(response, title, receivers, labels, limits[2]),
    ]
    return draw_panels(folder / "image.png", panels, (4.6, 4.6))
