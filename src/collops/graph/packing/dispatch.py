"""Find the moves of an engine, importing them when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from collops.backend import Engine
from collops.errors import UnsupportedTypeError

__all__ = ["packing_for"]

_MODULES = {
    "numpy": "collops.graph.packing.numpy_moves",
    "cupy": "collops.graph.packing.cupy_moves",
    "jax": "collops.graph.packing.jax_moves",
}


def packing_for(engine: Engine) -> Any:
    """Return the module of moves for `engine`.

    Raises
    ------
    UnsupportedTypeError
        If there is none.
    """
    if engine.name not in _MODULES:
        raise UnsupportedTypeError(f"star forests move arrays of numpy, cupy and jax, not of {engine.name}")
    return importlib.import_module(_MODULES[engine.name])
