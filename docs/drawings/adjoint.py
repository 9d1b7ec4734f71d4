"""Draw what happens, and when, in a forward and an adjoint on two ranks: docs/images/adjoint.png.

Times are those of the quickest turn of the run that makes the picture, messages those that it counted.

Run: mpiexec -n 2 python docs/drawings/adjoint.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

import collops
from collops import LinearOperator, profile

PICTURE = Path(__file__).parents[1] / "images" / "adjoint.png"
ROWS, COLUMNS, TURNS = 1200, 2000, 300
COLOURS = {"local forward": "#66c2a5", "local adjoint": "#8da0cb", "allreduce": "#fc8d62"}


class Marked:
    """A matrix whose products are marked, so that the recording has them apart from the message."""

    def __init__(self, matrix: np.ndarray) -> None:
        self._local = collops.operators.lift_local(matrix)
        self.shape, self.dtype = self._local.shape, self._local.dtype

    def forward_local(self, x: Any, out: Any) -> Any:
        """Return the product."""
        with profile.mark("local forward"):
            return self._local.forward_local(x, out)

    def adjoint_local(self, y: Any, out: Any) -> Any:
        """Return the product of the transpose."""
        with profile.mark("local adjoint"):
            return self._local.adjoint_local(y, out)


class Piece(NamedTuple):
    """One bar: what a rank did from when to when, in seconds since the first rank began."""

    label: str
    begin: float
    end: float


def pieces(recording: profile.Recording) -> list[tuple[str, int, int]]:
    """Return what this rank did, in nanoseconds of the time of day; the message is the rest of the adjoint."""
    epoch = recording.epoch
    spans = {s.label: (s.begin + epoch, s.end + epoch) for s in recording.spans if s.end is not None}
    inside = spans["local adjoint"]
    return [
        ("local forward", *spans["local forward"]),
        ("local adjoint", *inside),
        ("allreduce", inside[1], spans["adjoint"][1]),
    ]


def draw_flow(ax: Axes, A: LinearOperator, adjoint: profile.MessageCounts) -> None:
    """Draw which numbers an adjoint of `A` makes of which, on all ranks; sizes are those of its layouts."""
    (columns,), ranks = A.domain.shape, A.range.ranks
    (message,) = adjoint.records
    for rank in range(ranks):
        (rows,) = A.range.local_shape(rank)
        height = ranks - 1 - rank
        ax.text(-0.2, height, f"rank {rank}", ha="right", va="center")
        words = (
            f"its part of y:\n{rows} numbers",
            f"times its {rows} rows,\ntransposed",
            f"its part of the sum:\n{columns} numbers",
            f"all of A.H @ y:\n{columns} numbers",
        )
        for place, colour, text in zip((0, 2, 4, 7.6), ("white", "#8da0cb", "white", "white"), words, strict=True):
            box = {"boxstyle": "round,pad=0.4", "facecolor": colour, "edgecolor": "black"}
            ax.text(place + 0.8, height, text, ha="center", va="center", bbox=box, fontsize=9)
        for start, end in ((1.62, 1.98), (3.62, 3.98), (5.62, 6.05), (7.15, 7.58)):
            ax.annotate("", (end, height), (start, height), arrowprops={"arrowstyle": "-|>", "color": "black"})
    middle, tall = (ranks - 1) / 2, ranks - 1 + 0.7
    ax.add_patch(Rectangle((6.1, middle - tall / 2), 1.0, tall, facecolor=COLOURS["allreduce"], edgecolor="black"))
    ax.text(6.6, middle, f"{message.operation}\n{message.nbytes}\nbytes", ha="center", va="center", fontsize=9)
    ax.set(xlim=(-0.9, 9.4), ylim=(-0.6, ranks - 0.4))
    ax.axis("off")


def draw_times(ax: Axes, lanes: list[list[Piece]]) -> None:
    """Draw one lane for each rank."""
    for rank, lane in enumerate(lanes):
        for piece in lane:
            width = 1e6 * (piece.end - piece.begin)
            ax.barh(rank, width, left=1e6 * piece.begin, height=0.6, color=COLOURS[piece.label], edgecolor="black")
    for label, colour in COLOURS.items():
        ax.barh(0, 0, color=colour, label=label)
    ax.set(xlabel="time (µs)", yticks=range(len(lanes)), yticklabels=[f"rank {rank}" for rank in range(len(lanes))])
    ax.invert_yaxis()


def draw(
    A: LinearOperator, lanes: list[list[Piece]], forward: profile.MessageCounts, adjoint: profile.MessageCounts
) -> None:
    """Draw where the numbers go, and below it what that took."""
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(10, 5.2), layout="constrained", height_ratios=(1, 1))
    draw_flow(above, A, adjoint)
    above.set_title("the numbers of an adjoint", fontsize=10)
    draw_times(below, lanes)
    sent = "sends nothing" if forward.total == 0 else f"sends {forward}"
    below.set_title(f"what it took, after a forward, which {sent}", fontsize=10)
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    """Run both products many times, and draw the turn that nothing else disturbed: the quickest."""
    comm = collops.world()
    A = collops.VStack([Marked(np.random.default_rng(comm.rank).normal(size=(ROWS, COLUMNS)))], comm)
    x, y = collops.ones(A.domain, comm=comm), collops.empty(A.range, comm=comm)
    gradient = collops.empty(A.domain, comm=comm)
    turns, forward, adjoint = [], profile.MessageCounts(), profile.MessageCounts()
    for _ in range(TURNS):
        comm.barrier()
        with profile.record() as recording:
            with profile.count_messages() as forward:
                A.forward(x, out=y)
            comm.barrier()
            with profile.count_messages() as adjoint, profile.mark("adjoint"):
                A.adjoint(y, out=gradient)
        turns.append(pieces(recording))
    both = list(zip(*comm.allgather_metadata(turns), strict=True))
    if comm.rank == 0:
        lanes = min(both, key=lambda lanes: max(end for lane in lanes for *_, end in lane) - lanes[0][0][1])
        start = min(begin for lane in lanes for _, begin, _ in lane)
        scaled = [[Piece(label, 1e-9 * (b - start), 1e-9 * (e - start)) for label, b, e in lane] for lane in lanes]
        draw(A, scaled, forward, adjoint)


if __name__ == "__main__":
    main()
