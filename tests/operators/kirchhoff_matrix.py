"""The matrix of a small Kirchhoff operator by its definition, and the comparison of an engine with it."""

from __future__ import annotations

import numpy as np

from collops.operators.kirchhoff import FixedTables, LocalKirchhoff

DIMS, SAMPLES = (3, 5), 23
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
WAVELETS = [([1.0], 0), ([0.5, -1.0, 2.0, 0.25], 1)]
"""Taps and the number of the one at time zero."""


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
        Of :class:`collops.operators.kirchhoff.LocalKirchhoff`, its engine among them.
    """
    points = np.arange(15.0).reshape(DIMS)
    sources = np.stack([0.25 + 0.5 * points, 9.0 - points])  # in samples; some arrive before the first, some at the end
    receivers = np.stack([1.0 + 0.0 * points, 2.5 + points[::-1], 0.5 + 0.5 * points])
    tables = FixedTables.from_seconds(sources, receivers, 1.0, SAMPLES, dtype)
    op = LocalKirchhoff(tables, DIMS, taps, center, **options)
    matrix = matrix_of(sources, receivers, taps, center).astype(dtype)
    xp = op.engine.xp
    forward = [op.forward_local(xp.asarray(unit)) for unit in np.eye(op.shape[1], dtype=dtype)]
    adjoint = [op.adjoint_local(xp.asarray(unit)) for unit in np.eye(op.shape[0], dtype=dtype)]
    for name, found, expected in (("forward", forward, matrix.T), ("adjoint", adjoint, matrix)):
        found = xp.stack(found)
        found = found.get() if hasattr(found, "get") else found
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype], err_msg=name)


def matrix_of(sources: np.ndarray, receivers: np.ndarray, taps: list[float], center: int) -> np.ndarray:
    """Return the matrix: hat functions at the arrivals inside the traces, convolved with the wavelet."""
    rows = []
    for source in sources:
        for receiver in receivers:
            arrival = (source + receiver).ravel()
            inside = (arrival >= 0) & (arrival < SAMPLES - 1)
            hats = np.maximum(1 - np.abs(np.arange(SAMPLES)[:, np.newaxis] - arrival), 0) * inside
            columns = [np.convolve(hat, taps)[center : center + SAMPLES] for hat in hats.T]
            rows.append(np.stack(columns, axis=1))
    return np.concatenate(rows)
