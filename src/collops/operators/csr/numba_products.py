"""Products of sparse matrices, row by row, by loops that Numba compiles: first the columns of the result, then its values.

A matrix is the arrays `starts`, `columns` and `values` of its compressed rows, with unsigned indices; `other` is the
second factor, and `width` its number of columns. Loops take the rows from `first` to `end`, so that threads can share
them.
"""

from __future__ import annotations

import numpy as np

from collops.array.kernels.numba_kernels import compiled

_ONE, _TWO = np.uint64(1), np.uint64(2)
_SHORT = 24  # columns that are sorted faster by insertion


@compiled
def _sort(columns):
    if columns.size > _SHORT:
        columns.sort()
        return
    for i in range(1, columns.size):
        column, k = columns[i], i
        while k > 0 and columns[k - 1] > column:
            columns[k] = columns[k - 1]
            k -= 1
        columns[k] = column


@compiled
def product_columns(first, end, starts, columns, other_starts, other_columns, width, lengths):
    """Return the sorted columns of the rows of a product, one row after the other, and set their `lengths`."""
    seen = np.zeros(width, np.uint32)  # the last row with an entry in each column, counted from 1
    found = np.empty(_ONE + np.uint64(starts[end]) - np.uint64(starts[first]), other_columns.dtype)
    size = np.uint64(0)
    for row in range(first, end):
        mark, begin, most = np.uint32(row - first + _ONE), size, size
        for k in range(np.uint64(starts[row]), np.uint64(starts[row + _ONE])):
            j = np.uint64(columns[k])
            most += np.uint64(other_starts[j + _ONE]) - np.uint64(other_starts[j])
        if most > np.uint64(found.size):
            longer = np.empty(most + most // _TWO, found.dtype)
            longer[:size] = found[:size]
            found = longer
        for k in range(np.uint64(starts[row]), np.uint64(starts[row + _ONE])):
            j = np.uint64(columns[k])
            for m in range(np.uint64(other_starts[j]), np.uint64(other_starts[j + _ONE])):
                column = np.uint64(other_columns[m])
                if seen[column] != mark:
                    seen[column] = mark
                    found[size] = column
                    size += _ONE
        _sort(found[begin:size])
        lengths[row] = size - begin
    return found[:size].copy()


@compiled
def product_values(
    first, end, starts, columns, values, other_starts, other_columns, other_values, width, to_starts, to_columns, to
):
    """Set the values `to` of the rows of a product with known columns, as sums in the order of `columns`."""
    places = np.empty(width, np.uint32)  # of each column in the row
    zero = to.dtype.type(0)
    for row in range(first, end):
        begin, stop = np.uint64(to_starts[row]), np.uint64(to_starts[row + _ONE])
        sums = to[begin:stop]
        for k in range(begin, stop):
            places[np.uint64(to_columns[k])] = k - begin
            to[k] = zero
        for k in range(np.uint64(starts[row]), np.uint64(starts[row + _ONE])):
            j, factor = np.uint64(columns[k]), values[k]
            for m in range(np.uint64(other_starts[j]), np.uint64(other_starts[j + _ONE])):
                sums[np.uint64(places[np.uint64(other_columns[m])])] += factor * other_values[m]


@compiled
def merge_rows(
    first, end, before, own, inner_starts, inner_columns, inner, starts, columns, values, to_starts, to_columns, to
):
    """Merge the rows of two blocks: `before` columns of the second one, the `own` columns of the first, and the others."""
    for row in range(first, end):
        place = np.uint64(to_starts[row])
        k, stop = np.uint64(starts[row]), np.uint64(starts[row + _ONE])
        while k < stop and columns[k] < before:
            to_columns[place], to[place] = columns[k], values[k]
            k += _ONE
            place += _ONE
        for m in range(np.uint64(inner_starts[row]), np.uint64(inner_starts[row + _ONE])):
            to_columns[place], to[place] = inner_columns[m] + before, inner[m]
            place += _ONE
        while k < stop:
            to_columns[place], to[place] = columns[k] + own, values[k]
            k += _ONE
            place += _ONE
