"""The halo exchange of the derivative operators, by messages and by every transport of star forests.

Each rank has a block of rows and needs the last row of the rank before it and the first one of the rank after it, as a
second derivative along the first axis does. ``messages`` is the exchange plan that the operators use: MPI between
hosts, NCCL between GPUs. The others move the same rows by a star forest; its transports ``shared`` (a window of MPI-3)
and ``symmetric`` (NVSHMEM) store them directly into the neighbours' memory. On GPUs, programs that can be captured are
also timed within a replayed CUDA graph, as solvers run them. The fastest of these is the measurement's own program. Its
peer is GHEX on hosts, whose field includes the halo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.exchange import ExchangePlan, StarForest, possible_transports
from collops_bench.peers import why_no_package
from collops_bench.record import Measurement, check
from collops_bench.shared import messages_of_a_call
from collops_bench.timing import Captured, Plan, Timing, interleave

if TYPE_CHECKING:
    from collops_bench.registry import Context

__all__ = ["GHEX", "MESSAGES", "measure"]

MESSAGES, GHEX = "messages", "GHEX"
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
    missing = why_no_package(context, "ghex", memory="host")
    peer = {} if missing else dict([_of_ghex(context, block)])
    checks = []
    for name, (program, received) in (programs | peer).items():
        received[...] = -1
        program()
        error = max(float(abs(received[row] - (2 * peer + (side > 0))).max()) for row, peer, side in expected)
        checks.append(check(comm, f"halo by {name} against its values by counting", error, 0.0))
    timings = interleave({name: program for name, (program, _) in (programs | peer).items()}, comm, engine, plan)
    for name, (program, _) in programs.items():
        if _captures(context, name):
            timings[name + _REPLAYED] = _replayed(context, program, plan)
    sent = messages_of_a_call(programs[MESSAGES][0])
    for forest in forests:
        forest.free()
    return Measurement(
        "halo of two rows",
        {"columns": columns, "bytes_per_row": block[0].nbytes, "dtype": _DTYPE},
        timings,
        {GHEX: missing} if missing else {},
        ours=min(timings.keys() - peer.keys(), key=lambda name: timings[name].wall.median),
        peer=GHEX,
        checks=checks,
        messages=sent,
    )


def _programs(
    context: Context, block: Any, halo: Any, expected: list[tuple[int, int, int]]
) -> tuple[dict[str, tuple[Callable[[], Any], Any]], list[StarForest]]:
    """Return the programs that fill `halo` from `block`, each with `halo`, and the forests among them. Collective."""
    comm = context.comm
    # A rank needs the last row of the one before it, which needs this one's first.
    full = slice(0, block.shape[1])
    sends = [(peer, (slice(_ROWS - 1 - side, _ROWS - side), full)) for _, peer, side in expected]
    receives = [(peer, (slice(row, row + 1), full)) for row, peer, _ in expected]
    exchange = ExchangePlan(comm, sends, receives)
    leaves, ranks, rows = (np.array(column, dtype=np.int64) for column in zip(*expected, strict=True))
    forest = StarForest(comm, _ROWS, leaves, ranks, rows)
    forests = {name: forest.with_transport(name) for name in possible_transports(comm, context.engine)}
    programs: dict[str, tuple[Callable[[], Any], Any]] = {
        MESSAGES: (lambda: exchange.start(block, halo).finish(), halo)
    }
    for name, item in forests.items():
        programs[name] = (lambda item=item: item.bcast(block, halo)), halo
    return programs, [forest, *forests.values()]


def _of_ghex(context: Context, block: Any) -> tuple[str, tuple[Callable[[], Any], Any]]:
    """Return the name of GHEX, its exchange, and the rows that it fills. Collective."""
    from ghex.context import make_context
    from ghex.structured import regular
    from ghex.structured.cartesian_sets import UnitRange
    from mpi4py import MPI

    rank, columns = context.comm.rank, UnitRange(0, block.shape[1])
    ranks = make_context(MPI.COMM_WORLD)
    domain = regular.DomainDescriptor(rank, UnitRange(rank * _ROWS, (rank + 1) * _ROWS) * columns)
    everything = UnitRange(0, context.comm.size * _ROWS) * columns
    halos = regular.HaloGenerator(everything, ((1, 1), (0, 0)), (False, False))
    field = np.zeros((_ROWS + 2, block.shape[1]), block.dtype)
    field[1:-1] = block
    pattern = regular.make_pattern(ranks, halos, [domain])
    rows = pattern(regular.make_field_descriptor(domain, field, (1, 0), field.shape))
    exchange = regular.make_communication_object(ranks)

    def run(used: object = (ranks, domain, halos, pattern)) -> None:  # GHEX 0.9.0 does not keep what it refers to
        exchange.exchange([rows]).wait()

    return GHEX, (run, field[:: _ROWS + 1])


def _captures(context: Context, name: str) -> bool:
    """Whether a way's messages are ordered on streams, without the host."""
    if context.engine.memory == "host":
        return False
    return name in _STREAM_ORDERED or (name == MESSAGES and context.comm.device_transport == "nccl")


def _replayed(context: Context, program: Callable[[], Any], plan: Plan) -> Timing:
    """Time a program within a replayed CUDA graph. Collective."""
    graph = Captured(context.engine.xp, program, _CALLS_IN_A_GRAPH)
    return graph.of_one_call(interleave({MESSAGES: graph.replay}, context.comm, context.engine, plan)[MESSAGES])
