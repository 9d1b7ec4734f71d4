"""The whole job, from options to pictures: what ``collops poststack`` runs on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collops.apps.job import Listener, begin
from collops.apps.poststack.background import log_background
from collops.apps.poststack.files import draw
from collops.apps.poststack.invert import invert
from collops.apps.poststack.options import Options
from collops.apps.report import Outcome, best_relative_error, common_numbers, common_rows, relative_error
from collops.apps.stages import raised_together
from collops.apps.volume.modelling import convolution, reflection
from collops.apps.volume.problem import Recipe, prepare
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["run"]

_RECIPE = Recipe(
    matrix=lambda wavelet, samples: convolution(wavelet, samples) @ reflection(samples),
    model=np.log,
    extents=(60, 48),
    samples=240,
    noise=0.1,
)


def run(options: Options, comm: Communicator, listener: Listener) -> Outcome:
    """Invert as `options` say, and write the results; see `collops.apps.job.Job`. Collective."""
    compute = begin(options, comm)
    problem = prepare(options, _RECIPE, comm, compute, listener)
    volume = problem.volume
    background = log_background(options, volume, comm)
    if volume.truth is None and options.background is None:
        listener.note("no background: impedances are relative to it (--background)")
    explained = problem.values(problem.operator.forward(problem.vector(background, compute)))

    listener.stage(None)
    inversion = invert(
        problem,
        volume.traces - explained,
        comm,
        compute,
        iterations=options.iterations,
        weight=options.weight,
        damp=options.damp,
        **options.run(listener.live),
    )

    listener.stage("writing")
    truth = None if volume.truth is None else volume.truth - background
    common = common_numbers(
        options,
        comm,
        compute,
        residuals=inversion.residuals,
        error=relative_error(inversion.update, truth, comm),
        adjoint_error=best_relative_error(inversion.adjoint, truth, comm),
        costs=inversion.costs,
    )
    numbers = common | {"misfit": inversion.misfit, "weight": options.weight, "damp": options.damp}
    numbers |= problem.numbers(options) | {"background": options.background}
    with np.errstate(over="ignore"), raised_together():
        impedance = np.exp(background + inversion.update)
        if not np.isfinite(comm.allreduce(np.array(float(impedance.max(initial=0.0))), "max")):
            raise InputError("the impedance grew without bounds: raise --damp, or check the amplitudes of the wavelet")
    arrays = {"impedance": impedance, "background": np.exp(background)}
    if volume.truth is not None:
        arrays["truth"] = np.exp(volume.truth)
    unit = "1e6 kg/(m2 s)" if volume.truth is not None else "1"
    files = draw(Path(options.out), problem, inversion, arrays, unit, comm)
    on_cube = {name: (values, unit) for name, values in arrays.items()}
    on_cube |= {"data": (volume.traces, "1"), "residual": (inversion.unexplained, "1")}
    path = Path(options.out) / "result.zarr"
    files.append(problem.write(path, "post-stack inversion", on_cube, inversion.residuals, numbers))
    listener.stage(None)
    rows = [
        ("volume", problem.cube.describe()),
        *common_rows(
            numbers,
            "impedance",
            "adjoint",
            residual_of=" with roughness",
            error_of=" of what the background lacks",
        ),
        ("misfit", f"{100 * inversion.misfit:.1f} % of the data that the background leaves unexplained"),
    ]
    return Outcome(numbers, rows, inversion.costs.split, files)
