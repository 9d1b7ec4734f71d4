"""Spectra that ranks compute for their own frequencies, gathered and transformed back piece by piece.

GPUs write what is computed to each other's memory while they compute the next piece, and transform what has arrived
while the next one is on its way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collops.array.redistribute import region_copy
from collops.operators.fourier.engines import PIECES
from collops.operators.fourier.pipeline import pays

if TYPE_CHECKING:
    from collops.array import Layout
    from collops.comm import Communicator
    from collops.exchange.peer_copy import PeerCopy
    from collops.operators.fourier.engines import Workspace
    from collops.operators.fourier.transform import AxisTransform

__all__ = ["Gathering", "find_gathering"]

_COUNT = 4
"""Pieces; more of them hide more of the copies, but each begins anew."""


class Gathering(NamedTuple):
    """The adjoint of a real transform along the first axis, of spectra whose frequencies are spread over the ranks.

    The result is whole on every rank. A piece has all frequencies of some rows, which are slices of the second axis.
    Every rank writes its frequencies, of an array of shape `part`, to the memory of all ranks, where the pieces of all
    spectra, of shape `whole`, follow each other.
    """

    pieces: list[tuple[slice, PeerCopy]]
    part: tuple[int, ...]
    whole: tuple[int, ...]
    transform: AxisTransform

    def adjoint(self, compute: Callable[[Any, slice], Any], target: Any, workspace: Workspace) -> Any:
        """Return `target`, filled with the adjoint of the spectra. Collective.

        ``compute(part, rows)`` fills some rows of this rank's spectra.
        """
        part, memory = workspace.take("part", self.part), workspace.take(PIECES, (math.prod(self.whole),))
        arriving = []
        for rows, copy in self.pieces:
            compute(part, rows)
            if not arriving:
                workspace.barrier()  # until then others may still read what was in the memory
            arriving.append(copy.start(workspace.addresses, part))
        frequencies, _, columns = self.whole
        for (rows, _), move in zip(self.pieces, arriving, strict=True):
            move.wait()
            workspace.barrier()  # all ranks have written this piece
            begin, end = (row * frequencies * columns for row in (rows.start, rows.stop))
            piece = memory[begin:end].reshape(frequencies, rows.stop - rows.start, columns)
            self.transform.adjoint(piece, target[:, rows], workspace)
        return target


def find_gathering(
    transform: AxisTransform,
    times: Layout,
    spectra: Layout,
    dtype: np.dtype,
    able: bool,
    comm: Communicator,
    workspace: Workspace,
) -> Gathering | None:
    """Return how to gather `spectra` of `dtype`, split along the first axis, and transform them to `times`. Collective.

    ``None`` unless GPUs write to each other's memory, every rank gets the whole result, the spectra are large, and the
    transform takes some columns of an array; and unless all ranks are `able` to compute some rows of their spectra.
    """
    if workspace.addresses is None or workspace.complex != dtype or not times.is_replicated:
        return None
    (frequencies, rows, columns), itemsize = spectra.shape, dtype.itemsize
    fewest = rows // _COUNT
    if not (pays(spectra.size * itemsize, workspace) and transform.takes_columns(fewest * columns)):
        return None
    pieces = []
    for start, stop in pairwise(number * rows // _COUNT for number in range(_COUNT + 1)):
        wanted = [[((0, frequencies), (start, stop), (0, columns))]] * comm.size
        begins = [start * frequencies * columns] * comm.size
        copy = region_copy(comm, spectra, wanted.__getitem__, begins, itemsize, writes=True)
        able = able and copy.can(spectra.local_shape(comm.rank))
        pieces.append((slice(start, stop), copy))
    gathering = Gathering(pieces, spectra.local_shape(comm.rank), spectra.shape, transform)
    return gathering if all(comm.allgather_metadata(able)) else None
