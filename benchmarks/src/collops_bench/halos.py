"""The halo exchange of the derivative operators, by messages and by every transport of star forests.

Each rank has a block of rows and needs the last row of the rank before it and the first one of the rank after it, as a
second derivative along the first axis does. ``messages`` is the exchange plan that the operators use: MPI between
hosts, NCCL between GPUs. The others move the same rows by a star forest; its transports ``shared`` (a window of MPI-3)
and ``symmetric`` (NVSHMEM) store them directly into the neighbours' memory. On GPUs, programs that can be captured are
also timed within a replayed CUDA graph, as solvers run them. The fastest of all is the measurement's own program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.exchange import ExchangePlan, StarForest, possible_transports
from collops_bench.record import Measurement, check
from collops_bench.shared import messages_of_a_call
from collops_bench.timing import Captured, Plan, Timing, interleave

if TYPE_CHECKING:
    from collops_bench.registry import Context

__all__ = ["MESSAGES", "measure"]

MESSAGES = "messages"
_REPLAYED = ", replayed"
_DTYPE = "float32"
_ROWS = 4  # of each block: only its first and its last one travel
_STREAM_ORDERED = ("nccl", "symmetric")
_CALLS_IN_A_GRAPH = 20


def measure(context: Context) -> Iterator[Measurement]:
    """Yield one measurement for each width of the rows; none without neighbours."""
    if context.comm.size == 1:
        return
    device, quick = context.engine.memory == "device", context.options.quick
    plan = Plan(rounds=9, seconds=0.02, most_calls=200 if device else 5000)
    for columns in (512,) if quick else (512, 4096, 16384, 1 << 20):
        yield _of_width(context, Plan(rounds=3, seconds=0.003) if quick else plan, columns)


def _of_width(context: Context, plan: Plan, columns: int) -> Measurement:
    comm, engine = context.comm, context.engine
    block = engine.xp.zeros((_ROWS, columns), _DTYPE)
    block[0], block[-1] = 2 * comm.rank, 2 * comm.rank + 1
    halo = engine.xp.zeros((2, columns), _DTYPE)
    # The row of the halo, who has it, and which row of its block it is.
    expected = [(0, comm.rank - 1, _ROWS - 1)] * (comm.rank > 0) + [(1, comm.rank + 1, 0)] * (comm.rank < comm.size - 1)
    programs, forests = _programs(context, block, halo, expected)
    checks = []
    for name, program in programs.items():
        halo[...] = -1
        program()
        error = max(float(abs(halo[row] - (2 * peer + (side > 0))).max()) for row, peer, side in expected)
        checks.append(check(comm, f"halo by {name} against its values by counting", error, 0.0))
    timings = interleave(programs, comm, engine, plan)
    for name, program in programs.items():
        if _captures(context, name):
            timings[name + _REPLAYED] = _replayed(context, program, plan)
    sent = messages_of_a_call(programs[MESSAGES])
    for forest in forests:
        forest.free()
    return Measurement(
        "halo of two rows",
        {"columns": columns, "bytes_per_row": block[0].nbytes, "dtype": _DTYPE},
        timings,
        ours=min(timings, key=lambda name: timings[name].wall.median),
        checks=checks,
        messages=sent,
    )


def _programs(
    context: Context, block: Any, halo: Any, expected: list[tuple[int, int, int]]
) -> tuple[dict[str, Callable[[], Any]], list[StarForest]]:
    """Return the programs that fill `halo` from `block`, by name, and the forests among them. Collective."""
    comm = context.comm
    # A rank needs the last row of the one before it, which needs this one's first.
    full = slice(0, block.shape[1])
    sends = [(peer, (slice(_ROWS - 1 - side, _ROWS - side), full)) for _, peer, side in expected]
    receives = [(peer, (slice(row, row + 1), full)) for row, peer, _ in expected]
    exchange = ExchangePlan(comm, sends, receives)
    leaves, ranks, rows = (np.array(column, dtype=np.int64) for column in zip(*expected, strict=True))
    forest = StarForest(comm, _ROWS, leaves, ranks, rows)
    forests = {name: forest.with_transport(name) for name in possible_transports(comm, context.engine)}
    programs: dict[str, Callable[[], Any]] = {MESSAGES: lambda: exchange.start(block, halo).finish()}
    for name, item in forests.items():
        programs[name] = lambda item=item: item.bcast(block, halo)
    return programs, [forest, *forests.values()]


def _captures(context: Context, name: str) -> bool:
    """Whether a way's messages are ordered on streams, without the host."""
    if context.engine.memory == "host":
        return False
    return name in _STREAM_ORDERED or (name == MESSAGES and context.comm.device_transport == "nccl")


def _replayed(context: Context, program: Callable[[], Any], plan: Plan) -> Timing:
    """Time a program within a replayed CUDA graph. Collective."""
    graph = Captured(context.engine.xp, program, _CALLS_IN_A_GRAPH)
    return graph.of_one_call(interleave({MESSAGES: graph.replay}, context.comm, context.engine, plan)[MESSAGES])
