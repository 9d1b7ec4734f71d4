"""Coefficients of linear combinations of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.errors import UnsupportedTypeError

__all__ = ["Finite", "as_number"]

_NUMBERS = (float, complex, int, np.number, np.bool_)


class Finite(tuple):
    """A coefficient of :func:`collops.array.axpby`, given as a pair or triple, that is 0 if its value is not finite.

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


def as_number(coefficient: Any) -> Any:
    """Return a coefficient on the host as a number.

    Raises
    ------
    UnsupportedTypeError
        For lists and arrays with axes, which would fit the parts of some ranks only.
    """
    if isinstance(coefficient, _NUMBERS) or getattr(coefficient, "shape", None) == ():
        item = getattr(coefficient, "item", None)
        return coefficient if item is None else item()
    raise UnsupportedTypeError(
        f"a coefficient of a distributed array must be a number or an array without axes, not {coefficient!r:.60}"
    )
