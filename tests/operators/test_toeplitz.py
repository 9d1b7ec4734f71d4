"""Block-Toeplitz products against dense matrices, in every precision, and their error against its bound."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

from collops import profile
from collops.array import from_global, random, zeros
from collops.comm import alone
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import BlockToeplitz, Columns
from collops.operators.toeplitz import generic, spectra
from tests.array.cases import values

from .problems import assert_close

DTYPES = ["f4", "f8", "c8", "c16"]
STORED = [
    ("float64", "float64"),
    ("float32", "float32"),
    ("float32", "float64"),
    ("float16", "float32"),
    ("float16", "float64"),
    ("bfloat16", "float32"),
    ("bfloat16", "float64"),
]
COUNTS = (3, 0, 2, 1)  # columns or rows of each rank


def grids(ranks: int) -> list[tuple[int, int]]:
    return sorted({(1, ranks), (ranks, 1), (2, ranks // 2) if ranks % 2 == 0 else (1, ranks)})


def block(comm, grid) -> tuple[tuple[int, int], tuple[slice, slice]]:
    """Return the rows and columns of the matrix of a lag, and those of this rank's block; some ranks have none."""
    sizes = [
        list((*COUNTS, *[1] * count)[:count]) if count > 1 else [whole]
        for count, whole in zip(grid, (4, 7), strict=True)
    ]
    starts = [np.cumsum([0, *counts]).tolist() for counts in sizes]
    i, j = divmod(comm.rank, grid[1])
    rows, columns = (slice(start[k], start[k + 1]) for start, k in zip(starts, (i, j), strict=True))
    return (sum(sizes[0]), sum(sizes[1])), (rows, columns)


