"""Moves piece by piece: GPUs read some pieces from each other's memory while others are transformed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

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

_SLABS = 2
"""Slabs of rows that are transformed before the first move, one while others read the one before."""

_Bounds: TypeAlias = tuple[int, int]
"""The first of a range, and the one after the last."""

_LARGE = 16 << 20
"""Bytes of a part on a device from which on pieces pay."""


def pays(nbytes: int, workspace: Workspace) -> bool:
    """Return whether parts of so many bytes should move piece by piece."""
    return workspace.engine.memory == "device" and workspace.engine.mutable and nbytes >= _LARGE


class _Side(NamedTuple):
    """How pieces come from a layout, and go there.

    They come by slabs: the bounds of the rows of this rank's array, and the readings of all pieces from these rows of
    the ranks. They go as a whole, by one reading each.
    """

    come: list[tuple[_Bounds, list[Reading]]]
    go: list[Reading]

    def can(self, shapes: Sequence[tuple[int, ...]], whole: tuple[int, ...]) -> bool:
        """Return whether pieces of these shapes can come, and go to an array of this shape."""
        coming = (zip(readings, shapes, strict=True) for _, readings in self.come)
        return all(come.can(shape) for each in coming for come, shape in each) and all(go.can(whole) for go in self.go)


class Pipeline(NamedTuple):
    """A move to another layout, transforms there in place, and a move back or to a third layout.

    Each part is cut into pieces of these `shapes`. All set off at once, and each goes on when it is transformed, so
    that they follow each other without a gap. The `leading` transforms, along other axes than that of the rows, come
    before the first move: it begins when one slab of rows is transformed.
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
        memory = workspace.take("pieces", (starts[-1],))
        places = zip(pairwise(starts), self.shapes, strict=True)
        pieces = [memory[start:stop].reshape(shape) for (start, stop), shape in places]
        begun = workspace.take("even", source.shape) if leading else source
        theirs, between = workspace.readable(begun), workspace.readable(memory)
        arriving = []
        for bounds, readings in first.come:
            rows, given = begun[slice(*bounds)], source[slice(*bounds)]
            for apply in leading:
                given = apply(given, rows, workspace)
            arriving.append(
                [come.start(theirs, piece, on_side_stream=True) for come, piece in zip(readings, pieces, strict=True)]
            )
        leaving = []
        for moves, piece, go in zip(zip(*arriving, strict=True), pieces, last.go, strict=True):
            for move in moves:
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
    *,
    leading: Sequence[JointTransform] = (),
) -> Pipeline | None:
    """Return the pipeline of moves from the layout `before` to `parts`, and on to `after`. Collective.

    `itemsize` is that of elements. Where there are `leading` transforms, all other arrays than its source, its target
    and that between its moves must be in other memory than ``"even"``. ``None`` if elements have copies, if there is no
    axis that is not transformed, along which the parts are cut, or if what would be read is in too many or too short
    runs.
    """
    axis = next((axis for axis in range(parts.ndim) if all(axis not in each.axes for each in transforms)), None)
    if axis is None or any(len(layout.split_axes) < len(layout.process_grid) for layout in (before, parts, after)):
        return None
    ranks = range(comm.size)
    regions = [[_region(parts, axis, number, rank) for number in range(_COUNT)] for rank in ranks]
    shapes = [[tuple(stop - start for start, stop in region) for region in each] for each in regions]
    wanted = [[[each[number]] for each in regions].__getitem__ for number in range(_COUNT)]

    def side(layout: Layout, slabs: int) -> _Side:
        come, go = [], []
        for slab in range(slabs):
            rows = [_part((0, layout.local_shape(rank)[0]), slab, slabs) for rank in ranks]
            readings = [
                region_reading(comm, layout, each, itemsize, rows=rows, opens=number == 0)
                for number, each in enumerate(wanted)
            ]
            come.append((rows[comm.rank], readings))
        for number, each in enumerate(wanted):
            begins = [sum(map(math.prod, some[:number])) for some in shapes]
            go.append(region_reading(comm, layout, each, itemsize, begins=begins, closes=number == _COUNT - 1))
        return _Side(come, go)

    sides = side(before, _SLABS if leading else 1), side(after, 1)
    mine = shapes[comm.rank]
    able = all(
        side.can(mine, layout.local_shape(comm.rank)) for side, layout in zip(sides, (before, after), strict=True)
    )
    return Pipeline(*sides, mine, leading, transforms) if all(comm.allgather_metadata(able)) else None


def _region(parts: Layout, axis: int, number: int, rank: int) -> Region:
    region = [(along.start, along.stop) for along in parts.slices(rank)]
    region[axis] = _part(region[axis], number, _COUNT)
    return tuple(region)


def _part(bounds: _Bounds, number: int, count: int) -> _Bounds:
    """Return the bounds of one of `count` parts of a range."""
    start, stop = bounds
    return start + number * (stop - start) // count, start + (number + 1) * (stop - start) // count
