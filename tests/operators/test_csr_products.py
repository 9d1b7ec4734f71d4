"""Products and transposes of distributed sparse matrices against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import collops
from collops.array import Layout, kernels
from collops.errors import LayoutError, UnsupportedTypeError
from collops.operators import CSRMatrix
from collops.operators.csr import assembled, multiplied, pieces, transposed


def layout(count, comm, weights=(3, 0, 2, 5)) -> Layout:
    """Give the second rank nothing, and the others unequal shares."""
    shares = np.array(weights[: comm.size])
    ends = np.round(np.cumsum(shares) / shares.sum() * count).astype(int)
    return Layout.split(count, comm.size, sizes=np.diff(ends, prepend=0).tolist())


def drawn(rows, columns, dtype, seed) -> sp.csr_array:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.3)
    return sp.csr_array((values * (1 + 2j) if np.dtype(dtype).kind == "c" else values).astype(dtype))


def gathered(A: CSRMatrix) -> np.ndarray:
    """Return the entire matrix, from the rows of all ranks."""
    local, remote = A.blocks
    rows = np.zeros((local.shape[0], A.shape[1]), A.dtype)
    (own,) = A.columns.slices(A.comm.rank)
    rows[:, own] = local.toarray()
    rows[:, A.ghosts] = remote.toarray()
    return A.comm.allgatherv(rows.reshape(-1)).reshape(A.shape)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtypes", [("f8", "f8"), ("c16", "f4")])
def test_products(comm, monkeypatch, dtypes, compiled):
    if compiled:  # small matrices too, in three threads
        pytest.importorskip("numba")
        monkeypatch.setattr(kernels, "LONG", 1)
        monkeypatch.setattr(pieces, "_ENTRIES", 1)
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
    left, right = drawn(17, 13, dtypes[0], 1), drawn(13, 23, dtypes[1], 2)
    inner, columns = layout(13, comm), layout(23, comm, (1, 1, 0, 3))
    A = CSRMatrix.from_global(left, comm=comm, rows=layout(17, comm, (1, 4, 2, 0)), columns=inner)
    B = CSRMatrix.from_global(right, comm=comm, rows=inner, columns=columns)
    product = multiplied(A, B)
    assert product.rows is A.rows and product.columns is columns
    expected = left @ right
    assert product.dtype == expected.dtype
    # Not only close: sums are in the order of the columns, on any number of ranks.
    np.testing.assert_array_equal(gathered(product), expected.toarray())
    assert int(comm.allreduce(np.array(product.nnz))) == expected.nnz


@pytest.mark.parametrize("conjugate", [False, True])
def test_transposes(comm, conjugate):
    matrix = drawn(17, 13, "c16", 3)
    A = CSRMatrix.from_global(matrix, comm=comm, rows=layout(17, comm), columns=layout(13, comm, (1, 2, 0, 1)))
    B = transposed(A, conjugate=conjugate)
    assert B.rows is A.columns and B.columns is A.rows
    np.testing.assert_array_equal(gathered(B), (matrix.conj() if conjugate else matrix).T.toarray())


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_assembled_expressions(comm, dtype):
    rows = layout(11, comm, (1, 4, 0, 2))
    matrices = [drawn(11, 11, dtype, seed) for seed in (8, 9)]
    A, B = (CSRMatrix.from_global(matrix, comm=comm, rows=rows) for matrix in matrices)
    a, b = (matrix.toarray() for matrix in matrices)
    for expression, expected in (
        (A @ B.H @ A, a @ b.conj().T @ a),
        (A.T + 2 * B, a.T + 2 * b),
        (A.conj() - 0.5 * (A + A.H), a.conj() - 0.5 * (a + a.conj().T)),
    ):
        matrix = assembled(expression)
        assert matrix.rows is rows and matrix.columns is rows
        np.testing.assert_allclose(gathered(matrix), expected, atol=1e-13)
        x = collops.random(rows, comm=comm)
        np.testing.assert_allclose((matrix @ x).gather(), (expression @ x).gather(), atol=1e-12)
    with pytest.raises(UnsupportedTypeError, match=r"parts of type CSRMatrix, not .*Identity"):
        assembled(A + collops.Identity(rows, comm=comm))


def test_long_rows(comm, monkeypatch):
    """Rows with more entries than are sorted by insertion, and more than the first estimate of their number."""
    pytest.importorskip("numba")
    monkeypatch.setattr(kernels, "LONG", 1)
    left, right = drawn(20, 20, "f8", 6), sp.csr_array(np.random.default_rng(7).normal(size=(20, 130)))
    product = multiplied(CSRMatrix.from_global(left, comm=comm), CSRMatrix.from_global(right, comm=comm))
    assert product.blocks[0].has_sorted_indices
    np.testing.assert_array_equal(gathered(product), (left @ right).toarray())


def test_empty_matrices(comm):
    A = CSRMatrix.from_global(sp.csr_array((5, 7)), comm=comm)
    B = CSRMatrix.from_global(sp.csr_array((7, 0)), comm=comm)
    assert multiplied(A, B).shape == (5, 0) and transposed(A).shape == (7, 5)
    assert multiplied(A, transposed(A)).nnz == 0


def test_errors(comm):
    A = CSRMatrix.from_global(drawn(8, 8, "f8", 4), comm=comm)
    if comm.size > 1:
        other = CSRMatrix.from_global(drawn(8, 8, "f8", 5), comm=comm, rows=layout(8, comm))
        with pytest.raises(LayoutError, match="split as the rows of the second"):
            multiplied(A, other)
    with pytest.raises(UnsupportedTypeError, match="expected a CSRMatrix"):
        multiplied(A, A.H)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnsupportedTypeError, match="expected a CSRMatrix"):
        transposed(sp.eye_array(3))  # pyright: ignore[reportArgumentType]
