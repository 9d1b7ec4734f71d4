"""The README and the pages that continue it: their programs run, and the table of environment variables is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def programs(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_program_runs(comm, capsys):
    (program,) = programs(README)
    exec(compile(program, "README.md", "exec"), {})
    said = capsys.readouterr().out
    if comm.rank == 0:
        assert said.startswith(f"({400 * comm.size}, 300), ranks: {comm.size}, ")
        assert float(said.split()[-1]) < 1e-2
    else:
        assert said == ""


def test_the_programs_of_profiling_report_times_and_messages(comm, capsys):
    names: dict = {}
    time, messages = programs((ROOT / "docs/profiling.md").read_text(encoding="utf-8"))
    exec(compile(time, "profiling.md", "exec"), names)
    *report, seconds = capsys.readouterr().out.splitlines()
    assert any("image" in line for line in report) == (comm.rank == 0)
    assert seconds.count(".") == comm.size  # a time of each rank
    exec(compile(messages, "profiling.md", "exec"), names)
    *_, sent = capsys.readouterr().out.splitlines()
    assert sent.split()[0] == "0"  # no metadata


@pytest.mark.serial
def test_the_program_is_short():
    assert len([line for line in programs(README)[0].splitlines() if line]) <= 15


@pytest.mark.serial
def test_the_readme_fits_on_two_screens():
    assert README.count("\n") <= 90


@pytest.mark.serial
def test_every_environment_variable_is_described():
    used = set()
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks/src").rglob("*.py")):
        used |= set(re.findall(r"(?:environ|environment)(?:\.get\(|\[)\s*\"(COLLOPS_\w+)\"", path.read_text("utf-8")))
    page = (ROOT / "docs/environment.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\| `(COLLOPS_\w+)`", page, re.MULTILINE))
    assert {"COLLOPS_ENGINE", "COLLOPS_TIMEOUT", "COLLOPS_MPIEXEC"} <= used
    assert described == used


@pytest.mark.serial
def test_every_file_that_is_linked_is_there():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert "docs/images/lsm.png" in links
    assert [link for link in links if not (ROOT / link).exists()] == []
