"""Coefficients of linear combinations: numbers, quotients computed by kernels, and those that are 0 unless finite."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from collops.backend import engine_of
from collops.errors import UnsupportedTypeError

__all__ = ["Coefficient", "Finite", "Scalar", "as_number"]

Coefficient: TypeAlias = Any
"""A factor of an array: a number, a 0-d array of an engine, a :class:`Quotient` or a :class:`Finite`."""

Scalar: TypeAlias = Any
"""A number, or a 0-d array of an engine, which may be on a device or a tracer of JAX."""

_HOST = (float, np.floating, np.ndarray)
_NUMBERS = (float, complex, int, np.number, np.bool_)


class Finite(tuple):
    """A coefficient of :func:`collops.array.axpby`, a pair or triple, that is 0 if its value is not finite.

    The array that it multiplies then does not contribute, not even NaN.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.array import Finite
    >>> x = collops.ones(2)
    >>> collops.axpby(1, x, Finite((1.0, np.array(0.0))), x).gather()
    array([1., 1.])
    """

    __slots__ = ()


class Quotient(tuple):
    """The triple ``(factor, a, b)``, which stands for ``factor * a / b``; made by :func:`quotient`."""

    __slots__ = ()

    def __neg__(self) -> Quotient:
        factor, a, b = self
        return Quotient((-factor, a, b))


def quotient(a: Scalar, b: Scalar) -> Coefficient:
    """Return the coefficient ``a / b``: 0 where `b` is 0, and NaN where `b` is infinite.

    It is a number if both scalars are on the host. Otherwise the kernels of :func:`collops.array.axpby` divide, so that
    the division needs no separate launch.

    Parameters
    ----------
    a, b : 0-d array
        Real, of one engine.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.array import quotient
    >>> alpha = quotient(np.array(6.0), np.array(4.0))
    >>> collops.axpby(-alpha, collops.ones(2), 0.0, collops.ones(2)).gather()
    array([-1.5, -1.5])
    """
    if not isinstance(a, _HOST):
        return Quotient((1.0, a, b))
    divisor = float(b)
    if divisor == 0:
        return 0.0
    return math.nan if math.isinf(divisor) else float(a) / divisor


def finite(coefficient: Coefficient) -> Coefficient:
    """Return a coefficient of :func:`quotient` that is 0 if it is not finite, like a :class:`Finite`.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.array import finite, quotient
    >>> finite(quotient(np.array(1.0), np.array(np.inf)))
    0.0
    """
    if coefficient.__class__ is float:
        return coefficient if math.isfinite(coefficient) else 0.0
    return Finite(coefficient)


def as_number(coefficient: Scalar) -> Scalar:
    """Return a coefficient on the host as a number; raise for lists and arrays, whose shape fits on some ranks only."""
    if isinstance(coefficient, _NUMBERS) or getattr(coefficient, "shape", None) == ():
        if not isinstance(coefficient, _NUMBERS):
            engine_of(coefficient)  # raises for scalars of other packages
        item = getattr(coefficient, "item", None)
        return coefficient if item is None else item()
    raise UnsupportedTypeError(
        f"a coefficient of a distributed array must be a number or an array without axes, not {coefficient!r:.60}"
    )
