"""Draw what a deconvolution found, beside the cross-correlation, and how fast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collops.apps.mdd.invert import Deconvolution
from collops.apps.mdd.problem import Problem
from collops.apps.pictures import convergence, figure, gather_rows, panel, symmetric_limit
from collops.apps.stages import local_stage

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["draw"]


def draw(folder: Path, problem: Problem, found: Deconvolution, error: float | None, comm: Communicator) -> list[Path]:
    """Draw ``image.png``, for the virtual source in the middle, and ``convergence.png``. Collective.

    Parameters
    ----------
    folder : pathlib.Path
        Where to write.
    problem, found
        What was solved, and what was found.
    error : float or None
        Relative error of the response.
    comm : Communicator
        The ranks.

    Returns
    -------
    list of pathlib.Path
        What was written, by the first rank.
    """
    acquisition = problem.acquisition
    middle, now = acquisition.virtual // 2, acquisition.samples - 1

    def panel_of(values: np.ndarray, first: int) -> np.ndarray:
        return gather_rows(values[first : first + acquisition.samples, :, middle].T, comm)

    correlation = panel_of(found.correlation.local_array * found.step, now)
    response = panel_of(found.response.local_array, now)
    if problem.truth is None:
        beside, name = panel_of(problem.data.engine.to_host(problem.data.local_array), 0), "upgoing field"
    else:
        beside, name = panel_of(problem.truth, now), "true response"
    files: list[Path] = []
    with local_stage(comm):
        if comm.rank == 0:
            title = f"deconvolution, {len(found.residuals) - 1} iterations"
            if error is not None:
                title += f", error {100 * error:.0f} %"
            line, end = float(acquisition.positions[-1]), acquisition.interval * now
            receivers = (0.0, line), "receiver (m)"
            sources = (1.0, float(acquisition.sources)), "source"
            # One scale for truth and response, so that what the response lacks in amplitude shows.
            model = beside if problem.truth is not None else response
            panels = [
                (beside, name, beside, sources if problem.truth is None else receivers),
                (correlation, "cross-correlation", correlation, receivers),
                (response, title, model, receivers),
            ]
            files = [folder / "image.png", folder / "convergence.png"]
            with figure(files[0], len(panels), (4.6 * len(panels), 4.6)) as (_, axes):
                for each, (image, heading, scale, (across, label)) in zip(axes, panels, strict=True):
                    limit = symmetric_limit(scale, 99.5)
                    panel(
                        each,
                        image,
                        (*across, 0.0, end),
                        heading,
                        labels=(label, "time (s)" if each is axes[0] else None),
                        limits=(-limit, limit),
                    )
            convergence(files[1], found.residuals, "CGLS", problem.noise_norm)
    return files
