"""What a collective costs inside a compiled JAX program: one in a call of its own, and each of many in one call.

On hosts every rank is a process, and the peer is mpi4jax. On GPUs one process drives all devices by ``shard_map``, and
the peer is JAX's own ``lax.psum``. An elementwise program of the same size says what a call costs without a
collective. Every call is waited for. Values are small integers, so that sums have one right answer.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from collops.bench.record import Measurement, check
from collops.bench.timing import Plan, interleave
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.bench.registry import Context

__all__ = ["measure"]

_MANY = 20
_SIZES = (8, 8192, 1 << 20, 64 << 20)


def measure(context: Context) -> Iterator[Measurement]:
    """Yield two measurements for each size: a call with one allreduce, and each of twenty in a call."""
    if importlib.util.find_spec("jax") is None:
        raise InputError("collops bench jax needs JAX: install collops[jax] and ./native")
    import jax

    on_devices = jax.default_backend() == "gpu"
    if on_devices and context.comm.size > 1:
        raise InputError("on GPUs, collops bench jax runs in one process, which uses all of them: leave out --ranks")
    plan = Plan(rounds=3, seconds=0.005) if context.options.quick else Plan(rounds=9, seconds=0.05, most_calls=1000)
    sizes = _SIZES[:2] if context.options.quick else (_SIZES if on_devices else _SIZES[:3])
    reductions, place, missing = _of_devices() if on_devices else _of_ranks(context)
    peer = "lax.psum" if on_devices else "mpi4jax"
    parties = len(jax.local_devices()) if on_devices else context.comm.size
    for size in sizes:
        for many in (1, _MANY):
            yield _measure(context, plan, size, many, reductions, place, parties, missing, peer)


def _of_ranks(context: Context) -> tuple[dict[str, Any], Callable[[Any], Any], dict[str, str]]:
    """Return how each program reduces and compiles, how an array gets to its place, and what is missing."""
    import jax

    import collops.jax as cj

    comm = context.comm
    reductions: dict[str, Any] = {
        "collops": (lambda x: cj.allreduce(x, comm=comm), cj.jit),
        "collops in jax.jit": (lambda x: cj.allreduce(x, comm=comm), jax.jit),
    }
    reason = _obstacle() if context.options.peer else "not asked for"
    reasons = [reason for reason in comm.allgather_metadata(reason) if reason is not None]
    if reasons:
        return reductions, lambda x: x, {"mpi4jax": reasons[0]}
    import mpi4jax
    from mpi4py import MPI

    reductions["mpi4jax"] = (lambda x: mpi4jax.allreduce(x, op=MPI.SUM), jax.jit)
    return reductions, lambda x: x, {}


def _obstacle() -> str | None:
    """Return why mpi4jax cannot be called here: it has to be built against the MPI that this program runs on."""
    if importlib.util.find_spec("mpi4jax") is None:
        return "mpi4jax is not installed"
    try:
        importlib.import_module("mpi4jax")
    except (ImportError, RuntimeError) as error:
        return f"mpi4jax does not load: {error}"
    return None


def _of_devices() -> tuple[dict[str, Any], Callable[[Any], Any], dict[str, str]]:
    import jax
    import numpy as np

    import collops.jax as cj

    devices = jax.local_devices()
    mesh = jax.sharding.Mesh(np.array(devices), "devices")
    spec = jax.sharding.PartitionSpec("devices")
    joined = cj.clique(devices)

    def mapped(compile: Any) -> Any:
        def wrap(function: Any) -> Any:
            return compile(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))

        return wrap

    def spread(x: Any) -> Any:
        return jax.device_put(np.stack([x] * len(devices)), jax.sharding.NamedSharding(mesh, spec))

    reductions = {
        "collops": (lambda x: cj.allreduce(x, comm=joined), mapped(cj.jit)),
        "lax.psum": (lambda x: jax.lax.psum(x, "devices"), mapped(jax.jit)),
    }
    return reductions, spread, {}


def _measure(
    context: Context,
    plan: Plan,
    size: int,
    many: int,
    reductions: dict[str, Any],
    place: Callable[[Any], Any],
    parties: int,
    missing: dict[str, str],
    peer: str,
) -> Measurement:
    import jax
    import numpy as np

    x = place((np.arange(size // 4) % 8).astype(np.float32))
    programs: dict[str, Callable[[], Any]] = {}
    checks = []
    for name, (reduce, compile) in reductions.items():

        def chain(x: Any, reduce: Any = reduce) -> Any:
            for _ in range(many):
                x = reduce(x) * np.float32(1 / parties)
            return x

        compiled = compile(chain)
        error = float(np.max(np.abs(np.asarray(compiled(x)) - np.asarray(x))))
        checks.append(check(context.comm, f"{name}: the mean of equal arrays", error, 1e-4))
        programs[name] = lambda compiled=compiled: compiled(x).block_until_ready()
    elementwise = jax.jit(lambda x: x * np.float32(0.5) + 1)
    programs["elementwise"] = lambda: elementwise(x).block_until_ready()
    timings = interleave(programs, context.comm, context.engine, plan)
    return Measurement(
        "one allreduce in a call" if many == 1 else f"{many} allreduces in a call",
        {"bytes": size, "allreduces": many, "parties": parties},
        timings,
        missing,
        ours="collops",
        peer=peer if peer in timings else None,
        checks=checks,
    )
