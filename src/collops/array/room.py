"""Whether an array can fit into memory at all: by arithmetic, on every rank alike, before any has made its part."""

from __future__ import annotations

import math

import numpy as np

from collops.array.layout import Layout
from collops.backend import Engine, memory_of
from collops.errors import InputError

__all__ = ["check_room"]


def check_room(layout: Layout, dtype: np.dtype, engine: Engine) -> None:
    """Refuse arrays of which some rank's part is larger than all the memory that this one has.

    No rank has to know another's memory for that, so that equal machines refuse together. Whether the memory is free
    only the allocation itself can tell.

    Raises
    ------
    InputError
        If a part has more bytes than the memory of this machine, or of this rank's device.
    """
    room = memory_of(engine)
    if layout.size * dtype.itemsize <= room:
        return
    largest = math.prod(map(max, layout.sizes)) * dtype.itemsize
    if largest > room:
        raise InputError(
            f"an array of {dtype} with the layout {layout} needs {largest / 2**30:.4g} GiB on one rank, "
            f"where there are {room / 2**30:.4g} GiB of memory: give a smaller shape, or split it over more ranks"
        )
