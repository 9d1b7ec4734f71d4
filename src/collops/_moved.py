"""Import paths from before the guests moved out of the core: each names the same module object as the new one."""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_SEISMIC = ("conditioning", "lsm", "mdd", "poststack", "reflectivity", "segy", "signals", "survey", "volume")
_NEW = {
    "collops.apps.jacobi": "collops.jacobi",
    "collops.operators.kirchhoff": "collops.seismic.kirchhoff",
    **{f"collops.apps.{name}": f"collops.seismic.{name}" for name in _SEISMIC},
}


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return the specification of a module that has moved, or ``None``."""
        old = ".".join(fullname.split(".")[:3])
        return ModuleSpec(fullname, _Alias(_NEW[old] + fullname[len(old) :])) if old in _NEW else None


class _Alias(Loader):
    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module under its new name."""
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own specification back, which the import machinery has replaced."""
        module.__spec__ = self._spec


sys.meta_path.append(_Finder())  # after all others, so that it sees only names that they do not find
