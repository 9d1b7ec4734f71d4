"""Messages of all sizes: our communicator on every transport of this machine, and the raw library.

All operations are also measured with ``torch.distributed``, and on GPUs with nccl4py's high-level interface and, in
symmetric memory, with NVSHMEM's collectives on a stream. An
allreduce is also measured as operators of PyLops-MPI call it, on GPUs by NCCL and by MPI. On GPUs, allreduce,
allgather, reduce_scatter and alltoall are also measured on memory that is registered with NCCL, and both are replayed
from a CUDA graph.

Sizes and bandwidths are defined as in nccl-tests. The size :math:`S` of a message is the number of bytes that a rank
passes to allreduce, bcast, reduce_scatter, alltoall and sendrecv, and that it gets from allgather. The algorithm
bandwidth of a call that takes the time :math:`t` is

.. math:: B_{alg} = S / t

and the bus bandwidth is :math:`B_{bus} = f B_{alg}`, where :math:`f S` is the number of bytes that the best algorithm
sends over the link of each of *n* ranks; it can be compared with the peak bandwidth of that link. *f* is
:math:`2 (n-1) / n` for allreduce, :math:`(n-1) / n` for allgather, reduce_scatter and alltoall, and 1 for bcast and
sendrecv (to the next rank on a ring).

The time :math:`t` is from the clock ``device`` if there is a device, else from ``wall``. The clock ``host`` is the
overhead of a call for the program. Inputs are small integers, so that every reduction is exact in float32; every
message, transport and operation is checked before timing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from collops.comm import world
from collops.comm.nccl import p2p_is_off
from collops.errors import TransportError
from collops_bench.libraries import NVSHMEM, further_libraries
from collops_bench.peers import PEER, Peer, load_peer
from collops_bench.record import Measurement, check
from collops_bench.registry import Context
from collops_bench.shared import fill, largest_error
from collops_bench.timing import Captured, Plan, Timing, interleave, synchronize, time_batch

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["OPERATIONS", "RAW_MPI", "RAW_NCCL", "bus_factor", "communicators_by_transport", "measure", "sizes_up_to"]

RAW_NCCL, RAW_MPI = "NCCL", "MPI"
_NCCL, _REGISTERED = "collops nccl", "collops nccl, registered"
_ITEM = 4  # bytes of a float32
_SUM, _FLOAT32 = 0, 7  # ncclSum, ncclFloat32
_PERIOD = 251
_CAPTURED_CALLS = 20
_LONGEST_CALL = 0.2  # seconds; slower transports are not timed with this message or larger ones


def bus_factor(operation: str, ranks: int) -> float:
    """Return the factor from algorithm to bus bandwidth; see the module."""
    return _FACTORS[operation](ranks)


_FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "sendrecv": lambda n: 1.0,
    "bcast": lambda n: 1.0,
    "allgather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
}
OPERATIONS = tuple(_FACTORS)
"""The measured operations, in this order."""


@dataclass
class _Buffers:
    """The input of this rank, the memory for the result, and the right elements of the result by index."""

    source: Any
    target: Any
    expected: Callable[[Any], Any]


def measure(context: Context) -> Iterator[Measurement]:
    """Yield one measurement for each operation and size."""
    communicators, missing = communicators_by_transport(context)
    name_of_raw = RAW_NCCL if context.engine.memory == "device" else RAW_MPI
    further = further_libraries(context)
    libraries: dict[str, Any] = {name_of_raw: _raw(context), **further}
    peer = load_peer(context)
    plan = Plan(rounds=3, seconds=0.005) if context.options.quick else Plan(rounds=7, seconds=0.03)
    for operation in OPERATIONS:
        slow: dict[str, str] = {}
        for size in sizes_up_to(_largest(context, operation)):
            if not communicators.keys() <= slow.keys():
                yield _measure(context, plan, operation, size, communicators, libraries, peer, missing, slow)
    for library in further.values():
        if not isinstance(library, str):
            library.close()


def sizes_up_to(largest: int) -> list[int]:
    """Return the message sizes to measure, in bytes."""
    target = [
        8,
        64,
        512,
        4 << 10,
        64 << 10,
        256 << 10,
        *((1 << 20) << shift for shift in (0, 2, 4, 6, 8, 10, 12, 13)),
    ]
    return [size for size in target if size <= largest]


def _largest(context: Context, operation: str) -> int:
    """Return the size of the largest message that leaves memory for checks; the same on all ranks."""
    if context.options.quick:
        most = 1 << 20
    elif context.engine.memory == "host":
        most = 64 << 20
    else:
        most = 8 << 30 if operation == "allreduce" else 4 << 30  # allreduces of 32 GiB in total on four
    return min(most, context.free_memory() // 8)


def communicators_by_transport(context: Context) -> tuple[dict[str, Communicator], dict[str, str]]:
    """Return our communicator on every transport that works here, and why the others do not."""
    comm = context.comm
    if context.engine.memory == "host":
        return {f"collops {comm.host_transport}": comm}, {}
    if context.options.transport != "auto" or comm.size == 1:
        return {f"collops {comm.transport}": comm}, {}
    communicators: dict[str, Communicator] = {}
    missing: dict[str, str] = {}
    for name in ("nccl", "mpi", "staged"):
        try:
            communicators[f"collops {name}"] = world(name)
        except TransportError as problem:
            missing[f"collops {name}"] = str(problem)
    return communicators, missing


def _measure(
    context: Context,
    plan: Plan,
    operation: str,
    size: int,
    communicators: dict[str, Communicator],
    libraries: dict[str, Any],
    package: Peer | str,
    missing: dict[str, str],
    slow: dict[str, str],
) -> Measurement:
    comm, engine = context.comm, context.engine
    count = max(1, size // (_ITEM * comm.size)) * comm.size if operation in _BLOCKED else size // _ITEM
    size = count * _ITEM
    buffers = _buffers(engine.xp, operation, comm, count)
    absent = missing | slow
    raw, *_ = libraries

    with ExitStack() as stack:
        held = dict.fromkeys((*communicators, *libraries), buffers)
        if not isinstance(libraries.get(NVSHMEM, ""), str) and NVSHMEM not in absent:
            try:
                held[NVSHMEM] = stack.enter_context(_symmetric(comm, buffers, registered=False))
            except TransportError as problem:
                absent[NVSHMEM] = str(problem)
        programs = _programs(operation, held, communicators, libraries, absent)
        returning = _returning(package, buffers, absent) if operation == "allreduce" else {}
        programs |= returning
        held |= dict.fromkeys(returning, buffers)
        replayed = [_NCCL] if operation in _IN_WINDOWS and _NCCL in programs else []
        if replayed and _REGISTERED not in absent:
            try:
                held[_REGISTERED] = stack.enter_context(_symmetric(communicators[_NCCL], buffers, registered=True))
            except TransportError as problem:
                absent[_REGISTERED] = str(problem)
            else:
                programs[_REGISTERED] = _ours(operation, communicators[_NCCL], held[_REGISTERED])
                replayed.append(_REGISTERED)
        checks = []

        def check_values(name: str, program: Callable[[], Any], arrays: _Buffers) -> None:
            error = _error_of(engine, program, arrays)
            checks.append(check(comm, f"{operation} of {size} bytes by {name} against integers", error, 0.0))

        for name, program in list(programs.items()):
            # The peer allocates its result; the copy of it is not timed.
            check_values(name, _into(buffers.target, program) if name in returning else program, held[name])
            seconds = time_batch(program, 1, comm, engine)["wall"]
            if seconds > _LONGEST_CALL:
                slow[name] = absent[name] = f"a message of {size} bytes takes {seconds:.2g} s"
                del programs[name]
        timings = interleave(programs, comm, engine, plan)
        graphs = {
            f"{name}, replayed": (name, Captured(engine.xp, programs[name], _CAPTURED_CALLS))
            for name in replayed
            if name in programs  # and not too slow
        }
        for name, (recorded, graph) in graphs.items():
            check_values(name, graph.replay, held[recorded])
        replays = interleave({name: graph.replay for name, (_, graph) in graphs.items()}, comm, engine, plan)
        timings |= {name: graphs[name][1].of_one_call(timing) for name, timing in replays.items()}
        del graphs  # before their memory is freed
    return Measurement(
        operation,
        {"size": size, "dtype": "float32"},
        timings,
        absent,
        ours=next(iter(communicators)),
        peer=None if isinstance(libraries[raw], str) else raw,
        checks=checks,
        figures={name: _bandwidths(operation, size, comm.size, timing) for name, timing in timings.items()},
        headline=_headline(operation, size, comm.size),
    )


def _programs(
    operation: str,
    held: dict[str, _Buffers],
    communicators: dict[str, Communicator],
    libraries: dict[str, Any],
    absent: dict[str, str],
) -> dict[str, Callable[[], Any]]:
    """Return the program of every transport and library that is not absent; add libraries that do not work to it."""
    if operation == "sendrecv" and NVSHMEM in libraries:
        absent.setdefault(NVSHMEM, "its messages are one-sided")
    programs: dict[str, Callable[[], Any]] = {}
    for name, comm_of_transport in communicators.items():
        if name not in absent:
            programs[name] = _ours(operation, comm_of_transport, held[name])
    for name, library in libraries.items():
        if isinstance(library, str):
            absent[name] = library
        elif name not in absent:
            programs[name] = library.program(operation, held[name])
    return programs


def _returning(package: Peer | str, buffers: _Buffers, absent: dict[str, str]) -> dict[str, Callable[[], Any]]:
    """Return the allreduces of another package, which return their result; add it to `absent` if it does not work."""
    if isinstance(package, str):
        absent[PEER] = package
        return {}
    ways = package.ways().items()
    return {name: partial(way.allreduce, buffers.source) for name, way in ways if name not in absent}


def _headline(operation: str, size: int, ranks: int) -> str | None:
    """Return the label in the README, for a small, a medium and a large allreduce on several ranks with NVLink."""
    labels = {8: "8 B", 1 << 20: "1 MiB", 256 << 20: "256 MiB"}
    if operation != "allreduce" or size not in labels or ranks == 1 or p2p_is_off():
        return None
    return f"allreduce of {labels[size]}"


def _bandwidths(operation: str, size: int, ranks: int, timing: Timing) -> dict[str, float]:
    seconds = timing.clocks.get("device", timing.wall).median
    algorithm = size / seconds
    return {"algorithm_bandwidth": algorithm, "bus_bandwidth": bus_factor(operation, ranks) * algorithm}


# Data

_BLOCKED = ("allgather", "reduce_scatter", "alltoall")
_IN_WINDOWS = ("allreduce", *_BLOCKED)  # operations that are also measured on registered memory, and replayed


def _pattern(index: Any, rank: int) -> Any:
    """Small integers: sums over thousands of ranks are exact in float32."""
    return index % _PERIOD + rank


def _buffers(xp: Any, operation: str, comm: Communicator, count: int) -> _Buffers:
    """Return the buffers for a message of `count` elements in nccl-tests' sense, filled."""
    ranks, rank = comm.size, comm.rank
    block = count // ranks
    sums = ranks * (ranks - 1) // 2

    if operation == "allreduce":
        argument, got = (count,), (count,)

        def expected(index: Any) -> Any:
            return ranks * (index % _PERIOD) + sums
    elif operation == "bcast":
        argument, got = (count,), (count,)

        def expected(index: Any) -> Any:
            return _pattern(index, 0)
    elif operation == "allgather":
        argument, got = (block,), (ranks, block)

        def expected(index: Any) -> Any:
            return _pattern(index % block, 0) + index // block
    elif operation == "reduce_scatter":
        argument, got = (ranks, block), (block,)

        def expected(index: Any) -> Any:
            return ranks * ((index + rank * block) % _PERIOD) + sums
    elif operation == "alltoall":
        argument, got = (ranks, block), (ranks, block)

        def expected(index: Any) -> Any:
            return _pattern(index % block + rank * block, 0) + index // block
    else:
        argument, got = (count,), (count,)

        def expected(index: Any) -> Any:
            return _pattern(index, (rank - 1) % ranks)

    source, target = xp.empty(argument, "float32"), xp.empty(got, "float32")
    fill(xp, source.reshape(-1), lambda index: _pattern(index, rank))
    return _Buffers(source, target, expected)


