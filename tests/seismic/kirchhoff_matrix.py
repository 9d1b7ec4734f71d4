"""The matrices of small Kirchhoff operators by their definition, and the comparison of an engine with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collops.seismic.kirchhoff import FixedTables, LocalKirchhoff
from collops.seismic.kirchhoff.geometry import ImageGrid
from collops.seismic.kirchhoff.weights import Bands, Weighting, Weights

DIMS, SAMPLES = (3, 5), 23
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
WAVELETS = [([1.0], 0), ([0.5, -1.0, 2.0, 0.25], 1)]
"""Taps and the number of the one at time zero."""
WEIGHTINGS = [
    ("2d", None, None),
    ("2.5d", 90.0, 50.0),
    ("3d", None, 60.0),
    ("none", 80.0, None),
    ("none", None, 35.0),
]
"""Amplitude, aperture in metres and largest dip in degrees."""
_SPEED = 2000.0
_AXES = {"y": 35.0 * np.arange(3), "x": 30.0 * np.arange(5), "z": 40.0 + 25.0 * np.arange(4)}


def check_matrix(dtype: str, taps: list[float], center: int, **options) -> None:
    """Compare forward and adjoint, each alone, with the matrix, where no arrival is on a sample or midway between two.

    Parameters
    ----------
    dtype : str
        float32 or float64.
    taps : list of float
        The wavelet.
    center : int
        Its tap at time zero.
    **options
        Of :class:`collops.seismic.kirchhoff.LocalKirchhoff`, its engine among them.
    """
    points = np.arange(15.0).reshape(DIMS)
    sources = np.stack([0.25 + 0.5 * points, 9.0 - points])  # in samples; some arrive before the first, some at the end
    receivers = np.stack([1.0 + 0.0 * points, 2.5 + points[::-1], 0.5 + 0.5 * points])
    tables = FixedTables.from_seconds(sources, receivers, 1.0, SAMPLES, dtype)
    op = LocalKirchhoff(tables, DIMS, taps, center, **options)
    matrix = matrix_of(sources, receivers, taps, center).astype(dtype)
    _compare(op, matrix, TOLERANCE[dtype])


def matrix_of(
    sources: np.ndarray, receivers: np.ndarray, taps: Sequence[float], center: int, samples: int = SAMPLES
) -> np.ndarray:
    """Return the matrix: hat functions at the arrivals inside the traces, convolved with the wavelet."""
    rows = []
    for source in sources:
        for receiver in receivers:
            arrival = (source + receiver).ravel()
            inside = (arrival >= 0) & (arrival < samples - 1)
            hats = np.maximum(1 - np.abs(np.arange(samples)[:, np.newaxis] - arrival), 0) * inside
            columns = [np.convolve(hat, taps)[center : center + samples] for hat in hats.T]
            rows.append(np.stack(columns, axis=1))
    return np.concatenate(rows)


def _towards(station: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the unit vectors from points towards a station."""
    return (station - points) / np.linalg.norm(station - points, axis=1, keepdims=True)


def _weight(source, receiver, points, cell, amplitude, aperture, dip):
    """Return the weight of a trace at points (number, axes), depth last, from the lengths and angles of its rays."""
    ours, theirs = (np.linalg.norm(points - station, axis=1) for station in (source, receiver))
    up, down = _towards(source, points), _towards(receiver, points)
    half = np.arccos(np.clip((up * down).sum(axis=1), -1, 1)) / 2
    green = {
        "none": np.ones(len(points)),
        "2d": np.sqrt(_SPEED / (8 * np.pi * ours)) * np.sqrt(_SPEED / (8 * np.pi * theirs)),
        "2.5d": np.sqrt(_SPEED / (8 * np.pi * ours)) * np.sqrt(_SPEED / (8 * np.pi * theirs)),
        "3d": 1 / (4 * np.pi * ours) / (4 * np.pi * theirs),
    }[amplitude]
    weight = green if amplitude == "none" else green * 2 * np.cos(half) / _SPEED * cell
    if amplitude == "2.5d":
        weight = weight / np.sqrt(2 * np.pi * _SPEED * (ours + theirs))
    for station in (source, receiver) if aperture else ():
        part = np.linalg.norm((points - station)[:, :-1], axis=1) / aperture
        weight = weight * np.where(part < 0.8, 1, np.where(part > 1, 0, np.cos((part - 0.8) / 0.2 * np.pi / 2) ** 2))
    if dip:
        bisector = up + down
        squared = bisector[:, -1] ** 2 / (bisector**2).sum(axis=1)
        begin, end = np.cos(np.radians(0.8 * dip)) ** 2, np.cos(np.radians(dip)) ** 2
        weight = weight * np.clip((squared - end) / (begin - end), 0, 1)
    return weight


