"""Start a Slurm of one node, run `collops` under it in the ways that a centre does, and check what becomes of each job.

pytest does not collect this file: run it by hand. It takes about five minutes, installs nothing, and writes to a
temporary folder only. It needs the daemons of Slurm and MUNGE (Debian: ``slurmctld slurmd slurm-client munge``).

    python tests/slurm/run.py                       # all scenarios, with the MPICH of the wheel
    python tests/slurm/run.py time_limit scancel    # some of them
    MPI4PY_LIBMPI=/usr/lib/x86_64-linux-gnu/libmpi.so.40 python tests/slurm/run.py \
        --mpi pmix --mpiexec "mpiexec.openmpi --allow-run-as-root"

The exit code is 0 if all scenarios passed, 1 if not, and 2 if a program is missing.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import random
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zarr

DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("srun", "salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
COLLOPS = [sys.executable, "-m", "collops"]
# An iteration takes some milliseconds. The noise keeps CGLS from ending by itself.
PROBLEM = ["lsm", "--nx", "61", "--nz", "41", "--shots", "6", "--receivers", "21", "--samples", "251"]
PROBLEM += ["--velocity", "1800", "--mode", "analytic", "--noise", "0.1", "--dtype", "float64", "--quiet"]
ENDLESS, MORE = 1_000_000, 20
RESUMABLE, KILLED = 75, 137
KILL_WAIT = 30.0  # seconds, by default, from the end of one task until Slurm kills the others
SECONDS = 900.0  # limit of every wait, for machines that others use as well

CONFIGURATION = """
ClusterName=one
# The numbers of jobs are part of names in /dev/shm, which other Slurms of this machine must not share.
FirstJobId={first}
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
# A job that is requeued waits until its credential has expired, by default for two minutes.
AuthInfo=socket={folder}/munge.socket,cred_expire=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
JobRequeue=1
ReturnToService=2
# Two ranks also where there is one core.
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

# Slurm runs this script again after `scontrol requeue`, and the number of restarts is then set. Later runs end a few
# iterations after the checkpoint.
BATCH = """#!/bin/bash
#SBATCH --ntasks=2 --open-mode=append --output={out}.txt {options}
iterations={endless}
if [ -n "$SLURM_RESTART_COUNT" ]; then
    last=$(ls {out}.checkpoint)
    iterations=$((10#${{last#iteration-}} + {more}))
fi
srun --mpi={mpi} {command} --iterations $iterations --checkpoint {out}.checkpoint --every 2s --resume --out {out}
code=$?
echo "run ${{SLURM_RESTART_COUNT:-0}} ended with $code"
if [ $code -eq {resumable} ] || [ $code -eq {killed} ]; then scontrol requeue $SLURM_JOB_ID; fi
exit $code
"""


