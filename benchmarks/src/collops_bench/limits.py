"""The limits of this machine: copies in memory, products of matrices, and messages of all sizes.

Other benchmarks are compared with these. On devices every program is called directly and replayed as a CUDA graph: the
faster of the two is the limit, which then depends on the memory or the transport and not on the host.

In an exchange each rank sends a message to the next rank of a ring and receives one from the previous rank.

Figures: the ``bandwidth`` of a copy counts the bytes that one rank reads and writes, the ``bandwidth`` of a message the
bytes that it sends; the ``rate`` of a product counts floating-point operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from collops_bench.model import ALLREDUCE, EXCHANGE
from collops_bench.record import Check, Measurement, check
from collops_bench.registry import Context
from collops_bench.timing import Captured, Plan, Timing, interleave

__all__ = ["COPY", "MULTIPLY", "measure"]

COPY, MULTIPLY = "copy", "matrix product"
CALLED, REPLAYED = "called", "replayed"
_ITEM = 4  # bytes of a float32
_CAPTURED_CALLS = 20
_LARGEST = {"device": 2 << 30, "host": 512 << 20}
_LARGEST_MESSAGE = {"device": 256 << 20, "host": 16 << 20}


def measure(context: Context) -> Iterator[Measurement]:
    """Yield one measurement for each size of copies, for a product, and for each size of messages."""
    quick, memory = context.options.quick, context.engine.memory
    plan = Plan(rounds=3, seconds=0.003) if quick else Plan(rounds=7, seconds=0.03)
    room = context.free_memory()
    for size in _powers(1 << 16, min(1 << 20 if quick else _LARGEST[memory], room // 4)):
        yield _copy(context, plan, size)
    yield _multiply(context, plan, 256 if quick else (8192 if memory == "device" else 2048))
    if context.comm.size > 1:
        largest = min(1 << 16 if quick else _LARGEST_MESSAGE[memory], room // 4)
        for operation in (ALLREDUCE, EXCHANGE):
            for size in [8, *_powers(1 << 10, largest)]:
                yield _message(context, plan, operation, size)


def _powers(first: int, largest: int) -> list[int]:
    """Return `first` times the powers of four, up to `largest`."""
    sizes = []
    while first <= largest:
        sizes.append(first)
        first *= 4
    return sizes


def _copy(context: Context, plan: Plan, size: int) -> Measurement:
    xp = context.engine.xp
    source, target = xp.ones(size // _ITEM, "float32"), xp.zeros(size // _ITEM, "float32")
    timings = _time(context, plan, lambda: xp.copyto(target, source))
    made = check(context.comm, f"copy of {size} bytes", float(abs(target - 1).max()), 0.0)
    return _measurement(COPY, size, timings, made, 2 * size)


def _multiply(context: Context, plan: Plan, side: int) -> Measurement:
    xp = context.engine.xp
    a, b, c = (xp.ones((side, side), "float32") for _ in range(3))
    # CuPy raises an error for cuBLAS in a capture; a product of this size hides its launch.
    timings = interleave({CALLED: lambda: xp.matmul(a, b, out=c)}, context.comm, context.engine, plan)
    made = check(context.comm, f"product of matrices of {side} x {side}", float(abs(c - side).max()) / side, 1e-5)
    rate = 2 * side**3 / timings[CALLED].wall.median
    return Measurement(
        MULTIPLY,
        {"side": side, "dtype": "float32"},
        timings,
        ours=CALLED,
        checks=[made],
        figures={CALLED: {"rate": rate}},
    )


def _message(context: Context, plan: Plan, operation: str, size: int) -> Measurement:
    comm, xp = context.comm, context.engine.xp
    source, target = xp.full(size // _ITEM, comm.rank + 1, "float32"), xp.zeros(size // _ITEM, "float32")
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    programs: dict[str, tuple[Callable[[], Any], float]] = {
        ALLREDUCE: (lambda: comm.allreduce(source, out=target), comm.size * (comm.size + 1) / 2),
        EXCHANGE: (lambda: comm.sendrecv(source, after, target, before), before + 1),
    }
    program, expected = programs[operation]
    timings = _time(context, plan, program)
    made = check(comm, f"{operation} of {size} bytes", float(abs(target - expected).max()), 0.0)
    return _measurement(operation, size, timings, made, size)


def _time(context: Context, plan: Plan, program: Callable[[], Any]) -> dict[str, Timing]:
    """Time a program, called directly and replayed, the faster one first. Collective."""
    comm, engine = context.comm, context.engine
    timings = interleave({CALLED: program}, comm, engine, plan)
    if engine.memory == "device" and _streams(context):
        graph = Captured(engine.xp, program, _CAPTURED_CALLS)
        timings[REPLAYED] = graph.of_one_call(interleave({REPLAYED: graph.replay}, comm, engine, plan)[REPLAYED])
    return dict(sorted(timings.items(), key=lambda item: item[1].wall.median))


def _streams(context: Context) -> bool:
    """Return whether messages of device arrays are ordered on streams, without the host."""
    return context.comm.size == 1 or context.comm.device_transport == "nccl"


def _measurement(case: str, size: int, timings: dict[str, Timing], made: Check, moved: int) -> Measurement:
    parameters = {"size": size, "dtype": "float32"}
    figures = {name: {"bandwidth": moved / timing.wall.median} for name, timing in timings.items()}
    return Measurement(case, parameters, timings, ours=next(iter(timings)), checks=[made], figures=figures)
