"""Passes over the rows of a sparse matrix on a device, for the set-up of multigrid: the kernels of aggregation.cu.

Each function has the arguments and results of its caller in ``aggregates.py`` or ``prolongation.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.backend import LocalArray
from collops.operators.csr.compressed import CompressedRows, starts_of
from collops.operators.csr.row_kernels import launch

_SOURCE = "../../preconditioners/aggregation.cu"
_GROUP = 8  # rows that the same threads take one after the other, as in the source


def extreme_sizes(rows: CompressedRows, offset: int, largest: LocalArray, smallest: LocalArray) -> None:
    """Set the largest modulus, and the smallest one except for 0, of the entries outside of the diagonal."""
    launch("extreme_sizes", rows, *rows.operands, offset, float(np.inf), largest, smallest, source=_SOURCE)


def strong_entries(rows: CompressedRows, offset: int, roots: LocalArray, threshold: float) -> CompressedRows:
    """Return the strong entries and the diagonal: `rows` itself if these are all."""
    return _selected("strong_entries", rows, offset, roots, threshold)


def filtered_entries(rows: CompressedRows, offset: int, limits: LocalArray, smallest: float) -> CompressedRows:
    """Return the entries of at least the `limits` of their rows, with the sum of the others on the diagonal.

    A row whose diagonal would become less than `smallest` times as large keeps its entries.
    """
    return _selected("filtered_entries", rows, offset, limits, smallest)


def separated_entries(rows: CompressedRows, offset: int, limits: LocalArray, weak: bool) -> CompressedRows:
    """Return the negative entries below the `limits` of their row and column, or the others."""
    return _selected("separated_entries", rows, offset, limits, int(weak))


def set_largest(rows: CompressedRows, values: LocalArray, chosen: LocalArray, out: LocalArray) -> None:
    """Set `out` to the largest value of the columns of each row that is chosen."""
    name = "largest_keys" if values.dtype == np.uint64 else "largest_labels"
    _launch_groups(name, rows, rows.indptr, rows.indices, values, chosen, out)


def first_keys(rows: CompressedRows, first: int, covered: np.uint64) -> tuple[LocalArray, LocalArray, LocalArray]:
    """Return the keys of this rank's nodes, whether they are undecided, and whether a neighbour's key may change."""
    empty = rows.engine.xp.empty
    arrays = empty(rows.shape[0], np.uint64), empty(rows.shape[0], bool), empty(rows.shape[0], bool)
    launch("first_keys", rows, rows.indptr, first, covered, *arrays, source=_SOURCE, lanes=1)
    return arrays


def settle(rows: CompressedRows, *arguments: Any) -> bool:
    """Settle nodes; return whether one remains undecided."""
    remaining = rows.engine.xp.zeros(1, np.int64)
    launch("settle", rows, *arguments, remaining, source=_SOURCE, lanes=1)
    return bool(remaining[0])


def labels_of_roots(rows: CompressedRows, before: LocalArray, first: int) -> LocalArray:
    """Return the labels of roots in their order, from `first`, and -1 for other nodes."""
    labels = rows.engine.xp.empty(rows.shape[0], np.int64)
    launch("label_roots", rows, before, first, labels, source=_SOURCE, lanes=1)
    return labels


def set_strongest(rows: CompressedRows, *arguments: Any) -> bool:
    """Set missing labels to the label of the strongest neighbour; return whether a node remains without one."""
    remaining = rows.engine.xp.zeros(1, np.int64)
    _launch_groups("strongest_labels", rows, *rows.operands, *arguments, remaining)
    return bool(remaining[0])


def _launch_groups(name: str, rows: CompressedRows, *arguments: Any) -> None:
    """Launch a kernel whose threads take several rows: there are few groups if most rows have nothing to do."""
    count = rows.shape[0]
    launch(name, rows, count, *arguments, source=_SOURCE, rows=-(-count // _GROUP))


def smoothing_entries(rows: CompressedRows, offset: int, scale: LocalArray) -> CompressedRows:
    """Return the identity minus the matrix with its rows multiplied by `scale`, in the positions of the matrix."""
    values = rows.engine.xp.empty(rows.nnz, rows.dtype)
    launch("smoothing_entries", rows, *rows.operands, offset, scale, values, source=_SOURCE)
    return rows._replace(data=values)


def _selected(name: str, rows: CompressedRows, *arguments: Any) -> CompressedRows:
    """Return the entries that a kernel selects: it counts them, and copies them."""
    xp = rows.engine.xp
    lengths = xp.empty(rows.shape[0], np.int64)
    launch(name, rows, *rows.operands, *arguments, lengths, None, None, None, source=_SOURCE)
    starts = starts_of(lengths)
    size = int(starts[-1])
    if size == rows.nnz:
        return rows
    selected = CompressedRows(xp.empty(size, rows.dtype), xp.empty(size, np.int32), starts, rows.shape)
    launch(name, rows, *rows.operands, *arguments, None, *selected.operands, source=_SOURCE)
    return selected
