"""Loops over the rows of a sparse matrix that Numba compiles, for the set-up of multigrid.

A matrix is the arrays `starts`, `columns` and `values` of its compressed rows, with unsigned indices; `offset` is the
column of the diagonal entry of row 0. Loops take the rows from `first` to `end`, so that threads can share them.
"""

from __future__ import annotations

import numpy as np

from collops.array.kernels.numba_kernels import compiled

_ONE = np.uint64(1)


@compiled
def extreme_sizes(first, end, starts, columns, values, offset, largest, smallest):
    """Set the largest modulus, and the smallest one except for 0, of the entries outside of the diagonal."""
    for row in range(first, end):
        most, least = 0.0, np.inf
        for k in range(np.uint64(starts[row]), np.uint64(starts[row + _ONE])):
            if np.uint64(columns[k]) != row + offset:
                size = np.float64(abs(values[k]))
                most = max(most, size)
                if size > 0:
                    least = min(least, size)
        largest[row], smallest[row] = most, least


@compiled
def strong_entries(first, end, starts, columns, values, offset, roots, threshold, lengths):
    """Return the columns and the values of the strong entries and the diagonal, and set the rows' lengths."""
    most = np.uint64(starts[end]) - np.uint64(starts[first])
    kept, entries = np.empty(most, columns.dtype), np.empty(most, values.dtype)
    place = np.uint64(0)
    for row in range(first, end):
        begin, own = place, roots[row + offset]
        for k in range(np.uint64(starts[row]), np.uint64(starts[row + _ONE])):
            column, size = np.uint64(columns[k]), np.float64(abs(values[k]))
            if column == row + offset or (size > 0 and size >= threshold * (own * roots[column])):
                kept[place], entries[place] = column, values[k]
                place += _ONE
        lengths[row] = place - begin
    return kept[:place], entries[:place]


@compiled
def largest_of_neighbours(first, end, starts, columns, values, chosen, out):
    """Set `out` to the largest value of the columns of each row that is chosen."""
    for row in range(first, end):
        if chosen[row]:
            most = values[np.uint64(columns[np.uint64(starts[row])])]
            for k in range(np.uint64(starts[row]) + _ONE, np.uint64(starts[row + _ONE])):
                most = max(most, values[np.uint64(columns[k])])
            out[row] = most


@compiled
def strongest_labels(first, end, starts, columns, values, offset, roots, steps, shift, neighbours, labels):
    """Set missing labels to the label of the strongest neighbour; among equals to the smallest."""
    for row in range(first, end):
        if labels[row] < 0:
            best = -1.0
            for k in range(np.uint64(starts[row]), np.uint64(starts[row + _ONE])):
                column = np.uint64(columns[k])
                label = neighbours[column]
                if label >= 0 and column != row + offset:
                    size = np.float64(abs(values[k]))
                    strength = np.floor(steps * size / (roots[row + offset] * roots[column]) + shift)
                    if strength > best or (strength == best and label < labels[row]):
                        best, labels[row] = strength, label


@compiled
def filtered_entries(first, end, starts, columns, values, offset, limits, smallest, lengths):
    """Return the columns and values of the entries of at least the `limits` of their rows, and set the rows' lengths.

    The sum of the other entries is added to the diagonal. If this made it less than `smallest` times as large, the row
    keeps all entries.
    """
    size = np.uint64(starts[end]) - np.uint64(starts[first])
    kept, entries = np.empty(size, columns.dtype), np.empty(size, values.dtype)
    place = np.uint64(0)
    for row in range(first, end):
        begin = place
        diagonal = rest = values.dtype.type(0)
        for k in range(np.uint64(starts[row]), np.uint64(starts[row + _ONE])):
            if np.uint64(columns[k]) == row + offset:
                diagonal = values[k]
            elif abs(values[k]) < limits[row]:
                rest += values[k]
        filters = (diagonal + rest).real >= smallest * diagonal.real
        for k in range(np.uint64(starts[row]), np.uint64(starts[row + _ONE])):
            column, value = np.uint64(columns[k]), values[k]
            if column == row + offset:
                value = value + rest if filters else value
            elif value == 0 or (filters and abs(value) < limits[row]):
                continue
            kept[place], entries[place] = column, value
            place += _ONE
        lengths[row] = place - begin
    return kept[:place], entries[:place]


@compiled
def separated_entries(first, end, starts, columns, values, offset, limits, weak, lengths):
    """Return the columns and values of the weak entries, or of the others, and set the rows' lengths.

    An entry is weak if it is negative, and its modulus is less than the limits of its row and its column. The diagonal
    of the weak entries makes their row add up to 0.
    """
    size = np.uint64(starts[end]) - np.uint64(starts[first])
    kept, entries = np.empty(size, columns.dtype), np.empty(size, values.dtype)
    place = np.uint64(0)
    for row in range(first, end):
        begin, limit = place, limits[row + offset]
        rest = values.dtype.type(0)
        for k in range(np.uint64(starts[row]), np.uint64(starts[row + _ONE])):
            column, value = np.uint64(columns[k]), values[k]
            if column != row + offset and value < 0 and -value < min(limit, limits[column]):
                rest += value
        for k in range(np.uint64(starts[row]), np.uint64(starts[row + _ONE])):
            column, value = np.uint64(columns[k]), values[k]
            if column == row + offset:
                value = -rest if weak else value + rest
            elif value == 0 or weak != (value < 0 and -value < min(limit, limits[column])):
                continue
            kept[place], entries[place] = column, value
            place += _ONE
        lengths[row] = place - begin
    return kept[:place], entries[:place]


@compiled
def smoothing_entries(first, end, starts, columns, values, offset, scale, out):
    """Set `out` to the entries of the identity minus the matrix with its rows multiplied by `scale`."""
    for row in range(first, end):
        for k in range(np.uint64(starts[row]), np.uint64(starts[row + _ONE])):
            out[k] = -scale[row] * values[k]
            if np.uint64(columns[k]) == row + offset:
                out[k] += 1
