"""CGLS on JAX, one compiled program, beside the engine that solvers otherwise run on: on GPUs, its replayed graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.array import random
from collops.backend import engine as find_engine
from collops_bench.record import Measurement, check
from collops_bench.timing import Plan, interleave
from collops.operators import VStack
from collops.solvers import CGLS, solve

if TYPE_CHECKING:
    from collops_bench.registry import Context

__all__ = ["compare_cgls"]

_ON_DEVICES = (4000, 8000, 100)  # rows, columns, iterations
_ON_HOSTS = (400, 800, 40)


def compare_cgls(context: Context, plan: Plan) -> Measurement:
    """Time a whole CGLS with a dense matrix in single precision on every rank. Collective."""
    comm = context.comm
    rows, columns, niter = _ON_DEVICES if context.engine.memory == "device" else _ON_HOSTS
    values = np.random.default_rng(comm.rank).standard_normal((rows, columns), np.float32)
    programs: dict[str, Callable[[], Any]] = {}
    histories, checks = [], []
    for name in ("jax", context.engine.name):
        operator = VStack([find_engine(name).from_host(values)], comm)
        # Data that have a solution: with others, on more rows than columns, iterations go on after all that single
        # precision can reach, and what then grows is rounding.
        data = operator.forward(random(operator.domain, seed=1, dtype=np.float32, comm=comm, engine=name))

        def solution(operator: Any = operator, data: Any = data) -> Any:
            return solve(CGLS(tol=0.0, precision=0.0), operator, data, niter=niter, progress=False)

        result = solution()
        checks.append(check(comm, f"iterations on {name} that are missing", niter - result.iterations, 0.0))
        histories.append(result.residual_norms)
        programs[f"collops on {name}"] = solution
    # Solutions of a random system differ by rounding far more than what they explain of the data.
    error = float(np.abs(histories[0] - histories[1]).max() / histories[1][0])
    checks.append(check(comm, "residuals on both engines", error, 1e-4))
    ours, other = programs
    return Measurement(
        "a CGLS over VStack",
        {"rows": rows, "columns": columns, "iterations": niter},
        interleave(programs, comm, context.engine, plan),
        {},
        ours=ours,
        peer=other,
        checks=checks,
    )
