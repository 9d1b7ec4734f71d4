"""Every primitive as a function of one array, with its expected result, by NumPy on the arrays of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


def ring(rank: int, size: int, by: int) -> int:
    return (rank + by) % size


def uneven(size: int) -> list[int]:
    """Rows of each rank; some have none."""
    return [(2 * rank + 1) % 3 for rank in range(size)]


def matrix(size: int) -> np.ndarray:
    """Rows from each rank (first index) to each."""
    return np.array([[(r + 2 * s + 1) % 3 for s in range(size)] for r in range(size)])


@dataclass
class Case:
    """`apply` takes the module, the communicator and this rank's array; `expect` the arrays of all ranks and a rank."""

    name: str
    apply: Callable[[Any, Any, Any], Any]
    expect: Callable[[list[Any], int], Any]
    shape: Callable[[int, int], tuple[int, ...]] = field(default=lambda rank, size: (2, 3))
    tangent: Callable[[list[Any], list[Any], int], Any] | None = None  # of what is not linear

    def inputs(self, size: int, seed: int, dtype: Any = np.float64, batch: int | None = None) -> list[np.ndarray]:
        """The arrays of all ranks, which every rank can make."""
        made = []
        for rank in range(size):
            shape = self.shape(rank, size) if batch is None else (batch, *self.shape(rank, size))
            values = np.random.default_rng([seed, rank]).normal(size=shape) + 0.1
            made.append(values.astype(dtype))
        return made


def extreme_tangent(pick: Any) -> Any:
    def tangent(xs: list[Any], ts: list[Any], rank: int) -> Any:
        where = pick(np.stack(xs), axis=0)
        return np.take_along_axis(np.stack(ts), where[None], axis=0)[0]

    return tangent


def product_tangent(xs: list[Any], ts: list[Any], rank: int) -> Any:
    others = [np.prod([x for s, x in enumerate(xs) if s != r], axis=0) for r in range(len(xs))]
    return sum(t * other for t, other in zip(ts, others, strict=True))


def blocks(rank: int, size: int) -> tuple[int, ...]:
    return (size, 3)


def exchange(cj: Any, comm: Any, x: Any) -> Any:
    """To the next rank its array, to the one before twice of it; the messages have different lengths."""
    after, before = ring(comm.rank, comm.size, 1), ring(comm.rank, comm.size, -1)
    first, second = cj.neighbor_exchange([x, 2 * x[:1]], [x, x[:1]], [after, before], [before, after], comm=comm)
    return first.at[:1].add(second)


def expect_exchange(xs: list[Any], rank: int) -> Any:
    result = xs[ring(rank, len(xs), -1)].copy()
    result[:1] += 2 * xs[ring(rank, len(xs), 1)][:1]
    return result


def send_and_receive(cj: Any, comm: Any, x: Any) -> Any:
    """From rank 0 to the last one."""
    y = x
    if comm.rank == 0:
        y = y + cj.send(x, comm.size - 1, 3, comm=comm)
    if comm.rank == comm.size - 1:
        y = cj.recv(0 * x, 0, 3, comm=comm)
    return y


def alltoallv(cj: Any, comm: Any, x: Any) -> Any:
    counts = matrix(comm.size)
    return cj.alltoallv(x, counts[comm.rank], counts[:, comm.rank], comm=comm)


def expect_alltoallv(xs: list[Any], rank: int) -> Any:
    counts = matrix(len(xs))
    starts = counts.cumsum(axis=1) - counts
    return np.concatenate([x[starts[s, rank] :][: counts[s, rank]] for s, x in enumerate(xs)])


def expect_sum(xs: list[Any], rank: int) -> Any:
    return sum(xs)


