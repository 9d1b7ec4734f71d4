"""``collops info``: hardware and libraries of this machine, and what a run would use, with reasons."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from collops.cli.console import console
from collops.cli.job import with_world
from collops.cli.options import Debug, Json, Ranks, Transport

if TYPE_CHECKING:
    from rich.tree import Tree

    from collops.comm import Communicator


def info(*, ranks: Ranks = None, transport: Transport = "auto", as_json: Json = False, debug: Debug = False) -> None:
    """Show the MPI library, NCCL, NVSHMEM, devices and their links, and what a run would use and why."""

    def body(comm: Communicator) -> None:
        from collops.comm.hardware import facts

        found = facts(comm)
        if comm.rank != 0:
            return
        if as_json:
            typer.echo(json.dumps(found))
        else:
            console(to_stderr=False).print(_tree("collops", found))

    with_world("collops info", body, ranks=ranks, transport=transport, debug=debug)


def _tree(label: str, value: Any) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text(label, style="bold"))
    _add(tree, value)
    return tree


def _add(tree: Tree, value: Any) -> None:
    """Add the entries of a mapping or a list to `tree`; lists of plain values go into one line."""
    from rich.text import Text

    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in items:
        name = str(key).replace("_", " ")
        if isinstance(entry, (dict, list, tuple)) and entry:
            if not isinstance(entry, dict) and not any(isinstance(e, (dict, list, tuple)) for e in entry):
                tree.add(Text.assemble((f"{name}: ", "bold"), ", ".join(_plain(e) for e in entry)))
            else:
                _add(tree.add(Text(name, style="bold")), entry)
        else:
            tree.add(Text.assemble((f"{name}: ", "bold"), _plain(entry)))


def _plain(value: Any) -> str:
    if value is None or value in ({}, [], ()):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
