"""No circle of imports in the guest, also none of imports in functions or for type checkers."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import collops.seismic

ROOT = Path(collops.seismic.__file__).parent


def name_of(path: Path) -> str:
    parts = ("collops", "seismic", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in ROOT.rglob("*.py")}


def imported_by(name: str) -> set[str]:
    """Return the modules of the guest that one of them imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found |= {f"{module}.{each.name}" if f"{module}.{each.name}" in MODULES else module for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found & MODULES.keys() - {name}


@pytest.mark.serial
def test_imports_have_no_circle():
    imports = {name: imported_by(name) for name in MODULES}
    assert "collops.seismic.survey.headers" in imports["collops.seismic.survey.survey"]
    TopologicalSorter(imports).prepare()  # raises CycleError with the circle