def check_weighted_matrix(dtype: str, amplitude: str, aperture: float | None, dip: float | None, **options) -> None:
    """Compare forward and adjoint with the matrix in which weights by geometry multiply the arrivals of two bands.

    Parameters
    ----------
    dtype : str
        float32 or float64.
    amplitude, aperture, dip
        As in `WEIGHTINGS`.
    **options
        Of :class:`collops.seismic.kirchhoff.LocalKirchhoff`, its engine among them.
    """
    axes = [axis for name, axis in _AXES.items() if name != "y" or amplitude == "3d"]
    grid = ImageGrid(tuple(axes), tuple(float(axis[1] - axis[0]) for axis in axes))
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    low, high = points.min(axis=0), points.max(axis=0)
    rng = np.random.default_rng(5)
    stations = rng.uniform(low, high, (5, len(axes)))
    stations[:, -1] = rng.uniform(-10, 10, 5)
    times = np.linalg.norm(points - stations[:, np.newaxis], axis=2) / _SPEED
    weighting = Weighting(amplitude, aperture, dip)
    fields = [
        weighting.fields_of(each.reshape(grid.shape), grid, station, np.full(grid.shape, _SPEED)).reshape(
            -1, grid.points
        )
        for each, station in zip(times, stations, strict=True)
    ]
    weights = Weights(np.array(fields, dtype), weighting)
    bands = Bands((1, 3), np.arange(3 * grid.points, dtype=np.uint8).reshape(3, -1) % 2, np.arange(3))
    interval, samples, taps = 0.011, 23, [0.5, -1.0, 2.0]
    tables = FixedTables.from_seconds(times[:2], times[2:], interval, samples, dtype)
    op = LocalKirchhoff(tables, grid.shape, taps, 1, weights=weights, bands=bands, **options)
    stations_of_traces = [(source, receiver) for source in stations[:2] for receiver in stations[2:]]
    by_geometry = [
        _weight(*both, points, np.prod(grid.spacing), amplitude, aperture, dip) for both in stations_of_traces
    ]
    smooth = np.convolve(taps, np.array([1, 2, 3, 2, 1]) / 9)
    sharp, filtered = (
        matrix_of(times[:2] / interval, times[2:] / interval, wavelet, center, samples)
        for wavelet, center in ((taps, 1), (smooth, 3))
    )
    chosen = np.repeat(np.tile(bands.choice, (2, 1)), samples, axis=0)
    matrix = np.where(chosen == 1, filtered, sharp) * np.repeat(np.stack(by_geometry), samples, axis=0)
    _compare(op, matrix.astype(dtype), 20 * TOLERANCE[dtype] * np.abs(matrix).max())


def _compare(op: LocalKirchhoff, matrix: np.ndarray, limit: float) -> None:
    """Compare forward and adjoint of every unit vector with the columns and rows of a matrix."""
    xp = op.engine.xp
    forward = [op.forward_local(xp.asarray(unit)) for unit in np.eye(op.shape[1], dtype=matrix.dtype)]
    adjoint = [op.adjoint_local(xp.asarray(unit)) for unit in np.eye(op.shape[0], dtype=matrix.dtype)]
    for name, found, expected in (("forward", forward, matrix.T), ("adjoint", adjoint, matrix)):
        found = xp.stack(found)
        found = found.get() if hasattr(found, "get") else found
        np.testing.assert_allclose(found, expected, rtol=0, atol=limit, err_msg=name)
