"""The cost of a CGLS iteration over VStack and BlockDiag, of PyLops-MPI and, on one rank, of serial PyLops.

On hosts the operator of each rank has 2000 rows: diagonals and first derivatives, which are cheap, so that the time is
spent in the solver and its vectors; and a dense matrix. On GPUs each rank has a dense float32 matrix of 4000 x 8000 or
500 x 1000, and every iteration is measured launched call by call (eager) and replayed from a CUDA graph.

The clock ``wall`` is the cost of one more iteration; ``whole`` includes the set-up. The operators are so badly scaled,
and the data of VStack so inconsistent, that no program converges within the timed iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from collops.array import DistributedArray, Layout
from collops.errors import CollopsError
from collops.operators import BlockDiag, VStack
from collops_bench.peers import PEER, Peer, load_peer
from collops_bench.record import Measurement
from collops_bench.registry import Context
from collops_bench.shared import (
    CHECKED_ITERATIONS,
    agreement,
    messages_of_an_iteration,
    solvers_of_collops,
)
from collops_bench.timing import Plan, interleave_iterations

__all__ = ["Case", "host_cases", "measure"]

LOCAL = 2000
SERIAL = "PyLops, serial"


@dataclass(frozen=True)
class Case:
    """One problem.

    `local` makes this rank's operator from a random generator, as the PyLops operator that all programs get.
    """

    name: str
    stack: str
    dtype: str
    rows: int
    columns: int
    local: Callable[[Context, np.random.Generator], Any]
    headline: str | None = None


def measure(context: Context) -> Iterator[Measurement]:
    """Yield one measurement for each problem."""
    peer = load_peer(context)
    for case in _device_cases(context) if context.engine.memory == "device" else host_cases():
        yield _measure(context, peer, case)


def host_cases() -> list[Case]:
    """Return the problems on hosts."""
    return [
        Case(
            f"{stack} of {name}",
            stack,
            "float64",
            LOCAL,
            columns,
            local,
            f"CGLS iteration, {stack} of {name}, {LOCAL} rows a rank" if headline else None,
        )
        for stack, name, columns, local, headline in (
            ("VStack", "diagonals", LOCAL, _diagonal, True),
            ("BlockDiag", "diagonals", LOCAL, _diagonal, True),
            ("VStack", "first derivatives", LOCAL, _derivative, False),
            ("BlockDiag", "first derivatives", LOCAL, _derivative, False),
            ("VStack", "matrices", 100, partial(_matrix, rows=LOCAL, columns=100, dtype="float64"), False),
        )
    ]


def _device_cases(context: Context) -> list[Case]:
    sizes = [(500, 1000)] if context.options.quick else [(4000, 8000), (500, 1000)]

    def case(rows: int, columns: int) -> Case:
        return Case(
            "VStack of matrices",
            "VStack",
            "float32",
            rows,
            columns,
            partial(_matrix, rows=rows, columns=columns, dtype="float32"),
            f"CGLS iteration, VStack of {rows} x {columns} matrices",
        )

    return [case(*size) for size in sizes]


def _scales(columns: int) -> np.ndarray:
    """Return badly scaled columns, with which CGLS needs many iterations."""
    return np.logspace(0, -3, columns)


def _diagonal(context: Context, random: np.random.Generator) -> Any:
    from pylops import Diagonal

    return Diagonal(random.permutation(_scales(LOCAL)), dtype="float64")


def _derivative(context: Context, random: np.random.Generator) -> Any:
    from pylops import FirstDerivative

    return FirstDerivative(LOCAL, dtype="float64")


def _matrix(context: Context, random: np.random.Generator, rows: int, columns: int, dtype: str) -> Any:
    from pylops import MatrixMult

    matrix = random.standard_normal((rows, columns), dtype="float32") * _scales(columns) / np.sqrt(rows)
    return MatrixMult(context.engine.from_host(matrix.astype(dtype)), dtype=dtype)


def _measure(context: Context, peer: Peer | str, case: Case) -> Measurement:
    comm, engine = context.comm, context.engine
    random = np.random.default_rng([2024, comm.rank])
    local = case.local(context, random)
    operator = VStack([local], comm=comm) if case.stack == "VStack" else BlockDiag([local], comm=comm)
    data = engine.from_host(random.standard_normal(case.rows).astype(case.dtype))
    y = DistributedArray(Layout.split((case.rows * comm.size,), comm.size), comm, data)

    solvers, missing = solvers_of_collops(context, operator, y)
    program, *_ = solvers
    sent = messages_of_an_iteration(solvers[program])
    if isinstance(peer, str):
        missing[PEER] = peer
    else:
        solvers[PEER] = _peer_solver(context, peer, case, local, data)
    if comm.size == 1:
        solvers[SERIAL] = _serial_solver(engine.xp, case, local, data)

    short, long = (5, 15) if context.options.quick else (20, 220)
    rounds = 3 if context.options.quick else 9
    checks = agreement(
        context,
        f"solution of {case.name} after {CHECKED_ITERATIONS} iterations",
        {name: partial(solve, CHECKED_ITERATIONS) for name, solve in solvers.items()},
        {"float64": 1e-9, "float32": 1e-3}[case.dtype],
    )
    timings = interleave_iterations(solvers, comm, engine, Plan(rounds=rounds), short=short, long=long)
    return Measurement(
        case.name,
        {
            "rows_per_rank": case.rows,
            "columns": case.columns,
            "dtype": case.dtype,
            "iterations": [short, long],
        },
        timings,
        missing,
        ours=program,
        peer=PEER,
        checks=checks,
        messages=sent,
        headline=case.headline,
    )


def _peer_solver(context: Context, peer: Peer, case: Case, local: Any, data: Any) -> Callable[[int], Any]:
    xp, ranks = context.engine.xp, context.comm.size
    rows, columns = [case.rows] * ranks, [case.columns] * ranks
    y = peer.split(data, rows)
    if case.stack == "VStack":
        operator = peer.vstack([local])
        start = peer.replicated(xp.zeros(case.columns, case.dtype))
    else:
        operator = peer.block_diag([local])
        start = peer.split(xp.zeros(case.columns, case.dtype), columns)
    return lambda iterations: peer.cgls(operator, y, start, iterations)


def _serial_solver(xp: Any, case: Case, local: Any, data: Any) -> Callable[[int], Any]:
    from pylops.optimization.basic import cgls as serial_cgls

    start = xp.zeros(case.columns, case.dtype)

    def solve(iterations: int) -> Any:
        solution, _, done, *_ = serial_cgls(local, data, start, niter=iterations, tol=0.0)
        if done != iterations:
            raise CollopsError(f"{SERIAL} stopped after {done} of {iterations} iterations")
        return solution

    return solve
