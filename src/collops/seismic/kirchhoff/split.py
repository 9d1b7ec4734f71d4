"""Kirchhoff operators on an image that is split over the ranks: all ranks model and migrate all shots, in blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from collops import Communicator, Layout, LinearOperator
from collops.errors import LayoutError
from collops.extend.arrays import Array, LocalArray, extent
from collops.extend.engines import Engine
from collops.extend.operators import Buffers, contiguous, filled
from collops.seismic.kirchhoff.local import check_arrays
from collops.seismic.kirchhoff.nodes import Nodes

__all__ = ["SplitImage", "boxes_of", "shot_blocks"]

BLOCK = 1 << 26
"""Approximate number of samples in a block of shots."""


class SplitImage(LinearOperator):
    """Modelling of traces that are split by shots, from an image that is split into boxes, one for each rank.

    Forward: every rank models the contributions of its points to a block of shots of all ranks, and one reduce-scatter
    adds them on the ranks that own the traces. Adjoint: one allgather of the traces of a block, which every rank
    migrates to its points. The image is never sent. Ranks may have no points or no shots.

    Collective: one metadata message.

    Parameters
    ----------
    layout : Layout
        The image.
    boxes : sequence of tuples of slices
        The image points of each rank's local operators: its own points, and points around them; see `boxes_of`.
    blocks : sequence of sequences of sequences of LocalKirchhoff
        For each block and each rank that owns traces, the local operators of this rank; empty if it has no points.
    sizes : sequence of sequences of int
        For each block the number of samples on each rank.
    dtype : dtype
        Dtype of the local operators.
    engine : Engine
        Engine of the local operators.
    comm : Communicator
        The ranks.
    """

    def __init__(
        self,
        layout: Layout,
        boxes: Sequence[tuple[slice, ...]],
        blocks: Sequence[Sequence[Sequence[Any]]],
        sizes: Sequence[Sequence[int]],
        dtype: DTypeLike,
        engine: Engine,
        comm: Communicator,
    ) -> None:
        data = [sum(of_rank) for of_rank in zip(*sizes, strict=True)]
        super().__init__(layout, Layout.split((sum(data),), comm.size, sizes=data), dtype, comm)
        self.capturable = all(
            comm.allgather_metadata(all(op.capturable for block in blocks for ops in block for op in ops))
        )
        self._blocks, self._sizes, self._engine, self._buffers = blocks, sizes, engine, Buffers()
        local_box, enlarged_box = layout.slices(comm.rank), boxes[comm.rank]
        self._held = extent(enlarged_box)
        self._around = [(a.start - b.start, b.stop - a.stop) for a, b in zip(local_box, enlarged_box, strict=True)]
        self._inner = tuple(
            slice(before, before + n) for (before, _), n in zip(self._around, extent(local_box), strict=True)
        )

    def gathered(self, data: LocalArray, engine: Engine) -> Iterator[tuple[Any, LocalArray]]:
        """Yield each local operator with its traces, from the local part of an array in the range. Collective.

        All ranks must exhaust the iterator: each block takes one allgather.
        """
        rank, begin = self.comm.rank, 0
        for block, sizes in zip(self._blocks, self._sizes, strict=True):
            traces = data[begin : begin + sizes[rank]]
            begin += sizes[rank]
            if self.comm.size > 1:
                memory = self._buffers.local("traces", (sum(sizes),), self.dtype, engine)
                traces = self.comm.allgatherv(traces, sizes, out=memory)
            first = 0
            for op in (op for ops in block for op in ops):
                yield op, traces[first : first + op.shape[0]]
                first += op.shape[0]

    def own_points(self, values: LocalArray) -> LocalArray:
        """Cut flat values at the points of the local operators to this rank's own points, in their shape."""
        return values.reshape(self._held)[self._inner]

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        # All ranks raise the errors that only ranks with local operators would raise otherwise.
        check_arrays(self._engine, x.engine, x.dtype)
        apply, transposed = (self._migrate, self._model) if adjoint else (self._model, self._migrate)
        engine = x.engine
        memory = out.local_array if engine.mutable else None
        maps = (lambda local: apply(local, engine, memory), lambda local: transposed(local, engine, None))
        return filled(out, engine.linear_map(*maps, x.local_array, out.local_array.shape))

    def _model(self, image: LocalArray, engine: Engine, memory: LocalArray) -> LocalArray:
        """Return this rank's traces from its points, in `memory` if it is not None."""
        rank, begin, parts = self.comm.rank, 0, []
        image = self._enlarged(image, engine)
        for block, sizes in zip(self._blocks, self._sizes, strict=True):
            traces = self._contributions(block, sizes, image, engine)
            if self.comm.size > 1:
                traces = self.comm.reduce_scatter(
                    traces, out=self._buffers.local("own", (max(sizes),), self.dtype, engine)
                )
            part = traces.reshape(-1)[: sizes[rank]]
            if memory is None:
                parts.append(part)
            else:
                memory[begin : begin + sizes[rank]] = part
            begin += sizes[rank]
        return engine.xp.concatenate(parts) if memory is None else memory

    def _contributions(
        self, block: Sequence[Sequence[Any]], sizes: Sequence[int], image: LocalArray, engine: Engine
    ) -> LocalArray:
        """Return this rank's contributions to the traces of a block, shape (ranks, maximum samples of a rank)."""
        xp, widest = engine.xp, max(sizes)
        memory = self._buffers.local("block", (len(sizes), widest), self.dtype, engine)
        rows = []
        for rank, ops in enumerate(block):
            first, parts = 0, []
            for op in ops:
                last = first + op.shape[0]
                parts.append(op.forward_local(image, None if memory is None else memory[rank, first:last]))
                first = last
            if memory is None:
                rows += [*parts, xp.zeros(widest - first, self.dtype)]
            else:
                memory[rank, first:] = 0
        return xp.concatenate(rows).reshape(len(sizes), widest) if memory is None else memory

    def _migrate(self, data: LocalArray, engine: Engine, memory: LocalArray) -> LocalArray:
        """Return this rank's points from its traces, in `memory` if they fit into it."""
        total, size = None, math.prod(self._held)
        if memory is not None and (memory.shape != self._held or memory.dtype != self.dtype):
            memory = None
        first = self._buffers.local("image", (size,), self.dtype, engine) if memory is None else memory.reshape(-1)
        for op, traces in self.gathered(contiguous(data, self.dtype), engine):
            if total is None:
                total = op.adjoint_local(traces, first)
            else:
                total += op.adjoint_local(traces, self._buffers.local("part", (size,), self.dtype, engine))
        if total is not None and memory is not None:
            return memory
        return self.own_points(engine.xp.zeros(size, self.dtype) if total is None else total)

    def _enlarged(self, image: LocalArray, engine: Engine) -> LocalArray:
        """Return an image at the points of the local operators, flat, with zeros at points of other ranks."""
        if not any(map(any, self._around)):
            return image.reshape(-1)
        memory = self._buffers.local("enlarged", self._held, self.dtype, engine)
        if memory is None:
            return engine.xp.pad(image, self._around).reshape(-1)
        memory.fill(0)
        memory[self._inner] = image
        return memory.reshape(-1)


def boxes_of(layout: Layout, factor: int, ranks: int) -> list[tuple[slice, ...]]:
    """Return the points at which each rank needs tables: its own points, enlarged to the surrounding nodes.

    Raises LayoutError if more than one rank has the same points.
    """
    if sum(layout.local_size(rank) for rank in range(ranks)) != layout.size:
        raise LayoutError(f"the layout of an image must be replicated, or split without replicas, not {layout}")
    nodes = Nodes(layout.shape, factor)
    return [nodes.around(layout.slices(rank)) for rank in range(ranks)]


def shot_blocks(shares: Sequence[range], samples: int) -> list[list[range]]:
    """Divide the shots of each rank into blocks, and return for each block each rank's shots.

    A block has about `BLOCK` of the total `samples`, and at least one shot of the rank with the most shots.
    """
    most = max(map(len, shares))
    count = max(1, min(most, -(-samples // BLOCK)))
    edges = [np.linspace(share.start, share.stop, count + 1).round().astype(int).tolist() for share in shares]
    return [[range(*of_rank[block : block + 2]) for of_rank in edges] for block in range(count)]
