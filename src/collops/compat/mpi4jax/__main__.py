"""Run a script of mpi4jax unchanged: ``python -m collops.compat.mpi4jax script.py``.

``mpi4jax`` is this package, and ``jax.jit`` is :func:`collops.jax.jit`, which starts programs with collectives faster.
"""

from __future__ import annotations

import sys

import jax

import collops.compat.mpi4jax as package
import collops.jax
from collops.compat import run_script


def replace() -> None:
    """Let imports of ``mpi4jax`` find this package in this process, and let ``jax.jit`` start programs faster."""
    sys.modules["mpi4jax"] = package
    jax.jit = collops.jax.jit


if __name__ == "__main__":
    run_script(sys.argv[1:], package.__name__, replace)