def kernel(comm, grid, samples, dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return the kernel, and this rank's block of it."""
    shape, own = block(comm, grid)
    whole = values((samples, *shape), dtype, 7)
    return whole, whole[(slice(None), *own)]


def dense(whole: np.ndarray) -> np.ndarray:
    """Return the matrix, by scipy.linalg.toeplitz for each pair of row and column, of vectors in C order."""
    samples, rows, columns = whole.shape
    matrix = np.zeros((samples, rows, samples, columns), whole.dtype)
    for row, column in np.ndindex(rows, columns):
        matrix[:, row, :, column] = scipy.linalg.toeplitz(whole[:, row, column], np.zeros(samples))
    return matrix.reshape(samples * rows, samples * columns)


def check(op, matrix, comm, dtype) -> None:
    """Compare both ways, with and without out and twice, and run the dot test."""
    for apply, matrix_of_it, given, taken in (
        (op.forward, matrix, op.domain, op.range),
        (op.adjoint, matrix.conj().T, op.range, op.domain),
    ):
        x = values(given.shape, dtype, 1)
        expected = (matrix_of_it @ x.ravel()).reshape(taken.shape)
        for out in (None, from_global(np.full(taken.shape, np.nan, dtype), taken, comm=comm)):
            for _ in range(2):
                result = apply(from_global(x, given, comm=comm), out)
                assert out is None or result is out
                assert result.layout is taken and result.dtype == np.dtype(dtype)
                assert_close(result.gather(), expected, dtype, 4)
                result.check_replicated()
    assert op.dottest()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("samples", [1, 9, 101])
def test_as_a_dense_matrix(comm, samples, dtype):
    for grid in grids(comm.size):
        whole, mine = kernel(comm, grid, samples, dtype)
        op = BlockToeplitz(mine, process_grid=grid, comm=comm)
        assert op.dims == (samples, whole.shape[2]) and op.dimsd == (samples, whole.shape[1])
        check(op, dense(whole), comm, dtype)
        if np.dtype(dtype).kind == "f":
            assert op.dottest(complex_vectors=True)


@pytest.mark.parametrize(("stored", "accumulate"), STORED)
@pytest.mark.parametrize("kind", ["f4", "f8", "c16"])
def test_the_error_and_its_bound(comm, kind, stored, accumulate, monkeypatch):
    """Rows of very different size; the bound holds, and the storage's part of it is no more than ten times too large.

    The largest error is that of a singular vector of the error's matrix.
    """
    monkeypatch.setattr(generic, "_BLOCK", 40)  # some frequencies at a time, the last time fewer
    monkeypatch.setattr(spectra, "_MAX_CHUNK", 200)  # some rows at a time
    grid = grids(comm.size)[-1]
    whole, _ = kernel(comm, grid, 12, kind)
    whole *= 10.0 ** np.arange(whole.shape[1])[:, None] * 1e-3
    mine = whole[(slice(None), *block(comm, grid)[1])]
    op = BlockToeplitz(mine, process_grid=grid, stored=stored, accumulate=accumulate, comm=comm)
    assert op.dtype == kind and op.dottest(rtol=None if accumulate == "float64" or kind == "f4" else 1e-5)
    matrix = dense(whole.astype(np.result_type(kind, "f8")))
    applied = np.stack(
        [np.ravel((op @ from_global(x.reshape(op.dims), op.domain, comm=comm)).gather()) for x in np.eye(op.shape[1])],
        axis=1,
    )
    error = np.linalg.norm(applied - matrix, 2)
    bound = op.error_bound
    assert error <= bound.total
    assert op.scale / 4 < np.linalg.norm(matrix, 2) <= op.scale
    if stored in ("float16", "bfloat16"):
        assert bound.storage < 10 * error and bound.storage > 0.9 * bound.total
        assert bound.storage < op.scale * (2.0**-10 if stored == "float16" else 2.0**-7)
    elif accumulate == "float64" and kind != "f4":
        assert bound.total < (1e-10 if stored == "float64" else 1e-6) * op.scale
    y = values(op.dimsd, kind, 3)
    back = (op.H @ from_global(y, op.range, comm=comm)).gather()
    assert np.linalg.norm(back.ravel() - matrix.conj().T @ y.ravel()) <= bound.total * np.linalg.norm(y)


@pytest.mark.parametrize("stored", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["f8", "c8"])
def test_many_right_hand_sides(comm, dtype, stored):
    """At once, with one message: the same products as one after the other."""
    for grid in grids(comm.size):
        _, mine = kernel(comm, grid, 9, "f4" if dtype == "c8" else "f8")
        op = BlockToeplitz(mine, process_grid=grid, stored=stored, comm=comm)
        columns = Columns(op, 5)
        assert columns.width == 5
        for apply, one, given, sends in (
            (columns.forward, op.forward, columns.domain, grid[1] > 1),
            (columns.adjoint, op.adjoint, columns.range, grid[0] > 1),
        ):
            X = random(given, seed=1, comm=comm, dtype=dtype)
            with profile.count_messages() as messages:
                result = apply(X)
            assert messages.counts() == ({"allreduce": 1} if sends else {})
            for image, x in zip(Columns.split(result), Columns.split(X), strict=True):
                assert_close(image.local_array, one(x).local_array, "f4")
        assert columns.dottest()


def test_messages(comm):
    for grid in grids(comm.size):
        _, mine = kernel(comm, grid, 9, "f8")
        op = BlockToeplitz(mine, process_grid=grid, comm=comm)
        for apply, given, ranks, elements in (
            (op.forward, op.domain, grid[1], 9 * mine.shape[1]),
            (op.adjoint, op.range, grid[0], 9 * mine.shape[2]),
        ):
            x = random(given, comm=comm)
            with profile.count_messages() as messages:
                apply(x)
            assert messages.counts() == ({"allreduce": 1} if ranks > 1 else {})
            assert all(message.elements == elements for message in messages.records)


def test_types(comm):
    whole, mine = kernel(comm, (1, comm.size), 9, "f8")
    op = BlockToeplitz(mine, dtype="f4", comm=comm)
    assert op.dtype == np.float32 and op.stored_bytes == 4 * 2 * 10 * mine[0].size
    half = BlockToeplitz(mine.astype("f2"), stored="float16", comm=comm)
    assert half.dtype == np.float32 and half.stored_bytes == op.stored_bytes // 2
    whole_numbers = BlockToeplitz(mine.round().astype(int), comm=comm)
    assert whole_numbers.dtype == np.float64 and whole_numbers.dottest()
    matrix = dense(whole)
    for dtype in ("f8", "c8", "c16"):
        x = values(op.dims, dtype, 1)
        result = op @ from_global(x, op.domain, comm=comm)
        assert result.dtype == np.result_type("f4", dtype)
        assert_close(result.gather().ravel(), matrix @ x.ravel(), "f4")
    with pytest.raises(UnsupportedTypeError, match="does not fit"):
        op.forward(from_global(x, op.domain, comm=comm), zeros(op.range, comm=comm))
    kept = mine.copy()
    BlockToeplitz(mine, stored="bfloat16", comm=comm)
    np.testing.assert_array_equal(mine, kept)


@pytest.mark.usefixtures("jax_double")
def test_derivatives_of_jax(comm):
    """As on NumPy arrays, and the derivative by which JAX finds the adjoint, where one rank has no rows or columns."""
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    for grid in grids(comm.size)[-2:]:
        _, mine = kernel(comm, grid, 5, "f8")
        ours, theirs = (BlockToeplitz(K, process_grid=grid, comm=comm) for K in (mine, jax.numpy.asarray(mine)))
        assert theirs.error_bound == ours.error_bound
        x, y = (random(layout, seed=2, comm=comm) for layout in (ours.domain, ours.range))
        expected = [(ours @ x).gather(), (ours.H @ y).gather()]
        given = [random(each.layout, seed=2, comm=comm, engine="jax") for each in (x, y)]

        @jax.jit
        def both(x, y, op=theirs):
            result, transposed = jax.vjp(op.forward, x)
            return result, transposed(y)[0]

        for found, each in zip((*both(*given), theirs.adjoint(given[1])), (*expected, expected[1]), strict=True):
            np.testing.assert_allclose(np.asarray(found.gather()), each, atol=1e-12)
    with pytest.raises(UnsupportedTypeError, match="the engine of its kernel"):
        theirs.forward(x)


@pytest.mark.usefixtures("jax_double")
@pytest.mark.parametrize(("kind", "stored"), [("f8", "float16"), ("c16", "bfloat16")])
def test_jax(comm, kind, stored):
    """In half precision, with complex vectors."""
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    _, mine = kernel(comm, (1, comm.size), 5, kind)
    ours, theirs = (BlockToeplitz(K, stored=stored, comm=comm) for K in (mine, jax.numpy.asarray(mine)))
    for name in ("forward", "adjoint"):
        layout = ours.domain if name == "forward" else ours.range
        x, given = (random(layout, seed=2, comm=comm, dtype="c16", engine=engine) for engine in ("numpy", "jax"))
        expected = getattr(ours, name)(x).gather()
        np.testing.assert_allclose(np.asarray(getattr(theirs, name)(given).gather()), expected, atol=1e-12)


def test_without_double_precision(comm, jax_single):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    K = jax.numpy.ones((3, 2, 2))
    with pytest.raises(InputError, match="jax_enable_x64"):
        BlockToeplitz(K, stored="float64", comm=comm)
    assert BlockToeplitz(K, comm=comm).dtype == np.float32


def test_a_matrix_is_read_narrow(comm):
    """A product allocates nothing in the size of the matrices from the second call on."""
    import tracemalloc

    op = BlockToeplitz(values((200, 8, 100), "f4", 1), stored="float16", comm=alone())
    x, out = random(op.domain, comm=alone(), dtype="f4"), zeros(op.range, comm=alone(), dtype="f4")
    op.forward(x, out)
    tracemalloc.start()
    op.forward(x, out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < op.stored_bytes / 2


def test_what_does_not_fit_is_refused(comm):
    last = comm.rank == comm.size - 1
    K = np.ones((3, 2, 2))
    for array, options, error, match in (
        (K[0] if last else K, {}, LayoutError, "three axes"),
        (K[:0], {}, LayoutError, "three axes"),
        (K, {"stored": "int8"}, InputError, "stored must be"),
        (K, {"accumulate": "float16"}, InputError, "accumulate must be"),
        (K, {"stored": "float64", "accumulate": "float32"}, InputError, "accumulated in float64"),
        (K, {"dtype": "f2"}, InputError, "dtype must be"),
        (K * 1j, {"dtype": "f8"}, UnsupportedTypeError, "imaginary"),
        (K, {"process_grid": (2, comm.size)}, InputError, "two extents"),
        (K, {"process_grid": (comm.size,)}, InputError, "two extents"),
        (None, {}, UnsupportedTypeError, "expected an array"),
    ):
        with pytest.raises(error, match=match):
            BlockToeplitz(array, **options, comm=comm)
    if comm.size > 1:
        with pytest.raises(LayoutError, match="one number of samples"):
            BlockToeplitz(np.ones((4 if last else 3, 2, 2)), comm=comm)
        with pytest.raises(LayoutError, match="has 3 rows"):
            BlockToeplitz(np.ones((3, 3 if last else 2, 2)), comm=comm)
    op = BlockToeplitz(K, comm=comm)
    with pytest.raises(UnsupportedTypeError, match="cannot be converted"):
        op.astype("f4")
