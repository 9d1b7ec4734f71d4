"""The pictures of a solved system: who has which unknowns, and where its entries are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from collops.apps.pictures import convergence, figure
from collops.apps.solve.problem import System

__all__ = ["draw"]

_CELLS = 300
_MOST_POINTS = 20000


def draw(folder: Path, system: System, ranks: int, sizes: list[int], residuals: np.ndarray, title: str) -> list[Path]:
    """Draw the partition, the sparsity by rank, and the convergence; return what was written."""
    image = folder / "image.png"
    with figure(image, 2, (11.0, 5.0)) as (_, (left, right)):
        _partition(left, system, ranks)
        _sparsity(right, system, ranks, sizes)
    return [image, convergence(folder / "convergence.png", residuals, title)]


def _colors(ranks: int) -> Any:
    import matplotlib as mpl

    names = mpl.colormaps["tab10" if ranks <= 10 else "turbo"]
    return names(np.arange(ranks) if ranks <= 10 else np.linspace(0, 1, ranks))


def _partition(axes: Any, system: System, ranks: int) -> None:
    """Draw the unknowns where they are, or by number where they are nowhere, in the colours of their ranks."""
    rows = system.matrix.shape[0]
    parts = np.arange(rows) * ranks // max(rows, 1) if system.partition is None else system.partition.parts
    colors = _colors(ranks)
    if system.points is None:
        shown = np.linspace(0, rows - 1, min(rows, _MOST_POINTS)).astype(int)
        axes.scatter(shown, parts[shown], c=colors[parts[shown]], s=4, linewidths=0)
        axes.set(xlabel="row, as in the file", ylabel="rank", title="Rows by rank")
        axes.set_yticks(range(ranks) if ranks <= 16 else range(0, ranks, ranks // 8))
    else:
        # A slab through the middle: from outside one would see the surface only.
        near = np.abs(system.points[:, 2] - 0.5)
        shown = np.argsort(near)[: min(_MOST_POINTS, max(200, len(near) // 4))]
        axes.scatter(*system.points[shown, :2].T, c=colors[parts[shown]], s=10, linewidths=0)
        axes.set(xlabel="x", ylabel="y", title="Unknowns by rank, in a slab through the middle")
        axes.set_aspect("equal")


def _sparsity(axes: Any, system: System, ranks: int, sizes: list[int]) -> None:
    """Draw how many entries are where in the order of ranks; those that need another rank's values stand out."""
    matrix = system.matrix.tocoo()
    places = []
    for axis in (0, 1):
        order = np.arange(matrix.shape[axis]) if system.partition is None else system.partition.order
        new = np.empty_like(order)
        new[order] = np.arange(len(order))
        places.append(new[matrix.coords[axis]])
    extents = [max(1, extent) for extent in matrix.shape]
    bins = [min(_CELLS, extent) for extent in extents]
    counts, *_ = np.histogram2d(places[0], places[1], bins=bins, range=[[0, extents[0]], [0, extents[1]]])
    axes.imshow(
        np.log1p(counts),
        cmap="Blues",
        extent=(0, extents[1], extents[0], 0),
        aspect="auto" if extents[0] != extents[1] else "equal",
        interpolation="nearest",
    )
    for row in np.cumsum(sizes)[:-1]:
        axes.axhline(row, color="#c8553d", lw=0.8)
        if system.partition is not None:
            axes.axvline(row, color="#c8553d", lw=0.8)
    axes.set(xlabel="column", ylabel="row", title=f"Entries, {ranks} {'ranks' if ranks > 1 else 'rank'}")
