"""Cooperating threads with a common error."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from collops.errors import CommunicationTimeout
from collops.extend.communication import default_timeout

_LAST_SECONDS = 10.0  # for the other threads to end after one has failed


def together(count: int, work: Callable[[int, Callable[[int], None]], None]) -> None:
    """Call ``work(number, meet)`` in `count` threads.

    ``meet(step)`` returns when all threads have called it. The first error of a thread ends the others at their next
    `meet`, and is raised here. A `meet` that takes longer than the deadline of waits raises `CommunicationTimeout`.
    """
    timeout = default_timeout()
    barrier = threading.Barrier(count, timeout=timeout)
    ended: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
    steps = [-1] * count

    def run(index: int) -> None:
        def meet(step: int) -> None:
            steps[index] = step
            try:
                barrier.wait()
            except threading.BrokenBarrierError:
                late = ", ".join(str(other) for other in range(count) if steps[other] < step)
                raise CommunicationTimeout(
                    f"the threads of devices {late} did not reach sweep {step} in {timeout} s"
                ) from None

        error = None
        try:
            work(index, meet)
        except BaseException as problem:  # raised again by the caller of `together`
            error = problem
        ended.put((index, error))
        if error is not None:
            barrier.abort()

    errors = []
    try:
        for number in range(count):
            # A daemon, so that a thread that never returns does not prevent the program's exit.
            threading.Thread(target=run, args=(number,), name=f"device {number}", daemon=True).start()
        for _ in range(count):
            number, error = ended.get(timeout=_LAST_SECONDS if errors else None)
            if error is not None:
                errors.append((number, error))
    except queue.Empty:
        pass  # a thread does not return; the first error says why
    finally:
        barrier.abort()
    if errors:
        number, error = errors[0]  # the others are its consequences
        error.add_note(f"in the thread of device {number} of {count}")
        raise error
