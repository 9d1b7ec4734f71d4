"""Coefficients of an operator that were given on the host, or on a device, and are needed where the vectors are."""

from __future__ import annotations

from typing import Any

from collops.backend import Engine, engine_of

__all__ = ["Coefficients"]


class Coefficients:
    """A constant array in the memory of every engine that asks for it, copied there when it first does.

    Parameters
    ----------
    array : array
        Of any engine; used where it lies by its own.
    """

    __slots__ = ("_given", "_own", "_there")

    def __init__(self, array: Any) -> None:
        self._given = array
        self._own = engine_of(array)
        self._there: dict[Engine, Any] = {self._own: array}

    def on(self, engine: Engine) -> Any:
        """Return the array in the memory of `engine`."""
        array = self._there.get(engine)
        if array is None:
            array = self._there[engine] = engine.from_host(self._own.to_host(self._given))
        return array
