"""The Python array API standard for distributed arrays, as far as it has a meaning across ranks.

``x.__array_namespace__()`` of a distributed array returns a :class:`Namespace`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np

from collops import Communicator
from collops.bridges.array_api import creation, data_types, elementwise, products, reductions, refused, shapes
from collops.errors import InputError
from collops.extend.communication import communicator_or_world
from collops.extend.engines import Engine
from collops.extend.engines import engine as find_engine

__all__ = ["VERSIONS", "Namespace", "namespace"]

VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")
"""Versions of the standard whose functions the namespace has, or raises an error for."""

_FUNCTIONS = {
    **data_types.FUNCTIONS,
    **elementwise.FUNCTIONS,
    **products.FUNCTIONS,
    **reductions.FUNCTIONS,
    **refused.FUNCTIONS,
    **shapes.FUNCTIONS,
}
_BOUND = {**creation.FUNCTIONS, "result_type": data_types.result_type}
_CONSTANTS = {"e": np.e, "inf": np.inf, "nan": np.nan, "newaxis": None, "pi": np.pi}
_EXTENSIONS = {
    "fft": "collops.FFT, collops.FFT2D or collops.FFTND",
    "linalg": "x.norm(), vecdot, collops.MatrixMult, and solvers such as collops.cg",
}


@dataclass(frozen=True, eq=True)
class Namespace:
    """Functions of the array API standard for arrays of one communicator and one engine.

    New arrays are split along axis 0, unless made like another one. Arrays without axes are 0-d arrays of the engine,
    equal on all ranks, as results of ``x.sum()`` are. Functions of several arrays broadcast, as Python's operators do,
    if no data need to move to other ranks. Functions that the standard has and that would need values of other ranks
    raise an UnsupportedTypeError, which names the replacement.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    engine : Engine
        The engine of new arrays.

    Examples
    --------
    >>> import collops
    >>> x = collops.ones((4, 3))
    >>> xp = x.__array_namespace__()
    >>> float(xp.sum(xp.subtract(x, xp.mean(x, axis=1, keepdims=True))))
    0.0
    """

    comm: Communicator
    engine: Engine

    __name__ = "collops"

    def __getattr__(self, name: str) -> Any:
        if name in _EXTENSIONS:
            raise AttributeError(f"collops has no extension {name} of the array API: use {_EXTENSIONS[name]}")
        if name in _BOUND:
            return MethodType(_BOUND[name], self)
        for table in (_FUNCTIONS, data_types.DTYPES, _CONSTANTS):
            if name in table:
                return table[name]
        raise AttributeError(f"the array API of collops has no name {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *_FUNCTIONS, *_BOUND, *data_types.DTYPES, *_CONSTANTS})

    def __array_namespace_info__(self) -> data_types.Info:
        """Return what arrays of the engine support."""
        return data_types.Info(self.engine)


def namespace(
    comm: Communicator | None = None, engine: Engine | str | None = None, *, api_version: str | None = None
) -> Namespace:
    """Return the functions of the array API standard for arrays of some ranks and an engine.

    Parameters
    ----------
    comm : Communicator, optional
        The ranks; the world by default.
    engine : str or Engine, optional
        The engine of new arrays, as for :func:`collops.zeros`.
    api_version : str, optional
        A version of the standard, one of `VERSIONS`.

    Raises
    ------
    InputError
        For an unknown version or engine.

    Examples
    --------
    >>> from collops.bridges.array_api import namespace
    >>> xp = namespace()
    >>> xp.linspace(0.0, 1.0, 5).gather()
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    if api_version not in (None, *VERSIONS):
        raise InputError(f"api_version must be one of {', '.join(VERSIONS)}, not {api_version!r}")
    return Namespace(communicator_or_world(comm), find_engine(engine))
