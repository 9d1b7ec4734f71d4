"""Pushed redistribution: GPUs write their parts into each other's memory while they transform other pieces."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from collops.array.redistribute import region_copy
from collops.backend import LocalArray
from collops.operators.fourier.engines import PIECES
from collops.operators.fourier.transform import JointTransform
from collops.operators.memory import store

if TYPE_CHECKING:
    from collops.array import Layout
    from collops.array.regions import Region
    from collops.comm import Communicator
    from collops.exchange.peer_copy import PeerCopy
    from collops.operators.fourier.engines import Workspace

_COUNT = 4
"""Pieces of each part. More pieces would overlap more of the work, but each one has a start-up time."""

_WHOLE = (slice(None),)
_Apply: TypeAlias = "Callable[[LocalArray, LocalArray, Workspace], LocalArray]"


class _Way(NamedTuple):
    """A move from one layout to another.

    Each of the `copies` writes to the memory of all ranks: the rows `sent` of this rank's part, or what becomes the
    rows `arrived` there. The other one of the two has all rows.
    """

    copies: list[PeerCopy]
    sent: Sequence[slice]
    arrived: Sequence[slice]
    shape: tuple[int, ...]  # of this rank's part afterwards


class Push(NamedTuple):
    """Transforms `before` a move to another layout, and `after` it, without packing and unpacking messages.

    One side is transformed in pieces of rows, where no transform is along the rows: what a rank sends while earlier
    pieces travel, or what it receives while later ones do.
    """

    there: _Way
    back: _Way
    before: Sequence[JointTransform]
    after: Sequence[JointTransform]

    def forward(self, source: LocalArray, target: LocalArray, workspace: Workspace) -> LocalArray:
        """Return `target`, filled with the transform of `source`. Collective."""
        firsts, lasts = ([transform.forward for transform in side] for side in (self.before, self.after))
        return _run(self.there, firsts, lasts, source, target, workspace)

    def adjoint(self, source: LocalArray, target: LocalArray, workspace: Workspace) -> LocalArray:
        """Return `target`, filled with the adjoint of `source`. Collective."""
        firsts, lasts = ([transform.adjoint for transform in side[::-1]] for side in (self.after, self.before))
        return _run(self.back, firsts, lasts, source, target, workspace)

    def commuted(self, source: LocalArray, target: LocalArray, workspace: Workspace) -> LocalArray:
        """Return the adjoint between the layouts of forward. Collective."""
        firsts, lasts = ([transform.adjoint for transform in side] for side in (self.before, self.after))
        return _run(self.there, firsts, lasts, source, target, workspace)


def _run(
    way: _Way,
    firsts: Sequence[_Apply],
    lasts: Sequence[_Apply],
    source: LocalArray,
    target: LocalArray,
    workspace: Workspace,
) -> LocalArray:
    source = workspace.engine.contiguous(source)
    sent = workspace.take("sent", source.shape) if firsts else source
    arrived = workspace.take(PIECES, way.shape)
    moves = []
    for number, copy in enumerate(way.copies):
        if number < len(way.sent):
            _apply(firsts, source, sent, way.sent[number], workspace)
        if number == 0:
            workspace.barrier()  # the memory is no longer in use on any rank
        moves.append(copy.start(workspace.addresses, sent))
    for number, rows in enumerate(way.arrived):
        for move in moves if len(way.arrived) == 1 else moves[number : number + 1]:
            move.wait()
        workspace.barrier()  # all ranks have written these rows
        _apply(lasts, arrived, target, rows, workspace)
        if not lasts:
            store(arrived[rows], target[rows])
    return target


def _apply(
    applies: Sequence[_Apply], source: LocalArray, target: LocalArray, rows: slice, workspace: Workspace
) -> None:
    for apply in applies:
        apply(source[rows], target[rows], workspace)
        source = target


def find_push(
    before: Layout,
    after: Layout,
    firsts: Sequence[JointTransform],
    lasts: Sequence[JointTransform],
    comm: Communicator,
    itemsize: int,
) -> Push | None:
    """Return the transforms `firsts`, the move between two layouts, and `lasts`, as one step. Collective.

    `itemsize` is the size of an element. Returns ``None`` if elements are replicated, if nothing is transformed, or if
    the boxes to copy are too many.
    """
    if any(len(layout.split_axes) < len(layout.process_grid) for layout in (before, after)) or not (firsts or lasts):
        return None
    sides = enumerate((firsts, lasts))
    cut = next((number for number, side in sides if side and not any(0 in item.axes for item in side)), None)
    there = _way(comm, before, after, itemsize, None if cut is None else cut == 0)
    back = _way(comm, after, before, itemsize, None if cut is None else cut == 1)
    able = all(
        copy.supports(layout.local_shape(comm.rank))
        for way, layout in ((there, before), (back, after))
        for copy in way.copies
    )
    return Push(there, back, firsts, lasts) if all(comm.allgather_metadata(able)) else None


def _way(comm: Communicator, source: Layout, target: Layout, itemsize: int, cut_source: bool | None) -> _Way:
    """Return the move from one layout to another: in pieces of the rows of the source, of the target, or whole."""
    parts = [_region(target, rank) for rank in range(comm.size)]
    copies = []
    for number in range(1 if cut_source is None else _COUNT):
        if cut_source is None:
            rows = [region[0] for region in parts]
        elif cut_source:
            mine = _piece(_region(source, comm.rank)[0], number)
            rows = [_overlap(mine, region[0]) for region in parts]
        else:
            rows = [_piece(region[0], number) for region in parts]
        regions = [(piece, *region[1:]) for piece, region in zip(rows, parts, strict=True)]
        begins = [
            (piece[0] - region[0][0]) * math.prod(stop - start for start, stop in region[1:])
            for piece, region in zip(rows, parts, strict=True)
        ]
        needed = [[region] for region in regions].__getitem__
        copies.append(region_copy(comm, source, needed, begins, itemsize, writes=True))
    sent, arrived = (
        [slice(*_piece((0, layout.local_shape(comm.rank)[0]), number)) for number in range(_COUNT)] if cut else _WHOLE
        for layout, cut in ((source, cut_source), (target, cut_source is False))
    )
    return _Way(copies, sent, arrived, target.local_shape(comm.rank))


def _region(layout: Layout, rank: int) -> Region:
    return tuple((along.start, along.stop) for along in layout.slices(rank))


def _piece(rows: tuple[int, int], number: int) -> tuple[int, int]:
    start, stop = rows
    return start + number * (stop - start) // _COUNT, start + (number + 1) * (stop - start) // _COUNT


def _overlap(rows: tuple[int, int], others: tuple[int, int]) -> tuple[int, int]:
    start = max(rows[0], others[0])
    return start, max(start, min(rows[1], others[1]))
