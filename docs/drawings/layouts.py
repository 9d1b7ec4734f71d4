"""Draw which rank holds what in a few layouts: docs/images/layouts.png.

Run: python docs/drawings/layouts.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from collops import Layout

PICTURE = Path(__file__).parents[1] / "images" / "layouts.png"
LAYOUTS = {
    "Layout.split((8, 10), 4)": Layout.split((8, 10), 4),
    "Layout.split((8, 10), 4, axis=1)": Layout.split((8, 10), 4, axis=1),
    "Layout.grid((8, 10), (2, 2))": Layout.grid((8, 10), (2, 2)),
    "Layout.split((8, 10), 4, sizes=[1, 4, 0, 3])": Layout.split((8, 10), 4, sizes=[1, 4, 0, 3]),
    "Layout((8, 10), 4, (2, 2), (0, None))": Layout((8, 10), 4, (2, 2), (0, None)),
    "Layout.replicated((8, 10), 4)": Layout.replicated((8, 10), 4),
}


def holders(layout: Layout) -> dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]]:
    """Return the ranks that hold each block; a block is named by its first element and its shape."""
    blocks: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for rank in range(layout.ranks):
        if layout.local_size(rank):
            blocks.setdefault((layout.offset(rank), layout.local_shape(rank)), []).append(rank)
    return blocks


def draw(ax: Axes, title: str, layout: Layout) -> None:
    """Draw the elements as squares, in the colour of the lowest rank that holds them."""
    colours = plt.get_cmap("Set2")
    for edge in range(1, 10):
        ax.plot([edge, edge], [0, 8], color="white", linewidth=0.5, zorder=2)
        ax.plot([0, 10], [min(edge, 7)] * 2, color="white", linewidth=0.5, zorder=2)
    for ((row, column), (height, width)), ranks in holders(layout).items():
        colour = colours(ranks[0])
        # The lines between elements lie on the colours, and below the edges and the words.
        ax.add_patch(Rectangle((column, row), width, height, facecolor=colour, zorder=1))
        ax.add_patch(Rectangle((column, row), width, height, fill=False, linewidth=1.5, zorder=3))
        words = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        behind = {"facecolor": colour, "edgecolor": "none", "pad": 1.5}
        middle = column + width / 2, row + height / 2
        ax.text(*middle, words, ha="center", va="center", fontsize=9, bbox=behind, zorder=4)
    empty = [rank for rank in range(layout.ranks) if not layout.local_size(rank)]
    if empty:
        ax.text(5, 8.6, f"rank {empty[0]} holds nothing", ha="center", va="center", color="0.4")
    ax.set(xlim=(-0.1, 10.1), ylim=(9, -0.1), aspect="equal")
    ax.set_title(title, fontsize=9, family="monospace")
    ax.axis("off")


def main() -> None:
    """Draw all of them."""
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
    for ax, (title, layout) in zip(axes.flat, LAYOUTS.items(), strict=True):
        draw(ax, title, layout)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
