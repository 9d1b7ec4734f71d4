"""The whole job, from options to pictures: what ``collops reflectivity`` runs on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collops.apps.job import Listener, begin
from collops.apps.reflectivity.files import draw
from collops.apps.reflectivity.invert import invert, match
from collops.apps.reflectivity.options import Options
from collops.apps.report import Outcome, best_relative_error, common_numbers, common_rows, relative_error
from collops.apps.volume.modelling import convolution, reflection
from collops.apps.volume.problem import Recipe, prepare

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["run"]

_RECIPE = Recipe(
    matrix=convolution,
    model=lambda impedance: np.log(impedance) @ reflection(impedance.shape[-1]).T.toarray(),
    extents=(150,),
    samples=250,
    noise=0.05,
)


def run(options: Options, comm: Communicator, listener: Listener) -> Outcome:
    """Invert as `options` say, and write the results; see `collops.apps.job.Job`. Collective."""
    compute = begin(options, comm)
    problem = prepare(options, _RECIPE, comm, compute, listener)
    truth = problem.volume.truth

    listener.stage(None)
    inversion = invert(
        problem,
        comm,
        compute,
        iterations=options.iterations,
        sparsity=options.sparsity,
        threshold=options.threshold,
        **options.run(listener.live),
    )

    listener.stage("writing")
    numbers = common_numbers(
        options,
        comm,
        compute,
        residuals=inversion.residuals,
        error=relative_error(inversion.spikes, truth, comm),
        adjoint_error=best_relative_error(inversion.adjoint, truth, comm),
        costs=inversion.costs,
    )
    zero_fraction = comm.allreduce(np.array([float(np.count_nonzero(inversion.spikes)), float(inversion.spikes.size)]))
    numbers |= {"nonzero_fraction": float(zero_fraction[0] / zero_fraction[1])}
    numbers |= {"sparsity": options.sparsity, "threshold": options.threshold} | problem.numbers(options)
    rows = [("section" if len(problem.cube.lateral) == 1 else "volume", problem.cube.describe())]
    rows += common_rows(numbers, "reflectivity", "adjoint")
    if truth is not None:
        matches = match(inversion.spikes, truth, comm)
        numbers |= {"spikes_true": matches.true, "spikes_found": matches.found, "spikes_matched": matches.matched}
        rows.append(("spikes", f"{matches.matched} of {matches.true} within one sample, {matches.found} found in all"))
    rows.append(("not zero", f"{100 * numbers['nonzero_fraction']:.1f} % of the samples"))
    folder = Path(options.out)
    files = draw(folder, problem, inversion, comm)
    arrays = {
        "reflectivity": (inversion.spikes, "1"),
        "adjoint": (inversion.adjoint, "1"),
        "data": (problem.volume.traces, "1"),
        "residual": (inversion.unexplained, "1"),
    }
    if truth is not None:
        arrays["truth"] = (truth, "1")
    files.append(problem.write(folder / "result.zarr", "reflectivity inversion", arrays, inversion.residuals, numbers))
    listener.stage(None)
    return Outcome(numbers, rows, inversion.costs.split, files)
