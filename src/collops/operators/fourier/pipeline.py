"""Transforms between two moves, piece by piece: messages of one piece travel while another one is transformed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from collops.array.redistribute import two_way_plans
from collops.operators.fourier.transform import JointTransform

if TYPE_CHECKING:
    from collops.array import Layout
    from collops.array.regions import Region
    from collops.comm import Communicator
    from collops.exchange import ExchangePlan
    from collops.operators.fourier.engines import Workspace

__all__ = ["Pipeline", "find_pipeline", "pays"]

_COUNT = 4
"""Pieces of each part; more of them hide more of the work, but each begins its messages anew."""

_LARGE = {"device": 16 << 20, "host": math.inf}
"""Bytes of a part from which on pieces pay. On hosts, messages do not travel while a rank computes."""


def pays(nbytes: int, workspace: Workspace) -> bool:
    """Return whether parts of so many bytes should be transformed piece by piece."""
    return workspace.engine.mutable and nbytes >= _LARGE[workspace.engine.memory]


class Pipeline(NamedTuple):
    """A move to another layout, transforms there in place, and a move back or to a third layout.

    Each part is cut into pieces of these `shapes`. All set off at once, and each goes on when it is transformed, so
    that the messages follow each other without a gap. `before` and `after` have for each piece the plan by which it
    comes from the layout on this side, and that by which it goes there.
    """

    before: list[tuple[ExchangePlan, ExchangePlan]]
    after: list[tuple[ExchangePlan, ExchangePlan]]
    shapes: list[tuple[int, ...]]
    transforms: Sequence[JointTransform]

    def forward(self, source: Any, target: Any, workspace: Workspace) -> Any:
        """Return `target`, filled with the transform of `source`. Collective."""
        applies = [transform.forward for transform in self.transforms]
        return self._run(self.before, self.after, applies, source, target, workspace)

    def adjoint(self, source: Any, target: Any, workspace: Workspace) -> Any:
        """Return `target`, filled with the adjoint of `source`. Collective."""
        applies = [transform.adjoint for transform in self.transforms[::-1]]
        return self._run(self.after, self.before, applies, source, target, workspace)

    def _run(self, first: Any, last: Any, applies: Any, source: Any, target: Any, workspace: Workspace) -> Any:
        memory = workspace.take("pieces", (sum(map(math.prod, self.shapes)),))
        arriving, leaving, start = [], [], 0
        for (come, _), shape in zip(first, self.shapes, strict=True):
            stop = start + math.prod(shape)
            arriving.append(come.start(source, memory[start:stop].reshape(shape), on_side_stream=True))
            start = stop
        for exchange, (_, go) in zip(arriving, last, strict=True):
            piece = exchange.finish()
            for apply in applies:
                apply(piece, piece, workspace)
            leaving.append(go.start(piece, target, on_side_stream=True))
        for exchange in leaving:
            exchange.finish()
        return target


def find_pipeline(
    before: Layout, parts: Layout, after: Layout, transforms: Sequence[JointTransform], comm: Communicator
) -> Pipeline | None:
    """Return the pipeline of moves from the layout `before` to `parts`, and on to `after`. Collective.

    ``None`` if elements have copies, or if there is no axis that is not transformed, along which the parts are cut.
    """
    taken = {axis for transform in transforms for axis in transform.axes}
    axis = next((axis for axis in range(parts.ndim) if axis not in taken), None)
    if axis is None or any(len(layout.split_axes) < len(layout.process_grid) for layout in (before, parts, after)):
        return None
    pieces = [partial(_piece, parts, axis, number) for number in range(_COUNT)]
    come, go = ([two_way_plans(comm, layout, piece) for piece in pieces] for layout in (before, after))
    return Pipeline(come, go, [tuple(b - a for a, b in piece(comm.rank)[0]) for piece in pieces], transforms)


def _piece(parts: Layout, axis: int, number: int, rank: int) -> list[Region]:
    """Return a piece of a rank's part as the region that the rank wants."""
    region = [(along.start, along.stop) for along in parts.slices(rank)]
    start, stop = region[axis]
    region[axis] = tuple(start + n * (stop - start) // _COUNT for n in (number, number + 1))
    return [tuple(region)]
