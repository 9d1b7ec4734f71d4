"""Sparse rows from triples that any rank may have: places are found once, values added by a star-forest reduce."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from collops.comm.agreement import collective_errors
from collops.errors import LayoutError, UnsupportedTypeError
from collops.exchange import StarForest
from collops.exchange.indices import as_indices, owners

if TYPE_CHECKING:
    from collops.array import Layout
    from collops.comm import Communicator


class Assembly:
    """Where triples go: worked out once for their rows and columns, used for any values. Collective.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    rows : Layout
        Of the matrix' rows.
    columns : int
        Number of columns.
    i, j : sequence of int
        Global row and column of each triple of this rank; the same place may be named any number of times.

    Raises
    ------
    LayoutError
        On every rank, if there is no such row or column, or the lists differ in length.
    """

    def __init__(self, comm: Communicator, rows: Layout, columns: int, i: Any, j: Any) -> None:
        self._shape = rows.local_size(comm.rank), columns
        with collective_errors(comm):
            i, j = as_indices(i, "rows"), as_indices(j, "columns")
            if len(i) != len(j):
                raise LayoutError(f"{len(i)} rows need as many columns, not {len(j)}")
            wrong = j[(j < 0) | (j >= columns)]
            if len(wrong):
                raise LayoutError(f"there is no column {wrong[0]} of {columns}")
            ranks, local = owners(rows, comm.rank, i)
        order = np.argsort(ranks, kind="stable")
        leaving = np.bincount(ranks, minlength=comm.size).astype(np.int64)
        arriving = comm.alltoall(leaving)
        places = np.stack([local, j], axis=1)[order]
        here = comm.alltoallv(places, leaving.tolist(), arriving.tolist())
        places, slots = np.unique(here, axis=0, return_inverse=True)
        self._places = places
        named = np.empty(len(i), np.int64)
        named[order] = comm.alltoallv(slots.reshape(-1).astype(np.int64), arriving.tolist(), leaving.tolist())
        self._forest = StarForest(comm, len(places), None, ranks, named, transport="mpi")
        self.triples = len(i)

    def local_rows(self, values: Any) -> Any:
        """Return this rank's rows of triples with these values, with global columns; equal places add up. Collective.

        Ranks may give numbers of different dtypes, which are promoted as by NumPy; those of ranks without triples do
        not count.

        Raises
        ------
        LayoutError
            On every rank, if there is not one value for each triple.
        UnsupportedTypeError
            On every rank, if values are no numbers.
        """
        from scipy import sparse

        comm = self._forest.comm
        with collective_errors(comm):
            given = np.asarray(values)
            if given.shape != (self.triples,):
                raise LayoutError(f"{self.triples} triples need as many values, not an array of shape {given.shape}")
            if given.dtype.kind not in "biufc":
                raise UnsupportedTypeError(f"the values of triples must be numbers, not {given.dtype}")
        kinds = comm.allgather_metadata(str(given.dtype) if given.size else None)
        dtype = np.result_type(*([kind for kind in kinds if kind] or [given.dtype]))
        data = self._forest.reduce(given.astype(dtype), np.zeros(len(self._places), dtype), "sum")
        return sparse.csr_array((data, (self._places[:, 0], self._places[:, 1])), shape=self._shape)