class Cluster:
    """Slurm's daemons in a folder of their own, and commands that run under them; a context."""

    def __init__(self, folder: Path, mpi: str, mpiexec: str) -> None:
        self.folder, self.mpi, self.mpiexec = folder, mpi, mpiexec
        self._daemons: list[subprocess.Popen[bytes]] = []
        beside = str(Path(sys.executable).parent)
        self.environment = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}",
            "COLLOPS_DETERMINISTIC": "1",
            "COLLOPS_TIMEOUT": "60",
        }

    def __enter__(self) -> Cluster:
        folder = self.folder
        folder.chmod(0o755)  # MUNGE refuses a socket that other users cannot reach
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        host = socket.gethostname().partition(".")[0]
        values = {"host": host, "user": getpass.getuser(), "folder": folder, "first": random.randrange(10**6, 10**7)}
        text = CONFIGURATION.format(ports=_free_ports(2), **values)
        (folder / "slurm.conf").write_text(text)
        paths = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        self._start("munged", "--foreground", f"--socket={folder}/munge.socket", *paths)
        self._start("slurmctld", "-D")
        self._start("slurmd", "-D")
        wait_for(lambda: self.read("sinfo", "--noheader", "--format=%t") == "idle", "the node is not idle")
        return self

    def __exit__(self, *error: object) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start(self, name: str, *options: str) -> None:
        log = (self.folder / f"{name}.txt").open("wb")
        command = [_program(name), *options]
        self._daemons.append(
            subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)
        )

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """Start a command; its two outputs are one."""
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *command: str, **variables: str) -> tuple[int, str]:
        """Run a command, and return its exit code and what it wrote."""
        return ended(self.start(*command, **variables))

    def read(self, *command: str) -> str:
        """Return the output of one of Slurm's commands, which may fail."""
        return self.run(*command)[1].strip()

    def sbatch(self, name: str, options: str) -> str:
        """Submit the batch script and return the number of the job."""
        out = self.folder / name
        command = shlex.join([*COLLOPS, *PROBLEM])
        values = {"mpi": self.mpi, "endless": ENDLESS, "more": MORE, "resumable": RESUMABLE, "killed": KILLED}
        script = self.folder / f"{name}.sh"
        script.write_text(BATCH.format(out=out, command=command, options=options, **values))
        return self.read("sbatch", "--parsable", f"--job-name={name}", str(script))

    def finish_batch(self, name: str, job: str) -> str:
        """Wait for the last run of a batch job, check all that they left, and return what they wrote."""
        wait_for(lambda: not self.read("squeue", "--noheader", f"--job={job}"), lambda: self.said(name))
        text = self.said(name)
        check("run 1" in text and text.endswith("ended with 0\n"), text)
        self.check_image(name)
        return text

    def said(self, name: str) -> str:
        """Return what a batch job has written so far."""
        path = self.folder / f"{name}.txt"
        return path.read_text() if path.exists() else "nothing written"

    def check_image(self, name: str) -> None:
        """Compare the image of a resumed job with that of an undisturbed run of as many iterations, bit for bit."""
        undisturbed = f"{name}.undisturbed"
        count = len(self.result(name)["residual_norms"]) - 1
        options = ["--iterations", str(count), "--out", undisturbed]
        code, said = self.run("srun", f"--mpi={self.mpi}", "-n", "2", *COLLOPS, *PROBLEM, *options)
        check(code == 0, said)
        same = np.array_equal(self.result(name)["image"], self.result(undisturbed)["image"])
        check(same, f"the image after {count} iterations is not that of an undisturbed run")

    def result(self, name: str) -> dict[str, np.ndarray]:
        """Return the image and the norms that a job has written."""
        group = zarr.open_group(self.folder / name / "result.zarr", mode="r")
        return {each: np.asarray(group[each]) for each in ("image", "residual_norms")}

    def checkpoint(self, name: str) -> int:
        """Return the iteration of a job's checkpoint, 0 if there is none."""
        found = sorted((self.folder / f"{name}.checkpoint").glob("iteration-*"))
        return int(found[-1].name.partition("-")[2]) if found else 0


def srun(cluster: Cluster) -> str:
    """Two tasks of `srun` are two ranks."""
    code, said = cluster.run("srun", f"--mpi={cluster.mpi}", "-n", "2", *COLLOPS, "info", "--json")
    check(code == 0, said)
    facts = json.loads(said[said.index("{") :])
    choice = facts["choice"]
    check((choice["ranks"], choice["host_transport"]) == (2, "mpi"), said)
    library = " ".join(facts["mpi"]["library"].split())
    return f"srun --mpi={cluster.mpi} -n 2 collops info: {choice['ranks']} ranks, {library}"


def without_pmi(cluster: Cluster) -> str:
    """Without a PMI each task is refused with the remedy, by MPI or collops; by request or in a shell it is alone."""
    code, said = cluster.run("srun", "--mpi=none", "-n", "2", *COLLOPS, *PROBLEM, "--iterations", "2")
    check(code != 0 and ("--mpi=" in said or "PMI support" in said), said)
    world = [sys.executable, "-c", "import collops; comm = collops.world(); print(comm.rank, comm.size)"]
    refused, said = cluster.run("srun", "--mpi=none", "-n", "2", *world)
    check(refused != 0 and ("the launcher started 2 processes" in said or "PMI support" in said), said)
    alone = cluster.run("srun", "--mpi=none", "-n", "2", *world, COLLOPS_BOOTSTRAP="alone")
    check(alone[0] == 0 and alone[1].endswith("0 1\n" * 2), f"{alone}")
    shell = cluster.run("salloc", "--quiet", "-n", "2", *world)
    check(shell[0] == 0 and shell[1].endswith("0 1\n"), f"{shell}")
    return f"srun --mpi=none -n 2: exit code {code} of collops, {refused} of a program; alone by request and in salloc"


