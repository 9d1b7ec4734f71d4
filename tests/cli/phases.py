"""Send a signal to a job in a chosen phase, under any launcher.

``python -m tests.cli.phases`` prints what happens in every phase, for every signal and way to send it; the launcher is
that of the interpreter, or COLLOPS_MPIEXEC.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from collops.cli.launch import command_for
from tests.cli.commands import SMALL, environment

# Where each phase is: a module, and the function that begins it; without one, the import of the module does.
PHASES = {
    "imports": ("typer", ""),
    "set-up of MPI": ("mpi4py.MPI", ""),
    "synthesising": ("collops.seismic.lsm.migrate", "synthetic"),
    "travel times": ("collops.seismic.survey.operator", "tables_of_stations"),
    "operator": ("collops.operators.stacks", "_LocalStack.__init__"),
    "fingerprint": ("collops.solvers.driver", "open_checkpoints"),
    "solver": ("collops.solvers.driver", "_Loop._iterate"),
    "samples": ("collops.uncertainty.posterior", "block_cg"),
    "last checkpoint": ("collops.solvers.checkpoint_folder", "CheckpointFolder.write"),
    "pictures": ("collops.apps.recipe", "_draw"),
    "results": ("collops.apps.recipe", "write_result"),
    "end": ("collops.comm.ending", "_wait_for_others"),
    "a chunk": ("zarr.storage._local", "_put"),
}

# Python imports this at its start. A rank that comes to the phase says so, and waits for the file `go`.
_SITE = """
import functools, importlib, os, sys, time
from pathlib import Path

PLACE, MODULE, NAME = Path(os.environ["PHASE_PLACE"]), os.environ["PHASE_MODULE"], os.environ["PHASE_NAME"]
RANK = next((os.environ[name] for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK") if name in os.environ), None)

def hold():
    here = PLACE / f"{RANK}.there"
    if not here.exists():
        partial = PLACE / f"{RANK}.partial"
        partial.write_text(str(os.getpid()))
        partial.rename(here)
        end = time.monotonic() + 120
        while not (PLACE / "go").exists() and time.monotonic() < end:
            time.sleep(0.01)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        if not NAME:
            hold()
            return None
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            owner, attribute = module, NAME
            if "." in NAME:
                owner, attribute = getattr(module, NAME.split(".")[0]), NAME.split(".")[1]
            function = getattr(owner, attribute)
            @functools.wraps(function)
            def held(*args, **options):
                hold()
                return function(*args, **options)
            setattr(owner, attribute, held)
        spec.loader.exec_module = exec_module
        return spec

if RANK is not None or "PHASE_ALONE" in os.environ:
    import importlib.util
    sys.meta_path.insert(0, Finder())
"""


class Ended(NamedTuple):
    """How a job ended: its exit code, the lines on standard error, and the seconds from the signal to its end."""

    code: int
    said: str
    seconds: float
    checkpoints: int
    results: bool


def end(
    phase: str,
    number: int,
    to: str,
    place: Path,
    *,
    ranks: int = 2,
    checkpoint: bool = True,
    timeout: int | None = None,
    times: int = 1,
) -> Ended:
    """Run ``collops lsm`` and send it a signal in a phase.

    `to` says which process gets it: the ``command`` with ``--ranks``, the ``launcher`` that a user started, or ``rank``
    1 alone. The number 0 is no signal. With `timeout`, COLLOPS_TIMEOUT, the phase never ends by itself. The signal is
    sent so many `times`, with a second between two.
    """
    (place / "site").mkdir()
    (place / "site" / "sitecustomize.py").write_text(_SITE)
    arguments = ["lsm", *SMALL, "--quiet", "--out", str(place / "out")]
    # Many iterations where the solver is to be stopped.
    arguments += ["--iterations", "1000000"] if phase == "solver" else []
    arguments += ["--uncertainty", "4"] if phase == "samples" else []
    arguments += ["--checkpoint", str(place / "checkpoints")] if checkpoint else []
    module, name = PHASES[phase]
    surroundings = environment() | {"PHASE_PLACE": str(place), "PHASE_MODULE": module, "PHASE_NAME": name}
    surroundings |= {key: os.environ[key] for key in ("COLLOPS_MPIEXEC", "COLLOPS_TIMEOUT") if key in os.environ}
    surroundings |= {key: value for key, value in os.environ.items() if key.startswith(("OMPI_ALLOW", "PRTE_MCA"))}
    surroundings |= {} if timeout is None else {"COLLOPS_TIMEOUT": str(timeout)}
    surroundings["PYTHONPATH"] = f"{place / 'site'}:{surroundings['PYTHONPATH']}"
    if ranks == 1:
        surroundings["PHASE_ALONE"] = "1"
        command = [sys.executable, "-m", "collops", *arguments]
    elif to == "command":
        command = [sys.executable, "-m", "collops", *arguments, "--ranks", str(ranks)]
    else:
        command = command_for(ranks, arguments, surroundings)
    job = subprocess.Popen(
        command,
        env=surroundings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        there = range(1) if phase in ("pictures", "a chunk") else range(ranks)  # what the first rank alone writes
        names = ["None.there"] if ranks == 1 else [f"{rank}.there" for rank in there]
        until = time.monotonic() + 150
        while not all((place / each).exists() for each in names):
            if job.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"the job did not come to {phase}: {job.poll()}")
            time.sleep(0.01)
        begin = time.monotonic()
        os.kill(int((place / names[-1]).read_text()) if to == "rank" else job.pid, number)
        for _ in range(1, times):
            time.sleep(1.0)
            os.kill(job.pid, number)
        if timeout is None:
            time.sleep(0.3)
            (place / "go").touch()
        _, said = job.communicate(timeout=150)
    finally:
        job.kill()
        for each in place.glob("*.there"):  # of launchers that were killed
            try:
                os.kill(int(each.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                continue
    seconds = time.monotonic() - begin
    checkpoints = len(list(place.glob("checkpoints/iteration-*")))
    return Ended(job.returncode, said, seconds, checkpoints, (place / "out/result.zarr").exists())


def main() -> None:
    """Print a row for each phase, signal and way to send it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", default="command,launcher,rank")
    parser.add_argument("--signals", default="SIGTERM,SIGUSR1,SIGINT")
    parser.add_argument("--phases", default=",".join(PHASES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--without-checkpoint", action="store_true")
    chosen = parser.parse_args()
    ways = itertools.product(chosen.phases.split(","), chosen.to.split(","), chosen.signals.split(","))
    for phase, to, name in ways:
        with tempfile.TemporaryDirectory() as place:
            try:
                ended = end(
                    phase,
                    signal.Signals[name],
                    to,
                    Path(place),
                    ranks=chosen.ranks,
                    checkpoint=not chosen.without_checkpoint,
                )
            except (AssertionError, subprocess.TimeoutExpired) as problem:
                print(f"{phase:16} {name:8} {to:9} {problem}", flush=True)
                continue
            saved = f"{ended.checkpoints} checkpoint, {'results' if ended.results else 'no results'}"
            ours = [line for line in ended.said.splitlines() if "collops" in line]
            print(f"{phase:16} {name:8} {to:9} {ended.code:4} {ended.seconds:5.1f} s  {saved}; {ours}", flush=True)


if __name__ == "__main__":
    main()
