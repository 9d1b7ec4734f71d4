r"""A model of the time of an iteration on any number of ranks, fitted to measurements on few.

The time has four terms: an overhead :math:`t_0`; :math:`f` operations of the busiest rank; :math:`b` bytes of its
memory traffic; and :math:`n_k` messages of each kind :math:`k` and size :math:`s_k`:

.. math:: T = t_0 + c_f f + c_b \, T_{copy}(b) + c_m \sum_k n_k \, T_{message}(k, s_k, p)

``collops bench limits`` measures :math:`T_{copy}` and :math:`T_{message}`; the four coefficients are fitted to runs
(`Model.fit`) and must not be negative. :math:`c_b` is the time of the work over the time of a copy of as many bytes;
:math:`c_m` is less than 1 if messages overlap with computation.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np

from collops.errors import InputError

__all__ = [
    "ALLREDUCE",
    "EXCHANGE",
    "Line",
    "Machine",
    "Model",
    "Network",
    "Work",
    "cgls",
    "jacobi",
    "migration",
    "parameters_of",
    "sparse",
    "work_of",
]

ALLREDUCE, EXCHANGE = "allreduce", "exchange"
_ITEM = 4  # bytes of a float32
_BLOCK = 8  # sweeps of the variant "blocked" per pass over memory


@dataclass(frozen=True)
class Work:
    """The work of the busiest rank in one iteration.

    Examples
    --------
    Rank 0 of four reads and writes 80 MB, and takes part in two allreduces of one number:

    >>> from collops_bench.model import Work
    >>> Work(ranks=4, operations=0.0, nbytes=8e7, messages=[("allreduce", 2, 8)]).ranks
    4
    """

    ranks: int  # that take part
    operations: float  # in any unit that is the same in all runs
    nbytes: float  # read and written
    # kind (``"allreduce"`` or ``"exchange"``), number of messages, and bytes of each
    messages: Sequence[tuple[str, float, float]] = ()


@dataclass(frozen=True)
class Line:
    """The time of a message: a latency, and a time per byte.

    Examples
    --------
    >>> from collops_bench.model import Line
    >>> line = Line.fit([(0, 1e-5), (1_000_000, 2e-5), (2_000_000, 3e-5)])
    >>> round(1e6 * line.seconds(3_000_000), 6)
    40.0
    """

    latency: float  # seconds
    per_byte: float  # seconds per byte

    @classmethod
    def fit(cls, points: Sequence[tuple[float, float]]) -> Line:
        """Fit a line to points (bytes, seconds) by least squares of the relative errors.

        Raises
        ------
        InputError
            If there are no points, or a time is not positive.
        """
        if not len(points):
            raise InputError("a line needs measured messages: run collops bench limits --ranks 2")
        sizes, seconds = np.array(points, dtype=float).T
        latency, per_byte = _relative_fit(np.stack([np.ones_like(sizes), sizes], axis=1), seconds)
        return cls(latency, per_byte)

    def seconds(self, nbytes: float) -> float:
        """Return the time of a message of `nbytes`."""
        return self.latency + self.per_byte * nbytes


@dataclass(frozen=True)
class Network:
    """The network between hosts.

    Raises
    ------
    InputError
        If a number is not positive.

    Examples
    --------
    Eight GPUs a host, which share four adapters of 400 Gb/s:

    >>> from collops_bench.model import Network
    >>> Network(ranks=8, adapters=4, latency=5e-6, bandwidth=50e9).ranks
    8
    """

    ranks: int  # per host
    adapters: int  # per host
    latency: float  # seconds that a message to another host takes longer than one within the host
    bandwidth: float  # bytes per second of one adapter, each way

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"the {item.name} of a network must be positive, not {value}")


@dataclass(frozen=True)
class Machine:
    """The measured limits of a machine.

    Raises
    ------
    InputError
        If there are no copies, or they do not go from small to large.

    Examples
    --------
    >>> from collops_bench.model import Line, Machine, Network
    >>> within = {4: Line(latency=1e-5, per_byte=4e-12)}
    >>> machine = Machine([(1e6, 2e-6), (1e9, 5e-4)], within, within, Network(4, 4, 5e-6, 50e9))
    >>> round(1e6 * machine.copy_seconds(1e9))  # microseconds
    500
    >>> [round(1e6 * machine.message_seconds("exchange", 1e6, ranks)) for ranks in (1, 4, 8)]
    [0, 14, 35]
    """

    copies: Sequence[tuple[float, float]]  # bytes read and written, and seconds, from small to large
    allreduces: Mapping[int, Line]  # by the number of ranks, all on one host
    exchanges: Mapping[int, Line]
    network: Network | None = None  # between the hosts

    def __post_init__(self) -> None:
        if not self.copies:
            raise InputError("a machine needs measured copies: run collops bench limits")
        sizes = [size for size, _ in self.copies]
        if sizes[0] <= 0 or not all(size < larger for size, larger in pairwise(sizes)):
            raise InputError(f"the copies of a machine must go from small to large, not {sizes}")

    def copy_seconds(self, nbytes: float) -> float:
        """Return the time to read and write `nbytes` in total, interpolated between measured copies."""
        if nbytes <= 0:
            return 0.0
        sizes, seconds = np.array(self.copies, dtype=float).T
        if nbytes >= sizes[-1]:
            return nbytes * float(seconds[-1] / sizes[-1])
        return float(np.exp(np.interp(np.log(nbytes), np.log(sizes), np.log(seconds))))

    def message_seconds(self, kind: str, nbytes: float, ranks: int) -> float:
        r"""Return the time of a message.

        On one host it is the time measured with the next larger number of ranks. Beyond the measured numbers, the
        latency of an allreduce grows with the logarithm of the ranks, and its time per byte with
        :math:`2 (p - 1) / p`. On several hosts an allreduce consists of one within each host and one between hosts
        through all adapters. The time of an exchange is that between hosts: each host sends one message of the ring to
        another one, through one adapter.

        Raises
        ------
        InputError
            If `kind` is not ``"allreduce"`` or ``"exchange"``, or no such message was measured.
        """
        if kind not in (ALLREDUCE, EXCHANGE):
            raise InputError(f"the kind of a message must be allreduce or exchange, not {kind!r}")
        if ranks == 1:
            return 0.0
        network = self.network
        if network is None or ranks <= network.ranks:
            return self._within(kind, ranks).seconds(nbytes)
        if kind == EXCHANGE:
            # The latency within the host also applies on the way to another one.
            return self._within(kind, network.ranks).latency + network.latency + nbytes / network.bandwidth
        hosts = -(-ranks // network.ranks)
        within = self._within(kind, network.ranks).seconds(nbytes)
        steps = 2 * math.log2(hosts) * network.latency
        return within + steps + _share(hosts) * nbytes / (network.adapters * network.bandwidth)

    def _within(self, kind: str, ranks: int) -> Line:
        measured = self.allreduces if kind == ALLREDUCE else self.exchanges
        if not measured:
            raise InputError(f"a machine needs measured messages of kind {kind!r}: run collops bench limits --ranks 2")
        nearest = min((count for count in measured if count >= ranks), default=max(measured))
        line = measured[nearest]
        if nearest >= ranks or kind == EXCHANGE:
            return line
        return Line(
            line.latency * math.log2(ranks) / math.log2(nearest), line.per_byte * _share(ranks) / _share(nearest)
        )


@dataclass(frozen=True)
class Model:
    """A model of the time of an iteration of one kind of work.

    Examples
    --------
    >>> from collops_bench.model import Machine, Model, Work
    >>> machine = Machine(copies=[(1e6, 1e-6), (1e9, 1e-3)], allreduces={}, exchanges={})
    >>> runs = [(Work(1, 0.0, size), 2e-6 + 1.25e-12 * size) for size in (1e6, 1e7, 1e8)]
    >>> model = Model.fit(machine, runs)
    >>> round(1e6 * model.overhead, 3), round(model.memory, 3)
    (2.0, 1.25)
    """

    overhead: float  # seconds
    operation: float  # seconds per operation
    memory: float  # factor of the time of a copy of as many bytes
    messages: float  # factor of the time of the messages alone

    @classmethod
    def fit(cls, machine: Machine, runs: Sequence[tuple[Work, float]], *, without: Collection[str] = ()) -> Model:
        """Fit a model to runs (work, seconds of an iteration) by least squares of the relative errors.

        The coefficients in `without` are zero, such as ``"operation"`` for work limited by memory: the fit cannot
        separate operations and bytes that grow together.

        Raises
        ------
        InputError
            If there are no runs, a time is not positive, or a message is of an unknown kind.
        """
        if not runs:
            raise InputError("a model needs runs: run collops bench scaling")
        used = [item.name not in without for item in fields(cls)]
        terms = np.array([_terms(machine, work) for work, _ in runs]) * used
        return cls(*_relative_fit(terms, np.array([seconds for _, seconds in runs])))

    def seconds(self, machine: Machine, work: Work) -> float:
        """Return the predicted seconds of an iteration."""
        return math.fsum(
            coefficient * term
            for coefficient, term in zip(
                (self.overhead, self.operation, self.memory, self.messages), _terms(machine, work), strict=True
            )
        )


def _terms(machine: Machine, work: Work) -> tuple[float, float, float, float]:
    sent = math.fsum(count * machine.message_seconds(kind, size, work.ranks) for kind, count, size in work.messages)
    return 1.0, work.operations, machine.copy_seconds(work.nbytes), sent


def _share(ranks: int) -> float:
    """Return the bytes that each rank sends in an allreduce, relative to the size of the message."""
    return 2 * (ranks - 1) / ranks


def _relative_fit(terms: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Return nonnegative coefficients of the terms, by least squares of the relative errors."""
    from scipy.optimize import nnls

    if not (np.isfinite(seconds) & (seconds > 0)).all():
        raise InputError(f"measured times must be positive numbers, not {seconds.tolist()}")
    relative = terms / seconds[:, None]
    # Terms differ by many orders of magnitude, which would make the matrix numerically singular.
    scale = np.abs(relative).max(axis=0)
    scale[scale == 0] = 1.0
    result, _ = nnls(relative / scale, np.ones(len(seconds)))
    return [float(value) for value in result / scale]


