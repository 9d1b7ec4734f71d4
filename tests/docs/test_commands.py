"""Every command in the documentation is run, as far as a test can; the table says how far, and why no further."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from collops.cli.main import application
from tests.cli.commands import environment
from tests.docs.pages import PAGES, ROOT, blocks, commands, scripts
from tests.docs.small import LAUNCHER, run_small
from tests.launch import mpiexec

pytestmark = pytest.mark.serial

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FIRST_PROGRAM = blocks(ROOT / "docs" / "first-steps.md", "python")[0]


@cache
def first_program(folder: Path, ranks: int) -> None:
    """Run the first program once, with all settings that pages put before it."""
    (folder / "program.py").write_text(FIRST_PROGRAM, "utf-8")
    started = [mpiexec(), "-n", str(ranks)] if ranks > 1 else []
    settings = dict(setting.split("=", 1) for setting in SETTINGS)
    assert len(settings) == len(SETTINGS), "pages give one variable two values: run the program once for each"
    done = subprocess.run(
        [*started, sys.executable, "program.py"],
        cwd=folder,
        env=environment() | settings,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"\({400 * ranks}, 300\), ranks: {ranks}, iterations: \d+, error: \d\.\de-0\d\n", done.stdout)


def runs_first_program(command: str, folder: Path) -> None:
    """Run the first program, on two ranks where the page says four: one run stands for all such commands."""
    shared = folder.parent / "program"
    shared.mkdir(exist_ok=True)
    first_program(shared, 2 if "mpiexec" in command else 1)
    for name in re.findall(r"(?:trace|json)=([\w.]+)", command):
        assert (shared / name).stat().st_size > 0


@cache
def parser_of_collops() -> Any:
    return typer.main.get_command(application())


def is_understood(command: str, folder: Path) -> None:
    """Parse a command of ``collops`` as it does itself: each option is there, and takes what it is given."""
    words = shlex.split(re.sub(rf"^{LAUNCHER}", "", command))
    assert words.pop(0) == "collops"
    parser = parser_of_collops()
    context = parser.make_context("collops", words[:0], resilient_parsing=True)
    while hasattr(parser, "commands") and words and words[0] != "--help":
        name = words.pop(0)
        assert name in parser.commands, f"there is no command {name}"
        parser = parser.commands[name]
    if words != ["--help"] and not hasattr(parser, "commands"):
        parser.make_context(parser.name, words, parent=context)


def runs_small(command: str, folder: Path) -> None:
    """Parse a command of ``collops`` as it is written, and run it here, on one rank and on little data."""
    is_understood(command, folder)
    assert run_small(command, folder) == 0


def is_a_target(command: str, folder: Path) -> None:
    """Let make say what it would do. Continuous integration runs ``make test``; installing needs a network."""
    # A make that runs these tests passes its own variables on.
    passed = {"MAKEFLAGS", "MFLAGS", *re.findall(r"(\w+)=", os.environ.get("MAKEFLAGS", ""))}
    settings = {name: value for name, value in os.environ.items() if name not in passed}
    done = subprocess.run(
        [*shlex.split(command), "--dry-run"], cwd=ROOT, env=settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for line in re.findall(r"^\.venv/bin/(collops .*)", done.stdout, re.MULTILINE):
        is_understood(line, folder)
    assert command != "make demo" or "collops lsm --ranks 2" in done.stdout


def installs_what_there_is(command: str, folder: Path) -> None:
    """Look for the extras in pyproject.toml; installing needs a network."""
    for extras in re.findall(r"\.\[([^\]]*)\]", command):
        assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()


def names_a_folder(command: str, folder: Path) -> None:
    """Look for the folder of tests."""
    assert (ROOT / command.rsplit(maxsplit=1)[-1]).is_dir()


def is_not_run(command: str, folder: Path) -> None:
    """Do nothing; the table says why."""


# Each command matches one line: how it is looked at, and why not more.
TABLE = [
    (
        r"(COLLOPS_(PROFILE|CHECK)=\S+ )?((mpiexec|srun) -n 4 )?python program\.py",
        runs_first_program,
        "two ranks, not four",
    ),
    (
        r"(COLLOPS_(TIMEOUT|CHECK)=1 )?mpiexec -n 2 python program\.py",
        is_not_run,
        "tests/docs/test_failures.py runs it",
    ),
    (r"COLLOPS_ENGINE=cupy mpiexec -n 4 python program\.py", is_not_run, "needs GPUs; tests/gpu has CuPy's arrays"),
    (
        rf"{LAUNCHER}collops (?!bench jax|.*(nccl_graphs|--peer)).*",
        runs_small,
        "tests/cli has the commands on several ranks",
    ),
    (rf"{LAUNCHER}collops .*nccl_graphs.*", is_understood, "needs GPUs; tests/gpu has this variant"),
    (rf"{LAUNCHER}collops .*--peer.*", is_understood, "needs NVIDIA's programs; tests/apps has others"),
    (r"collops bench jax( --ranks \d+)?", is_understood, "needs a native library; tests/jax has it"),
    (r"make [\w=-]+( [a-z-]+| [A-Z]+=\S+)*", is_a_target, "needs a network, and takes minutes"),
    (r"srun --(kill-on-bad-exit=1|mpi=\w+)", is_not_run, "tests/slurm/run.py runs it"),
    (r"(export COLLOPS_(BOOTSTRAP|SECRET)=|srun --mpi=none ).*", is_not_run, "tests/comm/test_tcp.py starts them"),
    (r"export (SLURM_MPI_TYPE=pmi2|COLLOPS_MPIEXEC=mpiexec)", is_not_run, "tests/slurm/run.py sets it"),
    (r"for file in /dev/shm/mpich_shm_\*; do .*", is_not_run, "removes files of other programs"),
    (r"pip install .*", installs_what_there_is, "needs a network"),
    (r"\.venv/bin/.*python -m pytest \S+", names_a_folder, "would run this suite inside itself"),
    (r"mpiexec -n 4 python -m collops\.compat\.pylops_mpi .*", is_not_run, "tests/compat/test_scripts.py runs it"),
    (r"mpiexec -n 2 python -m collops\.compat\.mpi4jax .*", is_not_run, "tests/compat/test_mpi4jax.py runs it"),
    (r"\.venv/bin/pip install pre-commit && .*", is_not_run, "changes the repository's hooks"),
    (r"python3 -m venv venv|\. venv/bin/activate", is_not_run, "Python's own, and the shell's"),
    (r"module load .*", is_not_run, "needs a cluster"),
    (r"(apptainer|docker) .*", is_not_run, "needs containers"),
    (r"COLLOPS_PROFILE=nvtx nsys .*", is_not_run, "needs NVIDIA's profiler"),
    (
        r"(apt install libpetsc|export (MPI4PY_MPIABI|PETSC_DIR)=|python3\.11 -m venv petsc |mpiexec\.openmpi ).*",
        is_not_run,
        "needs Debian's PETSc",
    ),
]
COMMANDS = sorted({command for path in PAGES for command in commands(path)})
SETTINGS = {word for each in COMMANDS if re.fullmatch(TABLE[0][0], each) for word in each.split() if "=" in word}
SCRIPTS = [pytest.param(path, text, id=f"{path.stem}-{n}") for path in PAGES for n, text in enumerate(scripts(path))]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command(command, tmp_path):
    look = [look for pattern, look, _ in TABLE if re.fullmatch(pattern, command)]
    assert len(look) == 1, "no line of the table, or several, are about this command"
    look[0](command, tmp_path)


def test_the_table_has_no_line_too_many():
    assert [p for p, _, _ in TABLE if not any(re.fullmatch(p, command) for command in COMMANDS)] == []


@pytest.mark.parametrize(("page", "script"), SCRIPTS)
def test_a_job_script(page, script, tmp_path):
    """The shell understands it, and what it starts runs; Slurm is not here to be asked."""
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    inside = re.findall(r"^srun (?:--\S+ )*(collops .*)$", script, re.MULTILINE)
    for number, command in enumerate(inside):
        folder = tmp_path / str(number)
        folder.mkdir()
        runs_small(command.replace("$SCRATCH", str(folder)), folder)
    assert inside or "python program.py" in script


def test_wrong_commands_are_found(tmp_path):
    for wrong, why in (
        ("collops lsm --no-such-option 3", "[Nn]o such option"),
        ("collops nothing", "there is no command"),
        ("collops lsm --ranks many", "valid integer"),
    ):
        with pytest.raises(Exception, match=why):
            is_understood(wrong, tmp_path)
    with pytest.raises(AssertionError):
        installs_what_there_is('pip install ".[cuda11]"', tmp_path)
    with pytest.raises(AssertionError):
        is_a_target("make nonsense", tmp_path)
