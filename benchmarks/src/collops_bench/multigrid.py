"""Algebraic multigrid: set-up and solution of Poisson's equation on a cube, against PyAMG, PETSc and Jacobi.

A program sets up its multigrid and solves by CG until the residual is 1e-8 of the right-hand side, which is random. The
clock ``wall`` is the time of both, from a barrier to a barrier; the figures ``set-up`` and ``solution`` are its two
parts in seconds (medians), ``iterations`` the iterations of CG, and ``operator complexity`` the stored entries of all
levels over the entries of the finest. ``collops, single`` smooths with entries in single precision; ``collops, Jacobi``
is CG with the inverse of the diagonal in place of multigrid. With CuPy, the cubes have ten and thirty times as many
points, and the set-up runs on devices, where the matrix is before the clock starts. ``V-cycle`` is the time of a cycle
that visits each level once, and ``V-cycle over its bytes`` is its ratio to the time in which a copy moves the entries
that its products read, and the vectors that they read and write; updates of vectors between products do not count.
``refresh`` is the time of a set-up for other values in the same positions, from the second one on.

PyAMG's smoothed aggregation is serial: with several ranks, rank 0 solves the entire problem while the others wait.
PETSc's two methods (GAMG, and BoomerAMG of hypre) have their default options. They run on as many ranks in Debian's
Python, ``/usr/bin/python3`` or the one that the environment variable ``PETSC_PYTHON`` names, since Debian's petsc4py
needs another NumPy than collops; ``PETSC_DIR`` tells it where PETSc is. Programs take turns.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from collops.apps.stages import local_stage
from collops.array import DistributedArray
from collops.errors import CollopsError
from collops.operators import CSRMatrix
from collops.operators.base import LinearOperator
from collops.preconditioners import jacobi, multigrid
from collops.solvers import cg
from collops_bench.peers import why_missing
from collops_bench.petsc_multigrid import right_side, stencil_rows
from collops_bench.record import Measurement, check
from collops_bench.registry import Context
from collops_bench.shared import environment_without_launcher
from collops_bench.timing import Spread, Timing, synchronize

__all__ = ["measure", "solved"]

OURS, SINGLE, JACOBI, PYAMG = "collops", "collops, single", "collops, Jacobi", "PyAMG"
PETSC = {"gamg": "PETSc, GAMG", "hypre": "PETSc, BoomerAMG"}
RTOL = 1e-8
_TIMEOUT = 600.0  # seconds of PETSc's process
_SCRIPT = Path(__file__).with_name("petsc_multigrid.py")

Sample = dict[str, float]


def measure(context: Context) -> Iterator[Measurement]:
    """Yield one measurement for each matrix."""
    device = context.engine.memory == "device"
    sides = (16,) if context.options.quick else (215, 311) if device else (100,)
    on_host = "measured on hosts only" if device else None
    pyamg = why_missing(context, lambda: on_host or _why_no_pyamg())
    petsc = why_missing(context, lambda: on_host or _why_no_petsc(context.comm.size))
    version = None if petsc else _on_first_rank(context, lambda: _run_petsc(1)["version"])
    for side in sides:
        for points in (27, 7):
            yield _measure(context, points, side, pyamg, petsc, version)


def _measure(
    context: Context, points: int, side: int, pyamg: str | None, petsc: str | None, version: str | None
) -> Measurement:
    comm = context.comm
    first, end = (side**3 * rank // comm.size for rank in (comm.rank, comm.rank + 1))
    A = CSRMatrix(stencil_rows(points, side, first, end), comm=comm)
    y = DistributedArray(A.rows, comm, context.engine.from_host(right_side(side, first, end)))
    device = context.engine.memory == "device"
    place = context.engine if context.engine.mutable else "numpy"
    turns: list[Callable[[], dict[str, Sample]]] = [
        lambda: {OURS: solved(context, A, y, multigrid, engine=place)},
        lambda: {SINGLE: solved(context, A, y, multigrid, engine=place, single_precision=True)},
        lambda: {JACOBI: solved(context, A, y, jacobi)},
    ]
    missing = {PYAMG: pyamg} if pyamg else {}
    if pyamg is None:
        turns.append(lambda: {PYAMG: _on_first_rank(context, lambda: _pyamg(points, side))})
    if petsc is None:
        turns.append(lambda: _on_first_rank(context, lambda: _petsc(points, side, comm.size)))
    else:
        missing |= dict.fromkeys(PETSC.values(), petsc)
    samples: dict[str, list[Sample]] = {}
    for turn in turns[:3]:  # compiles
        turn()
    for _ in range(1 if context.options.quick else 3):
        for turn in turns:
            for name, sample in turn().items():
                samples.setdefault(name, []).append(sample)
    checks = [
        check(comm, f"residual of {name}", max(sample.pop("residual") for sample in rounds), 1.1 * RTOL)
        for name, rounds in samples.items()
    ]
    timings = {
        name: Timing(1, {"wall": Spread.from_samples([each["set-up"] + each["solution"] for each in rounds])})
        for name, rounds in samples.items()
    }
    figures = {
        name: {figure: statistics.median(each[figure] for each in rounds) for figure in rounds[0]}
        for name, rounds in samples.items()
    }
    if device:
        figures[OURS] |= _cycle(context, A, y)
    return Measurement(
        f"Poisson's equation, {points} points" + (f", {side**3:,} rows" if device else ""),
        {"rows": side**3, "entries": int(comm.allreduce(np.array(A.nnz))), "PETSc": version},
        timings,
        missing,
        ours=OURS,
        peer=PETSC["gamg"] if petsc is None else JACOBI,
        checks=checks,
        figures=figures,
        headline=f"Multigrid and CG, Poisson's equation of {points} points, {side**3:,} rows",
    )


def solved(
    context: Context, A: CSRMatrix, y: DistributedArray, make: Callable[..., LinearOperator], **options: Any
) -> Sample:
    """Set up a preconditioner with `make`, solve by CG, and return the seconds of both and the residual. Collective."""
    comm = context.comm
    clocks: list[float] = []

    def tick() -> None:
        synchronize(context.engine)
        comm.barrier()
        clocks.append(time.perf_counter())

    tick()
    M = make(A, **options)
    tick()
    result = cg(A, y, niter=5000, rtol=RTOL, M=M, progress=False, verify=False)
    tick()
    residual = float((y - A @ result.x).norm()) / float(y.norm())
    return {
        "set-up": clocks[1] - clocks[0],
        "solution": clocks[2] - clocks[1],
        "iterations": float(result.iterations),
        "operator complexity": getattr(M, "operator_complexity", 1.0),
        "residual": residual,
    }


def _cycle(context: Context, A: CSRMatrix, y: DistributedArray) -> Sample:
    """Return the time of a V-cycle, also over that of a copy of its bytes, and of a refreshed set-up. Collective."""
    M = multigrid(A, cycle="V", engine=context.engine)
    x = M @ y
    times = [_seconds(context, lambda: M._forward(y, x)) for _ in range(11)]
    source = context.engine.xp.ones(1 << 28)  # 2 GiB
    target = source.copy()
    copies = [_seconds(context, lambda: context.engine.xp.copyto(target, source)) for _ in range(11)]
    bytes_per_second = 2 * source.nbytes / statistics.median(copies)
    products = 2 * M._options.degree + 2
    moved = sum(products * _bytes(level.matrix) + 2 * _bytes(level.prolongation) for level in M._levels)
    seconds = statistics.median(times)
    refreshes = [_seconds(context, lambda: M.refresh(A)) for _ in range(4)]
    return {
        "refresh": statistics.median(refreshes[1:]),
        "V-cycle": seconds,
        "V-cycle over its bytes": seconds * bytes_per_second / moved,
        "copy, TB/s": bytes_per_second / 1e12,
    }


def _bytes(A: CSRMatrix) -> int:
    """Return the bytes that a product reads and writes on this rank: entries, columns, row starts, and vectors."""
    rows, columns = (layout.local_size(A.comm.rank) for layout in (A.rows, A.columns))
    return A.nnz * (A.dtype.itemsize + 4) + rows * (A.dtype.itemsize + 4) + columns * A.dtype.itemsize


def _seconds(context: Context, run: Callable[[], object]) -> float:
    synchronize(context.engine)
    context.comm.barrier()
    begin = time.perf_counter()
    run()
    synchronize(context.engine)
    return time.perf_counter() - begin


def _pyamg(points: int, side: int) -> Sample:
    import pyamg
    from scipy import sparse

    A, b = sparse.csr_matrix(stencil_rows(points, side, 0, side**3)), right_side(side, 0, side**3)
    residuals: list[float] = []
    begin = time.perf_counter()
    hierarchy = pyamg.smoothed_aggregation_solver(A)
    between = time.perf_counter()
    x = hierarchy.solve(b, tol=RTOL, maxiter=200, accel="cg", residuals=residuals)
    end = time.perf_counter()
    return {
        "set-up": between - begin,
        "solution": end - between,
        "iterations": float(len(residuals) - 1),
        "operator complexity": float(hierarchy.operator_complexity()),
        "residual": float(np.linalg.norm(b - A @ x) / np.linalg.norm(b)),
    }


def _petsc(points: int, side: int, ranks: int) -> dict[str, Sample]:
    found = _run_petsc(ranks, str(points), str(side), *PETSC)
    return {name: found[kind] for kind, name in PETSC.items()}


def _on_first_rank(context: Context, run: Callable[[], Any]) -> Any:
    """Return the result of a function that rank 0 calls, on all ranks. Collective."""
    result = None
    with local_stage(context.comm):
        result = run() if context.comm.rank == 0 else None
    return context.comm.allgather_metadata(result)[0]


def _why_no_pyamg() -> str | None:
    return None if importlib.util.find_spec("pyamg") else "pyamg is not installed"


def _why_no_petsc(ranks: int) -> str | None:
    try:
        _run_petsc(min(ranks, 1))
    except (CollopsError, OSError) as problem:
        return f"Debian's petsc4py does not load: {problem}"
    return None if ranks == 1 or shutil.which("mpiexec.openmpi") else "mpiexec.openmpi is not installed"


def _run_petsc(ranks: int, *arguments: str) -> dict[str, Any]:
    """Run PETSc's process, and return its output."""
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
    environment = {name: value for name, value in environment_without_launcher().items() if name != "PYTHONPATH"}
    launcher = ["mpiexec.openmpi", "--oversubscribe", "-n", str(ranks)] if ranks > 1 else []
    done = subprocess.run(
        [*launcher, os.environ.get("PETSC_PYTHON", "/usr/bin/python3"), str(_SCRIPT), *arguments],
        env=environment | as_root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()  # a traceback names files of this machine
        reason = next((line for line in reversed(lines) if "Error" in line), "".join(lines[-1:]))
        raise CollopsError(f"PETSc's process ended with {done.returncode}: {reason}")
    return json.loads(done.stdout.splitlines()[-1])
