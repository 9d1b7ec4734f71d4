"""The broken programs of the tutorial on failures end as the page says, with its messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.launch import run_ranks

pytestmark = pytest.mark.serial
PAGE = (ROOT / "docs" / "tutorial-failures.md").read_text("utf-8")
CASES = re.findall(r"```python\n(.*?)```.*?```\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def test_there_are_three():
    assert len(CASES) == 3 == PAGE.count("```python")


@pytest.mark.parametrize(("program", "command", "message"), CASES, ids=["error", "deadline", "mismatch"])
def test_it_fails_as_the_page_says(program, command, message, tmp_path: Path):
    path = tmp_path / "program.py"
    path.write_text(program, "utf-8")
    settings = dict(re.findall(r"(COLLOPS_\w+)=(\S+)", command))
    assert command.endswith("mpiexec -n 2 python program.py\n")
    source = f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')"
    done = run_ranks(2, source, {"PYTHONPATH": str(ROOT / "src")} | settings, 60)
    assert done.returncode != 0
    said = re.sub(r"[\w.-]+/program\.py", "program.py", done.stderr).splitlines()
    for line in message.splitlines():
        known = line.partition(":")[0] if "waited" in line else line.strip()  # either rank may report the deadline
        assert any(known in one for one in said), done.stderr
