"""Pipelined products in the frequency domain on GPUs: each rank multiplies some of the frequencies.

GPUs write one piece to each other's memory while they compute the next piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collops.array import Layout
from collops.array.redistribute import region_copy
from collops.backend import LocalArray
from collops.operators.fourier.engines import PIECES, Workspace
from collops.operators.fourier.pipeline import should_pipeline

if TYPE_CHECKING:
    from collops.array.regions import Region
    from collops.backend import Engine
    from collops.comm import Communicator
    from collops.exchange.peer_copy import PeerCopy
    from collops.operators.fourier.transform import AxisTransform

__all__ = ["SpreadProduct", "find_product"]

_COUNT = 2
"""Pieces of the result. More pieces would overlap more of the copies, but their kernels would not fill a device."""


class SpreadProduct(NamedTuple):
    """A real transform along the first axis, a product for each frequency, and the transform back.

    Source and target are replicated. Each rank transforms its `share` of the source, a slice of the second axis, and
    writes each frequency to the rank that multiplies it. The target is computed in `pieces`, slices of its second axis:
    each rank multiplies its frequencies for one piece and writes the products to all ranks, then the next piece.

    The memory that other ranks can access has three parts: the spectra that this rank multiplies, the products of all
    ranks, which begin at the element `after`, and a work array of this rank. ``shapes`` are the shapes of the share, of
    the spectra that this rank multiplies, of its products, and of the products of all ranks.
    """

    transform: AxisTransform
    back: AxisTransform
    share: slice
    send: PeerCopy
    pieces: list[tuple[slice, PeerCopy]]
    after: int
    shapes: tuple[tuple[int, ...], ...]
    workspace: Workspace

    def apply(
        self, compute: Callable[[LocalArray, LocalArray, slice], LocalArray], source: LocalArray, target: LocalArray
    ) -> LocalArray:
        """Return `target`, filled with the result for `source`. Collective.

        ``compute(spectra, products, rows)`` fills some rows of this rank's products.
        """
        workspace, memory = self.workspace, self.workspace.take(PIECES, (self.workspace.size,))
        *_, gathered = self.shapes
        work_offset = self.after + math.prod(gathered)
        share, spectra, products = (
            memory[begin : begin + math.prod(shape)].reshape(shape)
            for begin, shape in zip((work_offset, 0, work_offset), self.shapes[:3], strict=True)
        )
        workspace.barrier()  # the memory is no longer in use on any rank
        self.transform.forward(source[:, self.share], share, workspace)
        self.send.start(workspace.addresses, share).wait()
        workspace.barrier()  # all ranks have written the spectra
        arriving = []
        for rows, copy in self.pieces:
            compute(spectra, products, rows)
            arriving.append(copy.start(workspace.addresses, products))
        for (rows, _), move in zip(self.pieces, arriving, strict=True):
            move.wait()
            workspace.barrier()  # all ranks have written this piece
            frequencies, _, columns = gathered
            begin, end = (self.after + row * frequencies * columns for row in (rows.start, rows.stop))
            piece = memory[begin:end].reshape(frequencies, rows.stop - rows.start, columns)
            self.back.adjoint(piece, target[:, rows], workspace)
        return target


def find_product(
    transform: AxisTransform,
    back: AxisTransform,
    spectra: Layout,
    products: Layout,
    dtype: np.dtype,
    comm: Communicator,
    engine: Engine,
) -> SpreadProduct | None:
    """Return the product that maps spectra in the layout `spectra` to products in the layout `products`. Collective.

    Both layouts are split by frequency. Returns ``None`` unless GPUs of one host can write to each other's memory, the
    products are large, and the kernel of :mod:`collops.operators.fourier.real` supports the parts of all ranks.
    """
    ranks, (frequencies, rows, columns) = range(comm.size), products.shape
    shares = Layout.split(spectra.shape, comm.size, 1)
    shapes = *(layout.local_shape(comm.rank) for layout in (shares, spectra, products)), products.shape
    after = max(math.prod(spectra.local_shape(rank)) for rank in ranks)
    size = after + products.size + max(math.prod(shape) for shape in (shapes[0], shapes[2]))
    workspace = Workspace(engine, dtype, size, 1)
    fewest = spectra.shape[1] // comm.size, rows // _COUNT
    if not should_pipeline(products.size * dtype.itemsize, workspace) or not all(
        transform.takes_columns(few * columns) for transform, few in zip((transform, back), fewest, strict=True)
    ):
        return None
    workspace.prepare_pieces(comm)
    if workspace.addresses is None:
        return None

    def copy(layout: Layout, regions: Sequence[Region], begin: int) -> PeerCopy:
        needed = [[region] for region in regions].__getitem__
        return region_copy(comm, layout, needed, [begin] * comm.size, dtype.itemsize, writes=True)

    send = copy(shares, [tuple((along.start, along.stop) for along in spectra.slices(rank)) for rank in ranks], 0)
    pieces = []
    for start, stop in pairwise(number * rows // _COUNT for number in range(_COUNT + 1)):
        region = ((0, frequencies), (start, stop), (0, columns))
        pieces.append((slice(start, stop), copy(products, [region] * comm.size, after + start * frequencies * columns)))
    able = send.supports(shapes[0]) and all(piece.supports(shapes[2]) for _, piece in pieces)
    if not all(comm.allgather_metadata(able)):
        return None
    return SpreadProduct(transform, back, shares.slices(comm.rank)[1], send, pieces, after, shapes, workspace)
