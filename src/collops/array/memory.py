"""A check that an array can fit into memory, before any rank allocates its part."""

from __future__ import annotations

import math

import numpy as np

from collops.array.layout import Layout
from collops.backend import Engine, memory_of
from collops.errors import InputError

__all__ = ["check_memory"]


def check_memory(layout: Layout, dtype: np.dtype, engine: Engine) -> None:
    """Raise InputError if some rank's part of an array is larger than the memory of this machine or rank's device.

    Sends no message: on equal machines all ranks raise. Free memory is not checked.
    """
    memory = memory_of(engine)
    if layout.size * dtype.itemsize <= memory:
        return
    largest = math.prod(map(max, layout.sizes)) * dtype.itemsize
    if largest > memory:
        raise InputError(
            f"an array of {dtype} with the layout {layout} needs {largest / 2**30:.4g} GiB on one rank, "
            f"which has {memory / 2**30:.4g} GiB of memory: use a smaller shape, or split it over more ranks"
        )
