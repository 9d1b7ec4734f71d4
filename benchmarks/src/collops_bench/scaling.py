"""The scaling of an iteration of migration and of CGLS, and of a sparse product.

Each is measured with a problem of fixed size (strong scaling), and with problems that grow with the number of ranks
(weak scaling). Records of one, two and four ranks together show the scaling; `collops_bench.model` is fitted to them.
The parameters therefore contain the work of the busiest rank in an iteration: ``operations`` (image points times
traces, or products), ``bytes`` of memory traffic, and ``messages``, a list of kind, number, and bytes of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from collops.array import DistributedArray, Layout, ones, zeros
from collops.operators import LinearOperator, VStack
from collops.operators.csr import CSRMatrix
from collops_bench.lsm import Problem
from collops_bench.model import cgls, migration, parameters_of
from collops_bench.model import sparse as sparse_work
from collops_bench.operators.case import EAGER, OURS, captured
from collops_bench.record import Check, Measurement, check
from collops_bench.registry import Context
from collops_bench.shared import (
    CHECKED_ITERATIONS,
    agreement,
    messages_of_a_call,
    messages_of_an_iteration,
    solvers_of_collops,
)
from collops_bench.starforest import ring_rows, stencil_rows
from collops_bench.timing import Plan, interleave, interleave_iterations

__all__ = ["CGLS", "MIGRATION", "SPARSE", "measure"]

MIGRATION, CGLS, SPARSE = "migration", "CGLS", "sparse product"
_STRONG, _WEAK = "strong", "weak"


def measure(context: Context) -> Iterator[Measurement]:
    """Yield one measurement for each problem."""
    for scaling, problem in _surveys(context):
        yield _migration(context, scaling, problem)
    for scaling, rows, columns in _matrices(context):
        yield _cgls(context, scaling, rows, columns)
    for scaling, side, planes in _stencils(context):
        yield _sparse(context, scaling, side, planes)


# The problems: a fixed size, or the number of ranks times the size for one rank.


def _surveys(context: Context) -> list[tuple[str, Problem]]:
    ranks = context.comm.size
    if context.options.quick:
        return [(_STRONG, Problem(41, 30, 4, 5, 301, "float32"))]
    if context.engine.memory == "host":
        return [
            (_STRONG, Problem(81, 60, 24, 11, 651, "float32")),
            (_WEAK, Problem(81, 60, 12 * ranks, 11, 651, "float32")),
        ]
    return [
        (_STRONG, Problem(401, 300, 40, 101, 1001, "float32")),
        (_STRONG, Problem(201, 150, 40, 51, 1001, "float32")),
        (_WEAK, Problem(401, 300, 20 * ranks, 101, 1001, "float32")),
        (_WEAK, Problem(81, 60, 10 * ranks, 11, 651, "float32")),
    ]


def _matrices(context: Context) -> list[tuple[str, int, int]]:
    ranks = context.comm.size
    if context.options.quick:
        return [(_STRONG, 240, 100)]
    if context.engine.memory == "host":
        return [(_STRONG, 4000, 1000), (_WEAK, 1000 * ranks, 1000)]
    return [(_STRONG, 16000, 8000), (_STRONG, 4000, 4000), (_WEAK, 4000 * ranks, 8000), (_WEAK, 500 * ranks, 1000)]


def _stencils(context: Context) -> list[tuple[str, int, int]]:
    ranks = context.comm.size
    if context.options.quick:
        return [(_STRONG, 8, 8)]
    if context.engine.memory == "host":
        return [(_STRONG, 32, 64), (_WEAK, 32, 32 * ranks)]
    return [(_STRONG, 128, 256), (_STRONG, 64, 128), (_WEAK, 128, 128 * ranks), (_WEAK, 48, 48 * ranks)]


def _migration(context: Context, scaling: str, problem: Problem) -> Measurement:
    operator = problem.operator(context)
    data = operator.forward(problem.model(context, operator))
    points, ranks = problem.nx * problem.nz, context.comm.size
    work = migration(points, problem.shots, problem.receivers, problem.samples, ranks)
    return _iteration(context, MIGRATION, scaling, operator, data, problem.parameters | parameters_of(work), (5, 25))


def _cgls(context: Context, scaling: str, rows: int, columns: int) -> Measurement:
    from pylops import MatrixMult

    comm, engine = context.comm, context.engine
    layout = Layout.split((rows,), comm.size)
    (local,) = layout.local_shape(comm.rank)
    rng = np.random.default_rng([1, comm.rank])
    # With badly scaled columns, CGLS does not converge within the timed iterations.
    matrix = rng.standard_normal((local, columns), dtype="float32") * np.logspace(0, -3, columns, dtype="float32")
    operator = VStack([MatrixMult(engine.from_host(matrix / np.float32(np.sqrt(rows))), dtype="float32")], comm=comm)
    data = DistributedArray(layout, comm, engine.from_host(rng.standard_normal(local, dtype="float32")))
    sizes = {"rows": rows, "columns": columns, "dtype": "float32"}
    parameters = sizes | parameters_of(cgls(rows, columns, comm.size))
    return _iteration(context, CGLS, scaling, operator, data, parameters, (20, 120))


def _iteration(
    context: Context,
    case: str,
    scaling: str,
    operator: LinearOperator,
    data: Any,
    parameters: Mapping[str, Any],
    iterations: tuple[int, int],
) -> Measurement:
    """Measure the cost of one more iteration of CGLS."""
    comm, engine, quick = context.comm, context.engine, context.options.quick
    solvers, missing = solvers_of_collops(context, operator, data)
    program, *_ = solvers
    short, long = (2, 6) if quick else iterations
    programs = {name: partial(solve, CHECKED_ITERATIONS) for name, solve in solvers.items()}
    # In single precision, the order of additions in a kernel matters after some iterations.
    checks = [*agreement(context, f"solution of {case}", programs, 1e-2), _dot_test(context, operator, data)]
    return Measurement(
        case,
        {"scaling": scaling, **parameters, "iterations": [short, long]},
        interleave_iterations(solvers, comm, engine, Plan(rounds=3 if quick else 5), short=short, long=long),
        missing,
        ours=program,
        checks=checks,
        messages=messages_of_an_iteration(solvers[program]),
    )


def _sparse(context: Context, scaling: str, side: int, planes: int) -> Measurement:
    """Measure the product of a 27-point stencil on a cube whose planes are distributed over the ranks."""
    comm, engine = context.comm, context.engine
    square, layout = side * side, Layout.split((planes,), comm.size)
    local = layout.slices(comm.rank)[0]
    count = local.stop - local.start
    slab = stencil_rows(side, local.start, local.stop)
    matrix = CSRMatrix(ring_rows(slab, square, local.start, planes), comm=comm)
    x = ones(matrix.domain, comm=comm, dtype="float32", engine=engine)
    y = zeros(matrix.range, comm=comm, dtype="float32", engine=engine)
    degrees = engine.from_host(np.diff(slab.indptr).astype("float32"))
    error = float(abs(matrix.forward(x, y).local_array - degrees).max()) if count else 0.0
    checked = check(comm, "product against rows' lengths", error, 0.0)

    plan = Plan(rounds=3, seconds=0.003) if context.options.quick else Plan(rounds=5, seconds=0.05)
    program: Callable[[], Any] = partial(matrix.forward, x, y)
    name = EAGER if engine.memory == "device" else OURS
    timings = interleave({name: program}, comm, engine, plan)
    if engine.memory == "device" and matrix.capturable:
        timings = captured(context, program, plan) | timings
    measurement = Measurement(
        SPARSE,
        {"scaling": scaling, "cube": [side, side, planes], "dtype": "float32"}
        | parameters_of(sparse_work(side, planes, comm.size)),
        timings,
        ours=next(iter(timings)),
        checks=[checked],
        messages=messages_of_a_call(program),
    )
    matrix.free()
    return measurement


def _dot_test(context: Context, operator: LinearOperator, data: Any) -> Check:
    """Compare <A A^T d, d> with <A^T d, A^T d>."""
    back = operator.adjoint(data)
    left, right = float(operator.forward(back).vdot(data)), float(back.vdot(back))
    return check(context.comm, "forward and adjoint against each other", abs(left - right) / abs(right), 1e-4)
