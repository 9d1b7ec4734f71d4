"""Draw what a post-stack inversion found: sections, maps of a volume, and the residual."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collops.apps.pictures import convergence, symmetric_limit
from collops.apps.poststack.invert import Inversion
from collops.apps.stages import local_stage
from collops.apps.volume.pictures import View, draw_views, map_of, section_of
from collops.apps.volume.problem import Problem

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["draw"]


def draw(
    folder: Path,
    problem: Problem,
    inversion: Inversion,
    impedances: dict[str, np.ndarray],
    unit: str,
    comm: Communicator,
) -> list[Path]:
    """Draw ``image.png``, of a volume ``map.png`` as well, and ``convergence.png``. Collective.

    Parameters
    ----------
    folder : pathlib.Path
        Where to write.
    problem, inversion
        What was solved, and what was found.
    impedances : dict of numpy.ndarray
        This rank's parts: ``"impedance"``, and ``"truth"`` where it is known.
    unit : str
        Of impedances; "1" for relative ones.
    comm : Communicator
        The ranks.

    Returns
    -------
    list of pathlib.Path
        What was written, by the first rank.
    """
    cube, volume = problem.cube, problem.volume
    truth = impedances.get("truth")
    parts = [volume.traces, inversion.unexplained if truth is None else truth, impedances["impedance"]]
    iterations = len(inversion.residuals) - 1
    title = f"impedance, {iterations} iterations"
    unit = "relative to the background" if unit == "1" else unit
    sections = [section_of(part, comm) for part in parts]
    maps: list[np.ndarray] = []
    sample = 0
    if len(cube.lateral) == 2:
        sample = _liveliest_sample(inversion.update, comm)
        maps = [map_of(part, sample, comm) for part in parts]
    files: list[Path] = []
    with local_stage(comm):
        if comm.rank == 0:
            views = _views(sections, title, unit, truth is not None)
            files.append(draw_views(folder / "image.png", cube, views))
            if maps:
                views = _views(maps, f"impedance at {cube.times[sample]:.3g} s", unit, truth is not None)
                files.append(draw_views(folder / "map.png", cube, views, maps=True))
            files.append(convergence(folder / "convergence.png", inversion.residuals, "CGLS", volume.noise_norm))
    return files


def _views(images: Sequence[np.ndarray], title: str, unit: str, known: bool) -> list[View]:
    data, second, found = images
    # One scale for truth and result, so that what the result lacks in amplitude shows.
    low, high = np.percentile(second if known else found, [0.5, 99.5])
    limits = float(low), float(high)
    amplitude = symmetric_limit(data)
    amplitudes = -amplitude, amplitude
    beside = View(second, "true impedance", limits, unit) if known else View(second, "data not explained", amplitudes)
    return [View(data, "data", amplitudes), beside, View(found, title, limits, unit)]


def _liveliest_sample(update: np.ndarray, comm: Communicator) -> int:
    """Return the sample at which the model changes most from trace to trace. Collective."""
    moments = comm.allreduce(np.stack([update.sum(axis=(0, 1)), (update**2).sum(axis=(0, 1))]).astype(np.float64))
    traces = comm.allreduce(np.array(float(np.prod(update.shape[:2]))))
    return int(np.argmax(moments[1] - moments[0] ** 2 / traces))
