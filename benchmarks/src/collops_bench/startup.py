"""Time to start: the list of commands, imports, and a first array, each in a new process.

Two limits hold for the processor time, the clock ``cpu``: ``collops --help`` may take 1.3 times the import of NumPy and
typer, and ``import collops`` 0.05 s. ``import collops`` loads neither NumPy nor MPI, which follow when a name is used;
therefore the last case also creates an array and sums it, which loads both in collops and in the peer. The figure
``CPU over PROGRAM`` is the ratio to the first program of the case.

Each process runs once before it is timed, which writes the bytecode of its modules. BLAS libraries have one thread: the
time in which NumPy starts more grows with the number of cores. With several ranks, every rank starts the processes at
the same time, without the environment of the launcher.
"""

from __future__ import annotations

import importlib.util
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

from collops.apps.stages import local_stage
from collops.errors import CollopsError
from collops_bench.peers import PEER, why_no_mpi4jax, why_no_pylops_mpi
from collops_bench.record import Check, Measurement
from collops_bench.registry import Context
from collops_bench.shared import environment_without_launcher
from collops_bench.timing import Spread, Timing

__all__ = ["HELP", "IMPORTS", "PROGRAMS", "measure"]

HELP, IMPORTS = "collops --help", "import numpy, typer"
_MODULES = ("numpy", "collops", "pylops_mpi", "collops.jax", "mpi4jax")
_ARRAY = f"{PEER}, first array"
_TIMEOUT = 60.0  # seconds of one process
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

PROGRAMS = {
    HELP: (["-m", "collops", "--help"], "Usage:"),
    IMPORTS: (["-c", IMPORTS], ""),
    **{f"import {name}": (["-c", f"import {name}"], "") for name in _MODULES},
    "collops, first array": (["-c", "import collops; print(collops.ones(8).sum())"], "8.0"),
    _ARRAY: (["-c", "import pylops_mpi as p; x = p.DistributedArray((8,)); x[:] = 1; print(x.norm(1))"], "8.0"),
}
"""The arguments of Python for each program, and text that it must print."""

_CASES = {
    "list of commands": [IMPORTS, HELP],
    "imports": [f"import {name}" for name in _MODULES],
    "first array": ["import numpy", "collops, first array", _ARRAY],
}


def measure(context: Context) -> Iterator[Measurement]:
    """Yield one measurement for each case."""
    pylops_mpi = why_no_pylops_mpi(context)
    reasons = {
        _ARRAY: pylops_mpi,
        "import pylops_mpi": pylops_mpi,
        "import mpi4jax": why_no_mpi4jax(context),
        "import collops.jax": None if importlib.util.find_spec("jax") else "jax is not installed",
    }
    missing = {name: reason for name, reason in reasons.items() if reason is not None}
    for case, names in _CASES.items():
        yield _measure(context, case, names, {name: missing[name] for name in names if name in missing})


def _measure(context: Context, case: str, names: list[str], missing: Mapping[str, str]) -> Measurement:
    reference, program, *_ = names
    programs = [name for name in names if name not in missing]
    checks = []
    for name in programs:
        _sample(context, name)  # raises an error otherwise
        checks.append(Check(f"exit code and output of {name}", 0.0, 0.0))
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in programs}
    for _ in range(1 if context.options.quick else 15):
        for name in programs:
            samples[name].append(_sample(context, name))
    timings = {
        name: Timing(1, {clock: Spread.from_samples([times[clock] for times in rounds]) for clock in rounds[0]})
        for name, rounds in samples.items()
    }
    cpu = {name: timing.clocks["cpu"].median for name, timing in timings.items()}
    figures = {name: {f"CPU over {reference}": cpu[name] / cpu[reference]} for name in programs if name != reference}
    peer = _ARRAY if _ARRAY in names else None
    return Measurement(case, {}, timings, missing, ours=program, peer=peer, checks=checks, figures=figures)


def _sample(context: Context, name: str) -> dict[str, float]:
    """Run a program, and return its time by clock, of the slowest rank. Collective."""
    sample: dict[str, float] = {}
    with local_stage(context.comm):
        sample = _run(name)
    ranks = context.comm.allgather_metadata(sample)
    return {clock: max(times[clock] for times in ranks) for clock in sample}


def _run(name: str) -> dict[str, float]:
    """Run a program in a new process, and return its time by clock; raise `CollopsError` if it fails."""
    arguments, expected = PROGRAMS[name]
    environment = environment_without_launcher() | _ONE_THREAD
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CollopsError(f"{name} did not end within {_TIMEOUT:g} s") from None
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode or expected not in done.stdout:
        ending = f"exit code {done.returncode} and {done.stdout.strip()[-300:]!r}"
        raise CollopsError(f"{name}: expected exit code 0 and {expected!r} in the output, not {ending}")
    return {"wall": wall, "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}
