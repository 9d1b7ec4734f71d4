"""Operators for the tests: uneven over the ranks, some ranks without any, and what they are as one matrix."""

from __future__ import annotations

import numpy as np


def matrix(rows: int, columns: int, dtype, seed: int) -> np.ndarray:
    """Return a random matrix, the same on every rank."""
    generator = np.random.default_rng([seed, rows, columns])
    values = generator.standard_normal((rows, columns))
    if np.dtype(dtype).kind == "c":
        values = values + 1j * generator.standard_normal((rows, columns))
    return values.astype(dtype)


def vector(size: int, dtype, seed: int) -> np.ndarray:
    """Return a random vector, the same on every rank."""
    return matrix(size, 1, dtype, seed)[:, 0]


def rows_of(comm) -> list[list[int]]:
    """Return for each rank the rows of its operators: two on the first, none on the second, one on others."""
    return [[4, 2], [], [7], [3], [1], [5], [2, 2], [6]][: comm.size]


def blocks(comm, columns: int, dtype) -> list[list[np.ndarray]]:
    """Return the matrices of every rank, for a VStack."""
    return [
        [matrix(rows, columns, dtype, 10 * rank + number) for number, rows in enumerate(entries)]
        for rank, entries in enumerate(rows_of(comm))
    ]


def joined(every: list[list[np.ndarray]]) -> list[np.ndarray]:
    """Return the matrices of all ranks in one list."""
    return [block for entries in every for block in entries]


def tolerance(dtype) -> float:
    """Return what two computations of one thing may differ by, relative to its size."""
    return 200 * float(np.finfo(dtype).eps)


def assert_close(actual, expected, dtype=np.float64, factor: float = 1.0) -> None:
    """Assert that two arrays agree to rounding, relative to the largest element."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=factor * tolerance(dtype) * scale)


def views_of_repeated_calls(op, x):
    """Return the scratch arrays of a Fourier transform, which a second call both ways neither adds to nor replaces."""
    y = op.forward(x)
    op.adjoint(y, x)
    (workspace,) = op._workspaces.values()
    before = {key: id(view) for key, view in workspace._views.items()}
    op.adjoint(op.forward(x, y), x)
    assert before == {key: id(view) for key, view in workspace._views.items()}
    return before
