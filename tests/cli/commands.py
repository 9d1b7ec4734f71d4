"""Run the command line as a user does."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from collops.cli.launch import command_for

SOURCE = Path(__file__).parents[2] / "src"
SMALL = shlex.split("--nx 31 --nz 21 --shots 5 --receivers 9 --samples 101 --iterations 5")


# Standard output and error of each command go to files, since a launcher mixes those of all.
SEVERAL = """
import json, os, sys
from collops.apps import recipe
from collops.cli import main
from collops._launcher import started

recipe._draw = lambda folder, found: []  # pictures take longer than all else
rank = started().rank
for number, arguments in enumerate(json.loads(sys.argv[1])):
    sys.stdout.flush()
    for descriptor, kind in ((1, "out"), (2, "err")):
        file = os.open(f"{number}.{rank}.{kind}", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
        os.close(file)
    sys.argv = ["collops", *arguments]
    try:
        main(arguments)
    except SystemExit as left:
        sys.stdout.flush()
        with open(f"{number}.{rank}.code", "w") as code:
            code.write(str(left.code or 0))
"""


class Result(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def environment() -> dict[str, str]:
    """This environment without what a launcher left in it."""
    names = ("PMI", "PMIX", "OMPI", "MPI_", "HYDI", "SLURM", "COLLOPS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    return kept | {"PYTHONPATH": f"{SOURCE}:{kept.get('PYTHONPATH', '')}", "NUMBA_NUM_THREADS": "1"}


def collops(*arguments: object, cwd: Path, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    """Run ``collops`` with `arguments`."""
    return run([sys.executable, "-m", "collops", *map(str, arguments)], cwd, timeout)


def under_mpiexec(ranks: int, *arguments: object, cwd: Path, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    """Run ``collops`` with `arguments` as a user does who starts the ranks."""
    return run(command_for(ranks, [str(a) for a in arguments], environment()), cwd, timeout)


def several_under_mpiexec(
    ranks: int, commands: Sequence[Sequence[object]], cwd: Path, launcher: Sequence[str] = ()
) -> list[Result]:
    """Run one command after the other in one set of ranks: imports and launchers take longer than small jobs.

    `launcher` is the command that starts the ranks, by default that of ``collops --ranks``.
    """
    program = [sys.executable, "-c", SEVERAL, json.dumps([[str(each) for each in command] for command in commands])]
    start = [*launcher, "-n", str(ranks)] if launcher else command_for(ranks, [], environment())[:-3]
    done = run([*start, *program], cwd, timeout=200)
    assert done.returncode == 0, done

    def of_all(number: int, kind: str) -> list[str]:
        return [(cwd / f"{number}.{rank}.{kind}").read_text() for rank in range(ranks)]

    results = []
    for number, command in enumerate(commands):
        codes = set(of_all(number, "code"))
        assert len(codes) == 1, (command, codes)
        results.append(Result(int(codes.pop()), "".join(of_all(number, "out")), "".join(of_all(number, "err"))))
    return results


def run(command: list[str], cwd: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def assert_one_line(result, *parts: str, command: str = "lsm") -> None:
    """Check that a command said what is wrong in one line of standard error, and nothing else."""
    assert result.returncode == 2, result
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith(f"collops {command}: ")
    for part in parts:
        assert part in lines[0]


def numbers_of(result) -> dict[str, Any]:
    """Return what ``--json`` printed, after checking that nothing else went to standard output."""
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 1, result.stdout
    return json.loads(lines[0])
