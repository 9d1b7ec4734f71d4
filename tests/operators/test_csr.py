"""Distributed sparse matrices against SciPy on gathered data."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.io import mmwrite

import collops
from collops import profile
from collops.array import Layout, kernels
from collops.backend import engine
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators.csr import CSRMatrix, partition_rows
from collops.operators.csr.blocks import make_block
from collops.operators.csr.matrix import _split


def matrix(rows, columns, dtype, seed=1, density=0.2):
    rng = np.random.default_rng(seed)
    dense = rng.integers(-3, 4, (rows, columns)) * (rng.random((rows, columns)) < density)
    if np.dtype(dtype).kind == "c":
        dense = dense * (1 + 2j)
    return sp.csr_array(dense.astype(dtype))


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(17, 17), (13, 20), (20, 7), (2, 2)])
def test_products(comm, dtype, shape):
    A = matrix(*shape, dtype)
    op = CSRMatrix.from_global(A, comm=comm, transport="mpi")
    assert op.shape == shape and op.dtype == dtype
    x = collops.from_global(np.arange(1, shape[1] + 1).astype(dtype), op.domain, comm=comm)
    y = collops.from_global(np.arange(2, shape[0] + 2).astype(dtype), op.range, comm=comm)
    np.testing.assert_array_equal(op.forward(x).gather(), A @ x.gather())
    np.testing.assert_array_equal(op.adjoint(y).gather(), A.conj().T @ y.gather())
    out = collops.full(op.domain, 7, comm=comm, dtype=dtype)
    np.testing.assert_array_equal(op.adjoint(y, out).gather(), A.conj().T @ y.gather())
    op.dottest()


@pytest.mark.usefixtures("loops")
def test_products_are_added_in_one_pass(comm):
    """In sums of operators, with the squares of the sum."""
    A, B = matrix(13, 20, "float64"), matrix(13, 20, "float64", seed=2)
    first, second = (CSRMatrix.from_global(each, comm=comm) for each in (A, B))
    x, y = np.arange(20.0), np.arange(20.0) ** 2
    dx, dy = (collops.from_global(each, first.domain, comm=comm) for each in (x, y))
    both = collops.StackedHStack([first, second])
    np.testing.assert_array_equal((both @ collops.StackedArray([dx, dy])).gather(), A @ x + B @ y)
    squares = []
    total = collops.full(first.range, 3.0, comm=comm)
    assert first._direction(False).add(dx, total, squares=squares) is total
    np.testing.assert_array_equal(total.gather(), 3 + A @ x)
    (pair,) = squares
    assert pair[0] is pair[1] is total.local_array


@pytest.mark.usefixtures("loops")
def test_mixed_types(comm):
    A = matrix(9, 9, "float32")
    op = CSRMatrix.from_global(A, comm=comm, transport="mpi")
    x = np.arange(9) * 1j
    dx = collops.from_global(x, op.domain, comm=comm)
    got = op.forward(dx)
    assert got.dtype == np.complex128
    np.testing.assert_array_equal(got.gather(), A @ x)
    with pytest.raises(UnsupportedTypeError):
        op.forward(dx, collops.zeros(op.range, comm=comm))


def test_only_one_exchange(comm):
    ring = sp.csr_array(sp.eye_array(3 * comm.size, k=1) + sp.eye_array(3 * comm.size, k=-1))
    op = CSRMatrix.from_global(ring, comm=comm, transport="mpi")
    x = collops.ones(op.domain, comm=comm)
    op.forward(x), op.adjoint(x)
    for apply in (op.forward, op.adjoint):
        with profile.count_messages() as messages:
            apply(x)
        assert messages.counts() == ({"exchange": 1} if comm.size > 1 else {})
        assert messages.nbytes <= 16  # one element for each neighbour
    assert len(op.ghosts) == sum(0 <= ghost < 3 * comm.size for ghost in (3 * comm.rank - 1, 3 * comm.rank + 3))


@pytest.mark.usefixtures("loops")
@pytest.mark.serial
@pytest.mark.parametrize("filled", [[3, 4, 5], [1, 4, 9], []])
def test_rows_that_are_mostly_empty(comm, filled):
    """Sparse blocks keep only the filled rows, consecutive or not, and leave the rest of a result alone."""
    dense = np.zeros((12, 5))
    dense[filled] = np.arange(1.0, 1 + 5 * len(filled)).reshape(-1, 5)
    block = make_block(engine("numpy"), sp.csr_array(dense), np.dtype("f8"))
    x, y = np.arange(5.0), np.arange(12.0)
    for add in (False, True):
        np.testing.assert_array_equal(block.multiply(x, np.full(12, 7.0), add), dense @ x + 7 * add)
        np.testing.assert_array_equal(block.multiply_adjoint(y, np.full(5, 7.0), add), dense.T @ y + 7 * add)


@pytest.mark.serial
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_rows_of_any_length_in_a_large_matrix(comm, dtype, index):
    """Among them empty ones, and such as the loop of Numba takes in several steps."""
    rng = np.random.default_rng(3)
    lengths = np.resize(np.arange(41), 4000)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(index)
    entries = rng.integers(0, 500, starts[-1]).astype(index), rng.integers(-3, 4, starts[-1]).astype(dtype)
    A = sp.csr_array((entries[1], entries[0], starts), shape=(4000, 500))
    assert A.nnz > kernels.LONG and A.indices.dtype == index
    block = make_block(engine("numpy"), A, np.dtype(dtype))
    x, y = (rng.integers(-3, 4, size).astype(dtype) for size in (500, 4000))
    for add in (False, True):
        np.testing.assert_array_equal(block.multiply(x, np.full(4000, 7, dtype), add), A @ x + 7 * add)
        np.testing.assert_array_equal(block.multiply_adjoint(y, np.full(500, 7, dtype), add), A.T @ y + 7 * add)


def test_indices_are_narrow(comm):
    """Wide indices of the given rows would make products read a third more memory."""
    A = matrix(17, 17, "f8")
    A.indices, A.indptr = A.indices.astype(np.int64), A.indptr.astype(np.int64)
    op = CSRMatrix.from_global(A, comm=comm)
    assert {array.dtype for block in op.blocks for array in (block.indices, block.indptr)} == {np.dtype(np.int32)}
    np.testing.assert_array_equal(op.forward(collops.ones(op.domain, comm=comm)).gather(), A @ np.ones(17))


@pytest.mark.serial
def test_entries_are_copied_once():
    """Into the local and the remote columns, with temporary indices."""
    import tracemalloc

    columns, starts = np.tile(np.arange(10, dtype=np.int32), 20_000), np.arange(0, 200_001, 10, np.int32)
    A = sp.csr_array((np.ones(200_000, complex), columns, starts))
    tracemalloc.start()
    inner, outer, ghosts = _split(A, 0, 9)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (inner.nnz, outer.nnz, list(ghosts)) == (180_000, 20_000, [9])
    assert peak < 1.9 * A.data.nbytes


def test_uneven_rows_and_empty_ranks(comm):
    A = matrix(5, 5, "float64", density=0.6)
    rows = Layout.split(5, comm.size, sizes=[5, *[0] * (comm.size - 1)])
    columns = Layout.split(5, comm.size, sizes=[*[0] * (comm.size - 1), 5])
    op = CSRMatrix.from_global(A, rows=rows, columns=columns, comm=comm, transport="mpi")
    x = collops.from_global(np.arange(5.0), columns, comm=comm)
    np.testing.assert_array_equal(op.forward(x).gather(), A @ np.arange(5.0))
    op.dottest()


def test_triples_of_any_rank_are_added(comm):
    rng = np.random.default_rng(5)
    i, j, v = rng.integers(0, 11, 60), rng.integers(0, 8, 60), rng.integers(1, 5, 60).astype(float)
    mine = np.array_split(rng.permutation(60), comm.size)[comm.rank]
    op = CSRMatrix.from_coo(i[mine], j[mine], v[mine], (11, 8), comm=comm, transport="mpi")
    A = sp.coo_array((v, (i, j)), shape=(11, 8)).tocsr()
    x = collops.from_global(np.arange(8.0), op.domain, comm=comm)
    np.testing.assert_array_equal(op.forward(x).gather(), A @ np.arange(8.0))
    assert int(comm.allreduce(np.array(op.nnz))) == A.nnz  # added once, not in each product


def test_triples_of_different_types(comm):
    """Rank 0 has whole numbers, the last complex ones, those between none; all for one place, of the last row."""
    values = np.full(1, 2, "i4") if comm.rank == 0 else np.full(int(comm.rank == comm.size - 1), 3j, "c8")
    places = [comm.size - 1] * len(values), [0] * len(values)
    op = CSRMatrix.from_coo(*places, values, (comm.size, 1), comm=comm, transport="mpi")
    assert op.dtype == ("c16" if comm.size > 1 else "i4")
    x = collops.ones(op.domain, comm=comm, dtype=op.dtype)
    want = np.zeros(comm.size, op.dtype)
    want[-1] = 2 + 3j if comm.size > 1 else 2
    np.testing.assert_array_equal(op.forward(x).gather(), want)
    with pytest.raises(UnsupportedTypeError, match="must be numbers"):
        CSRMatrix.from_coo(*places, ["a"] * len(values), (comm.size, 1), comm=comm)


def test_matrix_market(comm, tmp_path):
    A = matrix(10, 10, "float64")
    A = sp.coo_array(A + A.T)
    path = comm.allgather_metadata(str(tmp_path / "a.mtx"))[0]
    if comm.rank == 0:
        mmwrite(path, A, symmetry="symmetric")
    comm.barrier()
    op = CSRMatrix.from_matrix_market(path, comm=comm, transport="mpi")
    x = collops.from_global(np.arange(10.0), op.domain, comm=comm)
    np.testing.assert_array_equal(op.forward(x).gather(), A @ np.arange(10.0))
    np.testing.assert_array_equal(op.diagonal().gather(), A.tocsr().diagonal())
    if comm.rank == 0:
        mmwrite(path, A.toarray(), symmetry="symmetric")  # an array, of which the file has one triangle
    comm.barrier()
    whole = CSRMatrix.from_matrix_market(path, comm=comm, transport="mpi")
    np.testing.assert_array_equal(whole.forward(x).gather(), A @ np.arange(10.0))
    with pytest.raises(InputError, match="cannot read"):
        CSRMatrix.from_matrix_market(path + "nothing", comm=comm)
    if comm.rank == 0:
        with open(path, "w", encoding="utf-8") as file:
            file.write("no matrix\n")
    comm.barrier()
    with pytest.raises(InputError, match="not a Matrix Market file"):
        CSRMatrix.from_matrix_market(path, comm=comm)


def test_solvers_take_it(comm):
    n = 12
    A = sp.csr_array(sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(n, n)))
    op = CSRMatrix.from_global(A, comm=comm)
    truth = np.sin(np.arange(n))
    result = collops.cg(op, collops.from_global(A @ truth, op.range, comm=comm), niter=40, tol=1e-14)
    np.testing.assert_allclose(result.x.gather(), truth, atol=1e-10)
    op.free()


def test_wrong_use(comm):
    last = comm.rank == comm.size - 1
    with pytest.raises(UnsupportedTypeError, match="sparse matrix of SciPy"):
        CSRMatrix(np.eye(3) if last else matrix(3, 3, "f8"), comm=comm)
    with pytest.raises(LayoutError, match="column 9 is out of range"):
        CSRMatrix.from_coo([0] if last else [], [9] if last else [], [1.0] if last else [], (4, 4), comm=comm)
    with pytest.raises(LayoutError, match="1 triples need equally many values"):
        CSRMatrix.from_coo([0], [0], [1.0, 2.0] if last else [1.0], (4, 4), comm=comm)
    with pytest.raises(LayoutError, match="layout of one axis"):
        CSRMatrix.from_global(matrix(4, 4, "f8"), columns=Layout.split(5, comm.size), comm=comm)
    if comm.size > 1:
        copies = Layout.replicated(4, comm.size)
        for ends in ({"rows": copies}, {"columns": copies}):
            with pytest.raises(LayoutError, match="must be split over all ranks"):
                CSRMatrix.from_global(matrix(4, 4, "f8"), comm=comm, **ends)
        with pytest.raises(LayoutError, match="same number of columns"):
            CSRMatrix(matrix(2, 3 + comm.rank, "f8"), comm=comm)


def test_partition(comm, monkeypatch):
    side = 8
    line = sp.diags_array([1.0, 1.0], offsets=[-1, 1], shape=(side, side))
    grid = sp.csr_array(sp.kron(line, sp.eye_array(side)) + sp.kron(sp.eye_array(side), line))
    rows = partition_rows(grid, 2, "rows")
    assert rows.cut == side and rows.sizes == (32, 32)
    shuffled = np.random.default_rng(0).permutation(side * side)
    mixed = grid[shuffled][:, shuffled]
    bad = partition_rows(mixed, 2, "rows")
    assert bad.cut > 3 * side
    with pytest.raises(InputError, match="metis or rows, not 'luck'"):
        partition_rows(grid, 2, "luck")
    with pytest.raises(LayoutError, match="square"):
        partition_rows(matrix(2, 3, "f8"), 2, "rows")
    pytest.importorskip("pymetis")
    found = partition_rows(mixed, 2)
    assert found.cut <= 2 * side and min(found.sizes) >= 28
    np.testing.assert_array_equal(np.sort(found.order), np.arange(side * side))
    assert (np.diff(found.parts[found.order]) >= 0).all()


@pytest.mark.serial
def test_metis_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"install collops\[metis\]"):
        partition_rows(sp.eye_array(4).tocsr(), 2)
