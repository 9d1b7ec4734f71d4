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

    data = problem.data.engine.to_host(problem.data.local_array)
    shown = panel_of(data, 0) if problem.truth is None else panel_of(problem.truth, now)
    correlation = panel_of(found.correlation.local_array * found.step, now)
    response = panel_of(found.response.local_array, now)
    files: list[Path] = []
    with local_stage(comm):
        if comm.rank == 0:
            title = f"deconvolution, {len(found.residuals) - 1} iterations"
            if error is not None:
                title += f", error {100 * error:.0f} %"
            panels = [
                (shown, "upgoing field" if problem.truth is None else "true response"),
                (correlation, "cross-correlation"),
                (response, title),
            ]
            files = [folder / "image.png", folder / "convergence.png"]
            end = acquisition.interval * now
            with figure(files[0], len(panels), (4.6 * len(panels), 4.6)) as (_, axes):
                for number, (each, (image, name)) in enumerate(zip(axes, panels, strict=True)):
                    # One scale for truth and response, so that what the response lacks in amplitude shows.
                    limit = symmetric_limit(shown if number == 2 and problem.truth is not None else image, 99.5)
                    across = acquisition.spacing * (len(image) - 1)
                    panel(
                        each,
                        image,
                        (0.0, across, 0.0, end),
                        name,
                        labels=(
                            "source" if number == 0 and problem.truth is None else "receiver (m)",
                            None if number else "time (s)",
                        ),
                        limits=(-limit, limit),
                    )
            convergence(files[1], found.residuals, "CGLS", problem.noise_norm)
    return files
