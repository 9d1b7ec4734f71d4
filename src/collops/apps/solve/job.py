"""The whole job, from options to pictures: what ``collops solve`` runs on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from collops.apps.costs import MarkedOperator, solve_with_costs
from collops.apps.job import Listener, begin, warn_of_idle_ranks
from collops.apps.outputs import Field, write_result
from collops.apps.report import Outcome, common_numbers, common_rows, relative_error
from collops.apps.solve.options import Options
from collops.apps.solve.pictures import draw
from collops.apps.solve.problem import Problem, prepare
from collops.apps.stages import local_stage

if TYPE_CHECKING:
    from collops.comm import Communicator
    from collops.solvers import Run, SolverResult

__all__ = ["run"]


def run(options: Options, comm: Communicator, listener: Listener) -> Outcome:
    """Solve as `options` say, and write the results; see `collops.apps.job.Job`. Collective."""
    compute = begin(options, comm)
    problem = prepare(options, comm, compute, listener)
    warn_of_idle_ranks(listener, comm, problem.facts["rows"], "rows")
    operator = MarkedOperator(problem.matrix)

    listener.stage(None)
    result, costs = solve_with_costs(
        _solver(problem, operator, options),
        comm,
        compute,
        iterations=options.iterations,
        rehearse=lambda: None,
        sends_inside=True,
        **options.run(listener.live),
    )

    listener.stage("writing")
    solution = _in_first_order(problem, compute.to_host(result.x.gather()))
    truth = None if problem.system is None else problem.system.truth
    error = comm.allgather_metadata(None if problem.system is None else relative_error(solution, truth))[0]
    numbers = common_numbers(
        options,
        comm,
        compute,
        residuals=result.residual_norms,
        error=error,
        adjoint_error=None,
        costs=costs,
    )
    numbers |= _numbers(options, problem, result, comm)
    files: list[Path] = []
    folder = Path(options.out)
    with local_stage(comm):
        if problem.system is not None:
            title = f"{problem.method.upper()}, {problem.facts['name']}"
            files = draw(folder, problem.system, comm.size, numbers["rows_by_rank"], result.residual_norms, title)
    ranks = np.zeros(0, np.int32) if problem.system is None else _ranks(problem)
    fields = {
        "solution": Field(solution, ("column",), "1"),
        "rank": Field(ranks, ("row",), "1"),
        "residual_norms": Field(result.residual_norms, ("iteration",), "1"),
    }
    files.append(write_result(folder / "result.zarr", comm, fields, {"title": "sparse system", **numbers}))
    problem.matrix.free()
    listener.stage(None)
    return Outcome(numbers, _rows(numbers), costs.split, files)


def _solver(problem: Problem, operator: Any, options: Options) -> Any:
    from collops.solvers import cg, cgls, lsqr

    # CG compares the square of the residual with its tolerance, CGLS that of the gradient.
    first = problem.data if problem.method == "cg" else operator.adjoint(problem.data)
    least = (options.tol * float(first.norm())) ** 2

    def solve(*, niter: int, **run: Unpack[Run]) -> SolverResult:
        if problem.method == "lsqr":
            return lsqr(operator, problem.data, niter=niter, atol=options.tol, btol=options.tol, **run)
        method = cg if problem.method == "cg" else cgls
        return method(operator, problem.data, niter=niter, tol=least, **run)

    return solve


def _in_first_order(problem: Problem, values: np.ndarray) -> np.ndarray:
    """Return the solution in the order of the file's columns, on the first rank."""
    if problem.system is None or problem.system.partition is None:
        return values
    found = np.empty_like(values)
    found[problem.system.partition.order] = values
    return found


def _ranks(problem: Problem) -> np.ndarray:
    """Return the rank of each row, in the file's order."""
    assert problem.system is not None
    if problem.system.partition is not None:
        return problem.system.partition.parts.astype(np.int32)
    return np.repeat(np.arange(problem.matrix.comm.size, dtype=np.int32), problem.matrix.rows.sizes[0])


def _numbers(options: Options, problem: Problem, result: SolverResult, comm: Communicator) -> dict[str, Any]:
    ghosts = [int(count) for count in comm.allgather(np.array(len(problem.matrix.ghosts)))]
    facts = problem.facts
    return {
        "matrix": options.matrix,
        "rhs": options.rhs,
        "problem": facts["name"],
        "method": problem.method,
        "status": result.status.name.lower(),
        "tol": options.tol,
        "rows": facts["rows"],
        "columns": facts["columns"],
        "entries": facts["entries"],
        "partition": facts["partition"],
        "cut": facts["cut"],
        "rows_by_rank": list(problem.matrix.rows.sizes[0]),
        "ghosts_by_rank": ghosts,
    }


def _rows(numbers: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("system", f"{numbers['problem']}: {numbers['rows']} x {numbers['columns']}, {numbers['entries']} entries"),
        ("method", f"{numbers['method']} ({numbers['status'].replace('_', ' ')})"),
    ]
    if numbers["cut"] is not None:
        most = max(numbers["ghosts_by_rank"])
        rows.append(
            (
                "partition",
                f"{numbers['partition']}: {numbers['cut']} pairs of rows cut, at most {most} values from other ranks",
            )
        )
    return [*rows, *common_rows(numbers, "solution", "")]
