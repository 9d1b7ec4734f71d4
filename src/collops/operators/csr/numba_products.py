"""Products and merged blocks of sparse matrices, row by row, by loops that Numba compiles.

A matrix is the arrays `starts`, `columns` and `values` of its compressed rows, with unsigned indices. Loops take the
rows from `first` to `end`, so that threads can share them.
"""

from __future__ import annotations

import numpy as np

from collops.array.kernels.numba_kernels import compiled

_ONE, _TWO = np.uint64(1), np.uint64(2)
_SHORT = np.uint64(48)  # entries that are sorted faster by insertion


@compiled
def _sort(columns, values, begin, end):
    """Sort the columns from `begin` to `end`, and the values with them, by insertion."""
    for k in range(begin + _ONE, end):
        column, value, place = columns[k], values[k], k
        while place > begin and columns[place - _ONE] > column:
            columns[place], values[place] = columns[place - _ONE], values[place - _ONE]
            place -= _ONE
        columns[place], values[place] = column, value


@compiled
def _sort_long(columns, values, begin, end):
    order = np.argsort(columns[begin:end])
    columns[begin:end] = columns[begin:end][order]
    values[begin:end] = values[begin:end][order]


@compiled
def product_rows(first, end, starts, columns, values, other_starts, other_columns, other_values, width, zero, lengths):
    """Return the columns and values of the rows of a product with a matrix of `width` columns, and set their `lengths`.

    Columns are sorted, and values are sums in the order of `columns`, in the type of `zero`.
    """
    rows = np.zeros(width, np.uint32)  # the last row with an entry in each column, counted from 1
    places = np.empty(width, np.uint64)  # and the place of this entry
    size = np.uint64(starts[end]) - np.uint64(starts[first])
    found, sums = np.empty(size, other_columns.dtype), np.empty(size, zero.dtype)
    size = np.uint64(0)
    for row in range(first, end):
        mark, begin, most = np.uint32(row - first + _ONE), size, size
        for k in range(np.uint64(starts[row]), np.uint64(starts[row + _ONE])):
            j = np.uint64(columns[k])
            most += np.uint64(other_starts[j + _ONE]) - np.uint64(other_starts[j])
        if most > np.uint64(found.size):
            most += most // _TWO
            longer, more = np.empty(most, found.dtype), np.empty(most, sums.dtype)
            longer[:size], more[:size] = found[:size], sums[:size]
            found, sums = longer, more
        for k in range(np.uint64(starts[row]), np.uint64(starts[row + _ONE])):
            j, factor = np.uint64(columns[k]), values[k]
            for m in range(np.uint64(other_starts[j]), np.uint64(other_starts[j + _ONE])):
                column, product = np.uint64(other_columns[m]), factor * other_values[m]
                if rows[column] == mark:
                    sums[places[column]] += product
                else:
                    rows[column], places[column] = mark, size
                    found[size], sums[size] = column, product
                    size += _ONE
        if size - begin > _SHORT:
            _sort_long(found, sums, begin, size)
        else:
            _sort(found, sums, begin, size)
        lengths[row] = size - begin
    return found[:size], sums[:size]


@compiled
def product_values(
    first, end, starts, columns, values, other_starts, other_columns, other_values, width, to_starts, to_columns, to
):
    """Set `to` to the values of the rows of a product with a matrix of `width` columns, whose pattern is known."""
    places = np.empty(width, np.uint64)
    for row in range(first, end):
        for k in range(np.uint64(to_starts[row]), np.uint64(to_starts[row + _ONE])):
            places[np.uint64(to_columns[k])], to[k] = k, 0
        for k in range(np.uint64(starts[row]), np.uint64(starts[row + _ONE])):
            j, factor = np.uint64(columns[k]), values[k]
            for m in range(np.uint64(other_starts[j]), np.uint64(other_starts[j + _ONE])):
                to[places[np.uint64(other_columns[m])]] += factor * other_values[m]


@compiled
def merge_rows(
    first, end, before, own, inner_starts, inner_columns, inner, starts, columns, values, to_starts, to_columns, to
):
    """Merge the rows of two blocks: `before` columns of the second, the `own` columns of the first, and the others."""
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
