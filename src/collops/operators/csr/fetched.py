"""Rows of a sparse matrix on their way to other ranks: one message for their lengths, and one for each kind of values.

A star forest of entries would need indices and buffers for each entry; rows are contiguous, and usually sent once.
"""

from __future__ import annotations

import numpy as np

from collops.backend import LocalArray, engine_of
from collops.exchange.forest import StarForest
from collops.operators.csr.compressed import starts_of


class FetchedRows:
    """The entries of the rows that are roots of `forest`, sent to the ranks of their leaves. Collective.

    Parameters
    ----------
    forest : StarForest
        Of a :class:`CSRMatrix`: its leaves are in the order of the ranks of their roots.
    starts : array
        Where the rows of this rank begin and end among its entries, on the host or on a device.

    Attributes
    ----------
    leaving : array
        The places of the entries that this rank sends.
    lengths : array
        The numbers of entries of the rows of the leaves.
    """

    def __init__(self, forest: StarForest, starts: LocalArray) -> None:
        self._comm = forest.comm
        rows = engine_of(starts).from_host(forest.pattern.sends.points.points)
        self.leaving = _entries_of(starts, rows)
        self.lengths, self._counts = _sent_lengths(forest, starts[rows + 1] - starts[rows])

    def sent(self, values: LocalArray) -> LocalArray:
        """Send values of the leaving entries; return the values of the leaves' entries. Collective: one all-to-all."""
        return self._comm.alltoallv(values, *self._counts)


def returned_rows(
    forest: StarForest, starts: LocalArray, columns: LocalArray, values: LocalArray
) -> tuple[LocalArray, LocalArray, LocalArray]:
    """Send the rows of the leaves to their roots; return the values, columns and starts of a row for each root.

    Collective. A root's row joins those of its leaves in the order of ranks. `forest` is as for :class:`FetchedRows`;
    `starts` has where the rows of the leaves begin and end.
    """
    engine, comm = engine_of(values), forest.comm
    xp = engine.xp
    lengths, counts = _sent_lengths(forest, starts[1:] - starts[:-1], back=True)
    columns, values = (comm.alltoallv(part, *counts) for part in (columns, values))
    roots = forest.pattern.sends.points.points
    order = _entries_of(starts_of(lengths), engine.from_host(np.argsort(roots, kind="stable")))
    sums = xp.zeros(forest.nroots)
    if len(roots):
        sums = xp.bincount(engine.from_host(roots), weights=lengths, minlength=forest.nroots)
    return values[order], columns[order], starts_of(sums.astype(np.int64))


def _sent_lengths(
    forest: StarForest, lengths: LocalArray, *, back: bool = False
) -> tuple[LocalArray, tuple[list[int], list[int]]]:
    """Send lengths of rows from roots to leaves, or `back`; return those that arrive, and entries by rank. Collective.

    The numbers of entries are those that each rank receives from this rank, and those that it sends to this rank.
    """
    comm, pattern = forest.comm, forest.pattern.reversed() if back else forest.pattern
    rows = [side.counts(comm.size) for side in (pattern.sends, pattern.receives)]
    arrived = comm.alltoallv(lengths.astype(np.int64, copy=False), *rows)
    engine = engine_of(lengths)
    ends = [starts_of(part)[engine.from_host(np.cumsum(n))] for part, n in zip((lengths, arrived), rows, strict=True)]
    entries = np.diff(engine.to_host(engine.xp.stack(ends)), axis=1, prepend=0).tolist()
    return arrived, (entries[0], entries[1])


def _entries_of(starts: LocalArray, rows: LocalArray) -> LocalArray:
    """Return the places of the entries of these rows, one row after the other."""
    engine, begins = engine_of(starts), starts[rows]
    lengths = starts[rows + 1] - begins
    offsets = starts_of(lengths)
    places = engine.xp.arange(int(offsets[-1]))
    if engine.memory == "host":
        row = np.repeat(np.arange(len(rows)), lengths)
    else:  # CuPy's ``repeat`` takes no array of numbers
        row = engine.xp.searchsorted(offsets[1:], places, side="right")
    return places + (begins - offsets[:-1])[row]
