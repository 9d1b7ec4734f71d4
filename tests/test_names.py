"""Packages and names of collops as attributes, without an import of their own."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import collops

PACKAGES = {found.name for found in pkgutil.iter_modules(collops.__path__)} - {"__main__", "graph"}  # deprecated


def run(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.serial
@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_packages_are_attributes(package):
    if package == "jax":
        pytest.importorskip("jax", reason="JAX is not installed")
    assert run(f"import collops; print(collops.{package}.__name__)") == [f"collops.{package}"]


@pytest.mark.serial
def test_nothing_is_loaded_before_it_is_used():
    loaded = run("import sys, collops; dir(collops); print(*sys.modules)")
    assert not {"scipy", "pylops", "jax", "cupy", "mpi4py", "collops.array", "collops.comm"} & set(loaded)


@pytest.mark.serial
def test_a_package_without_what_it_needs_is_no_attribute():
    program = """
import sys
sys.modules["jax"] = None
import collops
assert not hasattr(collops, "jax")
try:
    collops.jax
except AttributeError as error:
    print(error)
"""
    assert " ".join(run(program)) == "collops.jax needs the package jax, which is not installed"


def test_dir():
    assert PACKAGES | set(collops.__all__) <= set(dir(collops))
    with pytest.raises(AttributeError, match="no attribute 'solver'"):
        _ = collops.solver
