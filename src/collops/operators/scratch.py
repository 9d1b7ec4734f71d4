"""Scratch memory that an operator keeps for its local work, so that applying it again allocates nothing."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

__all__ = ["Scratch"]


class Scratch:
    """Local arrays by name, shape, dtype and engine.

    An array is never dropped: a recorded CUDA graph may still write to it.
    """

    __slots__ = ("_arrays",)

    def __init__(self) -> None:
        self._arrays: dict[Hashable, Any] = {}

    def get(self, slot: Hashable, shape: tuple[int, ...], dtype: Any, engine: Any) -> Any:
        """Return the array in `slot`, with whatever values were left in it; a new one where none may be kept."""
        key = (slot, shape, dtype, engine)
        array = self._arrays.get(key)
        if array is None:
            array = engine.xp.empty(shape, dtype)
            if engine.keeps:
                self._arrays[key] = array
        return array
