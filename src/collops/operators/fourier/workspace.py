"""What transforms on one engine and in one precision work with: memory that is kept, and the transforms themselves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from collops.backend import Engine
from collops.operators.fourier.kernels import transforms_for
from collops.operators.scratch import Scratch

__all__ = ["Workspace"]


class Workspace:
    """Scratch arrays and transforms.

    Parameters
    ----------
    engine : Engine
        Where the arrays lie.
    dtype : numpy.dtype
        Complex type in which is computed.
    size : int
        Most elements of a scratch array.
    threads : int
        That transforms on the host may use.

    Attributes
    ----------
    complex, real : numpy.dtype
        The types in which is computed.
    xp : module
        Array namespace.
    transforms : Transforms
        Of the engine.
    """

    __slots__ = ("_engine", "_scratch", "_size", "_threads", "_views", "complex", "real", "transforms", "xp")

    def __init__(self, engine: Engine, dtype: np.dtype, size: int, threads: int) -> None:
        self.complex = dtype
        self.real = np.dtype(f"f{dtype.itemsize // 2}")
        self.xp = engine.xp
        self.transforms = transforms_for(engine, threads)
        self._engine = engine
        self._threads = threads
        self._size = size
        self._scratch = Scratch()
        self._views: dict[tuple[str, tuple[int, ...], bool], Any] = {}

    def like(self, dtype: np.dtype, size: int) -> Workspace:
        """Return another one of the same engine, for another precision and size."""
        return Workspace(self._engine, dtype, size, self._threads)

    def take(self, slot: str, shape: tuple[int, ...], real: bool) -> Any:
        """Return a scratch array; all of one slot share their memory."""
        key = (slot, shape, real)
        view = self._views.get(key)
        if view is None:
            memory = self._scratch.get(slot, (self._size,), self.complex, self._engine)
            if real:
                memory = memory.view(self.real)
            view = self._views[key] = memory[: math.prod(shape)].reshape(shape)
        return view
