"""Sections and maps through volumes, gathered on the first rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from collops.apps.pictures import Panel, gather_rows
from collops.apps.volume.files import Cube

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["SIZE", "map_of", "panel_of", "section_of"]

SIZE = (4.6, 4.2)
"""Width and height of a panel in inches."""


def section_of(values: np.ndarray, comm: Communicator) -> np.ndarray:
    """Return the section along the first lateral axis through the middle of the second one. Collective."""
    return gather_rows(values[:, values.shape[1] // 2] if values.ndim == 3 else values, comm)


def map_of(values: np.ndarray, sample: int, comm: Communicator) -> np.ndarray:
    """Return the map of a volume at one sample. Collective."""
    return gather_rows(values[..., sample], comm)


def panel_of(
    cube: Cube,
    image: np.ndarray,
    title: str,
    limits: float | tuple[float, float],
    unit: str = "",
    *,
    is_map: bool = False,
) -> Panel:
    """Return the panel of a section or a map of a volume; see `Panel`."""
    first = cube.lateral[0]
    down, label = (cube.lateral[1].values, cube.lateral[1].name) if is_map else (cube.times, "time (s)")
    # Numbers of traces that are not evenly spaced cannot label an axis of equal steps.
    even = len(np.unique(np.diff(first.values))) <= 1
    across = first.values if even else np.arange(len(first.values)) + 1
    extent = float(across[0]), float(across[-1]), float(down[0]), float(down[-1])
    return Panel(image, title, extent, (first.name, label), limits, unit)
