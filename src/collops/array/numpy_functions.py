"""NumPy functions applied to distributed arrays: the supported functions, and replacements for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, TypeAlias

import numpy as np

from collops.array.array_functions import argmax, argmin, clip, concatenate, std, transpose, var, where
from collops.array.operands import GlobalArray
from collops.errors import UnsupportedTypeError

Function: TypeAlias = Any

_AVAILABLE = frozenset(
    [
        "all",
        "amax",
        "amin",
        "any",
        "can_cast",
        "common_type",
        "imag",
        "iscomplexobj",
        "isneginf",
        "isposinf",
        "isreal",
        "isrealobj",
        "max",
        "mean",
        "min",
        "ndim",
        "real",
        "result_type",
        "shape",
        "size",
        "sum",
    ]
)
"""Functions that NumPy itself computes by methods and ufuncs of its argument."""

_FORMS = {form.__name__: form for form in (argmax, argmin, clip, concatenate, std, transpose, var, where)}
"""Functions that this package computes."""

_FFT = "collops.FFT, collops.FFT2D or collops.FFTND"
_INSTEAD: Mapping[str, str] = {
    "allclose": "(abs(x - y) <= atol + rtol * abs(y)).all()",
    "append": "collops.StackedArray([x, y])",
    "around": "numpy.rint(x)",
    "array_equal": "(x == y).all()",
    "array_equiv": "(x == y).all()",
    "astype": "x.astype(dtype)",
    "average": "x.mean(), or (weights * x).sum() / weights.sum()",
    "convolve": "collops.NonStationaryConvolve1D",
    "copy": "x.copy()",
    "copyto": "numpy.positive(y, out=x)",
    "count_nonzero": "x.norm(0)",
    "diff": "collops.FirstDerivative",
    "dot": "x.dot(y)",
    "empty_like": "collops.empty_like(x)",
    "expand_dims": "x.reshape(shape)",
    "full_like": "collops.array.full_like(x, value)",
    "gradient": "collops.Gradient",
    "hstack": "collops.StackedArray([x, y])",
    "inner": "x.dot(y)",
    "isclose": "abs(x - y) <= atol + rtol * abs(y)",
    "iscomplex": "x.imag != 0",
    "linalg.lstsq": "collops.cgls or collops.lsqr",
    "linalg.matmul": "collops.MatrixMult",
    "linalg.norm": "x.norm(), or x.norm(ord, axis)",
    "linalg.solve": "collops.cg, collops.minres or collops.gmres",
    "linalg.vecdot": "x.vdot(y)",
    "linalg.vector_norm": "x.norm(), or x.norm(ord, axis)",
    "moveaxis": "numpy.transpose(x, axes)",
    "nan_to_num": "collops.where(numpy.isfinite(x), x, 0)",
    "nansum": "collops.where(numpy.isnan(x), 0, x).sum()",
    "ones_like": "collops.array.ones_like(x)",
    "pad": "x.halo(widths), or collops.Identity for larger data",
    "ptp": "x.max() - x.min()",
    "ravel": "x.ravel()",
    "reshape": "x.reshape(shape)",
    "round": "numpy.rint(x)",
    "save": "collops.save(path, x)",
    "savez": "collops.save(path, x)",
    "squeeze": "x.reshape(shape)",
    "stack": "collops.StackedArray([x, y])",
    "swapaxes": "numpy.transpose(x, axes)",
    "take": "collops.Restriction or collops.IndexScatter",
    "tensordot": "x.dot(y) for all axes",
    "vdot": "x.vdot(y)",
    "vstack": "collops.StackedArray([x, y])",
    "zeros_like": "collops.zeros_like(x)",
}
"""The replacement for a function of NumPy."""

_host = np.empty(0)


def apply_function(array: GlobalArray, function: Function, args: Sequence[Any], arguments: Mapping[str, object]) -> Any:
    """Return the result of a function of NumPy for `array` and others.

    Raises UnsupportedTypeError, with the equivalent call of this package if there is one. NumPy would otherwise convert
    the array, and some of its functions would interpret the resulting error.
    """
    if function is np.fix:  # before NumPy 2.4 it converts its argument
        return np.trunc(*args, **arguments)
    name = f"{function.__module__}.{function.__name__}".removeprefix("numpy.")
    if name in _AVAILABLE:
        return _host.__array_function__(function, (), args, arguments)  # pyright: ignore[reportArgumentType]
    if name in _FORMS:
        form = _FORMS[name]
        try:
            signature(form).bind(*args, **arguments)
        except TypeError as error:
            raise UnsupportedTypeError(
                f"numpy.{name} of a distributed array takes {', '.join(signature(form).parameters)}: {error}; "
                "use it on x.gather() for the other arguments of NumPy"
            ) from None
        return form(*args, **arguments)
    instead = _INSTEAD.get(name, _FFT if name.startswith("fft.") else None)
    kind = type(array).__name__
    if instead is None:
        gathered = "x.gather()" if hasattr(array, "local_array") else "the arrays of x.gather()"
        instead = f"numpy.{name} on {gathered}, or on x.local_array for the part of this rank"
    raise UnsupportedTypeError(
        f"numpy.{name} is not available for a {kind}, whose values are on all ranks; use {instead}"
    )
