"""Moves piece by piece: messages of some pieces travel while others are transformed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from collops.array.redistribute import region_plan
from collops.operators.fourier.transform import AxisTransform, JointTransform

if TYPE_CHECKING:
    from collops.array import Layout
    from collops.array.regions import Region
    from collops.comm import Communicator
    from collops.exchange import Box, ExchangePlan
    from collops.exchange.exchange import InFlight
    from collops.operators.fourier.engines import Workspace

__all__ = ["Gathering", "Pipeline", "find_gathering", "find_pipeline", "pays"]

_COUNT = 4
"""Pieces of each part; more of them hide more of the work, but each begins its messages anew."""

_LARGE = {"device": 16 << 20, "host": math.inf}
"""Bytes of a part from which on pieces pay. On hosts, messages do not travel while a rank computes."""

_Piece: TypeAlias = "Callable[[int], list[Region]]"
"""Returns the region of a rank's piece, as :func:`region_plan` takes it."""


def pays(nbytes: int, workspace: Workspace) -> bool:
    """Return whether parts of so many bytes should move piece by piece."""
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
        arriving = _set_off([come for come, _ in first], self.shapes, source, workspace)
        leaving = []
        for exchange, (_, go) in zip(arriving, last, strict=True):
            piece = exchange.finish()
            for apply in applies:
                apply(piece, piece, workspace)
            leaving.append(go.start(piece, target, on_side_stream=True))
        for exchange in leaving:
            exchange.finish()
        return target


class Gathering(NamedTuple):
    """The adjoint of a transform to frequencies of which each rank has a part: pieces are gathered, then transformed.

    Each piece has the plan by which it comes, a shape, and its place in the result.
    """

    come: list[ExchangePlan]
    shapes: list[tuple[int, ...]]
    places: list[Box]
    transform: AxisTransform

    def adjoint(self, source: Any, target: Any, workspace: Workspace) -> Any:
        """Return `target`, filled with the adjoint of `source`. Collective."""
        arriving = _set_off(self.come, self.shapes, source, workspace)
        for exchange, place in zip(arriving, self.places, strict=True):
            # Transforms need memory in C order. The copy takes less time than the messages that are under way.
            memory = workspace.take("piece", target[place].shape, True)
            workspace.engine.put(target, place, self.transform.adjoint(exchange.finish(), memory, workspace))
        return target


def find_pipeline(
    before: Layout, parts: Layout, after: Layout, transforms: Sequence[JointTransform], comm: Communicator
) -> Pipeline | None:
    """Return the pipeline of moves from the layout `before` to `parts`, and on to `after`. Collective.

    ``None`` if elements have copies, or if there is no axis that is not transformed, along which the parts are cut.
    """
    pieces = _pieces(parts, {axis for transform in transforms for axis in transform.axes})
    if not pieces or any(len(layout.split_axes) < len(layout.process_grid) for layout in (before, parts, after)):
        return None
    first, last = (
        [(region_plan(comm, layout, piece), region_plan(comm, layout, piece, back=True)) for piece in pieces]
        for layout in (before, after)
    )
    return Pipeline(first, last, _shapes(pieces, comm.rank), transforms)


def find_gathering(parts: Layout, whole: Layout, transform: AxisTransform, comm: Communicator) -> Gathering | None:
    """Return the adjoint of a transform that gathers `parts` of its frequencies to the layout `whole`. Collective.

    ``None`` if there is no other axis, along which these are cut.
    """
    pieces = _pieces(whole, {transform.axis})
    if not pieces:
        return None
    places = []
    for piece in pieces:
        bounds = zip(piece(comm.rank)[0], whole.offset(comm.rank), strict=True)
        place = [slice(start - offset, stop - offset) for (start, stop), offset in bounds]
        place[transform.axis] = slice(None)
        places.append(tuple(place))
    plans = [region_plan(comm, parts, piece) for piece in pieces]
    return Gathering(plans, _shapes(pieces, comm.rank), places, transform)


def _pieces(parts: Layout, taken: Collection[int]) -> list[_Piece]:
    """Return the pieces of all parts, cut along the first axis that is not `taken`; none if there is no such axis."""
    axis = next((axis for axis in range(parts.ndim) if axis not in taken), None)
    return [] if axis is None else [partial(_region, parts, axis, number, _COUNT) for number in range(_COUNT)]


def _region(parts: Layout, axis: int, number: int, count: int, rank: int) -> list[Region]:
    region = [(along.start, along.stop) for along in parts.slices(rank)]
    start, stop = region[axis]
    region[axis] = start + number * (stop - start) // count, start + (number + 1) * (stop - start) // count
    return [tuple(region)]


def _shapes(pieces: Sequence[_Piece], rank: int) -> list[tuple[int, ...]]:
    return [tuple(stop - start for start, stop in piece(rank)[0]) for piece in pieces]


def _set_off(
    plans: Sequence[ExchangePlan], shapes: Sequence[tuple[int, ...]], source: Any, workspace: Workspace
) -> list[InFlight]:
    """Start to fill pieces of scratch memory, of these shapes."""
    starts = [*accumulate(map(math.prod, shapes), initial=0)]
    memory = workspace.take("pieces", (starts[-1],))
    return [
        plan.start(source, memory[start:stop].reshape(shape), on_side_stream=True)
        for plan, (start, stop), shape in zip(plans, pairwise(starts), shapes, strict=True)
    ]
