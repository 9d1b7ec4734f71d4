"""Compile the CUDA sources of this folder when they are first used."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["kernel"]


@cache
def kernel(source: str, name: str) -> Any:
    """Return the kernel `name` of the file `source`, to be called with grid, block and arguments."""
    return _module(source).get_function(name)


@cache
def _module(source: str) -> Any:
    import cupy

    return cupy.RawModule(code=Path(__file__).with_name(source).read_text(), options=("-std=c++17",))
