"""Run a script with this package as ``pylops_mpi``: ``python -m collops.compat.pylops_mpi script.py``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import collops
import collops.compat.pylops_mpi as package

__all__ = ["main"]


def main(arguments: list[str]) -> None:
    """Run the script ``arguments[0]`` with the remaining arguments."""
    if not arguments:
        sys.exit("usage: python -m collops.compat.pylops_mpi script.py [arguments]")
    script = arguments[0]
    if not Path(script).exists():
        sys.exit(f"there is no script {script}")
    collops.world()  # from now on, an error on one rank ends all ranks
    package.install()
    sys.argv = list(arguments)
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
