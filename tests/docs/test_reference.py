"""The reference is whole: every public name is in it, says what it is, and has an example that runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import sys

import pytest

import collops
from tests.docs.pages import ROOT

pytestmark = pytest.mark.serial

sys.path.append(str(ROOT / "docs" / "_extensions"))
reference = importlib.import_module("reference")

# Public names that have no example yet. Nothing may be added.
WITHOUT_EXAMPLE: set[str] = set()
# Packages that are no interface for programs: the command line and what it starts, and what engines are made of.
INSIDE = ("collops.apps", "collops.cli", "collops.compat", "collops.jacobi")


def public() -> dict[str, object]:
    """Return every public class and function once, under the first name of the reference."""
    found: dict[int, tuple[str, object]] = {}
    for package, module in reference.public_packages().items():
        for name in reference.names_of(module):
            value = getattr(module, name)
            if not reference.is_data(value):
                found.setdefault(id(value), (f"{package}.{name}", value))
    return dict(found.values())


PUBLIC = public()


def test_every_package_is_in_the_reference():
    """A package that exports names is listed, or what it exports is exported by one that is."""
    listed = {id(getattr(module, name)) for module in reference.public_packages().values() for name in module.__all__}
    missing = []
    for found in pkgutil.iter_modules(collops.__path__, "collops."):
        if not found.ispkg or found.name in reference.PACKAGES or found.name in INSIDE:
            continue
        module = importlib.import_module(found.name)
        missing += [f"{found.name}.{n}" for n in getattr(module, "__all__", []) if id(getattr(module, n)) not in listed]
    assert missing == []


def test_every_name_of_collops_is_in_the_reference():
    listed = {id(value) for value in PUBLIC.values()}
    names = [name for name in collops.__all__ if not inspect.ismodule(getattr(collops, name)) and name != "__version__"]
    assert [name for name in names if id(getattr(collops, name)) not in listed] == []


def test_every_name_says_what_it_is():
    assert [name for name, value in PUBLIC.items() if not (inspect.getdoc(value) or "").strip()] == []


def example_of(name: str, value: object) -> str:
    """Return the docstring with the example: its own, or in collops.compat that of the native object it refers to."""
    doc = inspect.getdoc(value) or ""
    native = re.search(r"see\s+:\w+:`(collops[\w.]*)\.(\w+)`", doc)
    if ">>>" in doc or not native or not name.startswith("collops.compat."):
        return doc
    return inspect.getdoc(getattr(importlib.import_module(native[1]), native[2])) or ""


def test_every_name_has_an_example():
    """Except a class of errors without attributes of its own, whose name and bases are all that programs use."""

    def is_plain_error(value):
        return isinstance(value, type) and issubclass(value, Exception) and "__init__" not in vars(value)

    without = {name for name, value in PUBLIC.items() if ">>>" not in example_of(name, value)}
    assert {name for name in without if not is_plain_error(PUBLIC[name])} == WITHOUT_EXAMPLE


@pytest.mark.parametrize("name", PUBLIC)
def test_its_examples_run(name, tmp_path, monkeypatch):
    """Each by itself, with the imports that it shows; those of its methods as well."""
    if name.startswith("collops.jax."):
        pytest.importorskip("collops_native", reason="collops.jax needs its native library")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    value = inspect.unwrap(PUBLIC[name]) if callable(PUBLIC[name]) else PUBLIC[name]
    found = doctest.DocTestFinder(exclude_empty=True).find(value, name, module=False, globs={})
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    said: list[str] = []
    for test in found:
        runner.run(test, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)
    assert runner.tries > 0 or ">>>" not in (inspect.getdoc(value) or "")
