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
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["cached_njit"]


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
    """Return a digest of the options, and of what the function uses of its module that is not text of its own file."""
    parts = [repr(sorted(options.items()))]
    for name in sorted(function.__code__.co_names):
        value = function.__globals__.get(name)
        if value is None or isinstance(value, ModuleType | type):
            continue
        module = value.__module__ if hasattr(value, "__qualname__") else None  # the module of a function
        if module is None:
            parts.append(f"{name}={value!r}")
        elif not module.startswith("numba."):
            # The name of a function with machine code on disk contains its own digest.
            parts.append(f"{value.__qualname__} {'' if module == function.__module__ else _digest_of_file(module)}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


@cache
def _digest_of_file(module: str) -> str:
    file = getattr(sys.modules[module], "__file__", None)
    return "" if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
