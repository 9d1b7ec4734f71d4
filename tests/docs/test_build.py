"""The site builds without a warning: every reference of the pages and of all docstrings leads somewhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import environment
from tests.docs.pages import ROOT

pytestmark = pytest.mark.serial


@pytest.mark.timeout(600)  # a loaded machine; it takes half a minute of one core
def test_it_builds_without_warnings(tmp_path: Path) -> None:
    """Without the gallery's runs, which take minutes: tests/test_examples.py runs the examples."""
    for name in ("sphinx", "furo", "myst_parser", "sphinx_gallery"):
        pytest.importorskip(name, reason="the documentation's packages are not installed: pip install '.[docs]'")
    made = shutil.ignore_patterns("_build", "_measured", "gallery", "reference", "__pycache__")
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=made)
    for path in ROOT.iterdir():
        if path.name != "docs":
            (tmp_path / path.name).symlink_to(path)
    options = ["--builder", "dummy", "--fail-on-warning", "--keep-going", "--quiet", "--define", "plot_gallery=0"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(tmp_path / "docs"), str(tmp_path / "made")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr
