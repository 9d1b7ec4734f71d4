"""Coefficients of vectors that leave their vector out where they are not finite."""

from __future__ import annotations

__all__ = ["Finite"]


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
