"""Moves piece by piece: GPUs read some pieces from each other's memory while others are transformed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from collops.array.redistribute import region_reading
from collops.operators.fourier.transform import JointTransform

if TYPE_CHECKING:
    from collops.array import Layout
    from collops.array.regions import Region
    from collops.comm import Communicator
    from collops.exchange.reading import Reading
    from collops.operators.fourier.engines import Workspace

__all__ = ["Pipeline", "find_pipeline", "pays"]

_COUNT = 3
"""Pieces of each part; more of them hide more of the work, but each begins anew."""

_LARGE = 16 << 20
"""Bytes of a part on a device from which on pieces pay."""


def pays(nbytes: int, workspace: Workspace) -> bool:
    """Return whether parts of so many bytes should move piece by piece."""
    return workspace.engine.memory == "device" and workspace.engine.mutable and nbytes >= _LARGE


class Pipeline(NamedTuple):
    """A move to another layout, transforms there in place, and a move back or to a third layout.

    Each part is cut into pieces of these `shapes`. All set off at once, and each goes on when it is transformed, so
    that they follow each other without a gap. `before` and `after` have for each piece the readings by which it comes
    from the layout on this side, and by which it goes there.
    """

    before: list[tuple[Reading, Reading]]
    after: list[tuple[Reading, Reading]]
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

    def commuted(self, source: Any, target: Any, workspace: Workspace) -> Any:
        """Return the adjoint between the layouts of forward. Collective."""
        applies = [transform.adjoint for transform in self.transforms]
        return self._run(self.before, self.after, applies, source, target, workspace)

    def _run(self, first: Any, last: Any, applies: Any, source: Any, target: Any, workspace: Workspace) -> Any:
        starts = [*accumulate(map(math.prod, self.shapes), initial=0)]
        memory = workspace.take("pieces", (starts[-1],))
        places = zip(pairwise(starts), self.shapes, strict=True)
        pieces = [memory[start:stop].reshape(shape) for (start, stop), shape in places]
        theirs, between = workspace.readable(source), workspace.readable(memory)
        arriving = [
            come.start(theirs, piece, on_side_stream=True) for (come, _), piece in zip(first, pieces, strict=True)
        ]
        leaving = []
        for move, piece, (_, go) in zip(arriving, pieces, last, strict=True):
            move.finish()
            for apply in applies:
                apply(piece, piece, workspace)
            leaving.append(go.start(between, target, on_side_stream=True))
        for move in leaving:
            move.finish()
        return target


def find_pipeline(
    before: Layout,
    parts: Layout,
    after: Layout,
    transforms: Sequence[JointTransform],
    comm: Communicator,
    itemsize: int,
) -> Pipeline | None:
    """Return the pipeline of moves from the layout `before` to `parts`, and on to `after`. Collective.

    `itemsize` is that of elements. ``None`` if elements have copies, if there is no axis that is not transformed, along
    which the parts are cut, or if what would be read is in too many or too short runs.
    """
    axis = next((axis for axis in range(parts.ndim) if all(axis not in each.axes for each in transforms)), None)
    if axis is None or any(len(layout.split_axes) < len(layout.process_grid) for layout in (before, parts, after)):
        return None
    regions = [[_region(parts, axis, number, rank) for number in range(_COUNT)] for rank in range(comm.size)]
    shapes = [[tuple(stop - start for start, stop in region) for region in each] for each in regions]

    def moves(layout: Layout) -> Iterator[tuple[Reading, Reading]]:
        """Yield for each piece what brings it from a layout, and what takes it there."""
        for number in range(_COUNT):
            wanted = [[each[number]] for each in regions].__getitem__
            begins = [sum(map(math.prod, each[:number])) for each in shapes]
            yield (
                region_reading(comm, layout, wanted, itemsize, opens=number == 0),
                region_reading(comm, layout, wanted, itemsize, begins=begins, closes=number == _COUNT - 1),
            )

    first, last = list(moves(before)), list(moves(after))
    able = all(
        come.can(shape) and go.can(layout.local_shape(comm.rank))
        for layout, both in ((before, first), (after, last))
        for (come, go), shape in zip(both, shapes[comm.rank], strict=True)
    )
    return Pipeline(first, last, shapes[comm.rank], transforms) if all(comm.allgather_metadata(able)) else None


def _region(parts: Layout, axis: int, number: int, rank: int) -> Region:
    region = [(along.start, along.stop) for along in parts.slices(rank)]
    start, stop = region[axis]
    region[axis] = start + number * (stop - start) // _COUNT, start + (number + 1) * (stop - start) // _COUNT
    return tuple(region)
