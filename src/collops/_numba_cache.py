"""Machine code of Numba on disk that also depends on what functions use from other files, and on their options.

Numba compiles a function again if its own file changes. It does not notice other options of the decorator, another
value of an imported constant, or another text of a function of another file that is called or inlined (0.68.1): an
upgraded package could run stale machine code. Here the name of the file of machine code contains a digest of them.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

__all__ = ["cached_njit"]

# Packages whose functions Numba replaces by its own, or whose version it notices.
_UNCHANGED = {"llvmlite", "numba", "numpy", *sys.stdlib_module_names}


def cached_njit(**options: Any) -> Callable[[FunctionType], Any]:
    """Return a decorator like ``numba.njit(cache=True, ...)``, with the digest in the name of the function.

    Functions have no cache on disk if Numba has no writable folder.
    """
    from numba import njit

    def decorate(function: FunctionType) -> Any:
        function.__qualname__ += f"_{_digest(function, options)}"  # a part of the name of the file
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # Numba finds no such folder
            return njit(**options)(function)

    return decorate


def _digest(function: FunctionType, options: dict[str, Any]) -> str:
    """Return a digest of the options, and of what the function uses that is not text of its own file."""
    parts = [f"{key}={sorted(value) if isinstance(value, set) else value!r}" for key, value in sorted(options.items())]
    parts += _used_by(function, function.__module__, {function})
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _used_by(function: FunctionType, own_module: str, seen: set[Any]) -> list[str]:
    """Return texts that change with what a function uses of its module, directly or in the functions that it calls."""
    names, parts = _names(function.__code__) | _names_below(function), []
    for name in sorted(names):
        parts += _described(name, function.__globals__.get(name), own_module, names, seen)
    return parts


def _names(code: CodeType) -> set[str]:
    """Return the names that a function and the functions within it use, of variables and attributes."""
    within = [part for part in code.co_consts if isinstance(part, CodeType)]
    return set(code.co_names).union(*map(_names, within))


def _names_below(function: FunctionType) -> set[str]:
    """Return the names that functions of the same file use which this one calls, and which are not defined yet."""
    spec = getattr(sys.modules.get(function.__module__), "__spec__", None)
    if spec is None or not hasattr(spec.loader, "get_code"):
        return set()
    below = {part.co_name: part for part in spec.loader.get_code(spec.name).co_consts if isinstance(part, CodeType)}
    found: set[str] = set()
    new = _names(function.__code__)
    while new := {name for name in new & below.keys() if name not in function.__globals__}:
        new = set().union(*(_names(below.pop(name)) for name in new))
        found |= new
    return found


def _described(name: str, value: Any, own_module: str, names: set[str], seen: set[Any]) -> list[str]:
    """Return texts that change with a value that a function uses; of a module, with its attributes in `names`."""
    if value is None or isinstance(value, type):
        return []
    if isinstance(value, np.ndarray):  # whose text leaves numbers out
        return [f"{name}={value.dtype.str}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"]
    if isinstance(value, ModuleType):
        if value.__name__.partition(".")[0] in _UNCHANGED:
            return []
        texts: list[str] = []
        for each in sorted(names & vars(value).keys()):
            # Without the name itself, as modules may refer to each other.
            texts += _described(f"{name}.{each}", vars(value)[each], own_module, names - {each}, seen)
        return texts
    module = value.__module__ if hasattr(value, "__qualname__") else None  # the module of a function
    if module is None:
        # By default the text of an object has its address.
        return [f"{name}={type(value) if type(value).__repr__ is object.__repr__ else value!r}"]
    if module.partition(".")[0] in _UNCHANGED:
        return []
    # Numba's functions and intrinsics wrap a function of Python.
    function = value if isinstance(value, FunctionType) else getattr(value, "__wrapped__", value)
    if not isinstance(function, FunctionType) or function in seen:
        return []
    seen.add(function)
    # The name of a function with machine code on disk contains its own digest.
    of_file = "" if module == own_module else _digest_of_file(module)
    return [f"{value.__qualname__} {of_file}", *_used_by(function, own_module, seen)]


@cache
def _digest_of_file(module: str) -> str:
    file = getattr(sys.modules[module], "__file__", None)
    return "" if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
