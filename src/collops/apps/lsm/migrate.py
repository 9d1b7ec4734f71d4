"""The migration itself: the operator from travel times, modelling, the adjoint image, and the least-squares image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from collops.apps import inversion
from collops.apps.costs import Costs, MarkedLocal
from collops.apps.lsm.problem import Problem
from collops.apps.lsm.traveltimes import travel_times
from collops.apps.stages import local_stage
from collops.apps.wavelet import ricker
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator
    from collops.solvers import Run

__all__ = ["Migration", "kirchhoff", "least_squares", "model_traces", "own_traces"]


@dataclass(frozen=True)
class Migration:
    """What a migration found and what it cost.

    Parameters
    ----------
    image, adjoint, scaled_adjoint : numpy.ndarray
        Shape ``(nx, nz)``: the least-squares image, the adjoint image, and this at the scale that fits the
        data best, which is where CGLS is after one iteration.
    residuals : numpy.ndarray
        Norm of the residual before the first iteration and after each.
    costs : Costs
        Of an iteration.
    """

    image: np.ndarray
    adjoint: np.ndarray
    scaled_adjoint: np.ndarray
    residuals: np.ndarray
    costs: Costs


def kirchhoff(problem: Problem, comm: Communicator, compute: Engine, dtype: str) -> Any:
    """Build the operator from an image, the same on every rank, to the traces of each rank's shots. Collective.

    Every distinct position is traced once, whoever uses it. Shots of a fixed spread make one local operator,
    those with receivers of their own one each.

    Returns
    -------
    LinearOperator
        Domain: replicated, shape ``(nx, nz)``. Range: 1-D, split; rank by rank the traces of its shots.
    """
    from collops.operators import VStack
    from collops.operators.kirchhoff import threads_of_rank

    geometry = problem.geometry
    receivers = geometry.distinct_receivers()
    positions = np.concatenate([geometry.sources, *receivers], axis=1)
    distinct, inverse = np.unique(positions, axis=1, return_inverse=True)
    tables = travel_times(distinct, problem.velocity, problem.grid, problem.mode, comm, dtype)
    # The operator's time axis begins with the first sample: all arrivals are as much earlier as recording
    # began late.
    of_position = inverse.reshape(-1)
    of_source = of_position[: geometry.shots]
    ends = np.cumsum([0, *(r.shape[1] for r in receivers)]) + geometry.shots
    of_receivers = {
        id(group): of_position[first:last] for group, first, last in zip(receivers, ends[:-1], ends[1:], strict=True)
    }
    groups = [range(problem.shots.start, problem.shots.stop)]
    if not geometry.fixed_spread:
        groups = [range(shot, shot + 1) for shot in problem.shots]
    threads = threads_of_rank(comm, compute.name)
    with local_stage(comm):
        operators = [
            _local(
                problem,
                tables[of_source[shots.start : shots.stop]] - geometry.start,
                tables[of_receivers[id(geometry.receivers[shots.start])]],
                compute,
                dtype,
                threads,
            )
            for shots in groups
            if shots
        ]
    return VStack(operators, comm, dims=problem.grid.shape)


def _local(
    problem: Problem,
    source_times: np.ndarray,
    receiver_times: np.ndarray,
    compute: Engine,
    dtype: str,
    threads: int | None,
) -> Any:
    """Return the operator of shots with common receivers; times of shape ``(positions, nx, nz)``."""
    from collops.operators.kirchhoff import FixedTables, LocalKirchhoff

    geometry = problem.geometry
    wavelet, centre = ricker(problem.frequency, geometry.interval)
    tables = FixedTables.from_seconds(source_times, receiver_times, geometry.interval, geometry.samples, dtype)
    return MarkedLocal(LocalKirchhoff(tables, problem.grid.shape, wavelet, centre, engine=compute, threads=threads))


def model_traces(operator: Any, problem: Problem, comm: Communicator, compute: Engine, dtype: str) -> list[np.ndarray]:
    """Model the traces of the true reflectivity. Collective.

    Returns
    -------
    list of numpy.ndarray
        One array per shot of this rank, shape ``(receivers, samples)``.
    """
    from collops.array import DistributedArray

    if problem.truth is None:
        raise InputError("a recorded survey has no true reflectivity to model")
    truth = DistributedArray(operator.domain, comm, compute.from_host(problem.truth.astype(dtype)))
    return own_traces(problem, compute.to_host(operator.forward(truth).local_array))


def own_traces(problem: Problem, flat: np.ndarray) -> list[np.ndarray]:
    """Cut what a rank has of the data into one array per shot, shape ``(receivers, samples)``."""
    geometry = problem.geometry
    shapes = [(geometry.receivers[shot].shape[1], geometry.samples) for shot in problem.shots]
    ends = np.cumsum([rows * samples for rows, samples in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=False)]


def least_squares(
    operator: Any,
    traces: list[np.ndarray],
    comm: Communicator,
    compute: Engine,
    *,
    dtype: str,
    iterations: int,
    damp: float,
    **run: Unpack[Run],
) -> Migration:
    """Find the image that explains the traces best in the mean square. Collective.

    Parameters
    ----------
    operator : LinearOperator
        From `kirchhoff`.
    traces : list of numpy.ndarray
        One array per shot of this rank.
    comm : Communicator
        The ranks.
    compute : Engine
        Where to compute.
    dtype : str
        ``"float32"`` or ``"float64"``.
    iterations : int
        Of CGLS.
    damp : float
        Damping relative to the operator's norm, which is taken from how much the operator stretches the
        adjoint image.
    **run
        How the solver is run, see `collops.solvers.cgls`.

    Raises
    ------
    InputError
        On every rank, if the numbers grew beyond what `dtype` holds.
    """
    from collops.array import DistributedArray

    flat = np.concatenate([np.empty(0, dtype), *(shot.ravel().astype(dtype) for shot in traces)])
    flat = compute.from_host(flat)
    data = DistributedArray(operator.range, comm, flat)
    stretch = inversion.Stretch.of(operator, data)

    def rehearse() -> None:
        first = 0
        for local in operator.operators:
            piece = slice(first, first + local.shape[0])
            local.adjoint_local(data.local_array[piece], image)
            local.forward_local(image, target[piece])
            first = piece.stop

    target, image = compute.xp.empty_like(flat), compute.xp.empty(operator.shape[1], dtype)
    result, costs = inversion.least_squares(
        operator,
        data,
        comm,
        compute,
        iterations=iterations,
        damp=damp * stretch.norm,
        rehearse=rehearse,
        **run,
    )
    adjoint = compute.to_host(stretch.gradient.local_array)
    return Migration(
        compute.to_host(result.x.local_array),
        adjoint,
        adjoint * stretch.step,
        np.asarray(result.residual_norms, dtype=np.float64),
        costs,
    )
