"""The results of a migration: numbers, arrays, files and figures."""

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
    digits,
    draw_panels,
    local_stage,
    relative_error,
    symmetric_limit,
)
from collops.seismic.lsm.amplitudes import field_bytes as field_bytes_of_avo
from collops.seismic.lsm.gather_files import gather_files, pick_files
from collops.seismic.lsm.inversion import ITERATIONS, Migration
from collops.seismic.lsm.options import SEGY_RESULTS, Options
from collops.seismic.lsm.page import section, write_page
from collops.seismic.lsm.problem import Problem
from collops.seismic.lsm.quality import Quality, columns_of, field_bytes
from collops.seismic.lsm.regularisation import METHODS
from collops.seismic.segy import Traces, fits_segy, segy_bytes
from collops.seismic.signals import noise_from_power, power_spectrum
from collops.seismic.survey.anisotropy import described
from collops.seismic.survey.segy import image_traces, shot_traces
from collops.seismic.survey.zarr import trace_fields

if TYPE_CHECKING:
    from collops.seismic.lsm.amplitudes import Amplitudes
    from collops.seismic.lsm.resident import ResidentSurvey
    from collops.seismic.lsm.streamed import StreamedSurvey
    from collops.seismic.lsm.uncertainty import Uncertainty
    from collops.seismic.survey import Survey
    from collops.seismic.survey.geometry import Geometry

_MAX_SAMPLES = 32_000_000  # of all shots in result.zarr


@dataclass(frozen=True)
class Judgement:
    """The assessment of an image."""

    diagonal: np.ndarray | None  # of the normal operator, if the options need it
    uncertainty: Uncertainty | None  # with --uncertainty
    quality: Quality | None  # with --gathers
    avo: Amplitudes | None  # with --avo
    shots: dict[str, Field]  # data and residual


def findings(
    job: Job[Options],
    problem: Problem,
    data: ResidentSurvey | StreamedSurvey,
    migration: Migration,
    judged: Judgement,
) -> Findings:
    """Return the results for the recipe, which writes them. Collective."""
    options, survey, geometry = job.options, problem.survey, problem.survey.geometry
    with local_stage(job.comm):
        segy = _segy(problem, migration, judged, options.segy_revision, *data.rows())
        power = power_spectrum(data.weighted(), geometry.samples)
    truth, quality = None if problem.truth is None else problem.at_image(problem.truth), judged.quality
    noise, error = noise_from_power(job.comm.allreduce(power)), relative_error(migration.image, truth)
    return Findings(
        title="least-squares migration",
        solution=migration.solution,
        subject="image",
        adjoint="adjoint image",
        error=error,
        adjoint_error=best_relative_error(migration.adjoint, truth),
        numbers=_numbers(options, problem, data, migration, judged, noise),
        rows=[
            ("survey", f"{geometry.shots} shots, {geometry.traces} traces of {geometry.samples} samples"),
            ("image", str(problem.image_grid)),
        ],
        more_rows=_more_rows(job, migration, judged, noise),
        fields=_fields(problem, migration, judged) | judged.shots,
        attributes={
            "line_origin": list(survey.line.origin),
            "line_direction": list(survey.line.direction),
            "kinds": list(migration.solution.seconds),
            "adjoint_scale": migration.adjoint_scale,
            "surface_speed": float(problem.velocity[..., 0].mean()),
        },
        draw=lambda folder: [
            draw(folder, problem, migration, error),
            *([] if quality is None else quality.draw(folder)),
            *([] if judged.avo is None else [judged.avo.draw(folder)]),
        ],
        residual_of=" with the penalty" if options.regularise not in (None, "l1") else "",
        curve=METHODS[options.regularise],
        noise_norm=problem.noise_norm,
        page=write_page,
        files=options.survey_files,
        exports={f"{name}.sgy": traces.export for name, traces in segy.items()} | pick_files(quality),
    )


