"""Find the kernels of an engine for the steps of sparse and proximal methods, importing them when first needed."""

from __future__ import annotations

import importlib
from typing import Any

from collops.backend import Engine
from collops.errors import UnsupportedTypeError

__all__ = ["step_kernels_for"]

_MODULES = {
    "numpy": "collops.solvers.kernels.numpy_steps",
    "cupy": "collops.solvers.kernels.cupy_steps",
    "jax": "collops.solvers.kernels.jax_steps",
}


def step_kernels_for(engine: Engine) -> Any:
    """Return the module of an engine with ``advance``, ``shrink``, ``group_shrink``, ``Selection`` and ``scratch``.

    Raises
    ------
    UnsupportedTypeError
        If there is none.
    """
    if engine.name not in _MODULES:
        raise UnsupportedTypeError(f"there are no kernels of sparse and proximal methods for the engine {engine.name}")
    return importlib.import_module(_MODULES[engine.name])
