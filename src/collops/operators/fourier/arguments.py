"""What users give to make a Fourier operator, checked and brought to one entry an axis."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from collops.array import Layout
from collops.array.dtypes import real_of
from collops.array.layout_arguments import normal_axis
from collops.errors import InputError, LayoutError, UnsupportedTypeError

__all__ = ["AxisArguments", "axis_arguments", "data_dtype"]

_NORMS = ("ortho", "none", "1/n")


class AxisArguments(NamedTuple):
    """What is asked for along one axis."""

    axis: int
    length: int
    sampling: float
    shift_before: bool
    shift_after: bool


def axis_arguments(
    domain: Layout, axes: Any, nffts: Any, sampling: Any, norm: str, ifftshift_before: Any, fftshift_after: Any
) -> list[AxisArguments]:
    """Return what is asked for along each axis, in the order in which the axes are given.

    Raises
    ------
    LayoutError
        If an axis does not exist, is named twice, or has no elements.
    InputError
        If an argument has neither one value nor one for each axis, or a value is none of those that are allowed.
    """
    if norm not in _NORMS:
        raise InputError(f"norm must be 'ortho', 'none' or '1/n', not {norm!r}")
    numbers = [normal_axis(axis, domain.ndim) for axis in np.atleast_1d(axes).tolist()]
    if not numbers or len(set(numbers)) != len(numbers):
        raise LayoutError(f"a Fourier transform needs axes that differ from each other, not {axes!r}")
    if any(domain.shape[axis] == 0 for axis in numbers):
        raise LayoutError(f"an array of shape {domain.shape} has nothing to transform along the axes {axes!r}")
    columns = [
        _one_each("nffts", nffts, len(numbers)),
        _one_each("sampling", sampling, len(numbers)),
        _one_each("ifftshift_before", ifftshift_before, len(numbers)),
        _one_each("fftshift_after", fftshift_after, len(numbers)),
    ]
    return [
        AxisArguments(
            axis, domain.shape[axis] if length is None else _length(length), _step(step), bool(before), bool(after)
        )
        for axis, length, step, before, after in zip(numbers, *columns, strict=True)
    ]


def data_dtype(dtype: Any) -> tuple[np.dtype, np.dtype]:
    """Return the real and the complex type that belong to the dtype of a model.

    Raises
    ------
    UnsupportedTypeError
        If it is no real or complex floating type.
    """
    kind = np.dtype(dtype)
    if kind.kind not in "fc":
        raise UnsupportedTypeError(f"Fourier transforms work on real and complex numbers, not on {kind}")
    return real_of(kind), np.result_type(kind, np.complex64)


def _one_each(name: str, value: Any, count: int) -> Sequence[Any]:
    if value is None or np.ndim(value) == 0:
        return [value] * count
    values = list(value)
    if len(values) != count:
        raise InputError(f"{name} must be one value, or one for each of {count} axes, not {value!r}")
    return values


def _step(value: Any) -> float:
    step = float(value)
    if step == 0 or not np.isfinite(step):
        raise InputError(f"a sampling is a finite number other than 0, not {value!r}")
    return step


def _length(value: Any) -> int:
    try:
        length = operator.index(value)
    except TypeError:
        length = 0
    if length < 1:
        raise InputError(f"a transform has a length of at least 1, not {value!r}")
    return length
