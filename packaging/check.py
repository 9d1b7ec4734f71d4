"""Try the built distributions as a newcomer would, from an empty environment and without the checkout.

    python packaging/check.py [--jax VERSION] FOLDER

Installs the wheels in FOLDER and what they need, runs the demonstration, a first program and a compiled JAX program
on two ranks, uninstalls, and compares the environment with that before. Prints the seconds of each step.
Builds the source distributions without an index, if this Python has the packages of ``requirements.txt``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
FIRST_PROGRAM = """
import numpy as np
import collops
A = collops.FirstDerivative(1000)
x = collops.from_global(np.sin(np.linspace(0, 6, 1000)))
found = collops.cgls(A, A @ x, niter=2000, damp=1e-6)
assert np.abs((A @ found.x - A @ x).gather()).max() < 1e-6, found.status
assert collops.world().size == 2
if collops.world().rank == 0:
    print(found.status)
"""
ACROSS_RANKS = """
import jax
import jax.numpy as jnp
import collops.jax as cj
total = jax.jit(lambda x: cj.allreduce(x * 2))(jnp.ones(3))
assert total.tolist() == [4.0, 4.0, 4.0], total
"""


def main() -> None:
    """Walk through the steps; the first that fails ends the program."""
    parser = argparse.ArgumentParser(description="Try the built distributions in an empty environment.")
    parser.add_argument("folder", type=Path, help="where the distributions are")
    parser.add_argument("--jax", help="the version of JAX to install; by default the newest")
    options = parser.parse_args()
    wheels = options.folder.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        os.chdir(temporary)
        step("python -m venv env", sys.executable, "-m", "venv", "env")
        python = f"{temporary}/env/bin/python"
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        ENVIRONMENT["NUMBA_CACHE_DIR"] = f"{temporary}/numba"  # by default in `__pycache__`, where pip would leave it
        before = files_of("env")
        packages = {line.partition("==")[0] for line in output(*pip, "freeze").splitlines()}
        jax = [f"jax=={options.jax}", f"jaxlib=={options.jax}"] if options.jax else []
        step('pip install "collops[mpi,jax]"', *pip, "install", "--find-links", wheels, "collops[mpi,jax]", *jax)
        collops = f"{temporary}/env/bin/collops"
        step("collops info", collops, "info")
        for name, program in (("a first program", FIRST_PROGRAM), ("JAX across ranks", ACROSS_RANKS)):
            Path("program.py").write_text(program)
            step(f"{name} on 2 ranks", f"{temporary}/env/bin/mpiexec", "-n", "2", python, "program.py")
        step('pip install "collops[numba]"', *pip, "install", "--find-links", wheels, "collops[numba]")
        step("collops lsm --ranks 2", collops, "lsm", "--ranks", "2", "--out", "image")
        if not Path("image/image.png").is_file():
            raise SystemExit("the demonstration wrote no image")
        added = [line.partition("==")[0] for line in output(*pip, "freeze").splitlines()]
        step("pip uninstall", *pip, "uninstall", "--yes", *(name for name in added if name not in packages))
        remaining = sorted(files_of("env") - before)
        if remaining:
            raise SystemExit("these files are left after uninstalling:\n" + "\n".join(remaining[:20]))
        if all(importlib.util.find_spec(name) for name in ("hatchling", "setuptools", "jaxlib")):
            for archive in sorted(wheels.glob("*.tar.gz")):
                offline = ("--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", "rebuilt")
                command = [sys.executable, "-m", "pip", "wheel", "--quiet", *offline, archive]
                step(f"{archive.name} offline", "env", f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}", *command)


def step(name: str, *command: str | Path) -> None:
    """Run a command, and print its name and its seconds; end the program with its output if it fails."""
    begun = time.perf_counter()
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=ENVIRONMENT, check=False)
    print(f"{time.perf_counter() - begun:7.1f} s  {name}", flush=True)
    if done.returncode:
        written = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        raise SystemExit(f"{name} ended with exit code {done.returncode}:\n{written}")


def output(*command: str) -> str:
    """Return what a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True, env=ENVIRONMENT).stdout


def files_of(folder: str) -> set[str]:
    """Return the files of an environment, without the modules that Python compiles at run time."""
    return {str(path) for path in Path(folder).rglob("*") if path.is_file() and path.suffix != ".pyc"}


if __name__ == "__main__":
    main()
