"""Scratch memory and one-dimensional transforms of one engine in one precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from collops.backend import Engine
from collops.operators.fourier.engines import transforms_for
from collops.operators.memory import Scratch, store

__all__ = ["Workspace"]


class Workspace:
    """Scratch arrays of at most `size` elements, and the transforms, of one engine in one precision.

    `dtype` is the complex type of the computation, and `threads` how many a transform on the host may use.
    """

    def __init__(self, engine: Engine, dtype: np.dtype, size: int, threads: int) -> None:
        self.complex = dtype
        self.real = np.dtype(f"f{dtype.itemsize // 2}")
        self.transforms = transforms_for(engine, threads)
        self.engine = engine
        self._threads = threads
        self._size = size
        self._scratch = Scratch()
        self._views: dict[tuple[str, tuple[int, ...], bool], Any] = {}

    def like(self, dtype: np.dtype, size: int) -> Workspace:
        """Return a workspace of the same engine for another precision and size."""
        return Workspace(self.engine, dtype, size, self._threads)

    def dtype(self, real: bool) -> np.dtype:
        """Return the type of real or of complex arrays."""
        return self.real if real else self.complex

    def take(self, slot: str, shape: tuple[int, ...], real: bool) -> Any:
        """Return a scratch array in the memory of its slot; ``None`` on an engine of immutable arrays."""
        key = (slot, shape, real)
        view = self._views.get(key)
        if view is None and self.engine.mutable:
            memory = self._scratch.get(slot, (self._size,), self.complex, self.engine)
            view = self._views[key] = memory.view(self.dtype(real))[: math.prod(shape)].reshape(shape)
        return view

    def converted(self, slot: str, array: Any, real: bool) -> Any:
        """Return an array in the type of the computation: itself, or a copy in a slot."""
        if array.dtype == self.dtype(real):
            return array
        memory = self.take(slot, array.shape, real)
        return array.astype(self.dtype(real)) if memory is None else store(array, memory)
