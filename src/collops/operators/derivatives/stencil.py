"""Products with bands along the axes of distributed arrays: the exchange of faces, and the kernel of an engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from collops.array import Layout
from collops.array.fused import LocalPairs
from collops.array.layout import Block
from collops.array.regions import Region, transfers
from collops.backend import LocalArray, kernel_table
from collops.exchange import ExchangePlan
from collops.exchange.boxes import extent
from collops.operators.derivatives.bands import Band, Face, LocalBand, Problem, Several, Term
from collops.operators.memory import Buffers

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

_kernels_for = kernel_table("collops.operators.derivatives.kernels", "generic", numpy="array_kernels", cupy="cuda")
_ALIGNED = 16  # elements: alignment of faces, for wide loads


class Stencil:
    """Bands along axes of an array, with one exchange of all remote values.

    `bands` are pairs of an axis and a matrix. `several` says whether each product has a separate source or a separate
    target; products with a common target are added up. Collective: all ranks create it, in the same order.
    """

    def __init__(self, layout: Layout, bands: Sequence[tuple[int, Band]], comm: Communicator, several: Several) -> None:
        block = layout.block(comm.rank)
        needed = [_needed_faces(layout.block(rank), bands) for rank in range(layout.ranks)]
        moves = transfers(layout, comm.rank, lambda rank: [region for _, _, region in needed[rank]])
        self._shape = block.shape
        self._several = several
        self._size = 0
        faces = [self._new_face(region) for _, _, region in needed[comm.rank]]
        sides = {(term, side): face for (term, side, _), face in zip(needed[comm.rank], faces, strict=True)}
        self._terms = [
            Term(
                *(axis, LocalBand(band, block.offset[axis], block.shape[axis])),
                *(sides.get((number, 0)), sides.get((number, 1))),
            )
            for number, (axis, band) in enumerate(bands)
        ]
        # A face that several ranks send arrives in pieces, which are assembled after the exchange.
        self._pieces: list[tuple[Face, tuple[slice, ...], Face]] = []
        receives = []
        for peer, number, box in moves.receives:
            face = faces[number]
            if sum(number == other for _, other, _ in moves.receives) > 1:
                face = self._new_face([(axis.start, axis.stop) for axis in box])
                self._pieces.append((faces[number], box, face))
            receives.append((peer, (slice(face.begin, face.end),)))
        self._plan: ExchangePlan | None = None
        boxes = [box for _, _, box in (*moves.sends, *moves.receives)]
        self._longest = max((math.prod(extent(box)) for box in boxes), default=0)
        if moves.travels:
            parts = [needed[peer][number][0] for peer, number, _ in moves.sends]
            sends = [(peer, box) for peer, _, box in moves.sends]
            self._plan = ExchangePlan(comm, sends, receives, parts=parts if several is Several.SOURCES else None)
        self._buffers = Buffers()
        self._kernels: dict[Any, Any] = {}

    def __call__(
        self,
        sources: Sequence[LocalArray],
        targets: Sequence[LocalArray],
        engine: Engine,
        add: bool = False,
        squares: LocalPairs | None = None,
    ) -> Sequence[LocalArray]:
        """Return the products of `sources`, local arrays of one dtype, as a sequence like `targets`. Collective.

        On a mutable engine, the products are written into `targets` or, with `add`, added to the only target, and pairs
        for ``Square.parts`` (:mod:`collops.array.fused`) are appended to the list `squares`, if any.
        """
        key = engine, sources[0].dtype, add, squares is not None
        kernel = self._kernels.get(key)
        if kernel is None:
            problem = Problem(
                self._shape, self._terms, self._several, sources[0].dtype, engine, add, squares is not None
            )
            kernel = self._kernels[key] = _kernels_for(engine).make_kernel(problem)
        run = kernel.run if squares is None else partial(kernel.run, squares=squares)
        if self._plan is None:
            return run("whole", sources, targets, None)
        landing = self._buffers.local("landing", (self._size,), sources[0].dtype, engine)
        if landing is None:
            landing = engine.xp.zeros(self._size, sources[0].dtype)
        operand = sources if self._several is Several.SOURCES else sources[0]
        overlaps = kernel.splits and self._takes_long(landing)
        exchange = self._plan.start(operand, landing, on_side_stream=overlaps)
        if overlaps:
            run("inner", sources, targets, landing)
        landing = exchange.finish()
        for face, box, piece in self._pieces:
            values = engine.put(face.view(landing), box, piece.view(landing))
            if not engine.mutable:
                landing = engine.put(landing, slice(face.begin, face.end), values.reshape(-1))
        return exchange.tied(run("rest" if overlaps else "whole", sources, targets, landing))

    def _takes_long(self, landing: LocalArray) -> bool:
        """Return whether the exchange takes longer than the second launch that overlapping needs."""
        assert self._plan is not None
        return not self._plan.comm.transport_of(landing).sends_short(self._longest * landing.itemsize)

    def _new_face(self, region: Sequence[tuple[int, int]]) -> Face:
        shape = tuple(stop - start for start, stop in region)
        begin = self._size
        end = begin + math.prod(shape)
        self._size = -(-end // _ALIGNED) * _ALIGNED
        return Face(shape, begin, end)


def _needed_faces(block: Block, bands: Sequence[tuple[int, Band]]) -> list[tuple[int, int, Region]]:
    """Return the index of the band, the side (0 before, 1 after) and the region of each face that a block needs."""
    faces = []
    for term, (axis, band) in enumerate(bands if math.prod(block.shape) else ()):
        start, stop = block.offset[axis], block.offset[axis] + block.shape[axis]
        low, high = band.columns(start, stop)
        for side, bounds in enumerate(((low, start), (stop, high))):
            if bounds[0] < bounds[1]:
                region = [(s.start, s.stop) for s in block.slices]
                region[axis] = bounds
                faces.append((term, side, tuple(region)))
    return faces
