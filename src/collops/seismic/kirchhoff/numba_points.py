"""Times, weights and bands of stations at pieces of the image, in Numba, interpolated where nodes are coarser."""

from __future__ import annotations

import numpy as np

from collops.extend.engines import cached_njit
from collops.seismic.kirchhoff.numba_rows import OPTIONS

_NO_DIRECTION = 1e-30  # squared length of the sum of two opposite directions


@cached_njit(**OPTIONS)
def _interpolate(values, nodes, begin, n, line, result):
    """Interpolate a row of node values at the points from `begin` on; `line` is overwritten."""
    shape, counts, node, step, weight = nodes
    nx, nz = shape[1], shape[2]
    of_x, of_z = shape[0], shape[0] + shape[1]
    done = 0
    while done < n:
        column, depth = (begin + done) // nz, (begin + done) % nz
        size = min(nz - depth, n - done)
        y, x, first_z, last_z = column // nx, of_x + column % nx, of_z + depth, of_z + depth + size - 1
        across, along = step[y] * counts[1] * counts[2], step[x] * counts[2]
        first = (node[y] * counts[1] + node[x]) * counts[2]
        low, high = node[first_z], node[last_z] + step[last_z] + 1
        for k in range(low, high):
            near = values[first + k]
            near += weight[x] * (values[first + along + k] - near)
            if across:
                far = values[first + across + k]
                far += weight[x] * (values[first + across + along + k] - far)
                near += weight[y] * (far - near)
            line[k] = near
        for i in range(size):
            k = node[first_z + i]
            result[done + i] = line[k] + weight[first_z + i] * (line[k + step[first_z + i]] - line[k])
        done += size


@cached_njit(**OPTIONS)
def times_of(times, coarse, nodes, row, begin, n, line, scratch, result):
    """Return the times of a station at the points from `begin` on: from a fine table, or computed in `result`."""
    remainders, straight, spacing, latest, unit = coarse
    if not straight.shape[0]:
        return times[row, begin : begin + n]
    _interpolate(remainders[row], nodes, begin, n, line, scratch)
    slowness = straight[row, 0]
    nx, nz = nodes[0][1], nodes[0][2]
    done = 0
    while done < n:
        column, depth = (begin + done) // nz, (begin + done) % nz
        size = min(nz - depth, n - done)
        y = (column // nx) * spacing[0] - straight[row, 1]
        x = (column % nx) * spacing[1] - straight[row, 2]
        square = y * y + x * x
        for i in range(size):
            z = (depth + i) * spacing[2] - straight[row, 3]
            samples = scratch[done + i] + slowness * np.sqrt(square + z * z)
            result[done + i] = result.dtype.type(np.rint(min(samples, latest) * unit))
        done += size
    return result[:n]


@cached_njit(**OPTIONS)
def fields_of(fields, nodes, row, begin, n, line, result):
    """Interpolate the fields of a station at the points from `begin` on."""
    for field in range(fields.shape[1]):
        _interpolate(fields[row, field], nodes, begin, n, line, result[field])


@cached_njit(**OPTIONS)
def weigh(form, source, source_begin, receiver, receiver_begin, n, weight, length):
    """Compute the weights of a source and a receiver at `n` points from their fields, of shape (fields, points).

    `form` has the parameters of `Weights`: axes, oblique, spreads, and the two numbers of `steepest`. `length` is
    overwritten.
    """
    axes, oblique, spreads, steepest, width = int(form[0]), form[1] > 0, form[2] > 0, form[3], form[4]
    a, b = (source[0, source_begin : source_begin + n], receiver[0, receiver_begin : receiver_begin + n])
    for i in range(n):
        weight[i] = a[i] * b[i]
    if axes > 0:
        length[:n] = 0
        for axis in range(1, 1 + axes):
            a, b = (source[axis, source_begin : source_begin + n], receiver[axis, receiver_begin : receiver_begin + n])
            for i in range(n):
                total = a[i] + b[i]
                length[i] += total * total
        if oblique:
            for i in range(n):
                weight[i] *= np.sqrt(length[i])
        if steepest >= 0:  # `a` and `b` are the vertical components here
            real = weight.dtype.type
            zero, unity, nothing = real(0), real(1), real(_NO_DIRECTION)
            for i in range(n):
                total = a[i] + b[i]
                part = (total * total - steepest * length[i]) / (width * (length[i] + nothing))
                weight[i] *= min(max(part, zero), unity)
    if spreads:
        a, b = (
            source[1 + axes, source_begin : source_begin + n],
            receiver[1 + axes, receiver_begin : receiver_begin + n],
        )
        for i in range(n):
            weight[i] /= np.sqrt(a[i] + b[i])


@cached_njit(**OPTIONS)
def choose_rows(index, choice, nearest, begin, n, stride):
    """Shift sample indices to the run of their band."""
    for i in range(n):
        node = nearest[begin + i] if nearest.size else begin + i
        index[i] += np.uint32(choice[node]) * np.uint32(stride)
