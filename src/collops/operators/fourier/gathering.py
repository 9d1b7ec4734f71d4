"""Spectra that ranks compute for their own frequencies, gathered and transformed back piece by piece.

GPUs read what is computed from each other's memory while they compute the next piece, and transform what has arrived
while they read the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collops.array.redistribute import region_reading
from collops.operators.fourier.pipeline import pays

if TYPE_CHECKING:
    from collops.array import Layout
    from collops.comm import Communicator
    from collops.exchange.reading import Reading
    from collops.operators.fourier.engines import Workspace
    from collops.operators.fourier.transform import AxisTransform

__all__ = ["Gathering", "find_gathering"]

_COUNT = 4
"""Pieces; more of them hide more of the reading, but each begins anew."""

_ALIGNED = 16
"""Bytes; scratch memory begins at a multiple of these."""


class Gathering(NamedTuple):
    """The adjoint of a real transform along the first axis, of spectra whose frequencies are spread over the ranks.

    The result is whole on every rank. A piece has all frequencies of some rows, which are slices of the second axis,
    and is read as a part of all spectra, an array of shape `whole`, from this and other ranks' own, of shape `part`.
    """

    pieces: list[tuple[slice, Reading]]
    part: tuple[int, ...]
    whole: tuple[int, ...]
    transform: AxisTransform

    def adjoint(self, compute: Callable[[Any, slice], Any], target: Any, workspace: Workspace) -> Any:
        """Return `target`, filled with the adjoint of the spectra. Collective.

        ``compute(part, rows)`` fills some rows of this rank's spectra.
        """
        workspace.begin()
        part, whole = workspace.take("pieces", self.part), workspace.take("whole", self.whole)
        addresses = workspace.readable(part)
        arriving = []
        for rows, reading in self.pieces:
            compute(part, rows)
            arriving.append(reading.start(addresses, whole[:, rows], on_side_stream=True))
        for (rows, _), move in zip(self.pieces, arriving, strict=True):
            self.transform.adjoint(move.finish(), target[:, rows], workspace)
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

    ``None`` unless GPUs read from each other's memory, every rank gets the whole result, the spectra are large, and the
    transform takes some columns of an array; and unless all ranks are `able` to compute some rows of their spectra.
    """
    itemsize, (frequencies, rows, columns) = workspace.itemsize, spectra.shape
    if itemsize is None or workspace.complex != dtype or not times.is_replicated:
        return None
    # At even rows, so that pieces of any number of columns begin at a multiple of 16 bytes, which are copied at once.
    cuts = [*(number * rows // (2 * _COUNT) * 2 for number in range(_COUNT)), rows]
    fewest = min(stop - start for start, stop in pairwise(cuts))
    if not (pays(spectra.size * itemsize, workspace) and transform.takes_columns(fewest * columns)):
        return None
    strides = rows * columns * itemsize, columns * itemsize, itemsize
    pieces = []
    for start, stop in pairwise(cuts):
        wanted = [[((0, frequencies), (start, stop), (0, columns))]] * comm.size
        reading = region_reading(comm, spectra, wanted.__getitem__, itemsize, opens=True, closes=stop == rows)
        able = able and reading.arguments(strides, start * strides[1] % _ALIGNED) is not None
        pieces.append((slice(start, stop), reading))
    gathering = Gathering(pieces, spectra.local_shape(comm.rank), spectra.shape, transform)
    return gathering if all(comm.allgather_metadata(able)) else None
