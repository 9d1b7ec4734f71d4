"""The page that shows both interfaces side by side: its two programs compute the same."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from collops.compat.pylops_mpi import install
from tests.operators.problems import assert_close

PAGE = Path(__file__).parents[2] / "docs" / "from-pylops-mpi.md"


def test_both_programs_compute_the_same(comm, monkeypatch) -> None:
    first, theirs, native = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert "import collops.compat.pylops_mpi as pylops_mpi" in first
    for name in [name for name in sys.modules if name.partition(".")[0] == "pylops_mpi"]:
        monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    install()
    found: list[dict] = [{}, {}]
    try:
        for text, names in zip((theirs, native), found, strict=True):
            exec(compile(text, str(PAGE), "exec"), names)
    finally:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "pylops_mpi":
                del sys.modules[name]
    assert found[0]["pylops_mpi"].__name__ == "collops.compat.pylops_mpi"
    x = found[0]["x"]
    assert abs(x).max() > 0.5
    assert_close(x, found[1]["x"], factor=100)