@contextmanager
def _symmetric(comm: Communicator, buffers: _Buffers, *, registered: bool) -> Iterator[_Buffers]:
    """Give the same buffers in NVSHMEM's heap, or in memory that is registered with NCCL."""
    options: Any = {"engine": "cupy", "registered": registered}
    with (
        comm.symmetric(buffers.source.shape, buffers.source.dtype, **options) as source,
        comm.symmetric(buffers.target.shape, buffers.target.dtype, **options) as target,
    ):
        source.local[...] = buffers.source
        yield _Buffers(source.local, target.local, buffers.expected)


def _error_of(engine: Engine, program: Callable[[], Any], buffers: _Buffers) -> float:
    """Run a program into a poisoned target, and return the largest error of an element."""
    xp = engine.xp
    buffers.target.fill(xp.nan)
    synchronize(engine)
    program()
    synchronize(engine)
    return largest_error(xp, buffers.target.reshape(-1), buffers.expected)


# Programs


def _into(target: Any, program: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        target[...] = program()

    return run


def _ours(operation: str, comm: Communicator, buffers: _Buffers) -> Callable[[], Any]:
    source, target = buffers.source, buffers.target
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    programs: dict[str, Callable[[], Any]] = {
        "allreduce": lambda: comm.allreduce(source, out=target),
        "bcast": lambda: comm.bcast(source, out=target),
        "allgather": lambda: comm.allgather(source, out=target),
        "reduce_scatter": lambda: comm.reduce_scatter(source, out=target),
        "alltoall": lambda: comm.alltoall(source, out=target),
        "sendrecv": lambda: comm.sendrecv(source, after, target, before),
    }
    return programs[operation]


class _RawMpi:
    """Buffered MPI calls through mpi4py, with datatypes resolved beforehand."""

    def __init__(self, control: Any) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = control

    def program(self, operation: str, buffers: _Buffers) -> Callable[[], Any]:
        comm, mpi = self._comm, self._mpi
        source, target = buffers.source, buffers.target
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        argument, got = [source, mpi.FLOAT], [target, mpi.FLOAT]

        def bcast() -> None:
            # The result of the root is a copy of its input, as in our call.
            if comm.rank == 0:
                target[...] = source
            comm.Bcast(got, 0)

        programs: dict[str, Callable[[], Any]] = {
            "allreduce": lambda: comm.Allreduce(argument, got),
            "bcast": bcast,
            "allgather": lambda: comm.Allgather(argument, got),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(argument, got),
            "alltoall": lambda: comm.Alltoall(argument, got),
            "sendrecv": lambda: comm.Sendrecv(argument, after, 0, got, before, 0),
        }
        return programs[operation]


class _RawNccl:
    """NCCL calls through its low-level binding, with all arguments resolved beforehand."""

    def __init__(self, comm: Communicator) -> None:
        from nccl.bindings import nccl
        from nccl.core import get_unique_id

        self._nccl: Any = nccl
        self._rank, self._size = comm.rank, comm.size
        name = comm.control.bcast(bytes(get_unique_id()) if comm.rank == 0 else None)
        self._comm = nccl.comm_init_rank_scalable(comm.size, comm.rank, 1, bytearray(name), 0)

    def program(self, operation: str, buffers: _Buffers) -> Callable[[], Any]:
        import cupy

        nccl, comm, ranks = self._nccl, self._comm, self._size
        source, target = buffers.source.data.ptr, buffers.target.data.ptr
        count, result = buffers.source.size, buffers.target.size
        stream = cupy.cuda.get_current_stream().ptr
        after, before = (self._rank + 1) % ranks, (self._rank - 1) % ranks
        nbytes = buffers.source.nbytes // ranks

        def alltoall() -> None:
            nccl.group_start()
            for other in range(ranks):
                nccl.send(source + other * nbytes, count // ranks, _FLOAT32, other, comm, stream)
                nccl.recv(target + other * nbytes, count // ranks, _FLOAT32, other, comm, stream)
            nccl.group_end()

        def sendrecv() -> None:
            nccl.group_start()
            nccl.send(source, count, _FLOAT32, after, comm, stream)
            nccl.recv(target, count, _FLOAT32, before, comm, stream)
            nccl.group_end()

        programs: dict[str, Callable[[], Any]] = {
            "allreduce": lambda: nccl.all_reduce(source, target, count, _FLOAT32, _SUM, comm, stream),
            "bcast": lambda: nccl.broadcast(source, target, count, _FLOAT32, 0, comm, stream),
            "allgather": lambda: nccl.all_gather(source, target, count, _FLOAT32, comm, stream),
            "reduce_scatter": lambda: nccl.reduce_scatter(source, target, result, _FLOAT32, _SUM, comm, stream),
            "alltoall": alltoall,
            "sendrecv": sendrecv,
        }
        return programs[operation]


def _raw(context: Context) -> _RawMpi | _RawNccl | str:
    """Return the raw library, or the reason why it is not measured. Collective."""
    comm = context.comm
    if not context.options.peer:
        return "not asked for"
    if comm.size == 1:
        return "one rank sends no messages"
    if context.engine.memory == "host":
        return _RawMpi(comm.control)
    # Without the binding of NCCL on every rank, there would be no such communicator.
    try:
        if world("nccl").device_transport != "nccl":
            return "there is no NCCL here"
        return _RawNccl(comm)
    except TransportError as problem:
        return str(problem)
    except ImportError as problem:
        return f"nccl4py does not load: {problem}"
