"""The migration itself: the operator from travel times, modelling, the adjoint image, and CGLS with its costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from collops import profile
from collops.apps.lsm.problem import Problem
from collops.apps.lsm.traveltimes import travel_times
from collops.apps.lsm.wavelet import ricker
from collops.apps.report import TimeSplit
from collops.apps.stages import local_stage, raised_together
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["Migration", "kirchhoff", "least_squares", "model_traces"]

# Seconds, and rounds at most, that finding out where the time goes may add to a run.
_PROBE_SECONDS, _MOST_PROBES = 1.0, 10
_MODELLING, _COMMUNICATION = "modelling", "communication"


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
    seconds_per_iteration : float
        Of the slowest rank.
    split : TimeSplit
        The same divided into modelling, communication and the rest.
    messages_per_iteration : int
        Messages that one iteration sends.
    execution : str
        How the iterations ran on the device or the host.
    """

    image: np.ndarray
    adjoint: np.ndarray
    scaled_adjoint: np.ndarray
    residuals: np.ndarray
    seconds_per_iteration: float
    split: TimeSplit
    messages_per_iteration: int
    execution: str


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
    return _Marked(LocalKirchhoff(tables, problem.grid.shape, wavelet, centre, engine=compute, threads=threads))


class _Marked:
    """A local operator whose time a recording can tell from all else; while none is open that costs nothing."""

    def __init__(self, operator: Any) -> None:
        self.shape: tuple[int, int] = operator.shape
        self.dtype: np.dtype = operator.dtype
        self.capturable: bool = operator.capturable
        self._operator = operator

    def forward_local(self, x: Any, out: Any = None) -> Any:
        """Model traces from an image."""
        with profile.mark(_MODELLING):
            return self._operator.forward_local(x, out)

    def adjoint_local(self, y: Any, out: Any = None) -> Any:
        """Migrate traces to an image."""
        with profile.mark(_MODELLING):
            return self._operator.adjoint_local(y, out)


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
    flat = compute.to_host(operator.forward(truth).local_array)
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
    progress: bool,
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
    progress : bool
        Whether this rank shows a progress bar.

    Raises
    ------
    InputError
        On every rank, if the numbers grew beyond what `dtype` holds.
    """
    from collops.array import DistributedArray, dots
    from collops.solvers import Status, cgls

    flat = np.concatenate([np.empty(0, dtype), *(shot.ravel().astype(dtype) for shot in traces)])
    data = DistributedArray(operator.range, comm, compute.from_host(flat))
    gradient = operator.adjoint(data)
    squares = dots(*((a, a) for a in (gradient, operator.forward(gradient))))
    gradient_square, stretched_square = (float(square) for square in squares)
    with raised_together():
        if not np.isfinite([gradient_square, stretched_square]).all():
            raise InputError("the amplitudes are too large for float32: scale the data, or use --dtype float64")
    scale = gradient_square / stretched_square if stretched_square else 0.0
    norm = float(np.sqrt(stretched_square / gradient_square)) if gradient_square else 0.0

    options: dict[str, Any] = {"damp": damp * norm, "tol": 0.0}
    with profile.record() as recording:
        result = cgls(operator, data, niter=iterations, progress=progress, **options)
    with raised_together():
        if result.status is Status.NOT_FINITE:
            raise InputError("the solution grew without bounds: scale the data, or use --dtype float64")
    messages, trial = _trial(operator, data, options)
    # What is replayed on a device as one graph cannot be looked into: there the trial tells how its time divides.
    modelling = _modelling(recording if result.execution.startswith("eager") else trial)
    image = compute.to_host(result.x.local_array)
    adjoint = compute.to_host(gradient.local_array)
    seconds = float(comm.allreduce(np.array(result.seconds_per_iteration), "max")[()])
    communication = _communication(operator, data, comm, compute, messages, seconds)
    modelling = min(modelling, seconds)
    communication = min(communication, seconds - modelling)
    split = TimeSplit.gather(
        comm, {_MODELLING: modelling, _COMMUNICATION: communication, "rest": seconds - modelling - communication}
    )
    return Migration(
        image,
        adjoint,
        adjoint * scale,
        np.asarray(result.residual_norms, dtype=np.float64),
        seconds,
        split,
        len(messages),
        result.execution,
    )


def _trial(operator: Any, data: Any, options: dict[str, Any]) -> tuple[list[profile.Message], profile.Recording]:
    """Run two iterations one by one, and return what the second sends and how their time divides. Collective."""
    from collops.solvers import cgls

    records = []
    with profile.record() as recording:
        for iterations in (1, 2):
            with profile.count_messages() as messages:
                cgls(operator, data, niter=iterations, progress=False, graph=False, **options)
            records.append(messages.records)
    second = list(records[1])
    for message in records[0]:
        second.remove(message)
    return second, recording


def _modelling(recording: profile.Recording) -> float:
    """Return the seconds that the local operators of this rank take in one iteration."""
    rows = recording.report().rows
    iterations = sum(row.calls[0] for row in rows if row.label.endswith("iteration"))
    inside = [row for row in rows if row.label == _MODELLING and row.path[-2].endswith("iteration")]
    return sum(row.total[0] for row in inside) / max(1, iterations)


def _communication(
    operator: Any,
    data: Any,
    comm: Communicator,
    compute: Engine,
    messages: list[profile.Message],
    seconds: float,
) -> float:
    """Return the seconds of messages like those of an iteration, waiting for slower ranks included. Collective."""
    rounds = int(np.clip(_PROBE_SECONDS / max(seconds, 1e-9), 1, _MOST_PROBES))
    xp = compute.xp
    target, gradient = xp.empty_like(data.local_array), xp.empty(operator.shape[1], data.dtype)
    buffers = [
        xp.zeros(message.elements, f"f{message.nbytes // message.elements}")
        for message in messages
        if message.operation == "allreduce" and message.elements
    ]
    if not buffers:
        return 0.0
    comm.barrier()
    with profile.record() as recording:
        for _ in range(rounds):
            first = 0
            for local in operator.operators:
                piece = slice(first, first + local.shape[0])
                local.adjoint_local(data.local_array[piece], gradient)
                local.forward_local(gradient, target[piece])
                first = piece.stop
            with profile.mark(_COMMUNICATION):
                for buffer in buffers:
                    comm.allreduce(buffer, out=buffer)
    return sum(row.total[0] for row in recording.report().rows if row.label == _COMMUNICATION) / rounds
