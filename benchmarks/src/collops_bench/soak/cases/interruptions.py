"""Cases of interrupted runs: stopped by a signal or killed, and resumed from the checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import collops
from collops.comm import alone
from collops.errors import Interrupted
from collops_bench.shared import environment_without_launcher
from collops_bench.soak.cases.solvers import system
from collops_bench.soak.draw import Draw, WrongAnswer, shared_folder

__all__ = ["interrupted", "killed"]

_SECONDS = 120.0


def interrupted(draw: Draw) -> None:
    """Stop one rank in the middle of a solver, resume from the checkpoint, and compare with an undisturbed run."""
    op, _, data = system(draw)
    y = draw.array(data, op.range)
    niter, tol = draw.integer(4, 12), 0.0
    when, who = draw.integer(1, niter - 1), draw.integer(0, draw.comm.size - 1)
    name = draw.choice("cgls", "lsqr")
    options: dict[str, Any] = {"niter": niter, "progress": False}
    options |= {"tol": tol} if name == "cgls" else {"atol": tol, "btol": tol, "conlim": 0.0}
    solve = getattr(collops, name)

    def ask(iteration: int, _: Any) -> None:
        if iteration == when and draw.comm.rank == who:
            os.kill(os.getpid(), signal.SIGTERM)

    with shared_folder(draw.comm) as folder:
        options_ = {"checkpoint": Path(folder, "state"), "every": draw.integer(1, 3)}
        peaceful = solve(op, y, callback=lambda *_: None, **options)
        try:
            result = solve(op, y, callback=ask, **options_, **options)
        except Interrupted:
            result = solve(op, y, callback=lambda *_: None, **options_, resume=True, **options)
        # After a late signal there is nothing to resume; the result must be the same.
        draw.same(name, draw.whole(result.x), draw.whole(peaceful.x))


def killed(draw: Draw) -> None:
    """Kill a separate program during its solver, start it again, and compare with an undisturbed run.

    One rank starts the programs, which are worlds of one; the others wait.
    """
    error = None
    seconds, seed = float(draw.random.uniform(0.5, 4.0)), draw.integer(0, 999)
    with shared_folder(draw.comm) as folder:
        if draw.comm.rank == 0:
            try:
                _kill_and_resume(Path(folder), seconds, seed)
            except (WrongAnswer, OSError, subprocess.SubprocessError) as problem:
                error = problem
        draw.comm.check(error)


def _kill_and_resume(folder: Path, seconds: float, seed: int) -> None:
    def command(name: str, *more: str) -> list[str]:
        options = ["--points", "5000", "--iterations", "200", "--tol", "0", "--seed", str(seed), "--quiet"]
        return [sys.executable, "-m", "collops", "solve", *options, "--out", str(folder / name), *more]

    keeping = ("--checkpoint", str(folder / "state"), "--every", "20")
    _finished(command("peace"))
    with _started(command("war", *keeping)) as victim:
        try:
            victim.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            victim.kill()
    _finished(command("war", *keeping, "--resume"))
    left, right = (
        collops.load(folder / name / "result.zarr", comm=alone(), engine="numpy")["solution"].local_array
        for name in ("peace", "war")
    )
    if not np.array_equal(left, right):
        raise WrongAnswer("a solver that was killed and resumed has another solution than one that was not")


def _started(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env=environment_without_launcher(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finished(command: list[str]) -> None:
    with _started(command) as process:
        try:
            _, text = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise WrongAnswer(f"a program did not end within {_SECONDS:g} s: {' '.join(command)}") from None
    if process.returncode != 0:
        raise WrongAnswer(f"a program ended with {process.returncode}: {text.strip()[-300:]}")
