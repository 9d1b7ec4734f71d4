"""What the README says is true: its programs run, and its table of environment variables is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_programs_run(comm, capsys):
    names: dict = {}
    first, second = PROGRAMS
    exec(compile(first, "README.md", "exec"), names)
    said = capsys.readouterr().out
    if comm.rank == 0:
        assert said.startswith(f"({400 * comm.size}, 300) on {comm.size} ranks: ")
        assert float(said.split()[-1]) < 1e-2
    else:
        assert said == ""
    exec(compile(second, "README.md", "exec"), names)
    said = capsys.readouterr().out
    if comm.rank == 0:
        assert said.splitlines()[0].split()[1] == "0"  # no metadata
        assert "solve" in said
    else:
        assert len(said.splitlines()) == 1


@pytest.mark.serial
def test_first_program_is_short():
    lines = [line for line in PROGRAMS[0].splitlines() if line]
    assert len(lines) <= 15


@pytest.mark.serial
def test_every_environment_variable_is_described():
    used = set()
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks/src").rglob("*.py")):
        used |= set(re.findall(r"(?:environ|environment)(?:\.get\(|\[)\s*\"(COLLOPS_\w+)\"", path.read_text("utf-8")))
    described = set(re.findall(r"^\| `(COLLOPS_\w+)`", README, re.MULTILINE))
    assert {"COLLOPS_ENGINE", "COLLOPS_TIMEOUT", "COLLOPS_MPIEXEC"} <= used
    assert described == used


@pytest.mark.serial
def test_every_file_that_is_linked_is_there():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert "docs/images/lsm.png" in links
    assert [link for link in links if not (ROOT / link).exists()] == []
