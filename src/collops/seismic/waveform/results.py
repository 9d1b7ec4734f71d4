"""The results of the commands that propagate waves: arrays, files, figures and the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from collops import DistributedArray
from collops.extend.applications import Field, Findings, Job, Panel, Solution, draw_panels, local_stage, symmetric_limit
from collops.seismic.lsm.page import Words, section, write_page
from collops.seismic.lsm.results import arrival_field, shot_fields
from collops.seismic.segy import Traces, fits_segy
from collops.seismic.survey.segy import image_traces, shot_traces
from collops.seismic.waveform.options import WaveOptions
from collops.seismic.waveform.problem import WaveProblem


class Picture(NamedTuple):
    """An array on the grid that the figure, the page and ``result.zarr`` show."""

    values: np.ndarray
    words: str
    unit: str = "1"  # m/s for velocities
    drawn: bool = True  # in the figure


@dataclass(frozen=True)
class Outcome:
    """What a command found.

    Attributes
    ----------
    title, subject, adjoint : str
        As for `Findings`.
    solution : Solution
        Of the solver.
    pictures : dict of Picture
        By their names in ``result.zarr``.
    data, modelled : DistributedArray
        The traces that were inverted, and traces modelled from the result.
    segy : dict of (str, numpy.ndarray)
        Title and values of each SEG-Y file on the grid, by name.
    numbers, rows, error, adjoint_error, curve
        As for `Findings`.
    """

    title: str
    subject: str
    solution: Solution
    pictures: dict[str, Picture]
    data: DistributedArray
    modelled: DistributedArray
    segy: dict[str, tuple[str, np.ndarray]]
    numbers: dict[str, Any]
    rows: list[tuple[str, str]]
    curve: str
    adjoint: str = "adjoint image"
    error: float | None = None
    adjoint_error: float | None = None


def findings(job: Job[Any], waves: WaveProblem, outcome: Outcome) -> Findings:
    """Return the results for the recipe, which writes them. Collective."""
    options: WaveOptions = job.options
    survey, grid, geometry = waves.survey, waves.grid, waves.survey.geometry
    observed, modelled = (waves.by_shot(job, traces) for traces in (outcome.data, outcome.modelled))
    fields, axes = {name: Field(axis, (name,), "m") for name, axis in grid.axes.items()}, tuple(grid.axes)
    fields |= {name: Field(shown.values, axes, shown.unit) for name, shown in outcome.pictures.items()}
    fields["seconds"] = Field(np.stack(list(outcome.solution.seconds.values()), 1), ("rank", "kind"), "s")
    fields["first_arrival"] = arrival_field(waves.problem)
    fields |= shot_fields(survey, zip(survey.shots, observed, modelled, strict=True))
    with local_stage(job.comm):
        segy = _segy(waves, outcome, options.segy_revision, observed, modelled)
    words = Words(
        outcome.title[0].upper() + outcome.title[1:],
        {name: shown.words for name, shown in outcome.pictures.items()},
        tuple(name for name, shown in outcome.pictures.items() if shown.unit == "m/s"),
        outcome.subject,
    )
    return Findings(
        title=outcome.title,
        solution=outcome.solution,
        subject=outcome.subject,
        adjoint=outcome.adjoint,
        numbers=outcome.numbers | _numbers(options, waves),
        rows=[
            ("survey", f"{geometry.shots} shots, {geometry.traces} traces of {geometry.samples} samples"),
            ("grid", str(grid)),
        ],
        more_rows=outcome.rows,
        fields=fields,
        error=outcome.error,
        adjoint_error=outcome.adjoint_error,
        attributes={
            "line_origin": list(survey.line.origin),
            "line_direction": list(survey.line.direction),
            "kinds": list(outcome.solution.seconds),
            "surface_speed": float(waves.problem.velocity[..., 0].mean()),
        },
        draw=lambda folder: [draw(folder, waves, outcome.pictures)],
        curve=outcome.curve,
        page=partial(write_page, words=words),
        files=options.survey_files,
        exports={f"{name}.sgy": traces.export for name, traces in segy.items()},
    )


def _numbers(options: WaveOptions, waves: WaveProblem) -> dict[str, Any]:
    """Return the entries of the JSON output that all commands have."""
    geometry, propagator = waves.survey.geometry, waves.propagator
    return {
        "conditioning": waves.problem.conditioning or None,
        "frequency": waves.problem.frequency,
        "shots": geometry.shots,
        "traces": geometry.traces,
        "samples": geometry.samples,
        "sample_interval": geometry.interval,
        "time_step": propagator.geometry.interval,
        "time_steps": propagator.geometry.shape[2],
        "order": options.order,
        "free_surface": options.free_surface,
        **waves.grid.numbers,
        "survey": options.survey,
        "velocity": options.velocity,
    }


def _segy(
    waves: WaveProblem, outcome: Outcome, revision: int, observed: list[np.ndarray], modelled: list[np.ndarray]
) -> dict[str, Traces]:
    """Return the SEG-Y files of the results of a recorded survey."""
    survey, grid, files = waves.survey, waves.grid, {}
    if (headers := survey.headers) is None:
        return {}
    if revision == 2 or fits_segy(grid.dz / 1e3, grid.nz):
        depth = f"DEPTH IN STEPS OF {grid.dz:g} M BELOW {headers.datum:g} M ABOVE SEA LEVEL"
        for name, (title, values) in outcome.segy.items():
            files[name] = image_traces(f"{title}, {depth}", values, grid, headers, survey.comm.rank, revision)
    nothing = np.empty((0, survey.geometry.samples), np.float32)
    rows, recorded = (np.concatenate([nothing, *parts], dtype=np.float32) for parts in (modelled, observed))
    titles = "TRACES MODELLED FROM THE RESULT, WEIGHTED AS THE DATA", "RESIDUAL: WEIGHTED DATA LESS MODELLED TRACES"
    for name, title, values in zip(("predicted", "residual"), titles, (rows, recorded - rows), strict=True):
        files[name] = shot_traces(title, headers, survey.shots, values, revision)
    return files


def draw(folder: Path, waves: WaveProblem, pictures: Mapping[str, Picture]) -> Path:
    """Draw the pictures on one scale for velocities, and on their own for others; return the path of the figure.

    In 3-D the figure shows the section in the middle of the axis y.
    """
    grid, shown = waves.grid, [picture for picture in pictures.values() if picture.drawn]
    speeds = np.concatenate(
        [section(picture.values).ravel() for picture in shown if picture.unit == "m/s"] or [np.zeros(1)]
    )
    width, depth = float(grid.x[-1] - grid.x[0]), float(grid.z[-1])
    scale, unit = (1000, "km") if width > 2000 else (1, "m")
    extent = float(grid.x[0]) / scale, float(grid.x[-1]) / scale, 0.0, depth / scale
    labels = f"distance ({unit})", f"depth ({unit})"
    to_scale = 0.5 < width / depth < 4  # other panels would be narrow strips

    def panel(picture: Picture) -> Panel:
        values = section(picture.values)
        if picture.unit == "m/s":
            limits = float(speeds.min()), float(speeds.max())
            return Panel(values, picture.words, extent, labels, limits, "m/s", to_scale)
        return Panel(values, picture.words, extent, labels, symmetric_limit(values), "", to_scale)

    size = 5.2, 0.92 * 5.2 * depth / width + 0.8 if to_scale else 3.2
    return draw_panels(folder / "image.png", [panel(picture) for picture in shown], size)
