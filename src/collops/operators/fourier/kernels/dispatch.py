"""Find the transforms of an engine, importing them when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from collops.backend import Engine
from collops.errors import UnsupportedTypeError

__all__ = ["transforms_for"]

_MODULES = {
    "numpy": "collops.operators.fourier.kernels.numpy_kernels",
    "cupy": "collops.operators.fourier.kernels.cupy_kernels",
    "jax": "collops.operators.fourier.kernels.jax_kernels",
}


def transforms_for(engine: Engine, threads: int) -> Any:
    """Return transforms of arrays of `engine`, with what they keep from call to call.

    Parameters
    ----------
    engine : Engine
        Of the arrays.
    threads : int
        That a transform on the host may use.

    Raises
    ------
    UnsupportedTypeError
        If there are none.
    """
    if engine.name not in _MODULES:
        raise UnsupportedTypeError(f"there are no Fourier transforms for the engine {engine.name} yet")
    return importlib.import_module(_MODULES[engine.name]).Transforms(threads)