# The work of measured problems


def migration(points: int, shots: int, receivers: int, samples: int, ranks: int) -> Work:
    """Return the work of CGLS over modelling: operations are image points times traces, both ways."""
    traces = -(-shots // ranks) * receivers
    return Work(ranks, 2 * points * traces, 2 * _ITEM * traces * samples, _sums(points, ranks))


def cgls(rows: int, columns: int, ranks: int) -> Work:
    """Return the work of CGLS with a matrix whose rows are distributed over the ranks."""
    most = -(-rows // ranks)
    return Work(ranks, 4 * most * columns, 2 * _ITEM * most * columns, _sums(columns, ranks))


def _sums(unknowns: int, ranks: int) -> list[tuple[str, float, float]]:
    """Return the messages of an iteration of CGLS without tolerances: the model and three numbers, each summed."""
    return [(ALLREDUCE, 1, _ITEM * unknowns), (ALLREDUCE, 1, 3 * _ITEM)] if ranks > 1 else []


def sparse(side: int, planes: int, ranks: int) -> Work:
    """Return the work of a product with the 27-point stencil on a cube whose planes are distributed over the ranks."""
    most = -(-planes // ranks)
    entries = most * 3 * (3 * side - 2) ** 2
    # Values and columns of the entries, and both vectors.
    nbytes = 2 * _ITEM * entries + 2 * _ITEM * most * side * side
    return Work(ranks, 2 * entries, nbytes, [(EXCHANGE, 1, _ITEM * side * side)] if ranks > 1 else [])


def jacobi(nx: int, ny: int, ranks: int, *, blocked: bool = False) -> Work:
    """Return the work of a sweep of Jacobi's method; the blocked variant passes over memory once in eight sweeps."""
    points = nx * -(-ny // ranks)
    halo = [(EXCHANGE, 1 / _BLOCK if blocked else 1, _ITEM * nx * (_BLOCK if blocked else 1))]
    return Work(ranks, points, 2 * _ITEM * points / (_BLOCK if blocked else 1), halo if ranks > 1 else [])


def parameters_of(work: Work) -> dict[str, Any]:
    """Return work as parameters of a measurement."""
    return {
        "operations": work.operations,
        "bytes": work.nbytes,
        "messages": [[kind, count, size] for kind, count, size in work.messages],
    }


def work_of(parameters: Any, ranks: int) -> Work:
    """Return the work that the parameters of a measurement describe."""
    messages = [(kind, count, size) for kind, count, size in parameters["messages"]]
    return Work(ranks, parameters["operations"], parameters["bytes"], messages)
