"""Functions of the array API standard that would need values of other ranks, with what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from collops.errors import UnsupportedTypeError

_INSTEAD = {
    "from_dlpack": "collops.from_local for the parts of the ranks, or collops.from_global for an array that all have",
    "isin": "comparisons, such as (x == 1) | (x == 2)",
    "meshgrid": "expand_dims of vectors, which functions of this namespace broadcast",
    "nonzero": "collops.where(x != 0, ...), or numpy.nonzero(x.gather())",
    "searchsorted": "numpy.searchsorted on x.local_array, or on x.gather()",
    "tensordot": "x.dot(y) for all axes, or collops.MatrixMult",
    "unique_all": "numpy.unique_all(x.gather())",
    "unique_counts": "numpy.unique_counts(x.gather())",
    "unique_inverse": "numpy.unique_inverse(x.gather())",
    "unique_values": "numpy.unique_values(x.gather())",
}


def _refused(name: str, instead: str) -> Callable[..., NoReturn]:
    def function(*args: object, **arguments: object) -> NoReturn:
        raise UnsupportedTypeError(
            f"{name} of the array API is not available for distributed arrays, whose values are on all ranks; "
            f"use {instead}"
        )

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Raise UnsupportedTypeError: use {instead}."
    return function


FUNCTIONS = {name: _refused(name, instead) for name, instead in _INSTEAD.items()}
