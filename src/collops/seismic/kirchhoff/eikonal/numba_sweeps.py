"""Fast sweeping for one source, by loops that Numba compiles, of the points whose neighbours have changed."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from collops.seismic.kirchhoff.eikonal.medium import FAR, MAX_SWEEPS, SETTLING_ROUNDS, TOLERANCE, WAKE, Medium, Source

_IDLE, _ACTIVE, _FIXED = np.uint8(0), np.uint8(1), np.uint8(2)
_THIRD = 1 / 3


def solve_one(medium: Medium, source: Source) -> np.ndarray:
    """Return the times from a source, of the shape of the image, in seconds."""
    times, state = np.full(medium.points, FAR), np.full(medium.points, _ACTIVE)
    times[source.near], state[source.near[source.fixed]] = source.straight, _FIXED
    axes = source.offsets(medium)
    straight = source.slowness * np.sqrt(sum(part**2 for part in axes)).ravel()
    coordinates = np.concatenate([axis.ravel() for axis in axes])
    problem = (times, state, straight, medium.slowness, source.slowness, coordinates)
    if not _solve(*problem, np.array(medium.sizes), np.array(medium.spacing), np.array(medium.corners), MAX_SWEEPS):
        raise medium.not_converged()
    # Straight rays cannot arrive before the first arrival.
    times[source.near] = np.minimum(times[source.near], source.straight)
    return times.reshape(medium.shape)


@njit(cache=True, error_model="numpy", nogil=True)
def _solve(times, state, straight, slowness, at_source, coordinates, sizes, spacing, corners, most):
    """Sweep until the sweeps from all corners have changed nothing; return whether it is so."""
    quiet = 0
    for number in range(most):
        corner, settled = corners[number % corners.size], number >= SETTLING_ROUNDS * corners.size
        changed = _sweep(times, state, straight, slowness, at_source**2, coordinates, sizes, spacing, corner, settled)
        quiet = 0 if changed else quiet + 1
        if quiet == corners.size:
            return True
    return False


@njit(cache=True, error_model="numpy", nogil=True)
def _sweep(times, state, straight, slowness, square, coordinates, sizes, spacing, corner, settled):
    """Compute the active points from one corner to the opposite one; return whether any has changed."""
    size0, size1, size2 = sizes[0], sizes[1], sizes[2]
    cell, changed = min(spacing[1], spacing[2]), False
    for i_ in range(size0):
        i = size0 - 1 - i_ if corner & 4 else i_
        for j_ in range(size1):
            j = size1 - 1 - j_ if corner & 2 else j_
            for k_ in range(size2):
                k = size2 - 1 - k_ if corner & 1 else k_
                point = (i * size1 + j) * size2 + k
                if state[point] != _ACTIVE:
                    continue
                slope = square / straight[point] if straight[point] > 0 else 0.0
                problem = times, straight, point
                a, of_a = _upwind(*problem, size1 * size2, i, size0, spacing[0], slope * coordinates[i])
                b, of_b = _upwind(*problem, size2, j, size1, spacing[1], slope * coordinates[size0 + j])
                c, of_c = _upwind(*problem, 1, k, size2, spacing[2], slope * coordinates[size0 + size1 + k])
                if min(a, b, c) >= FAR:
                    continue
                state[point] = _IDLE
                found = _arrival(a, of_a, b, of_b, c, of_c, slowness[point])
                if settled and found >= times[point]:
                    continue
                change, times[point] = abs(found - times[point]), found
                changed = changed or change > TOLERANCE * cell * slowness[point]
                if change > WAKE * cell * slowness[point]:
                    _wake(state, point, size1 * size2, i, size0)
                    _wake(state, point, size2, j, size1)
                    _wake(state, point, 1, k, size2)
    return changed


@njit(cache=True, error_model="numpy", nogil=True)
def _wake(state, point, stride, number, size):
    """Make the points active whose differences along an axis contain a point."""
    for by in range(max(-2, -number), min(2, size - 1 - number) + 1):
        if state[point + by * stride] == _IDLE:
            state[point + by * stride] = _ACTIVE


@njit(cache=True, error_model="numpy", nogil=True)
def _upwind(times, straight, point, stride, number, size, spacing, slope):
    """Return value and inverse, so that ``(time - value) * inverse`` is the upwind derivative along an axis.

    Differences are taken of what is left after the straight ray, whose derivative is `slope`.
    """
    before = times[point - stride] if number > 0 else FAR
    after = times[point + stride] if number < size - 1 else FAR
    time = min(before, after)
    if time >= FAR:
        return FAR, 0.0
    if before > after:
        stride, number, slope = -stride, size - 1 - number, -slope
    rest = time - straight[point - stride]
    if number > 1:
        beyond = times[point - 2 * stride]
        if beyond <= time:
            rest = _THIRD * (4 * rest - (beyond - straight[point - 2 * stride]))
            return straight[point] + rest - slope * spacing * (2 * _THIRD), 1.5 / spacing
    return straight[point] + rest - slope * spacing, 1 / spacing


@njit(cache=True, error_model="numpy", nogil=True)
def _arrival(a, of_a, b, of_b, c, of_c, slowness):
    """Return the time at which the squares of the derivatives add up to the squared slowness.

    Axes count if their value precedes it. Times are relative to the first value, or else their squares would cancel.
    """
    if b < a:
        a, of_a, b, of_b = b, of_b, a, of_a
    if c < b:
        b, of_b, c, of_c = c, of_c, b, of_b
    if b < a:
        a, of_a, b, of_b = b, of_b, a, of_a
    time, b, c = slowness / of_a, b - a, c - a
    if time > b:
        squares, linear, constant = of_a**2 + of_b**2, of_b**2 * b, (of_b * b) ** 2 - slowness**2
        time = (linear + math.sqrt(max(linear**2 - squares * constant, 0.0))) / squares
        if time > c:
            squares, linear, constant = squares + of_c**2, linear + of_c**2 * c, constant + (of_c * c) ** 2
            time = (linear + math.sqrt(max(linear**2 - squares * constant, 0.0))) / squares
    return a + time
