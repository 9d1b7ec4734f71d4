"""The whole job, from options to pictures: what ``collops mdd`` runs on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collops.apps.job import Listener, begin, warn_of_idle_ranks
from collops.apps.mdd.files import draw
from collops.apps.mdd.invert import Deconvolution, deconvolve
from collops.apps.mdd.options import Options
from collops.apps.mdd.problem import Problem, prepare
from collops.apps.outputs import Field, write_result
from collops.apps.report import Outcome, best_relative_error, common_numbers, common_rows, relative_error
from collops.array import DistributedArray

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["run"]


def run(options: Options, comm: Communicator, listener: Listener) -> Outcome:
    """Deconvolve as `options` say, and write the results; see `collops.apps.job.Job`. Collective."""
    compute = begin(options, comm)
    listener.stage("reading" if options.down else "making the fields")
    problem = prepare(options, comm, compute)
    for note in problem.notes:
        listener.note(note)
    warn_of_idle_ranks(listener, comm, problem.frequencies, "frequencies")

    listener.stage(None)
    run = options.run(listener.live)
    found = deconvolve(problem, comm, compute, iterations=options.iterations, damp=options.damp, **run)

    listener.stage("writing")
    acquisition = problem.acquisition
    common = common_numbers(
        options,
        comm,
        compute,
        residuals=found.residuals,
        error=relative_error(found.response.local_array, problem.truth, comm),
        adjoint_error=best_relative_error(found.correlation.local_array, problem.truth, comm),
        costs=found.costs,
    )
    numbers = common | {
        "damp": options.damp,
        "sources": acquisition.sources,
        "receivers": acquisition.receivers,
        "virtual_sources": acquisition.virtual,
        "samples": acquisition.samples,
        "sample_interval": acquisition.interval,
        "spacing": acquisition.spacing,
        "frequencies": problem.frequencies,
        "highest_frequency": float(acquisition.frequencies[problem.frequencies - 1]),
        "down": options.down,
        "up": options.up,
    }
    files = draw(Path(options.out), problem, found, numbers["relative_error"], comm)
    fields = _fields(problem, found)
    attributes = {"title": "multi-dimensional deconvolution", **numbers}
    files.append(write_result(Path(options.out) / "result.zarr", comm, fields, attributes))
    listener.stage(None)
    rows = [
        ("fields", acquisition.describe()),
        ("frequencies", f"{problem.frequencies}, up to {numbers['highest_frequency']:.3g} Hz"),
        *common_rows(numbers, "response", "cross-correlation"),
    ]
    return Outcome(numbers, rows, found.costs.split, files)


def _fields(problem: Problem, found: Deconvolution) -> dict[str, Field]:
    acquisition, layout = problem.acquisition, found.response.layout
    names = ("time", "receiver", "virtual_source")
    fields = {
        "time": Field(acquisition.times, ("time",), "s"),
        "receiver": Field(acquisition.positions, ("receiver",), "m"),
        "virtual_source": Field(np.arange(acquisition.virtual) + 1, ("virtual_source",), "1"),
        "response": Field(found.response, names, "1/(m s)"),
        "correlation": Field(found.correlation, names, "1"),
        "residual_norms": Field(found.residuals, ("iteration",), "1"),
    }
    if problem.truth is not None:
        fields["truth"] = Field(DistributedArray(layout, problem.operator.comm, problem.truth), names, "1/(m s)")
    return fields
