"""Interfaces of other packages, so that their programs run unchanged."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import collops

__all__ = ["run_script"]


def run_script(arguments: list[str], package: str, replace: Callable[[], None]) -> None:
    """Run the script ``arguments[0]`` with the remaining arguments, after `replace` has installed `package`."""
    if not arguments:
        sys.exit(f"usage: python -m {package} script.py [arguments]")
    script = arguments[0]
    if not Path(script).exists():
        sys.exit(f"there is no script {script}")
    collops.world()  # from now on, an error on one rank ends all ranks
    replace()
    sys.argv = list(arguments)
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")
