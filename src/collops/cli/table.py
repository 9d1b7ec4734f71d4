"""The table of commands and their summaries, without importing the commands.

A command is an entry point in the group ``collops.commands``. Its summary is the first paragraph of its help, read from
the source code, since importing the module of a command may take a second.
"""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint, entry_points

_GROUP = "collops.commands"
_OWN = {"solve": "collops.apps.solve", "info": "collops.cli.info:info"}


@cache
def commands() -> dict[str, EntryPoint]:
    """Return the commands of collops and of all installed distributions."""
    builtin = {name: EntryPoint(name, value, _GROUP) for name, value in _OWN.items()}
    return builtin | {entry.name: entry for entry in sorted(entry_points(group=_GROUP)) if entry.name not in builtin}


def guests() -> dict[str, str]:
    """Return the versions of other distributions that have commands, by name."""
    versions = {entry.dist.name: entry.dist.version for entry in commands().values() if entry.dist is not None}
    return {name: version for name, version in sorted(versions.items()) if name != "collops"}


def owner_of(command: str) -> str:
    """Return the distribution of a command such as ``"collops lsm"``, with its version unless it is collops."""
    entry = commands().get(command.removeprefix("collops ").partition(" ")[0])
    dist = None if entry is None else entry.dist
    return "collops" if dist is None or dist.name == "collops" else f"{dist.name} {dist.version}"


def summary_of(entry: EntryPoint) -> str:
    """Return the first paragraph of a command's help: the docstring of ``run``, or of the named function."""
    module, _, name = entry.value.partition(":")
    try:
        text = _help_in(module, name or "run")
    except (SyntaxError, UnicodeDecodeError):
        return f"The source of {module} cannot be read."
    return " ".join((text or "").split("\n\n")[0].split())


def _help_in(module: str, name: str) -> str | None:
    """Return the docstring of a function in a module, or the argument ``help`` of the call that makes an object."""
    spec = _spec_of(module)
    source = None if spec is None else getattr(spec.loader, "get_source", lambda name: None)(module)
    if spec is None or source is None:
        return f"The module {module} is missing: install its distribution again."
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                texts = [word.value for word in node.value.keywords if word.arg == "help"]
                return next((str(text.value) for text in texts if isinstance(text, ast.Constant)), None)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    package = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
                    home = "." * node.level + (node.module or "")
                    return _help_in(importlib.util.resolve_name(home, package), alias.name)
    return None


def _spec_of(module: str) -> ModuleSpec | None:
    """Return the specification of a module; unlike `importlib.util.find_spec`, do not import its parents."""
    top, *children = module.split(".")
    spec = importlib.util.find_spec(top)
    for part in children:
        if spec is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    return spec
