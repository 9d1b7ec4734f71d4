"""PyLops-MPI's timing of functions, in its form of report; the same calls are marks of :mod:`collops.profile`."""

from __future__ import annotations

import functools
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from collops import profile

__all__ = ["benchmark", "mark"]

_calls: list[_Call] = []


class _Call:
    """One call of a function that is timed."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.marked: tuple[str, float] | None = None

    def mark(self, label: str) -> None:
        now = _now()
        if self.marked is not None:
            before, begin = self.marked
            self.lines.append(f"{before}-->{label}: {now - begin:.6f} s")
        self.marked = (label, now)


def mark(label: str) -> None:
    """Name this moment within the innermost function that is timed; the time since the last mark is reported."""
    if _calls:
        _calls[-1].mark(label)


def benchmark(
    func: Callable[..., Any] | None = None, description: str | None = "", logger: logging.Logger | None = None
) -> Any:
    """Time every call of a function, unless the environment's ``BENCH_PYLOPS_MPI`` is 0.

    Parameters
    ----------
    func : callable, optional
        The function.
    description : str, optional
        Its name in the report.
    logger : logging.Logger, optional
        Gets the report, which goes to standard output otherwise; rank 0's.
    """
    if func is None:
        return functools.partial(benchmark, description=description, logger=logger)
    if os.environ.get("BENCH_PYLOPS_MPI", "1") == "0":
        return func
    label = description or func.__name__

    @functools.wraps(func)
    def timed(*args: Any, **keywords: Any) -> Any:
        call = _Call()
        _calls.append(call)
        begin = _now()
        try:
            with profile.mark(label):
                result = func(*args, **keywords)
            end = _now()
        finally:
            _calls.pop()
        lines = [f"[decorator]{label}: total runtime: {end - begin:.6f} s", *("\t" + line for line in call.lines)]
        if _calls:
            _calls[-1].lines += lines
        else:
            _report("\n".join(lines) + "\n", logger)
        return result

    return timed


def _now() -> float:
    """Return the time, after all work of the current device."""
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        cupy.cuda.get_current_stream().synchronize()
    return time.perf_counter()


def _report(text: str, logger: logging.Logger | None) -> None:
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_rank() != 0:
        return
    if logger is not None:
        logger.info(text)
    else:
        sys.stdout.write(text + "\n")