LINEAR = [
    Case("allreduce sum", lambda cj, comm, x: cj.allreduce(x, comm=comm), expect_sum),
    Case("allreduce avg", lambda cj, comm, x: cj.allreduce(x, "avg", comm=comm), lambda xs, rank: sum(xs) / len(xs)),
    Case(
        "reduce",
        lambda cj, comm, x: cj.reduce(x, "sum", comm.size - 1, comm=comm),
        lambda xs, rank: sum(xs) if rank == len(xs) - 1 else xs[rank],
    ),
    Case("scan", lambda cj, comm, x: cj.scan(x, comm=comm), lambda xs, rank: sum(xs[: rank + 1])),
    Case("bcast", lambda cj, comm, x: cj.bcast(x, comm.size - 1, comm=comm), lambda xs, rank: xs[-1]),
    Case("allgather", lambda cj, comm, x: cj.allgather(x, comm=comm), lambda xs, rank: np.stack(xs)),
    Case(
        "allgatherv",
        lambda cj, comm, x: cj.allgatherv(x, uneven(comm.size), comm=comm),
        lambda xs, rank: np.concatenate(xs),
        lambda rank, size: (uneven(size)[rank], 2),
    ),
    Case(
        "gather",
        lambda cj, comm, x: cj.gather(x, 0, comm=comm),
        lambda xs, rank: np.stack(xs) if rank == 0 else xs[rank],
    ),
    Case(
        "scatter",
        lambda cj, comm, x: cj.scatter(x, 0, comm=comm),
        lambda xs, rank: xs[0][rank],
        lambda rank, size: (size, 3) if rank == 0 else (3,),
    ),
    Case(
        "reduce_scatter",
        lambda cj, comm, x: cj.reduce_scatter(x, comm=comm),
        lambda xs, rank: sum(xs)[rank],
        blocks,
    ),
    Case(
        "alltoall",
        lambda cj, comm, x: cj.alltoall(x, comm=comm),
        lambda xs, rank: np.stack([x[rank] for x in xs]),
        blocks,
    ),
    Case("alltoallv", alltoallv, expect_alltoallv, lambda rank, size: (int(matrix(size)[rank].sum()), 2)),
    Case(
        "sendrecv",
        lambda cj, comm, x: cj.sendrecv(
            x, 0 * x, ring(comm.rank, comm.size, -1), ring(comm.rank, comm.size, 1), 5, 5, comm=comm
        ),
        lambda xs, rank: xs[ring(rank, len(xs), -1)],
    ),
    Case("neighbor_exchange", exchange, expect_exchange),
    Case("send and recv", send_and_receive, lambda xs, rank: xs[0] if rank == len(xs) - 1 else xs[rank]),
]

NONLINEAR = [
    Case(
        "allreduce max",
        lambda cj, comm, x: cj.allreduce(x, "max", comm=comm),
        lambda xs, rank: np.max(xs, axis=0),
        tangent=extreme_tangent(np.argmax),
    ),
    Case(
        "allreduce min",
        lambda cj, comm, x: cj.allreduce(x, "min", comm=comm),
        lambda xs, rank: np.min(xs, axis=0),
        tangent=extreme_tangent(np.argmin),
    ),
    Case(
        "allreduce prod",
        lambda cj, comm, x: cj.allreduce(x, "prod", comm=comm),
        lambda xs, rank: np.prod(xs, axis=0),
        tangent=product_tangent,
    ),
    Case(
        "scan prod",
        lambda cj, comm, x: cj.scan(x, "prod", comm=comm),
        lambda xs, rank: np.prod(xs[: rank + 1], axis=0),
        tangent=lambda xs, ts, rank: product_tangent(xs[: rank + 1], ts[: rank + 1], rank),
    ),
    Case(
        "reduce max",
        lambda cj, comm, x: cj.reduce(x, "max", 0, comm=comm),
        lambda xs, rank: np.max(xs, axis=0) if rank == 0 else xs[rank],
        tangent=lambda xs, ts, rank: extreme_tangent(np.argmax)(xs, ts, rank) if rank == 0 else ts[rank],
    ),
    Case(
        "reduce_scatter min",
        lambda cj, comm, x: cj.reduce_scatter(x, "min", comm=comm),
        lambda xs, rank: np.min(xs, axis=0)[rank],
        blocks,
        tangent=lambda xs, ts, rank: extreme_tangent(np.argmin)(xs, ts, rank)[rank],
    ),
]

CASES = [*LINEAR, *NONLINEAR]

_EQUAL_BLOCKS = ("allreduce", "bcast", "allgather", "reduce_scatter", "alltoall")
ON_DEVICES = [case for case in CASES if case.name.split()[0] in _EQUAL_BLOCKS]
"""Those that do not depend on the rank, and so exist between the devices of one process."""
