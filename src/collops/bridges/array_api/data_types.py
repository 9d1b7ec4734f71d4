"""Data types of the array API standard: the types, conversions, and what an engine supports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from collops import DistributedArray
from collops.errors import InputError, UnsupportedTypeError
from collops.extend.engines import Engine

KINDS = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
KINDS["integral"] = (*KINDS["signed integer"], *KINDS["unsigned integer"])
KINDS["numeric"] = (*KINDS["integral"], *KINDS["real floating"], *KINDS["complex floating"])
DTYPES = {name: np.dtype(name) for name in (*KINDS["bool"], *KINDS["numeric"])}


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """Return an array converted to `dtype`. No messages."""
    if device is not None:
        raise UnsupportedTypeError("astype does not move an array to another device")
    return x.astype(dtype, copy=copy)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Return whether a dtype, or the dtype of an array, is cast to another one by the rules of promotion."""
    return np.can_cast(getattr(from_, "dtype", from_), to)


def finfo(type: Any, /) -> Any:
    """Return the limits of a floating type, or of the type of an array."""
    return np.finfo(getattr(type, "dtype", type))


def iinfo(type: Any, /) -> Any:
    """Return the limits of an integer type, or of the type of an array."""
    return np.iinfo(getattr(type, "dtype", type))


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return whether a dtype is of a kind, such as ``"real floating"``."""
    return np.isdtype(dtype, kind)


FUNCTIONS = {function.__name__: function for function in (astype, can_cast, finfo, iinfo, isdtype)}


@dataclass(frozen=True)
class Info:
    """What arrays of an engine support: the standard's inspection functions."""

    engine: Engine

    def capabilities(self) -> dict[str, Any]:
        """Return that indices are slices and integers, and shapes are known without messages."""
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": None}

    def default_device(self) -> Any:
        """Return the device of a new array of this rank."""
        return self.engine.xp.empty(0).device

    def devices(self) -> list[Any]:
        """Return the device of a new array of this rank, in a list."""
        return [self.default_device()]

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype]:
        """Return the dtypes of new arrays."""
        names = {"real floating": "float64", "complex floating": "complex128", "integral": "int64", "indexing": "int64"}
        return {kind: self.engine.dtype(name) for kind, name in names.items()}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, np.dtype]:
        """Return the dtypes of a kind, of several kinds, or all."""
        kinds = ("bool", "numeric") if kind is None else kind if isinstance(kind, tuple) else (kind,)
        if unknown := set(kinds) - set(KINDS):
            raise InputError(f"kind must be one of {', '.join(KINDS)}, not {', '.join(map(str, unknown))}")
        names = dict.fromkeys(name for kind in kinds for name in KINDS[kind])
        return {name: DTYPES[name] for name in names if self.engine.dtype(name) == DTYPES[name]}


def result_type(xp: Any, *arrays_and_dtypes: Any) -> np.dtype:
    """Return the dtype of a combination of arrays, numbers and dtypes, by the engine's rules of promotion."""
    types = [x.dtype if isinstance(x, DistributedArray) else x for x in arrays_and_dtypes]
    return np.dtype(xp.engine.xp.result_type(*types))
