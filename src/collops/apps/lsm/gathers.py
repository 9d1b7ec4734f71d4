"""A few shots to look at: what was recorded there, and what the image that was found does not explain of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collops.apps.lsm.migrate import own_traces
from collops.apps.lsm.problem import Problem

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["Gathers", "some_gathers"]

_SHOTS, _TRACES, _SAMPLES = 3, 64, 250  # at most


class Gathers(NamedTuple):
    """Some traces of some shots.

    Parameters
    ----------
    shots : numpy.ndarray
        Their numbers.
    offsets : numpy.ndarray
        Shape ``(shots, traces)``: horizontal distances from source to receiver, m.
    times : numpy.ndarray
        Of the samples, s.
    data, residual : numpy.ndarray
        Shape ``(shots, traces, samples)`` on the first rank, and empty on others; float32.
    """

    shots: np.ndarray
    offsets: np.ndarray
    times: np.ndarray
    data: np.ndarray
    residual: np.ndarray


def some_gathers(
    problem: Problem, operator: Any, traces: list[np.ndarray], image: np.ndarray, comm: Communicator, compute: Engine
) -> Gathers:
    """Choose shots along the line, model them from the image, and bring them to the first rank. Collective.

    Parameters
    ----------
    problem : Problem
        Of all shots.
    operator : LinearOperator
        From images to the traces of each rank's shots.
    traces : list of numpy.ndarray
        One array per shot of this rank.
    image : numpy.ndarray
        What was found, the same on every rank.
    comm : Communicator
        The ranks.
    compute : Engine
        Where to compute.
    """
    from collops.array import DistributedArray

    geometry = problem.geometry
    count = min(_SHOTS, geometry.shots)
    chosen = np.unique(np.linspace(0, geometry.shots - 1, count + 2).round().astype(int)[1:-1])
    fewest = min(geometry.receivers[shot].shape[1] for shot in chosen)
    picked = {
        int(shot): np.linspace(0, geometry.receivers[shot].shape[1] - 1, min(_TRACES, fewest)).round().astype(int)
        for shot in chosen
    }
    samples = np.arange(0, geometry.samples, -(-geometry.samples // _SAMPLES))

    model = DistributedArray(operator.domain, comm, compute.from_host(image.astype(operator.dtype)))
    explained = own_traces(problem, compute.to_host(operator.forward(model).local_array))
    own = [
        np.stack([part[picked[shot]][:, samples] for part in (recorded, recorded - modelled)])
        for shot, recorded, modelled in zip(problem.shots, traces, explained, strict=False)
        if shot in picked
    ]
    shape = (2, min(_TRACES, fewest), len(samples))
    mine = np.concatenate([np.empty((0, *shape)), *(each[None] for each in own)]).astype(np.float32)
    counts = [int(n) for n in comm.allgather(np.array(len(mine)))]
    together = comm.gatherv(mine, counts, root=0)
    both = together if comm.rank == 0 else np.empty((0, *shape), np.float32)
    offsets = [geometry.receivers[shot][0, rows] - geometry.sources[0, shot] for shot, rows in picked.items()]
    times = geometry.start + geometry.interval * samples
    return Gathers(chosen, np.stack(offsets), times, both[:, 0], both[:, 1])
