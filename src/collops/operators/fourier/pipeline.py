"""Pipelined redistribution: GPUs copy pieces to and from each other's memory while they transform other pieces."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from collops.array.redistribute import region_copy
from collops.backend import LocalArray
from collops.operators.fourier.engines import PIECES
from collops.operators.fourier.transform import JointTransform

if TYPE_CHECKING:
    from collops.array import Layout
    from collops.array.regions import Region
    from collops.comm import Communicator
    from collops.comm.transport import Pending
    from collops.exchange.peer_copy import PeerCopy
    from collops.operators.fourier.engines import Workspace

_COUNT = 3
"""Pieces of each part. More pieces would overlap more of the work, but each one has a start-up time."""

_LARGE = 16 << 20
"""Minimum size per rank, in bytes, for pipelining."""


def should_pipeline(nbytes: int, workspace: Workspace) -> bool:
    """Return whether redistributing parts of so many bytes should be pipelined."""
    return workspace.engine.memory == "device" and workspace.engine.mutable and nbytes >= _LARGE


class _Side(NamedTuple):
    """For each piece, the copy from a layout, and the copy back to it."""

    come: list[PeerCopy]
    go: list[PeerCopy]

    def supports(self, shape: tuple[int, ...]) -> bool:
        """Return whether pieces can be copied from and to an array of this shape."""
        return all(copy.supports(shape) for copy in (*self.come, *self.go))


class Pipeline(NamedTuple):
    """A move to another layout, transforms in place, and a move back or to a third layout.

    Each part is cut into pieces of these `shapes`. All ranks write the first piece to each other's memory, then the
    second, and so on. Meanwhile they transform the pieces that have arrived, and read them back.
    """

    before: _Side
    after: _Side
    shapes: list[tuple[int, ...]]
    transforms: Sequence[JointTransform]

    def forward(self, source: LocalArray, target: LocalArray, workspace: Workspace) -> LocalArray:
        """Return `target`, filled with the transform of `source`. Collective."""
        applies = [transform.forward for transform in self.transforms]
        return self._run(self.before, self.after, applies, source, target, workspace)

    def adjoint(self, source: LocalArray, target: LocalArray, workspace: Workspace) -> LocalArray:
        """Return `target`, filled with the adjoint of `source`. Collective."""
        applies = [transform.adjoint for transform in self.transforms[::-1]]
        return self._run(self.after, self.before, applies, source, target, workspace)

    def commuted(self, source: LocalArray, target: LocalArray, workspace: Workspace) -> LocalArray:
        """Return the adjoint between the layouts of forward. Collective."""
        applies = [transform.adjoint for transform in self.transforms]
        return self._run(self.before, self.after, applies, source, target, workspace)

    def _run(
        self,
        first: _Side,
        last: _Side,
        applies: Sequence[Callable[[LocalArray, LocalArray, Workspace], LocalArray]],
        source: LocalArray,
        target: LocalArray,
        workspace: Workspace,
    ) -> LocalArray:
        starts = [*accumulate(map(math.prod, self.shapes), initial=0)]
        memory = workspace.take(PIECES, (starts[-1],))
        ranges = zip(pairwise(starts), self.shapes, strict=True)
        pieces = [memory[start:stop].reshape(shape) for (start, stop), shape in ranges]
        source = workspace.engine.contiguous(source)
        workspace.barrier()  # the memory is no longer in use on any rank
        arriving = [copy.start(workspace.addresses, source) for copy in first.come]
        leaving: list[Pending] = []
        for number, piece in enumerate(pieces):
            arriving[number].wait()
            workspace.barrier()  # all ranks have written this piece, and transformed the previous one
            if number:
                leaving.append(last.go[number - 1].start(workspace.addresses, target))
            for apply in applies:
                apply(piece, piece, workspace)
        workspace.barrier()
        leaving.append(last.go[-1].start(workspace.addresses, target))
        for move in leaving:
            move.wait()
        return target


def find_pipeline(
    before: Layout,
    parts: Layout,
    after: Layout,
    transforms: Sequence[JointTransform],
    comm: Communicator,
    itemsize: int,
) -> Pipeline | None:
    """Return the pipeline of moves from the layout `before` to `parts`, and then to `after`. Collective.

    `itemsize` is the size of an element. Returns ``None`` if elements are replicated, if all axes are transformed, so
    that parts cannot be cut along another one, or if the contiguous runs to copy are too many or too short.
    """
    axis = next((axis for axis in range(parts.ndim) if all(axis not in item.axes for item in transforms)), None)
    if axis is None or any(len(layout.split_axes) < len(layout.process_grid) for layout in (before, parts, after)):
        return None
    regions = [[_region(parts, axis, number, rank) for number in range(_COUNT)] for rank in range(comm.size)]
    shapes = [[tuple(stop - start for start, stop in region) for region in item] for item in regions]

    def copies(layout: Layout, *, writes: bool) -> list[PeerCopy]:
        copies = []
        for number in range(_COUNT):
            needed = [[item[number]] for item in regions].__getitem__
            begins = [sum(map(math.prod, item[:number])) for item in shapes]
            copies.append(region_copy(comm, layout, needed, begins, itemsize, writes=writes))
        return copies

    first, last = (_Side(copies(layout, writes=True), copies(layout, writes=False)) for layout in (before, after))
    able = first.supports(before.local_shape(comm.rank)) and last.supports(after.local_shape(comm.rank))
    return Pipeline(first, last, shapes[comm.rank], transforms) if all(comm.allgather_metadata(able)) else None


def _region(parts: Layout, axis: int, number: int, rank: int) -> Region:
    region = [(along.start, along.stop) for along in parts.slices(rank)]
    start, stop = region[axis]
    region[axis] = start + number * (stop - start) // _COUNT, start + (number + 1) * (stop - start) // _COUNT
    return tuple(region)
