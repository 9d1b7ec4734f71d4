"""Run a script with the name ``pylops_mpi`` meaning this package: ``python -m collops.compat.pylops_mpi script.py``."""

from __future__ import annotations

import importlib
import pkgutil
import runpy
import sys
from pathlib import Path

import collops
import collops.compat.pylops_mpi as package

__all__ = ["main", "replace"]


def replace() -> None:
    """Let ``import pylops_mpi``, and imports of and from its modules, find the modules here, in this process."""
    names = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
    for name in [package.__name__, *(name for name in names if not name.endswith("__main__"))]:
        # What is in sys.modules is not imported again, so that PyLops-MPI's classes that are named like modules stay.
        alias = "pylops_mpi" + name.removeprefix(package.__name__)
        sys.modules[alias] = importlib.import_module(name)


def main(arguments: list[str]) -> None:
    """Run the script ``arguments[0]`` with the rest as its arguments."""
    if not arguments:
        sys.exit("usage: python -m collops.compat.pylops_mpi script.py [arguments]")
    script = arguments[0]
    if not Path(script).exists():
        sys.exit(f"there is no script {script}")
    collops.world()  # from here on, an error on one rank ends all of them
    replace()
    sys.argv = list(arguments)
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
