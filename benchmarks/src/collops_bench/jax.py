"""Collectives inside compiled JAX programs: one in a call of its own, many in one call, and a solver.

Each rank has a core or a GPU, and the peer is mpi4jax. A single process drives all GPUs of its machine by
``shard_map``, and the peer is ``lax.psum`` of JAX. An elementwise program of the same size shows the cost of a call
without a collective. The host waits for every call; on GPUs short calls are also measured without waits. All ranks have
the same small integers, so that sums are exact.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.array import random
from collops.backend import engine as find_engine
from collops.errors import InputError
from collops.operators import VStack
from collops.solvers import CGLS, solve
from collops_bench.peers import why_no_mpi4jax
from collops_bench.record import Measurement, check
from collops_bench.timing import Plan, interleave

if TYPE_CHECKING:
    from collops_bench.registry import Context

__all__ = ["measure"]

_MANY = 20
_SIZES = (8, 8192, 1 << 20, 64 << 20, 1 << 30)
_SHORT = 8192
_ON_DEVICES = (4000, 8000, 100)  # rows, columns and iterations of the solver
_ON_HOSTS = (400, 800, 40)


def measure(context: Context) -> Iterator[Measurement]:
    """Yield measurements for each size, calls with one allreduce and with twenty; then one of CGLS."""
    if importlib.util.find_spec("jax") is None:
        raise InputError("collops bench jax needs JAX: pip install ./native '.[jax]' in a checkout of collops")
    import jax

    on_devices = jax.default_backend() == "gpu"
    plan = Plan(rounds=3, seconds=0.005) if context.options.quick else Plan(rounds=15, seconds=0.04, most_calls=1000)
    sizes = _SIZES[:2] if context.options.quick else (_SIZES if on_devices else _SIZES[:3])
    mapped = context.comm.size == 1 and (on_devices or len(jax.local_devices()) > 1)
    programs = _of_devices() if mapped else _of_ranks(context)
    _measure(context, plan, sizes[0], 1, programs)  # discarded: ranks are slower in their first seconds
    for size in sizes:
        for many in (1, _MANY):
            yield _measure(context, plan, size, many, programs)
            if on_devices and size <= _SHORT:
                yield _measure(context, plan, size, many, programs, ahead=True)
    yield _cgls(context, plan)
    if mapped:
        from collops_bench.jax_devices import table

        yield from table(context)


@dataclass(frozen=True)
class _Programs:
    """The compared programs: their reductions and compilers, the placement of arrays, and missing programs."""

    parties: int
    place: Callable[[Any], Any]
    reductions: dict[str, Any]
    peer: str
    missing: dict[str, str]


def _of_ranks(context: Context) -> _Programs:
    import jax

    import collops.jax as cj

    comm = context.comm
    reductions: dict[str, Any] = {
        "collops": (lambda x: cj.allreduce(x, comm=comm), cj.jit),
        "collops in jax.jit": (lambda x: cj.allreduce(x, comm=comm), jax.jit),
    }
    missing = {}
    if (reason := why_no_mpi4jax(context)) is not None:
        missing["mpi4jax"] = reason
    else:
        import mpi4jax
        from mpi4py import MPI

        reductions["mpi4jax"] = (lambda x: mpi4jax.allreduce(x, op=MPI.SUM), jax.jit)
    return _Programs(comm.size, jax.device_put, reductions, "mpi4jax", missing)


def _of_devices() -> _Programs:
    import jax

    import collops.jax as cj
    from collops_bench.jax_devices import Mesh

    mesh = Mesh(jax.local_devices())
    reductions = {
        "collops": (mesh.allreduce, lambda function: cj.jit(mesh.mapped(function))),
        "lax.psum": (mesh.psum, lambda function: jax.jit(mesh.mapped(function))),
    }
    return _Programs(mesh.size, mesh.spread, reductions, "lax.psum", {})


def _measure(
    context: Context, plan: Plan, size: int, many: int, compared: _Programs, *, ahead: bool = False
) -> Measurement:
    import jax

    x = compared.place((np.arange(size // 4) % 8).astype(np.float32))
    programs: dict[str, Callable[[], Any]] = {}
    checks = []

    def add(name: str, compiled: Any) -> None:
        programs[name] = lambda: compiled(x) if ahead else compiled(x).block_until_ready()

    for name, (reduce, compile) in compared.reductions.items():

        def chain(x: Any, reduce: Any = reduce) -> Any:
            for _ in range(many):
                x = reduce(x)
            return x

        compiled = compile(chain)
        error = float(np.max(np.abs(np.asarray(compiled(x)) / float(compared.parties) ** many - np.asarray(x))))
        checks.append(check(context.comm, f"{name}: the sum of equal arrays", error, 1e-4))
        add(name, compiled)
    add("elementwise", jax.jit(lambda x: x * np.float32(0.5) + 1))
    timings = interleave(programs, context.comm, context.engine, plan)
    call = "one allreduce in a call" if many == 1 else f"{many} allreduces in a call"
    return Measurement(
        f"{call}, run ahead" if ahead else call,
        {"bytes": size, "allreduces": many, "parties": compared.parties},
        timings,
        compared.missing,
        ours="collops",
        peer=compared.peer if compared.peer in timings else None,
        checks=checks,
    )


def _cgls(context: Context, plan: Plan) -> Measurement:
    """Time a whole CGLS with a dense matrix in single precision on every rank. Collective."""
    comm = context.comm
    rows, columns, niter = _ON_DEVICES if context.engine.memory == "device" else _ON_HOSTS
    values = np.random.default_rng(comm.rank).standard_normal((rows, columns), np.float32)
    programs: dict[str, Callable[[], Any]] = {}
    histories, checks = [], []
    for name in ("jax", context.engine.name):
        operator = VStack([find_engine(name).from_host(values)], comm)
        # The data have an exact solution. Otherwise iterations would continue beyond single precision, and rounding
        # errors would grow.
        data = operator.forward(random(operator.domain, seed=1, dtype=np.float32, comm=comm, engine=name))

        def solution(operator: Any = operator, data: Any = data) -> Any:
            return solve(CGLS(tol=0.0, precision=0.0), operator, data, niter=niter, progress=False)

        result = solution()
        checks.append(check(comm, f"iterations on {name} that are missing", niter - result.iterations, 0.0))
        histories.append(result.residual_norms)
        programs[f"collops on {name}"] = solution
    # Rounding changes solutions of a random system much more than the data modelled from them.
    error = float(np.abs(histories[0] - histories[1]).max() / histories[1][0])
    checks.append(check(comm, "residuals on both engines", error, 1e-4))
    program, peer = programs
    return Measurement(
        "a CGLS over VStack",
        {"rows": rows, "columns": columns, "iterations": niter},
        interleave(programs, comm, context.engine, plan),
        {},
        ours=program,
        peer=peer,
        checks=checks,
    )
