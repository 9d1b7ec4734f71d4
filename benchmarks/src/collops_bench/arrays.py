"""Dot products and ``x + 2 * y`` of float32 vectors, and the limit of the machine's memory.

The vectors hold small integers, so that the results are known exactly. The figure ``bandwidth`` is the memory traffic
of one rank (vectors read once, results written once) over the median wall time; ``of_copy`` is its ratio to the
bandwidth of a copy of the same vector in the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from collops.array import DistributedArray, Layout, axpby
from collops_bench.peers import PEER, Peer, load_peer
from collops_bench.record import Measurement, check
from collops_bench.registry import Context
from collops_bench.shared import fill, largest_error, messages_of_a_call
from collops_bench.timing import Plan, Timing, interleave

__all__ = ["measure"]

LARGE, SMALL = 400_000_000, 40_000
_ITEM = 4  # bytes of a float32
_VECTORS = 8  # three of collops, the others of the peer and of the checks
_FLOAT32_DOT = 1e-5
ON_HOST = "collops, read on the host"


def measure(context: Context) -> Iterator[Measurement]:
    """Yield the copy, dot and axpby of a large and of a small vector."""
    peer = load_peer(context)
    plan = Plan(rounds=3, seconds=0.02) if context.options.quick else Plan()
    for label, size in (("large", _large(context)), ("small", SMALL)):
        yield from _of_size(context, peer, plan, label, size)


def _large(context: Context) -> int:
    """Return the size of the large vectors, limited by the memory; the same on all ranks."""
    if context.options.quick:
        return 1_000_000
    expected = LARGE if context.engine.memory == "device" else LARGE // 20
    fits = context.free_memory() // (_VECTORS * _ITEM) * context.comm.size
    return min(expected, fits // 1000 * 1000)


def _of_size(context: Context, peer: Peer | str, plan: Plan, label: str, size: int) -> Iterator[Measurement]:
    comm, engine = context.comm, context.engine
    layout = Layout.split((size,), comm.size)
    first, count = layout.offset(comm.rank)[0], layout.local_shape(comm.rank)[0]
    x, y, z = (DistributedArray(layout, comm, engine.xp.empty(count, "float32")) for _ in range(3))
    for vector, values in ((x, _left), (y, _right)):
        fill(engine.xp, vector.local_array, values, first)
    parameters = {
        "size": label,
        "elements": size,
        "elements_per_rank": layout.local_shape(0)[0],
        "dtype": "float32",
    }
    missing = {PEER: peer} if isinstance(peer, str) else {}
    of_peer = None
    if not isinstance(peer, str):
        sizes = [layout.local_shape(rank)[0] for rank in range(comm.size)]
        of_peer = peer.split(x.local_array, sizes), peer.split(y.local_array, sizes)

    def copy() -> None:
        z.local_array[...] = x.local_array

    timings = interleave({"copy": copy}, comm, engine, plan)
    copied = 2 * _ITEM * parameters["elements_per_rank"] / timings["copy"].wall.median
    yield Measurement("copy", parameters, timings, ours="copy", figures={"copy": {"bandwidth": copied}})

    programs: dict[str, Callable[[], Any]] = {"collops": lambda: x.dot(y), ON_HOST: lambda: float(x.dot(y))}
    if of_peer is not None:
        programs[PEER] = lambda: of_peer[0].dot(of_peer[1])
    expected = dot_of_integers(size)
    checks = [
        check(
            comm,
            f"dot by {name} against its value by counting",
            abs(float(program()) - expected) / expected,
            _FLOAT32_DOT,
        )
        for name, program in programs.items()
    ]
    dot = Measurement(
        "dot",
        parameters,
        interleave(programs, comm, engine, plan),
        missing,
        ours=ON_HOST,
        peer=PEER,
        checks=checks,
        messages=messages_of_a_call(programs["collops"]),
        headline=f"dot of {_count(size)} float32 elements",
    )
    yield _with_bandwidth(dot, 2, copied)

    # One pass over memory, without a temporary.
    programs = {"collops": lambda: axpby(1.0, x, 2.0, y, out=z), "collops, as written": lambda: x + 2 * y}
    if of_peer is not None:
        programs[PEER] = lambda: of_peer[0] + 2 * of_peer[1]
    checks = []
    for name, program in programs.items():
        result = program().local_array
        what = f"x + 2 y by {name} against its values by counting"
        checks.append(check(comm, what, largest_error(engine.xp, result, _sum, first), 0.0))
        del result
    axpby_ = Measurement(
        "axpby",
        parameters,
        interleave(programs, comm, engine, plan),
        missing,
        peer=PEER,
        checks=checks,
        messages=messages_of_a_call(programs["collops"]),
        headline=f"x + 2 y of {_count(size)} float32 elements",
    )
    yield _with_bandwidth(axpby_, 3, copied)


def dot_of_integers(size: int) -> float:
    """Return the dot product of the two vectors: 35 for each whole period of 35, and the rest in full."""
    periods, remaining = divmod(size, 35)
    return float(35 * periods + sum(_left(i) * _right(i) for i in range(remaining)))


def _left(index: Any) -> Any:
    return index % 7 - 2


def _right(index: Any) -> Any:
    return index % 5 - 1


def _sum(index: Any) -> Any:
    return _left(index) + 2 * _right(index)


def _with_bandwidth(measurement: Measurement, vectors: int, copied: float) -> Measurement:
    """Add the bandwidths of work that reads and writes `vectors` vectors in all."""
    nbytes = vectors * _ITEM * measurement.parameters["elements_per_rank"]

    def bandwidths(timing: Timing) -> dict[str, float]:
        bandwidth = nbytes / timing.wall.median
        return {"bandwidth": bandwidth, "of_copy": bandwidth / copied}

    return replace(measurement, figures={name: bandwidths(timing) for name, timing in measurement.timings.items()})


def _count(size: int) -> str:
    """Return a number of elements as text, such as 400 million or 40 000."""
    return f"{size / 1_000_000:g} million" if size >= 1_000_000 else f"{size:,}".replace(",", " ")
