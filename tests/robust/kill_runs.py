"""Kill a random rank of `collops lsm` at a random time, again and again, and go on from its checkpoint.

Every time the other ranks must end within ten seconds, with an error, and leave no process behind; and `--resume` must
then give the image of an undisturbed run, to the last bit. Jobs run with COLLOPS_DETERMINISTIC=1: two runs on GPUs
would else differ in their last bits, disturbed or not.

    python -m tests.robust.kill_runs --runs 50 --ranks 3 --out benchmarks/results/kill-runs-cpu-2-cores-3.json

With `--hosts 2` the ranks run on two hosts made of namespaces, and are resumed on one host, by the ranks that it has
of them. The image is then that of the undisturbed run to rounding, since fewer ranks add in another order.

    python -m tests.robust.kill_runs --runs 50 --ranks 4 --hosts 2 \
        --out benchmarks/results/kill-runs-cpu-2-cores-4.json
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from collops.backend import engine
from collops.comm import alone
from collops_bench.record import Measurement, Record, new_record, write_record
from collops_bench.timing import Spread, Timing
from tests.hosts import Hosts, refusal

JOB = ["--iterations", "60", "--nx", "31", "--nz", "21", "--shots", "3", "--receivers", "11", "--samples", "101"]
RANK_NAMES = (b"PMI_RANK", b"OMPI_COMM_WORLD_RANK", b"SLURM_PROCID")
MAX_SECONDS = 10.0
JOB_SECONDS = 300.0
# Without damping 60 iterations of CGLS amplify a rounding error to 1e-5 of the image.
ON_HOSTS = ["--dtype", "float64", "--damp", "0.3"]
ROUNDING = 1e-10  # of the largest value of the image


@dataclass(frozen=True)
class Kill:
    """One disturbed run: who was killed when, what became of the others, and what of the image."""

    rank: int
    after: float
    """Seconds from the time when all ranks were there."""
    iteration: int
    """Of the checkpoint that was there afterwards; 0 if there was none."""
    seconds: float
    """Until no process was left."""
    code: int
    said: str
    resumed: bool
    difference: float | None
    """From the image of the undisturbed run, over its largest value."""
    same: bool

    @property
    def good(self) -> bool:
        """Whether all is as it must be."""
        return self.seconds <= MAX_SECONDS and self.code != 0 and bool(self.said) and self.resumed and self.same


class Job:
    """``collops lsm`` under way, with all its processes; `hosts` run it, or else this one."""

    def __init__(self, folder: Path, ranks: int, options: list[str], hosts: Hosts | None = None) -> None:
        self.ranks = ranks
        self._errors = (folder / "errors.txt").open("w+")
        command = [sys.executable, "-m", "collops", "lsm", "--ranks", str(ranks), "--quiet", "--debug", *JOB, *options]
        launcher = {"COLLOPS_MPIEXEC": shlex.join(hosts.launcher(ranks // len(hosts.names)))} if hosts else {}
        self.process = subprocess.Popen(
            [*command, "--out", str(folder / "result")],
            env=os.environ | {"COLLOPS_DETERMINISTIC": "1"} | launcher,
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=subprocess.STDOUT,
        )
        self.begin = time.monotonic()

    def running(self) -> dict[int, int]:
        """Return the process of each rank; waits until all are there, or the job has ended."""
        while self.process.poll() is None:
            found = {rank: pid for pid, rank in descendants(self.process.pid) if rank is not None}
            if len(found) == self.ranks:
                return found
            time.sleep(0.01)
        return {}

    def end(self) -> int:
        """Return the exit code."""
        try:
            return self.process.wait(JOB_SECONDS)
        finally:
            self.process.kill()

    def said(self) -> str:
        """Return what ranks and launcher wrote."""
        self._errors.seek(0)
        return self._errors.read()


def descendants(root: int) -> list[tuple[int, int | None]]:
    """Return the processes that come from `root`, with the rank of those that are ranks.

    Also those on hosts of namespaces: in this process's /proc they have numbers and parents of their own.
    """
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if fields[0] != "Z":
                parents[int(name)] = int(fields[1])
    found: list[tuple[int, int | None]] = []
    for pid in parents:
        above = pid
        while above in parents and above != root:
            above = parents[above]
        if above == root and pid != root:
            found.append((pid, rank_of(pid)))
    return found


def rank_of(pid: int) -> int | None:
    """Return the rank that a process has been started as."""
    try:
        environment = Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
        program = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    values = {name: value for name, _, value in (entry.partition(b"=") for entry in environment)}
    rank = next((values[name] for name in RANK_NAMES if name in values), None)
    return int(rank) if rank is not None and b"collops" in program else None


def alive(pids: list[int]) -> list[int]:
    """Return those processes that still run."""
    found = []
    for pid in pids:
        try:
            if Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(pid)
        except OSError:
            continue
    return found


def image(folder: Path) -> np.ndarray:
    """Return the image that a job has written."""
    return np.asarray(zarr.open_group(folder / "result" / "result.zarr", mode="r")["image"])  # pyright: ignore[reportArgumentType]


def error_line(text: str, hosts: bool) -> str:
    """Return the line that says what happened."""
    # On several hosts MPICH's launcher names the host, and returns 255 instead of the signal that collops would name.
    words = ("a rank was killed by", "Error", *(("RUNNING AT node",) if hosts else ()))
    return next((line.strip() for word in words for line in text.splitlines() if word in line), "")


def disturbed(
    folder: Path,
    ranks: int,
    chance: random.Random,
    seconds: float,
    options: list[str],
    wanted: Any,
    hosts: Hosts | None = None,
) -> Kill:
    """Kill one rank of a job and let another go on; begins again if the job was faster, and all its work done.

    If `hosts` run the first job, the ranks of one of them are as many as the other job has.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        checkpoints = folder / "checkpoints"
        options_here = [*options, "--checkpoint", str(checkpoints), "--every", "1"]
        job = Job(folder, ranks, options_here, hosts)
        rank, after = chance.randrange(ranks), chance.uniform(0, seconds)
        processes, started = job.running(), time.monotonic()
        time.sleep(after)
        everybody = [pid for pid, _ in descendants(job.process.pid)]
        if job.process.poll() is not None or rank not in processes or processes[rank] not in alive(everybody):
            job.end()
            seconds = 0.8 * min(seconds, time.monotonic() - started)  # a machine is not always equally fast
            folder = folder.with_name(f"{folder.name}-again")
            continue
        os.kill(processes[rank], signal.SIGKILL)
        begin = time.monotonic()
        code = job.end()
        while alive(everybody) and time.monotonic() - begin < JOB_SECONDS:
            time.sleep(0.01)
        ended = time.monotonic() - begin
        if code == 0 and np.abs(image(folder) - wanted).max() <= ROUNDING * np.abs(wanted).max():
            folder = folder.with_name(f"{folder.name}-again")  # the rank had no more to do
            continue
        said = error_line(job.said(), hosts is not None)
        if not said:
            print(job.said(), file=sys.stderr)
        kept = sorted(path.name for path in checkpoints.glob("iteration-*")) if checkpoints.exists() else []
        again = Job(folder, ranks // len(hosts.names) if hosts else ranks, [*options_here, "--resume"])
        resumed = again.end() == 0
        difference = np.abs(image(folder) - wanted).max() / np.abs(wanted).max() if resumed else None
        if not resumed:
            print(again.said(), file=sys.stderr)
        return Kill(
            rank,
            round(after, 2),
            int(kept[-1].split("-")[1]) if kept else 0,
            round(ended, 2),
            code,
            said,
            resumed,
            None if difference is None else float(difference),
            difference is not None and bool(difference <= (ROUNDING if hosts else 0)),
        )


def main() -> int:
    """Run, print a tally, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--hosts", type=int, default=1, help="hosts of namespaces that share the ranks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", default="numpy")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no further run after this time")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.ranks % given.hosts:
        parser.error("--ranks must be a multiple of --hosts")
    if given.hosts > 1 and (reason := refusal()):
        parser.error(reason)
    options, chance, kills = ["--engine", given.engine], random.Random(given.seed), []
    begin = time.monotonic()
    many = Hosts(given.hosts) if given.hosts > 1 else nullcontext()
    with tempfile.TemporaryDirectory(prefix="collops-kills-") as name, many as hosts:
        options += ON_HOSTS if hosts else []
        folder = Path(name)
        (folder / "undisturbed").mkdir()
        undisturbed = Job(folder / "undisturbed", given.ranks, options, hosts)
        undisturbed.running()
        started = time.monotonic()
        if undisturbed.end() != 0:
            print(undisturbed.said(), file=sys.stderr)
            return 1
        seconds = time.monotonic() - started
        wanted = image(folder / "undisturbed")
        for number in range(given.runs):
            if time.monotonic() - begin > 60 * given.minutes:
                break
            kill = disturbed(folder / f"run-{number}", given.ranks, chance, seconds, options, wanted, hosts)
            kills.append(kill)
            print(f"{number + 1:3d} {'ok ' if kill.good else 'BAD'} {kill}", flush=True)
    good = sum(kill.good for kill in kills)
    slowest = max(kill.seconds for kill in kills)
    print(
        f"{good} of {len(kills)} as it must be; the others ended after {slowest:.2f} s at most, "
        f"{statistics.median(kill.seconds for kill in kills):.2f} s in the median"
    )
    if given.out is not None:
        write_record(record(given, seconds, kills), given.out)
    return 0 if good == len(kills) else 1


def record(given: argparse.Namespace, seconds: float, kills: list[Kill]) -> Record:
    """Return what is kept: the times until the others had ended, the tally, and every kill."""
    timing = Timing(1, {"wall": Spread.from_samples([kill.seconds for kill in kills])})
    tally = {
        "runs": len(kills),
        "ended in time with an error": sum(kill.seconds <= MAX_SECONDS and kill.code != 0 for kill in kills),
        "resumed to the same image": sum(kill.resumed and kill.same for kill in kills),
    }
    options = {"job": ["lsm", *JOB], "seed": given.seed, "kills": [asdict(kill) for kill in kills]}
    record = new_record("kill-runs", alone(), engine(given.engine), options)
    measurement = Measurement(
        "from the death of a rank of collops lsm to the end of all",
        {"ranks": given.ranks, "hosts": given.hosts, "undisturbed_seconds": round(seconds, 2)},
        {"collops": timing},
        figures={"collops": {name: float(number) for name, number in tally.items()}},
    )
    return replace(record, ranks=given.ranks, measurements=[measurement])


if __name__ == "__main__":
    sys.exit(main())
