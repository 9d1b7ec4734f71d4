"""The pages of the API reference, written from the packages' `__all__` so that nothing public is missing."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from itertools import pairwise
from pathlib import Path
from textwrap import indent
from types import GenericAlias, ModuleType
from typing import TYPE_CHECKING, Any

import collops

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# The public packages in the order in which a reader needs them.
PACKAGES = (
    "collops.array",
    "collops.operators",
    "collops.solvers",
    "collops.solvers.nonlinear",
    "collops.solvers.proximal",
    "collops.preconditioners",
    "collops.uncertainty",
    "collops.seismic",
    "collops.seismic.kirchhoff",
    "collops.seismic.survey",
    "collops.seismic.waves",
    "collops.comm",
    "collops.exchange",
    "collops.jax",
    "collops.bridges.scipy",
    "collops.bridges.array_api",
    "collops.bridges.torch",
    "collops.bridges.torch_distributed",
    "collops.bridges.sharding",
    "collops.bridges.sharded",
    "collops.bridges.lineax",
    "collops.bridges.petsc",
    "collops.bridges.chunked",
    "collops.profile",
    "collops.errors",
    "collops.backend",
    "collops.extend.applications",
    "collops.extend.exchanges",
    "collops.compat.pylops_mpi",
    "collops.compat.mpi4jax",
)


# What a package cannot be imported without.
NEEDS = {
    "collops.jax": ["jax"],
    "collops.bridges.lineax": ["lineax"],
    "collops.bridges.petsc": ["petsc4py"],
    "collops.bridges.sharded": ["jax"],
    "collops.bridges.sharding": ["jax"],
    "collops.bridges.torch": ["torch"],
    "collops.bridges.torch_distributed": ["torch"],
    "collops.compat.mpi4jax": ["jax", "mpi4py"],
}


def public_packages() -> dict[str, ModuleType]:
    """Return the packages of the reference, but for those whose optional dependency is not installed."""
    return {
        name: importlib.import_module(name)
        for name in PACKAGES
        if all(importlib.util.find_spec(need) is not None for need in NEEDS.get(name, ()))
    }


def names_of(package: ModuleType) -> list[str]:
    """Return the public names of a package that are no packages or modules themselves."""
    return sorted(n for n in package.__all__ if n != "__version__" and not inspect.ismodule(getattr(package, n)))


def is_data(value: object) -> bool:
    """Return whether a public value has no documentation of its own, being no class and no function."""
    return isinstance(value, tuple | dict | GenericAlias)


def _described(package: ModuleType, name: str) -> str:
    """Return the string below the assignment of a public value, from the package's sources."""
    for path in sorted(Path(str(package.__file__)).parent.rglob("*.py")):
        for before, after in pairwise(ast.parse(path.read_text("utf-8")).body):
            targets = before.targets if isinstance(before, ast.Assign) else [getattr(before, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets) and (
                isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            ):
                return inspect.cleandoc(str(after.value.value))
    raise LookupError(f"{package.__name__}.{name} is public and has no string that says what it is")


def _data(package: ModuleType, name: str) -> str:
    return f".. py:data:: {name}\n\n{indent(_described(package, name), '   ')}\n"


def _page(name: str, package: ModuleType) -> str:
    first, _, rest = (inspect.getdoc(package) or "").partition("\n")
    data = [public for public in names_of(package) if is_data(getattr(package, public))]
    return "\n".join(
        [
            f"{name}\n{'=' * len(name)}\n",
            f"{first}\n",
            *([rest.strip() + "\n"] if rest.strip() else []),
            f".. currentmodule:: {name}\n",
            f".. autosummary::\n   :toctree: {name}\n   :nosignatures:\n",
            *(f"   {public}" for public in names_of(package) if public not in data),
            "",
            *(_data(package, public) for public in data),
        ]
    )


def _top(packages: dict[str, ModuleType]) -> str:
    homes = {}
    for public in sorted(collops.__all__):
        value = getattr(collops, public)
        for name, package in packages.items():
            if not name.startswith("collops.compat") and getattr(package, public, None) is value:
                homes[public] = f"{name}.{public}"
                break
    return "\n".join(
        [
            "API reference\n=============\n",
            "What most programs need can be had from ``collops`` itself:\n",
            ", ".join(f":py:obj:`collops.{public} <{home}>`" for public, home in homes.items()) + ".\n",
            ".. toctree::\n   :maxdepth: 1\n",
            *(f"   {name}" for name in packages),
            "",
        ]
    )


def _write(path: Path, text: str) -> None:
    # A page that has not changed is not read again.
    if not path.exists() or path.read_text("utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def write_pages(app: Sphinx) -> None:
    """Write `reference/*.rst`."""
    packages = public_packages()
    folder = Path(app.srcdir) / "reference"
    _write(folder / "index.rst", _top(packages))
    for name, package in packages.items():
        _write(folder / f"{name}.rst", _page(name, package))


def _home(app: Sphinx, module: str, attribute: str) -> str | None:
    """Return the module whose source is linked for a public value, which says `builtins` for an alias of a type."""
    return module if is_data(getattr(importlib.import_module(module), attribute, None)) else None


# A link from source to documentation: the page of a name, and the anchor of the name or of a member.
_BACK_LINK = re.compile(r'(/([\w.]+\.(\w+))\.html)#[\w.]*?\.\3((?:\.\w+)*)"')


def _mend_back_links(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Take the anchors of links from source pages from the pages that they lead to.

    Viewcode knows one package for each module, but names of a module may be documented under several packages.
    """
    if page.startswith("_modules/"):
        context["body"] = _BACK_LINK.sub(r'\1#\2\4"', context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before the list of pages is made."""
    app.connect("viewcode-follow-imported", _home)
    app.connect("config-inited", lambda app, _: write_pages(app))
    app.connect("html-page-context", _mend_back_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
