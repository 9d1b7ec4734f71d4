"""Find the kernels of an engine, importing them when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from collops.backend import Engine
from collops.errors import UnsupportedTypeError

__all__ = ["kernels_for"]

_MODULES = {
    "numpy": "collops.array.kernels.numpy_kernels",
    "cupy": "collops.array.kernels.cupy_kernels",
    "jax": "collops.array.kernels.jax_kernels",
}
_loaded: dict[Engine, Any] = {}


def kernels_for(engine: Engine) -> Any:
    """Return the module of kernels for `engine`.

    Raises
    ------
    UnsupportedTypeError
        If there are none.
    """
    try:
        return _loaded[engine]
    except KeyError:
        pass
    if engine.name not in _MODULES:
        raise UnsupportedTypeError(f"there are no fused vector kernels for the engine {engine.name} yet")
    return _loaded.setdefault(engine, importlib.import_module(_MODULES[engine.name]))
