"""Moves piece by piece: GPUs copy some pieces to and from each other's memory while others are transformed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from collops.array.redistribute import region_copy
from collops.operators.fourier.engines import PIECES
from collops.operators.fourier.transform import JointTransform

if TYPE_CHECKING:
    from collops.array import Layout
    from collops.array.regions import Region
    from collops.comm import Communicator
    from collops.comm.transport import Pending
    from collops.exchange.peer_copy import PeerCopy
    from collops.operators.fourier.engines import Workspace

__all__ = ["Pipeline", "find_pipeline", "pays"]

_COUNT = 3
"""Pieces of each part; more of them hide more of the work, but each begins anew."""

_SLABS = 2
"""Slabs of rows that are transformed before the first move, one while the one before is on its way."""

_Bounds: TypeAlias = tuple[int, int]
"""The first of a range, and the one after the last."""

_LARGE = 16 << 20
"""Bytes of a part on a device from which on pieces pay."""


def pays(nbytes: int, workspace: Workspace) -> bool:
    """Return whether parts of so many bytes should move piece by piece."""
    return workspace.engine.memory == "device" and workspace.engine.mutable and nbytes >= _LARGE


class _Side(NamedTuple):
    """How pieces come from a layout, and go there.

    They come by slabs: the bounds of rows of this rank's array, and for each piece the copy of what it needs of them.
    They go by one copy each.
    """

    come: list[tuple[_Bounds, list[PeerCopy]]]
    go: list[PeerCopy]

    def can(self, shape: tuple[int, ...]) -> bool:
        """Return whether pieces can come from an array of this shape, and go to one."""
        return all(copy.can(shape) for copies in (self.go, *(copies for _, copies in self.come)) for copy in copies)


class Pipeline(NamedTuple):
    """A move to another layout, transforms there in place, and a move back or to a third layout.

    Each part is cut into pieces of these `shapes`. All ranks write the first piece to each other's memory, then the
    second, and so on; each goes on when it is transformed, so that they follow each other without a gap. The `leading`
    transforms, along other axes than that of the rows, come before the first move, which begins when one slab of rows
    is transformed.
    """

    before: _Side
    after: _Side
    shapes: list[tuple[int, ...]]
    leading: Sequence[JointTransform]
    transforms: Sequence[JointTransform]

    def forward(self, source: Any, target: Any, workspace: Workspace) -> Any:
        """Return `target`, filled with the transform of `source`. Collective."""
        leading, applies = ([each.forward for each in group] for group in (self.leading, self.transforms))
        return self._run(leading, self.before, applies, self.after, source, target, workspace)

    def adjoint(self, source: Any, target: Any, workspace: Workspace) -> Any:
        """Return `target`, filled with the adjoint of `source`. Collective."""
        applies = [transform.adjoint for transform in self.transforms[::-1]]
        target = self._run([], self.after, applies, self.before, source, target, workspace)
        for transform in self.leading[::-1]:
            transform.adjoint(target, target, workspace)
        return target

    def commuted(self, source: Any, target: Any, workspace: Workspace) -> Any:
        """Return the adjoint between the layouts of forward. Collective."""
        leading, applies = ([each.adjoint for each in group] for group in (self.leading, self.transforms))
        return self._run(leading, self.before, applies, self.after, source, target, workspace)

    def _run(
        self, leading: Any, first: _Side, applies: Any, last: _Side, source: Any, target: Any, workspace: Workspace
    ) -> Any:
        starts = [*accumulate(map(math.prod, self.shapes), initial=0)]
        memory = workspace.take(PIECES, (starts[-1],))
        places = zip(pairwise(starts), self.shapes, strict=True)
        pieces = [memory[start:stop].reshape(shape) for (start, stop), shape in places]
        given = workspace.take("even", source.shape) if leading else workspace.engine.contiguous(source)
        arriving = []
        for bounds, copies in first.come:
            rows, begun = given[slice(*bounds)], source[slice(*bounds)]
            for apply in leading:
                begun = apply(begun, rows, workspace)
            if not arriving:
                workspace.barrier()  # no rank still reads what was in the memory before
            arriving.append([copy.start(workspace.addresses, given) for copy in copies])
        leaving: list[Pending] = []
        for number, moves in enumerate(zip(*arriving, strict=True)):
            for move in moves:
                move.wait()
            workspace.barrier()  # all ranks have written this piece, and transformed the one before
            if number:
                leaving.append(last.go[number - 1].start(workspace.addresses, target))
            for apply in applies:
                apply(pieces[number], pieces[number], workspace)
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
    *,
    leading: Sequence[JointTransform] = (),
) -> Pipeline | None:
    """Return the pipeline of moves from the layout `before` to `parts`, and on to `after`. Collective.

    `itemsize` is that of elements. Where there are `leading` transforms, the source and the target must be in other
    memory than ``"even"``. ``None`` if elements have copies, if there is no axis that is not transformed, along which
    the parts are cut, or if what would be copied is in too many or too short runs.
    """
    axis = next((axis for axis in range(parts.ndim) if all(axis not in each.axes for each in transforms)), None)
    if axis is None or any(len(layout.split_axes) < len(layout.process_grid) for layout in (before, parts, after)):
        return None
    regions = [[_region(parts, axis, number, rank) for number in range(_COUNT)] for rank in range(comm.size)]
    shapes = [[tuple(stop - start for start, stop in region) for region in each] for each in regions]
    wanted = [[[each[number]] for each in regions].__getitem__ for number in range(_COUNT)]
    begins = [[sum(map(math.prod, each[:number])) for each in shapes] for number in range(_COUNT)]

    def copies(layout: Layout, writes: bool, rows: _Bounds | None = None) -> list[PeerCopy]:
        return [
            region_copy(comm, layout, region, begin, itemsize, writes=writes, rows=rows)
            for region, begin in zip(wanted, begins, strict=True)
        ]

    def side(layout: Layout, slabs: int) -> _Side:
        rows = [_part((0, layout.local_shape(comm.rank)[0]), number, slabs) for number in range(slabs)]
        return _Side([(each, copies(layout, True, each)) for each in rows], copies(layout, False))

    sides = side(before, _SLABS if leading else 1), side(after, 1)
    able = all(one.can(each.local_shape(comm.rank)) for one, each in zip(sides, (before, after), strict=True))
    return Pipeline(*sides, shapes[comm.rank], leading, transforms) if all(comm.allgather_metadata(able)) else None


def _region(parts: Layout, axis: int, number: int, rank: int) -> Region:
    region = [(along.start, along.stop) for along in parts.slices(rank)]
    region[axis] = _part(region[axis], number, _COUNT)
    return tuple(region)


def _part(bounds: _Bounds, number: int, count: int) -> _Bounds:
    """Return the bounds of one of `count` parts of a range."""
    start, stop = bounds
    return start + number * (stop - start) // count, start + (number + 1) * (stop - start) // count
