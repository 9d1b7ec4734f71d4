"""Sections and maps through volumes: gathered on the first rank, and drawn side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collops.apps.pictures import color_bar, figure, gather_rows, panel
from collops.apps.volume.files import Cube

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["View", "draw_views", "map_of", "section_of"]


class View(NamedTuple):
    """One panel: its image and title, the values of the first and last colour, and a unit for a scale of colours."""

    image: np.ndarray
    title: str
    limits: tuple[float, float]
    unit: str | None = None


def section_of(values: np.ndarray, comm: Communicator) -> np.ndarray:
    """Return the section along the first lateral axis through the middle of the second one. Collective."""
    return gather_rows(values[:, values.shape[1] // 2] if values.ndim == 3 else values, comm)


def map_of(values: np.ndarray, sample: int, comm: Communicator) -> np.ndarray:
    """Return the map of a volume at one sample. Collective."""
    return gather_rows(values[..., sample], comm)


def draw_views(path: Path, cube: Cube, views: Sequence[View], *, maps: bool = False) -> Path:
    """Draw sections, or maps, of a volume from left to right; return the picture."""
    first = cube.lateral[0]
    down, down_label = (cube.lateral[1].values, cube.lateral[1].name) if maps else (cube.times, "time (s)")
    # Numbers of traces that are not evenly spaced cannot label an axis of equal steps.
    across = first.values if _even(first.values) else np.arange(len(first.values)) + 1
    extent = (float(across[0]), float(across[-1]), float(down[0]), float(down[-1]))
    with figure(path, len(views), (4.6 * len(views), 4.2)) as (drawing, panels):
        for number, (axes, view) in enumerate(zip(panels, views, strict=True)):
            drawn = panel(
                axes,
                view.image,
                extent,
                view.title,
                labels=(first.name, None if number else down_label),
                limits=view.limits,
                colors="gray" if view.unit is None else "viridis",
            )
            if view.unit is not None:
                color_bar(drawing, axes, drawn, view.unit)
    return path


def _even(values: np.ndarray) -> bool:
    steps = np.diff(values)
    return bool(steps.size == 0 or (steps == steps[0]).all())
