"""Coefficients of vectors: what may be one, and those that leave their vector out where they are not finite."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.errors import UnsupportedTypeError

__all__ = ["Finite", "as_number"]

_NUMBERS = (float, complex, int, np.number, np.bool_)


class Finite(tuple):
    """A pair or triple such as :func:`collops.array.axpby` takes, which counts as 0 where its value is not finite.

    The array that it multiplies then takes no part, whatever that holds: a sum keeps the value that it had.

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
    """Return a coefficient of the host as a number.

    Raises
    ------
    UnsupportedTypeError
        If it is none: a list or an array with axes would fit some ranks' parts and not others'.
    """
    if isinstance(coefficient, _NUMBERS) or getattr(coefficient, "shape", None) == ():
        item = getattr(coefficient, "item", None)
        return coefficient if item is None else item()
    raise UnsupportedTypeError(
        f"a coefficient of a distributed array is a number or an array without axes, not {coefficient!r:.60}"
    )