def result_bytes(problem: Problem, options: Options) -> int:
    """Return the size in bytes of all results except the images that every migration writes."""
    geometry, grid = problem.survey.geometry, problem.image_grid
    size = problem.segy_bytes + field_bytes(problem, options.gathers, *options.gather_counts)
    if options.gathers is not None:
        columns = len(columns_of(problem, *options.gather_counts))
        size += (2 + options.avo) * segy_bytes(options.gathers * columns, grid.nz)
        size += options.avo * (field_bytes_of_avo(columns, options.gathers, grid.nz) + 4 * segy_bytes(columns, grid.nz))
    # Data and residual in float32, and on the page with 4/3 bytes per sample.
    size += 11 * geometry.samples * sum(geometry.receivers[shot].shape[1] for shot in kept_shots(geometry))
    if options.uncertainty is not None:
        size += 8 * grid.points + segy_bytes(grid.points // grid.nz, grid.nz)
    return size


def _numbers(
    options: Options,
    problem: Problem,
    data: ResidentSurvey | StreamedSurvey,
    migration: Migration,
    judged: Judgement,
    noise: float,
) -> dict[str, Any]:
    """Return the entries of the JSON output."""
    geometry, shares, count = problem.survey.geometry, migration.shares, len(migration.solution.residuals) - 1
    deviation, quality = judged.uncertainty, judged.quality
    return {
        "damp": options.damp or 0.0,
        "weight": migration.weight,
        "held_out_residual": None if shares is None else float(shares[min(count, len(shares) - 1)]),
        "noise_estimate": noise,
        "velocity_ratio": None if quality is None else quality.offsets.ratio,
        "angle_velocity_ratio": None if quality is None else quality.angles.ratio,
        "traces_left_out": data.left_out,
        "streamed": data.streamed,
        "image_split": not data.modelling.domain.is_replicated,
        "noise_deviation": None if deviation is None else deviation.noise,
        "prior_deviation": None if deviation is None else deviation.prior,
        "conditioning": problem.conditioning or None,
        "statics": None if problem.survey.headers is None else ", ".join(problem.survey.headers.statics) or None,
        "mode": problem.mode,
        "anisotropy": None if problem.thomsen is None else described(problem.thomsen),
        "amplitude": problem.weighting.amplitude,
        "aperture": problem.weighting.aperture,
        "max_dip": problem.weighting.dip,
        "frequency": problem.frequency,
        "shots": geometry.shots,
        "traces": geometry.traces,
        "samples": geometry.samples,
        "sample_interval": geometry.interval,
        **problem.image_grid.numbers,
        "survey": options.survey,
        "velocity": options.velocity or problem.expression,
    }


def _more_rows(job: Job[Options], migration: Migration, judged: Judgement, noise: float) -> list[tuple[str, str]]:
    """Return the last rows of the table."""
    options, deviation, quality = job.options, judged.uncertainty, judged.quality
    rows = [("iterations", _reason(job, len(migration.solution.residuals) - 1, migration.shares))]
    if migration.weight is not None:
        rows.append(("weight", f"{migration.weight:g} of --regularise {options.regularise}"))
    rows.append(("noise", f"{noise:.4g}, estimated from the quietest frequencies"))
    if deviation is not None:
        median = np.median(deviation.deviation) / deviation.prior
        rows.append(
            (
                "uncertainty",
                f"{median:.2g} times the prior's, {deviation.prior:.4g}, in the median; noise of "
                f"{deviation.noise:.4g}; {options.uncertainty} samples in {deviation.iterations} iterations",
            )
        )
    if quality is not None:
        rows.append(("gathers", quality.summary))
        if judged.avo is not None:
            few = "too few shots for intercept and gradient, as for gathers"
            rows.append(("amplitudes", few if quality.doubt else judged.avo.summary))
    return rows


def _reason(job: Job[Options], iterations: int, shares: np.ndarray | None) -> str:
    """Describe the number of iterations and the reason for it."""
    if shares is None or job.options.iterations is not None or job.options.damp is not None:
        return f"{iterations}, from the options"
    if not shares.argmin():
        job.listener.warn(
            "no image of some traces predicts the held-out traces: the result is the image after one iteration; "
            "check the velocity, the wavelet and the mute"
        )
        return "1: no image of other traces predicts the held-out traces"
    why = "the maximum without --iterations" if iterations == ITERATIONS else "more would fit noise"
    unexplained = f"{digits(100 * shares[iterations])} % of the held-out traces"
    return f"{iterations}, {why}: an image of other traces then leaves {unexplained} unexplained"


def kept_shots(geometry: Geometry) -> range:
    """Return the shots whose traces are in ``result.zarr`` and on the page: all, or a subset of a large survey."""
    return range(0, geometry.shots, -(-geometry.traces * geometry.samples // _MAX_SAMPLES))


def shot_fields(survey: Survey, compared: Iterable[tuple[int, np.ndarray, np.ndarray]]) -> dict[str, Field]:
    """Return the data and the residual of `kept_shots` as arrays of shape ``(traces, samples)``. Collective.

    `compared` yields the number of each shot of this rank, its traces, and the traces modelled from the image; the
    residual is their difference.
    """
    selected = kept_shots(survey.geometry)
    with local_stage(survey.comm):
        pairs = [(measured, measured - modelled) for shot, measured, modelled in compared if shot in selected]
    data, residual = ([pair[kind] for pair in pairs] for kind in range(2))
    return trace_fields(survey.geometry, survey.headers, survey.comm, selected, data=data, data_residual=residual)


def _fields(problem: Problem, migration: Migration, judged: Judgement) -> dict[str, Field]:
    """Return the arrays of ``result.zarr`` on the image grid."""
    grid, image = problem.image_grid, tuple(problem.grid.axes)
    deviation, diagonal = judged.uncertainty, judged.diagonal
    fields = {name: Field(axis, (name,), "m") for name, axis in grid.axes.items()}
    fields |= {
        "image": Field(migration.image, image, "1"),
        "adjoint_image": Field(migration.adjoint, image, "1"),
        "velocity": Field(problem.at_image(problem.velocity), image, "m/s"),
        "seconds": Field(np.stack(list(migration.solution.seconds.values()), 1), ("rank", "kind"), "s"),
    }
    if problem.survey.headers is not None:
        positions = zip(("cdp_x", "cdp_y"), problem.survey.line.position(*grid.columns()), strict=True)
        fields |= {name: Field(values.reshape(grid.shape[:-1]), image[:-1], "m", True) for name, values in positions}
    if deviation is not None:
        fields["standard_deviation"] = Field(deviation.deviation, image, "1")
    if diagonal is not None:
        # The square root has the dimension of an amplitude.
        fields["illumination"] = Field(np.sqrt(np.maximum(diagonal, 0) / (diagonal.max() or 1.0)), image, "1")
    if migration.shares is not None:
        fields["held_out_residuals"] = Field(migration.shares, ("tried",), "1")
    for part in (judged.quality, judged.avo):
        fields |= {} if part is None else part.fields()
    fields["first_arrival"] = arrival_field(problem)
    if problem.truth is not None:
        fields["truth"] = Field(problem.at_image(problem.truth), image, "1")
    return fields


def arrival_field(problem: Problem) -> Field:
    """Return the onsets of the traces of `kept_shots`, before mutes. Collective."""
    survey, geometry = problem.survey, problem.survey.geometry
    local = np.concatenate([np.empty(0), *(problem.onsets or ())])
    counts = [sum(geometry.receivers[shot].shape[1] for shot in share) for share in survey.shares]
    times = survey.comm.allgatherv(local, counts) if survey.comm.size > 1 else local
    kept = np.isin(geometry.shot_of_trace, kept_shots(geometry))
    return Field(times[kept], ("trace",), "s")


def _segy(
    problem: Problem, migration: Migration, judged: Judgement, revision: int, predicted: Any, residual: Any
) -> dict[str, Traces]:
    """Return the SEG-Y files of the results of a recorded survey."""
    survey, grid, images, gathers = problem.survey, problem.image_grid, [], {}
    deviation = judged.uncertainty
    if (headers := survey.headers) is None:
        return {}
    shots, rank = survey.shots, survey.comm.rank
    if revision == 2 or fits_segy(grid.dz / 1e3, grid.nz):
        first = f" FROM {grid.z0:g} M (BYTES 109, 215)" * bool(grid.z0)
        depth = f"DEPTH{first} IN STEPS OF {grid.dz:g} M BELOW {headers.datum:g} M ABOVE SEA LEVEL"
        images = [
            image_traces(f"LEAST-SQUARES IMAGE, {depth}", migration.image, grid, headers, rank, revision),
            image_traces(f"ADJOINT (KIRCHHOFF) IMAGE, {depth}", migration.adjoint, grid, headers, rank, revision),
        ]
        if deviation is not None:
            title = f"STANDARD DEVIATION OF THE LEAST-SQUARES IMAGE, {depth}"
            images.append(image_traces(title, deviation.deviation, grid, headers, rank, revision))
        if judged.quality is not None:
            gathers = gather_files(problem, judged.quality, judged.avo, depth, revision)
    traces_of_shots = [
        shot_traces(
            "TRACES MODELLED FROM THE LEAST-SQUARES IMAGE, MUTED AS THE DATA", headers, shots, predicted, revision
        ),
        shot_traces(
            "RESIDUAL: FILTERED, MUTED DATA WITHOUT GAIN LESS MODELLED TRACES", headers, shots, residual, revision
        ),
    ]
    names = *SEGY_RESULTS[-2:], *SEGY_RESULTS[:-2], "deviation"
    return dict(zip(names, traces_of_shots + images, strict=False)) | gathers


def draw(folder: Path, problem: Problem, migration: Migration, error: float | None) -> Path:
    """Draw the truth (for recorded data the velocity), the adjoint image and the image; return the path of the figure.

    For 3-D images, the figure shows the section in the middle of the axis y.
    """
    grid, truth, velocity = problem.image_grid, problem.truth, section(problem.at_image(problem.velocity))
    adjoint, image = migration.adjoint_scale * section(migration.adjoint), section(migration.image)
    width, depth = float(grid.x[-1] - grid.x[0]), float(grid.z[-1] - grid.z[0])
    to_scale = 0.5 < width / depth < 4  # other panels would be narrow strips
    scale, unit = (1000, "km") if width > 2000 else (1, "m")
    extent = float(grid.x[0]) / scale, float(grid.x[-1]) / scale, float(grid.z[0]) / scale, float(grid.z[-1]) / scale

    def panel(image: np.ndarray, title: str, limits: float | tuple[float, float], colors: str = "") -> Panel:
        return Panel(image, title, extent, (f"distance ({unit})", f"depth ({unit})"), limits, colors, to_scale)

    count = len(migration.solution.residuals) - 1
    title = f"least-squares image, {count} iteration{'s' * (count != 1)}"
    if truth is None:
        adjoint, image = balanced(adjoint), balanced(image)
        panels = [
            panel(velocity, "velocity", (float(velocity.min()), float(velocity.max())), "m/s"),
            panel(adjoint, "adjoint image, amplitudes balanced", symmetric_limit(adjoint)),
            panel(image, title, symmetric_limit(image)),
        ]
    else:
        # One scale for all three shows the low amplitudes of the adjoint image.
        truth = problem.at_image(truth)
        limit = symmetric_limit(truth, 99.5)
        panels = [
            panel(truth, "true reflectivity", limit),
            panel(adjoint, "adjoint image", limit),
            panel(image, title if error is None else f"{title}, error {100 * error:.0f} %", limit),
        ]
    size = 5.2, 0.92 * 5.2 * depth / width + 0.8 if to_scale else 3.2
    return draw_panels(folder / "image.png", panels, size)
