"""All benchmarks one after the other, each in processes of its own, so that one that fails loses no other."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from collops_bench.reading import read_record
from collops_bench.record import Record
from collops_bench.registry import BENCHMARKS, Benchmark
from collops.errors import InputError

__all__ = ["FIRST", "Outcome", "Plan", "run_all"]

FIRST = "limits"
"""The benchmark that runs first: its record says how much memory there is."""

_SHARE = 0.8  # of the free memory that a benchmark may need
_LAST_WORDS = 3  # lines


@dataclass(frozen=True)
class Plan:
    """What is to be run.

    Parameters
    ----------
    names : sequence of str
        Keys of `BENCHMARKS`; `FIRST` is run before them in any case.
    folder : pathlib.Path
        Where the records go.
    ranks : int
        Processes of each benchmark.
    options : sequence of str
        Further arguments of each, such as ``--engine cupy``.
    quick : bool
        Whether all of them run small.
    most_seconds : float
        After which a benchmark is ended.
    """

    names: Sequence[str]
    folder: Path
    ranks: int
    options: Sequence[str]
    quick: bool
    most_seconds: float


@dataclass(frozen=True)
class Outcome:
    """How one benchmark went.

    Parameters
    ----------
    name : str
        Of the benchmark.
    record : Record or None
        What it left, whole or not.
    problem : str or None
        Why it failed.
    note : str or None
        What was decided for it.
    """

    name: str
    record: Record | None
    problem: str | None = None
    note: str | None = None


def run_all(plan: Plan, hear: Callable[[str, str], None]) -> Iterator[Outcome]:
    """Run the benchmarks of a plan, and yield how each went. Not collective: one process starts all others.

    Parameters
    ----------
    plan : Plan
        What to run.
    hear : callable
        Gets the name of a benchmark and what it has measured last, as it goes on.
    """
    first = _run(plan, FIRST, plan.quick, None, hear)
    yield first
    for name in plan.names:
        if name != FIRST:
            note = None if plan.quick else _too_large(BENCHMARKS[name], first.record)
            yield _run(plan, name, plan.quick or note is not None, note, hear)


def _too_large(benchmark: Benchmark, limits: Record | None) -> str | None:
    """Return why a benchmark must be run small on this machine, or None."""
    if limits is None:
        return "small sizes: how much memory is free is not known"
    room = int(limits.machine["memory"])
    needed = benchmark.device_bytes if limits.engine == "cupy" else benchmark.host_bytes
    if needed <= _SHARE * room:
        return None
    return f"small sizes: {needed / 2**30:.3g} GiB a rank needed, {room / 2**30:.3g} free"


def _run(plan: Plan, name: str, quick: bool, note: str | None, hear: Callable[[str, str], None]) -> Outcome:
    path = plan.folder / f"{name}-{plan.ranks}.json"
    command = [sys.executable, "-m", "collops", "bench", name, "--ranks", str(plan.ranks), "--json", str(path)]
    command += [*plan.options, *(["--quick"] if quick else [])]
    path.unlink(missing_ok=True)
    hear(name, "starting")
    said: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, env=os.environ
    ) as process:
        ended = threading.Event()

        def end() -> None:
            ended.set()
            process.terminate()

        watch = threading.Timer(plan.most_seconds, end)
        watch.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line.rstrip())
                # Times are indented below what was measured.
                if line.strip() and not line.startswith((" ", "wrote ")):
                    hear(name, line.strip())
            code = process.wait()
        except BaseException:
            # Interrupted by hand: the launcher passes it on to its ranks.
            process.terminate()
            raise
        finally:
            watch.cancel()
    record = problem = None
    try:
        record = read_record(path) if path.exists() else None
    except InputError as error:
        problem = str(error)
    last = " | ".join(line for line in said[-_LAST_WORDS:] if line) or "it said nothing"
    if ended.is_set():
        problem = f"ended after {plan.most_seconds:g} s"
    elif code != 0:
        problem = f"exit code {code}: {last}"
    elif record is None and problem is None:
        note = last
    return Outcome(name, record, problem, note)
