"""Run a script with this package as ``pylops_mpi``: ``python -m collops.compat.pylops_mpi script.py``."""

from __future__ import annotations

import sys

import collops.compat.pylops_mpi as package
from collops.compat import run_script


def main(arguments: list[str]) -> None:
    """Run the script ``arguments[0]`` with the remaining arguments."""
    run_script(arguments, package.__name__, package.install)


if __name__ == "__main__":
    main(sys.argv[1:])