def salloc(cluster: Cluster) -> str:
    """`--ranks 2` in an allocation, with either launcher or none named, gives the image of `mpiexec` without Slurm."""
    options = ["--ranks", "2", "--iterations", "5"]
    code, said = cluster.run(*COLLOPS, *PROBLEM, *options, "--out", "plain", COLLOPS_MPIEXEC=cluster.mpiexec)
    check(code == 0, said)
    launchers: dict[str, dict[str, str]] = {
        "srun": {"SLURM_MPI_TYPE": cluster.mpi},
        "mpiexec": {"COLLOPS_MPIEXEC": cluster.mpiexec},
    }
    if "MPI4PY_LIBMPI" not in os.environ:  # the MPI is that of the wheel, and its mpiexec beside the interpreter
        launchers["default"] = {}
    name_it = cluster.run("salloc", "-n", "2", *COLLOPS, *PROBLEM, *options, "--out", "none", SLURM_MPI_TYPE="none")
    check(name_it[0] != 0 and ("SLURM_MPI_TYPE=" in name_it[1] or "PMI support" in name_it[1]), f"{name_it}")
    for name, variables in launchers.items():
        code, said = cluster.run("salloc", "-n", "2", *COLLOPS, *PROBLEM, *options, "--out", name, **variables)
        check(code == 0, said)
        check(np.array_equal(cluster.result("plain")["image"], cluster.result(name)["image"]), f"{name}: another image")
    return f"salloc -n 2 collops lsm --ranks 2, by {' and by '.join(launchers)}: the image of mpiexec without Slurm"


def without_mpi(cluster: Cluster) -> str:
    """Ranks without MPI meet under `srun`, save at SIGUSR1, end when one is killed, and find MPI's image."""
    name, tasks = "without_mpi", ["srun", "--mpi=none", "-n", "2"]

    def meeting() -> dict[str, str]:
        (port,) = _free_ports(1)
        return {"COLLOPS_BOOTSTRAP": f"tcp://127.0.0.1:{port}", "COLLOPS_SECRET": secret}

    secret = secrets.token_hex(16)
    program = "import collops; comm = collops.world(); print(comm.host_transport, comm.size, comm.local_rank)"
    code, said = cluster.run(*tasks, sys.executable, "-c", program, **meeting())
    check(code == 0 and sorted(said.splitlines()) == ["tcp 2 0", "tcp 2 1"], said)
    keep = ["--checkpoint", f"{name}.checkpoint", "--every", "2s", "--out", name]
    job = [*tasks, f"--job-name={name}", *COLLOPS, *PROBLEM, *keep]
    process = cluster.start(*job, "--iterations", str(ENDLESS), **meeting())
    wait_for(lambda: cluster.checkpoint(name) > 0, "no checkpoint", process)
    cluster.read("scancel", "--signal=USR1", f"--name={name}")
    code, said = ended(process)
    check(code == RESUMABLE and "stopped the solver" in said, f"{code}: {said}")
    saved = cluster.checkpoint(name)
    process = cluster.start(*job, "--resume", "--iterations", str(ENDLESS), **meeting())
    wait_for(lambda: cluster.checkpoint(name) > saved, "no later checkpoint", process)
    begin = time.monotonic()
    os.kill(_tasks(name)[-1], signal.SIGKILL)
    code, said = ended(process)
    seconds = time.monotonic() - begin
    check(code == KILLED and "its process has exited" in said, f"{code}: {said}")
    check(seconds < KILL_WAIT, f"the other rank waited {seconds:.1f} s")  # it ends by itself, not by Slurm
    more = ["--resume", "--iterations", str(cluster.checkpoint(name) + MORE)]
    code, said = cluster.run(*job, *more, **meeting())
    check(code == 0, said)
    cluster.check_image(name)
    return f"srun --mpi=none, COLLOPS_BOOTSTRAP: USR1 {RESUMABLE}; kill -9 {seconds:.1f} s; resumed, the image of MPI"


def time_limit(cluster: Cluster) -> str:
    """A batch job is signalled before its time limit, requeues itself, and resumes."""
    # Slurm sends the signal up to a minute early, here between 30 and 60 seconds after the start.
    job = cluster.sbatch("time_limit", "--requeue --time=2 --signal=USR1@60")
    wait_for(lambda: "run 0 ended" in cluster.said("time_limit"), lambda: cluster.said("time_limit"))
    cluster.read("scontrol", "update", f"JobId={job}", "TimeLimit=UNLIMITED")
    text = cluster.finish_batch("time_limit", job)
    check(f"run 0 ended with {RESUMABLE}" in text and "SIGUSR1" in text, text)
    return "sbatch --signal=USR1@60: exit code 75, requeued, resumed, the same image"


