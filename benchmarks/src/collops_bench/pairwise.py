"""Latency and bandwidth between two ranks, by the method of the OSU micro-benchmarks, on every way that they have.

*Latency* is half the time of a message of the first rank and an answer of the same size of the second one. In
*bandwidth* the first rank sends a window of 64 messages, and the second one answers all of them with 4 bytes; the
figure is the number of bytes of the window over this time. With ``collops symmetric`` (windows that the ranks of a host
share, NVSHMEM's heap on GPUs) both ranks put values and set signals instead. Further ranks wait.

Times are of one message in one direction, or of one message of a window. Messages contain small integers, which are
checked before timing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from collops.errors import TransportError
from collops_bench.collectives import RAW_MPI, communicators_by_transport
from collops_bench.record import Measurement, check
from collops_bench.registry import Context
from collops_bench.timing import Plan, interleave, per_part, synchronize

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["BANDWIDTH", "LATENCY", "measure"]

LATENCY, BANDWIDTH = "latency", "bandwidth"
_WINDOW = 64  # messages, as in OSU's
_SYMMETRIC = "collops symmetric"
_LARGEST = 4 << 20

Program = Callable[[], Any]


def measure(context: Context) -> Iterator[Measurement]:
    """Yield one measurement for each size, of latency and of bandwidth."""
    comm, quick = context.comm, context.options.quick
    if comm.size == 1:
        return
    plan = Plan(rounds=3, seconds=0.003) if quick else Plan(rounds=9, seconds=0.02, most_calls=2000)
    communicators, missing = communicators_by_transport(context)
    sizes = [size for size in (8 << 2 * shift for shift in range(10)) if size <= (8192 if quick else _LARGEST)]
    for case in (LATENCY, BANDWIDTH):
        for size in [*sizes, *([] if quick else [_LARGEST])]:
            yield _measure(context, plan, case, size, communicators, dict(missing))


def _measure(
    context: Context,
    plan: Plan,
    case: str,
    size: int,
    communicators: dict[str, Communicator],
    missing: dict[str, str],
) -> Measurement:
    comm, xp = context.comm, context.engine.xp
    source = xp.arange(size, dtype="uint8") % 100 + xp.asarray(comm.rank, "uint8")
    target, answer = xp.zeros_like(source), xp.zeros(4, "uint8")
    many = 1 if case == LATENCY else _WINDOW
    programs: dict[str, Program] = {}
    for name, item in communicators.items():
        programs[name] = _by_messages(_Messages(item), comm.rank, many, source, target, answer)
    if context.engine.memory == "host" and context.options.peer:
        programs[RAW_MPI] = _by_messages(_RawMessages(comm.control), comm.rank, many, source, target, answer)
    memory = None
    try:
        memory = comm.symmetric((2, size), "uint8", engine=context.engine.name, signals=2)
        programs[_SYMMETRIC] = _by_puts(memory, comm.rank, many, source, target)
    except TransportError as problem:
        missing[_SYMMETRIC] = str(problem)
    checks = []
    receives = comm.rank == 1 or (comm.rank == 0 and case == LATENCY)
    expected = xp.arange(size, dtype="uint8") % 100 + xp.asarray(1 - comm.rank if receives else 0, "uint8")
    for name, program in programs.items():
        target[...] = 255
        program()
        synchronize(context.engine)
        error = float((target != expected).sum()) if receives else 0.0
        checks.append(check(comm, f"wrong bytes of a message of {size} by {name}", error, 0.0))
    parts = 2 if case == LATENCY else _WINDOW
    times = interleave(programs, comm, context.engine, plan)
    timings = {name: per_part(timing, parts) for name, timing in times.items()}
    if memory is not None:
        memory.free()
    rates = {name: {BANDWIDTH: size / timing.wall.median} for name, timing in timings.items()}
    return Measurement(
        case,
        {"size": size, "window": many},
        timings,
        missing,
        ours=next(iter(communicators)),
        peer=RAW_MPI if RAW_MPI in timings else None,
        checks=checks,
        figures=rates if case == BANDWIDTH else {},
    )


class _Messages:
    """Messages of our communicator; the messages of a window are one group."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def window(self, many: int) -> AbstractContextManager[Any]:
        return self._comm.group() if many > 1 else nullcontext()

    def send(self, x: Any) -> None:
        self._comm.send(x, 1 - self._comm.rank)

    def recv(self, out: Any) -> None:
        self._comm.recv(out, 1 - self._comm.rank)


class _RawMessages:
    """Messages of mpi4py; the messages of a window are in flight together, and the end of a window waits for them."""

    def __init__(self, control: Any) -> None:
        from mpi4py import MPI

        self._mpi, self._comm, self._other = MPI, control, 1 - control.rank
        self._requests: list[Any] | None = None

    def window(self, many: int) -> AbstractContextManager[Any]:
        self._requests = [] if many > 1 else None
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        if self._requests is not None:
            self._mpi.Request.Waitall(self._requests)
        self._requests = None

    def send(self, x: Any) -> None:
        if self._requests is None:
            self._comm.Send([x, self._mpi.BYTE], self._other)
        else:
            self._requests.append(self._comm.Isend([x, self._mpi.BYTE], self._other))

    def recv(self, out: Any) -> None:
        if self._requests is None:
            self._comm.Recv([out, self._mpi.BYTE], self._other)
        else:
            self._requests.append(self._comm.Irecv([out, self._mpi.BYTE], self._other))


def _by_messages(
    messages: _Messages | _RawMessages, rank: int, many: int, source: Any, target: Any, answer: Any
) -> Program:
    """Return the program of one rank: a message, or a window of them, and the answer."""
    returned = source if many == 1 else answer
    received = target if many == 1 else answer

    def first() -> None:
        with messages.window(many):
            for _ in range(many):
                messages.send(source)
        messages.recv(received)

    def second() -> None:
        with messages.window(many):
            for _ in range(many):
                messages.recv(target)
        messages.send(returned)

    return _of_rank(rank, first, second)


def _by_puts(memory: Any, rank: int, many: int, source: Any, target: Any) -> Program:
    """Return the program of one rank: puts into the other's memory, the last one with a signal, and the answer."""
    count = 0
    last = many - 1

    def first() -> None:
        nonlocal count
        count += 1
        for _ in range(last):
            memory.put(source, 1, 0)
        if last:
            memory.fence()  # a signal alone orders only the values that come with it
        memory.put_signal(source, 1, 0, 0, count)
        memory.wait_signal(1, count)
        if not last:
            target[...] = memory.local[1]

    def second() -> None:
        nonlocal count
        count += 1
        memory.wait_signal(0, count)
        target[...] = memory.local[0]
        # The answer of a window is short.
        piece = (1, ...) if not last else (1, slice(4))
        memory.put_signal(source if not last else source[:4], 0, piece, 1, count)

    return _of_rank(rank, first, second)


def _of_rank(rank: int, first: Program, second: Program) -> Program:
    return {0: first, 1: second}.get(rank, lambda: None)
