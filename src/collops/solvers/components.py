"""The components of a method's options: what functions and schedules of step sizes consist of."""

from __future__ import annotations

import dataclasses
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from collops.operators import LinearOperator

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def components(owner: Any) -> dict[str, Any]:
    """Return the attributes of a function or of a schedule of step sizes that define it.

    These are numbers and functions, and in the functions of this package arrays, operators and functions of Python too,
    but not the attributes that calls change, nor those that follow from others.
    """
    return {name: value for name, value in getattr(owner, "__dict__", {}).items() if _is_component(owner, name, value)}


def numbers_of_option(value: object) -> Any:
    """Return the numbers and words of an option of a method, also those in its components, in a form for JSON.

    NumPy arrays, which are options such as step sizes, are lists. The result is ``None`` for distributed arrays,
    operators, functions of Python, and for objects of other packages, which may differ between ranks.
    """
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [numbers_of_option(part) for part in value]
    if _is_own_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif _is_proximal(value):
        parts = components(value)
    else:
        return None
    return {"type": type(value).__name__, **{name: numbers_of_option(part) for name, part in parts.items()}}


def _is_component(owner: Any, name: str, value: object) -> bool:
    if isinstance(value, float | list) or _is_proximal(value):
        return True
    if not _is_proximal(owner) or name == "capturable" or name in getattr(owner, "_remembered", dict)():
        return False
    follows = isinstance(getattr(type(owner), name, None), cached_property)
    is_number_or_array = isinstance(value, int | tuple | LinearOperator) or hasattr(value, "leaves")
    return not follows and (is_number_or_array or _is_function(value))


def _is_function(value: Any) -> bool:
    """Return whether an object is a function of Python, and not a proximal operator of another package."""
    return callable(value) and not hasattr(value, "prox") and not hasattr(value, "proxdual")


def _is_own_dataclass(value: object) -> TypeGuard[DataclassInstance]:
    """Return whether an object, not a class, is of a dataclass of this package."""
    is_own = type(value).__module__.partition(".")[0] == "collops"
    return is_own and dataclasses.is_dataclass(value) and not isinstance(value, type)


def _is_proximal(value: object) -> bool:
    return type(value).__module__.startswith("collops.solvers.proximal")