def requeue(cluster: Cluster) -> str:
    """A job that Slurm requeues, as it does for another job or an administrator, gets SIGTERM and resumes."""
    job = cluster.sbatch("requeue", "--requeue")
    wait_for(lambda: cluster.checkpoint("requeue") > 0, lambda: f"no checkpoint: {cluster.said('requeue')}")
    before = cluster.checkpoint("requeue")
    cluster.read("scontrol", "requeue", job)
    text = cluster.finish_batch("requeue", job)
    check("SIGTERM" in text, text)
    return f"scontrol requeue after iteration {before} or later: checkpoint at SIGTERM, resumed, the same image"


def scancel(cluster: Cluster) -> str:
    """`scancel`, with its own signal and with SIGUSR1, makes a job write a checkpoint, however it was started."""
    tasks = ["srun", f"--mpi={cluster.mpi}", "-n", "2", *COLLOPS, *PROBLEM]
    ranks = ["salloc", "-n", "2", *COLLOPS, *PROBLEM, "--ranks", "2"]
    jobs = {
        "srun_TERM": (tasks, {}, []),
        "srun_USR1": (tasks, {}, ["--signal=USR1"]),
        "salloc_srun_TERM": (ranks, {"SLURM_MPI_TYPE": cluster.mpi}, []),
        "salloc_srun_USR1": (ranks, {"SLURM_MPI_TYPE": cluster.mpi}, ["--signal=USR1"]),
        "salloc_mpiexec_TERM": (ranks, {"COLLOPS_MPIEXEC": cluster.mpiexec}, []),
        "salloc_mpiexec_USR1": (ranks, {"COLLOPS_MPIEXEC": cluster.mpiexec}, ["--signal=USR1"]),
    }
    codes = {}
    for name, (command, variables, options) in jobs.items():
        folder = f"{name}.checkpoint"
        keep = ["--checkpoint", folder, "--every", "2s", "--out", name]
        process = cluster.start(
            command[0], f"--job-name={name}", *command[1:], *keep, "--iterations", str(ENDLESS), **variables
        )
        wait_for(lambda name=name: cluster.checkpoint(name) > 0, f"{name} has no checkpoint", process)
        before = cluster.checkpoint(name)
        cluster.read("scancel", *options, f"--name={name}")
        codes[name], said = ended(process)
        check("stopped the solver" in said, f"{name}: {said}")
        check(cluster.checkpoint(name) >= before, f"{name}: the checkpoint has gone")
        check(codes[name] == RESUMABLE, f"{name}: exit code {codes[name]}: {said}")
        end = ["--resume", "--iterations", str(cluster.checkpoint(name) + MORE)]
        code, said = cluster.run(*tasks, *keep, *end)
        check(code == 0, said)
        cluster.check_image(name)
    return f"scancel of {len(codes)} jobs (SIGTERM, SIGUSR1; srun, --ranks): exit code 75, resumed, the same images"


def scancel_without_checkpoint(cluster: Cluster) -> str:
    """`scancel` ends a job that writes no checkpoint at once, and no process stays."""
    name = "plain_scancel"
    options = ["--iterations", str(ENDLESS), "--out", name]
    process = cluster.start(
        "srun", f"--mpi={cluster.mpi}", f"--job-name={name}", "-n", "2", *COLLOPS, *PROBLEM, *options
    )
    wait_for((cluster.folder / name).exists, "the ranks have not begun", process)
    tasks = _tasks(name)
    begin = time.monotonic()
    cluster.read("scancel", f"--name={name}")
    code, said = ended(process)
    wait_for(lambda: not _tasks(name), "ranks are left")
    check(code != 0, f"{code}: {said}")
    seconds = time.monotonic() - begin
    return f"scancel without --checkpoint: exit code {code}, {len(tasks)} ranks gone in {seconds:.1f} s"


def killed_rank(cluster: Cluster) -> str:
    """With ``srun --kill-on-bad-exit`` a rank that is killed ends the others; the job resumes from its checkpoint."""
    name = "killed_rank"
    tasks = ["srun", f"--mpi={cluster.mpi}", "--kill-on-bad-exit=1", "-n", "2", *COLLOPS, *PROBLEM]
    keep = ["--checkpoint", f"{name}.checkpoint", "--every", "2s", "--out", name]
    process = cluster.start(*tasks, *keep, "--iterations", str(ENDLESS))
    wait_for(lambda: cluster.checkpoint(name) > 0, "no checkpoint", process)
    begin = time.monotonic()
    os.kill(_tasks(name)[-1], signal.SIGKILL)
    code, said = ended(process)
    seconds = time.monotonic() - begin
    check(code not in (0, RESUMABLE), f"{code}: {said}")
    wait_for(lambda: not _tasks(name), "ranks are left")
    code_of_resumed, said = cluster.run(*tasks, *keep, "--resume", "--iterations", str(cluster.checkpoint(name) + MORE))
    check(code_of_resumed == 0, said)
    cluster.check_image(name)
    return f"kill -9 of a rank under srun -K: exit code {code} after {seconds:.1f} s, resumed, the same image"


