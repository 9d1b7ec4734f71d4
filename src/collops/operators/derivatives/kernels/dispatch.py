"""Find the kernel of an engine for one set of bands, importing it when it is first needed."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from collops.backend import Engine
from collops.errors import UnsupportedTypeError
from collops.operators.derivatives.bands import LocalBand
from collops.operators.derivatives.faces import Face

__all__ = ["Several", "Term", "kernel_for"]

_MODULES = {
    "numpy": "collops.operators.derivatives.kernels.array_kernels",
    "cupy": "collops.operators.derivatives.kernels.cupy_kernels",
    "jax": "collops.operators.derivatives.kernels.jax_kernels",
}


class Several(Enum):
    """Which arrays there is one of for each term: otherwise all terms share one."""

    NONE = 0
    SOURCES = 1
    TARGETS = 2


class Term(NamedTuple):
    """A product with a band along one axis.

    Attributes
    ----------
    axis : int
    band : LocalBand
        Its rows of this rank.
    before, after : Face or None
        Where the planes on either side of the block land.
    """

    axis: int
    band: LocalBand
    before: Face | None
    after: Face | None


def kernel_for(
    engine: Engine, shape: tuple[int, ...], terms: Sequence[Term], several: Several, dtype: Any, add: bool = False
) -> Any:
    """Return the kernel that applies `terms` to local arrays of `shape` and `dtype`, and may `add` to its only target.

    Raises
    ------
    UnsupportedTypeError
        If the engine has none.
    """
    if engine.name not in _MODULES:
        raise UnsupportedTypeError(f"there are no derivatives for the engine {engine.name} yet")
    return importlib.import_module(_MODULES[engine.name]).make_kernel(shape, terms, several, dtype, engine, add)
