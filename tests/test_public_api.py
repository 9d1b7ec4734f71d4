"""The public interface against tests/public_api.txt: no name, parameter or option goes without an announcement.

``python -m tests.test_public_api`` writes the file. Announce a removed or changed line in CHANGELOG.md; it
must have been deprecated for a release (docs/versions.md).
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from enum import Enum
from pathlib import Path
from typing import Any, get_origin

import pytest
import typer

import collops
import collops.extend
from collops.cli.main import application

SNAPSHOT = Path(__file__).with_name("public_api.txt")
MODULES = [
    "collops",
    *(
        f"collops.{name}"
        for name in ("array", "comm", "exchange", "operators", "preconditioners", "profile", "solvers")
    ),
    *(f"collops.{name}" for name in ("uncertainty", "jax", "seismic", "jacobi", "compat.pylops_mpi", "compat.mpi4jax")),
    "collops.bridges.array_api",
    "collops.bridges.chunked",
    "collops.bridges.scipy",
    "collops.bridges.sharded",
    "collops.bridges.sharding",
    *(f"collops.extend.{module.name}" for module in pkgutil.iter_modules(collops.extend.__path__)),
]


def interface() -> list[str]:
    """Return a line for each public name, method and option of a command."""
    lines = []
    for module in MODULES:
        namespace = importlib.import_module(module)
        names = getattr(namespace, "__all__", None) or [name for name in vars(namespace) if not name.startswith("_")]
        for name in names:
            value = getattr(namespace, name)
            if name != "annotations" and not inspect.ismodule(value):
                lines += described(f"{module}.{name}", value, module)
    return sorted({*lines, *options()})


def described(name: str, value: object, module: str) -> list[str]:
    """Return the lines of an object: of a class also those of the methods that it defines or inherits from collops."""
    if not callable(value):
        return [name]
    lines = [name + parameters(value)]
    if inspect.isclass(value) and value.__module__.startswith("collops") and not module.startswith("collops.extend"):
        for attribute, member in inspect.getmembers(value):
            owner = next((base for base in value.__mro__ if attribute in vars(base)), None)
            if not attribute.startswith("_") and owner is not None and owner.__module__.startswith("collops"):
                lines.append(f"{name}.{attribute}" + (parameters(member) if callable(member) else ""))
    return lines


def parameters(value: object) -> str:
    """Return the names and kinds of parameters, with ``=`` where there is a default."""
    value = get_origin(value) or value
    if inspect.isclass(value) and issubclass(value, Enum | tuple) and not hasattr(value, "_fields"):
        return ""  # Python's own constructors, which differ between its versions
    try:
        signature = inspect.signature(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return ""
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    texts, keywords = [], False
    for one in signature.parameters.values():
        if one.kind == inspect.Parameter.KEYWORD_ONLY and not keywords:
            texts.append("*")
        keywords |= one.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL)
        default = "" if one.default is inspect.Parameter.empty else "="
        texts.append(f"{marks.get(one.kind, '')}{one.name}{default}")
    return f"({', '.join(texts)})"


def options() -> list[str]:
    """Return a line for each option and argument of the command line."""
    lines = []

    def walk(command: Any, name: str) -> None:
        for parameter in command.params:
            lines.append(f"{name} {'/'.join([*parameter.opts, *parameter.secondary_opts])}")
        for child in getattr(command, "commands", ()):
            if child == "bench":  # a distribution for developers, without promises
                continue
            walk(command.get_command(None, child), f"{name} {child}")

    walk(typer.main.get_command(application()), "collops")
    return lines


@pytest.mark.serial
def test_nothing_public_changes_without_an_announcement():
    stored, now = SNAPSHOT.read_text("utf-8").splitlines(), interface()
    gone, new = sorted(set(stored) - set(now)), sorted(set(now) - set(stored))
    assert not gone and not new, (
        "the public interface has changed: announce it in CHANGELOG.md, and run python -m tests.test_public_api\n"
        + "\n".join([*(f"- {line}" for line in gone), *(f"+ {line}" for line in new)])
    )


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(interface()) + "\n", "utf-8")