def killed_and_requeued(cluster: Cluster) -> str:
    """A batch job whose ranks are all killed starts again under the same number, on the same node, and resumes."""
    name = "killed_and_requeued"
    job = cluster.sbatch(name, "--requeue")
    wait_for(lambda: cluster.checkpoint(name) > 0, lambda: f"no checkpoint: {cluster.said(name)}")
    cluster.read("scancel", "--signal=KILL", f"{job}.0")
    text = cluster.finish_batch(name, job)
    check(f"run 0 ended with {KILLED}" in text, text)
    return "kill -9 of all ranks, requeued: starts again, resumed, the same image"


SCENARIOS: dict[str, Callable[[Cluster], str]] = {
    each.__name__: each
    for each in (
        srun,
        without_pmi,
        without_mpi,
        salloc,
        scancel,
        scancel_without_checkpoint,
        killed_rank,
        killed_and_requeued,
        requeue,
        time_limit,
    )
}


def check(condition: bool, text: str) -> None:
    """Raise AssertionError with a text, also under ``python -O``."""
    if not condition:
        raise AssertionError(text)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a command, and return its exit code and what it wrote."""
    try:
        said, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        raise AssertionError(f"{shlex.join(process.args)} has not ended after {SECONDS:g} s: {said}") from None  # pyright: ignore[reportArgumentType, reportCallIssue]
    return process.returncode, said


def wait_for(
    condition: Callable[[], bool], problem: str | Callable[[], str], process: subprocess.Popen[str] | None = None
) -> None:
    """Wait until a condition holds; raise AssertionError if it does not in time, or if a process has ended before."""
    until = time.monotonic() + SECONDS
    while not condition():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"{problem}, and it ended with {process.returncode}: {process.communicate()[0]}")
        if time.monotonic() > until:
            raise AssertionError(f"after {SECONDS:g} s: {problem() if callable(problem) else problem}")
        time.sleep(0.1)


def _tasks(out: str) -> list[int]:
    """Return the processes that run a job which writes to `out`, without the `srun` that started them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has just ended
            if arguments[0] == sys.executable.encode() and out.encode() in arguments:
                found.append(int(entry.name))
    return sorted(found)


def _program(name: str) -> str | None:
    """Return the path of a program; daemons may be where only root looks for them."""
    return shutil.which(name, path=os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"]))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _stop(*_: object) -> None:
    """Stop the daemons, as Ctrl-C does; `timeout` sends SIGTERM twice, to a process and to its group."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def main() -> int:
    """Run the scenarios, and print one line for each."""
    parser = argparse.ArgumentParser(description="Run collops under a Slurm of one node.")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"by default all: {', '.join(SCENARIOS)}")
    parser.add_argument("--mpi", default="pmi2", help="srun's --mpi for the MPI of mpi4py (default: %(default)s)")
    parser.add_argument("--mpiexec", default="mpiexec", help="launcher of that MPI (default: %(default)s)")
    arguments = parser.parse_args()
    if unknown := set(arguments.scenarios) - SCENARIOS.keys():
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    if missing := [name for name in (*DAEMONS, *CLIENTS) if _program(name) is None]:
        print(f"missing: {', '.join(missing)} (Debian: slurmctld, slurmd, slurm-client, munge)", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _stop)
    failed = 0
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), arguments.mpi, arguments.mpiexec) as cluster:
        print(cluster.read("sinfo", "--version"), flush=True)
        for name in arguments.scenarios or SCENARIOS:
            begin = time.monotonic()
            try:
                line = f"passed {SCENARIOS[name](cluster)}"
            except AssertionError as problem:
                failed += 1
                line = f"FAILED {name}: {problem}"
                cluster.read("scancel", f"--user={getpass.getuser()}")
            print(f"{line} ({time.monotonic() - begin:.0f} s)", flush=True)
        cluster.read("scancel", f"--user={getpass.getuser()}")
        wait_for(lambda: not cluster.read("squeue", "--noheader"), "jobs are left")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
