"""Draw what a reflectivity inversion found, and how fast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from collops.apps.pictures import convergence, symmetric_limit
from collops.apps.reflectivity.invert import Inversion
from collops.apps.stages import local_stage
from collops.apps.volume.pictures import View, draw_views, section_of
from collops.apps.volume.problem import Problem

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["draw"]


def draw(folder: Path, problem: Problem, inversion: Inversion, comm: Communicator) -> list[Path]:
    """Draw ``image.png`` and ``convergence.png``. Collective.

    Parameters
    ----------
    folder : pathlib.Path
        Where to write.
    problem, inversion
        What was solved, and what was found.
    comm : Communicator
        The ranks.

    Returns
    -------
    list of pathlib.Path
        What was written, by the first rank.
    """
    volume = problem.volume
    known = volume.truth is not None
    second = inversion.unexplained if volume.truth is None else volume.truth
    data, other, spikes = (section_of(part, comm) for part in (volume.traces, second, inversion.spikes))
    files: list[Path] = []
    with local_stage(comm):
        if comm.rank == 0:
            amplitude = symmetric_limit(data)
            # Most samples of spikes are zero: their colours end where nearly all other samples do.
            strength = symmetric_limit(other if known else spikes, 99.8)
            limits = -strength, strength
            views = [
                View(data, "data", (-amplitude, amplitude)),
                View(other, "true reflectivity", limits)
                if known
                else View(other, "data not explained", (-amplitude, amplitude)),
                View(spikes, f"reflectivity, {len(inversion.residuals) - 1} iterations", limits),
            ]
            files = [
                draw_views(folder / "image.png", problem.cube, views),
                convergence(folder / "convergence.png", inversion.residuals, "FISTA", volume.noise_norm),
            ]
    return files
