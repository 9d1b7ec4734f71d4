"""The results of a migration: numbers, arrays, files and pictures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.extend.applications import (
    Field,
    Findings,
    Job,
    Panel,
    balanced,
    best_relative_error,
    draw_panels,
    local_stage,
    relative_error,
    symmetric_limit,
)
from collops.seismic.lsm.inversion import ITERATIONS, Migration
from collops.seismic.lsm.page import section, write_page
from collops.seismic.lsm.problem import SEGY_RESULTS, Options, Problem
from collops.seismic.lsm.quality import Quality, field_bytes
from collops.seismic.lsm.regularisation import METHODS
from collops.seismic.segy import Traces, fits_segy, segy_bytes
from collops.seismic.signals import noise_from_power, power_spectrum
from collops.seismic.survey.segy import image_traces, shot_traces
from collops.seismic.survey.zarr import trace_fields

if TYPE_CHECKING:
    from collops.seismic.lsm.resident import ResidentSurvey
    from collops.seismic.lsm.streamed import StreamedSurvey
    from collops.seismic.lsm.uncertainty import Uncertainty
    from collops.seismic.survey import Survey
    from collops.seismic.survey.geometry import Geometry

_SAMPLES = 32_000_000  # maximum in result.zarr, of all shots


@dataclass(frozen=True)
class Judgement:
    """How far an image can be trusted."""

    diagonal: np.ndarray | None  # of the normal operator, where it was needed
    uncertainty: Uncertainty | None  # with --uncertainty
    quality: Quality | None  # with --gathers
    shots: dict[str, Field]  # data and residual


def findings(
    job: Job[Options],
    problem: Problem,
    data: ResidentSurvey | StreamedSurvey,
    found: Migration,
    judged: Judgement,
) -> Findings:
    """Describe the results for the recipe, which writes them. Collective."""
    options, survey, geometry = job.options, problem.survey, problem.survey.geometry
    with local_stage(job.comm):
        segy = _segy(problem, found, judged.uncertainty, *data.rows())
        power = power_spectrum(data.weighted(), geometry.samples)
    noise, error = noise_from_power(job.comm.allreduce(power)), relative_error(found.image, problem.truth)
    quality = judged.quality
    return Findings(
        title="least-squares migration",
        solution=found.solution,
        subject="image",
        adjoint="adjoint image",
        error=error,
        adjoint_error=best_relative_error(found.adjoint, problem.truth),
        numbers=_numbers(options, problem, data, found, judged, noise),
        rows=[
            ("survey", f"{geometry.shots} shots, {geometry.traces} traces of {geometry.samples} samples"),
            ("image", str(problem.grid)),
        ],
        more_rows=_more_rows(job, found, judged, noise),
        fields=_fields(problem, found, judged) | judged.shots | ({} if quality is None else quality.fields()),
        attributes={
            "line_origin": list(survey.line.origin),
            "line_direction": list(survey.line.direction),
            "kinds": list(found.solution.seconds),
            "adjoint_scale": found.adjoint_scale,
        },
        draw=lambda folder: [draw(folder, problem, found, error)] + ([] if quality is None else quality.draw(folder)),
        residual_of=" with the penalty" if options.regularise not in (None, "l1") else "",
        curve=METHODS[options.regularise],
        noise_norm=problem.noise_norm,
        page=write_page,
        files=options.survey_files,
        exports={f"{name}.sgy": traces.export for name, traces in segy.items()},
    )


def result_bytes(problem: Problem, options: Options) -> int:
    """Return the bytes of all results but the images that every migration writes."""
    geometry, grid = problem.survey.geometry, problem.grid
    size = problem.segy_bytes + field_bytes(problem, options.gathers)
    # Data and residual, and the same on the page with 4/3 bytes a sample.
    size += 11 * geometry.samples * sum(geometry.receivers[shot].shape[1] for shot in kept_shots(geometry))
    if options.uncertainty is not None:
        size += 8 * grid.points + segy_bytes(grid.points // grid.nz, grid.nz)
    return size


def _numbers(
    options: Options,
    problem: Problem,
    data: ResidentSurvey | StreamedSurvey,
    found: Migration,
    judged: Judgement,
    noise: float,
) -> dict[str, Any]:
    """Return the entries of JSON."""
    geometry, shares, count = problem.survey.geometry, found.shares, len(found.solution.residuals) - 1
    spread, quality = judged.uncertainty, judged.quality
    return {
        "damp": options.damp or 0.0,
        "weight": found.weight,
        "held_out_residual": None if shares is None else float(shares[min(count, len(shares) - 1)]),
        "noise_estimate": noise,
        "velocity_ratio": None if quality is None else quality.offsets.ratio,
        "angle_velocity_ratio": None if quality is None else quality.angles.ratio,
        "traces_left_out": data.left_out,
        "streamed": data.streamed,
        "image_split": not data.modelling.domain.is_replicated,
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
        **problem.grid.numbers,
        "survey": options.survey,
        "velocity": options.velocity or problem.expression,
    }


def _more_rows(job: Job[Options], found: Migration, judged: Judgement, noise: float) -> list[tuple[str, str]]:
    """Return the last rows of the table."""
    options, spread, quality = job.options, judged.uncertainty, judged.quality
    rows = [("iterations", _reason(job, len(found.solution.residuals) - 1, found.shares))]
    if found.weight is not None:
        rows.append(("weight", f"{found.weight:g} of --regularise {options.regularise}"))
    rows.append(("noise", f"{noise:.4g}, estimated from the quietest frequencies"))
    if spread is not None:
        median = np.median(spread.deviation) / spread.prior
        rows.append(
            (
                "uncertainty",
                f"{median:.2g} times the prior's, {spread.prior:.4g}, in the median; noise of "
                f"{spread.noise:.4g}; {options.uncertainty} samples in {spread.iterations} iterations",
            )
        )
    if quality is not None:
        by_offset, by_angle = quality.offsets.ratio, quality.angles.ratio
        text = f"flattest at a velocity divided by {by_offset:.2f} by their offsets, by {by_angle:.2f} by their angles"
        rows.append(("gathers", text))
    return rows


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
    why = "the most without --iterations" if iterations == ITERATIONS else "more would fit noise"
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
    return trace_fields(survey.geometry, survey.headers, survey.comm, kept, data=data, data_residual=residual)


def _fields(problem: Problem, found: Migration, judged: Judgement) -> dict[str, Field]:
    """Return the arrays of ``result.zarr`` on the image grid."""
    grid, image = problem.grid, tuple(problem.grid.axes)
    spread, diagonal = judged.uncertainty, judged.diagonal
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


def _segy(
    problem: Problem, found: Migration, spread: Uncertainty | None, predicted: Any, residual: Any
) -> dict[str, Traces]:
    """Return the SEG-Y files of the results of a recorded survey; `_rows` has the files of traces."""
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
