"""Least-squares problems for the tests: uneven over the ranks, and what they are for serial PyLops."""

from __future__ import annotations

import numpy as np
import pylops
import scipy.linalg

from collops.array import from_global
from collops.operators import BlockDiag, Diagonal, HStack, VStack

ROWS = ([4, 5], [], [7], [3], [2, 1], [6], [], [8])
"""Rows of each rank's operators: two on the first rank, none on the second. Equal numbers would give equal matrices."""

VARIETY = [
    ("vstack", "f4"),
    ("hstack", "f8"),
    ("block_diag", "c8"),
    ("vstack", "c16"),
    ("hstack", "c8"),
    ("block_diag", "f8"),
]
"""Kinds of problems and dtypes, not each with each other. Every second one: all kinds, of real and complex numbers."""


def joined(every: list[list[np.ndarray]]) -> list[np.ndarray]:
    """Return the matrices of all ranks in one list."""
    return [block for entries in every for block in entries]


def random_matrix(rows: int, columns: int, dtype, seed: int) -> np.ndarray:
    """Return a random matrix, the same on every rank."""
    generator = np.random.default_rng([seed, rows, columns])
    values = generator.standard_normal((rows, columns))
    if np.dtype(dtype).kind == "c":
        values = values + 1j * generator.standard_normal((rows, columns))
    return values.astype(dtype)


def problem(kind: str, comm, dtype):
    """Return a distributed operator, the same for PyLops, and data for both."""
    ranks = ROWS[: comm.size]
    if kind == "vstack":
        # Enough rows for a solution that fits them only in the mean.
        every = [[random_matrix(n + 3, 6, dtype, n) for n in rows] for rows in ranks]
        op, whole = VStack(every[comm.rank], comm), np.vstack(joined(every))
    elif kind == "hstack":
        # More rows than all ranks have columns, so that there is one solution.
        height = max(30, 3 * sum(map(sum, ranks)) // 2)
        every = [[random_matrix(height, n, dtype, n) for n in rows] for rows in ranks]
        op, whole = HStack(every[comm.rank], comm), np.hstack(joined(every))
    else:
        every = [[random_matrix(n + 2, n, dtype, n) for n in rows] for rows in ranks]
        op, whole = BlockDiag(every[comm.rank], comm), scipy.linalg.block_diag(*joined(every))
    data = random_matrix(len(whole), 1, dtype, 99)[:, 0]
    return op, pylops.MatrixMult(whole, dtype=dtype), data, from_global(data, op.range, comm=comm)


class Cubic:
    """The residual ``A (x + x^3 / 4) - data``, and its Jacobian."""

    def __init__(self, A, data) -> None:
        self.A, self.data = A, data

    def residual(self, x):
        return self.A.forward(x + 0.25 * x * x * x) - self.data

    def jacobian(self, x):
        return self.A @ Diagonal(1.0 + 0.75 * x * x)


def start(op, comm, dtype):
    """Return a starting model, and the same as a distributed array."""
    x0 = random_matrix(op.domain.size, 1, dtype, 98)[:, 0]
    return x0, from_global(x0, op.domain, comm=comm)


def assert_close(actual, expected, dtype="f8", factor: float = 1.0) -> None:
    """Assert that two arrays agree to the rounding of some iterations, relative to the largest element."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    atol = factor * 1000 * float(np.finfo(dtype).eps) * scale
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)
