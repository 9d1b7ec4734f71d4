"""The set-up of multigrid on devices: its kernels, compiled for the host, make the same matrices as Numba's loops."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import scipy.sparse as sp

import collops
from collops.array import kernels
from collops.backend import Engine
from collops.errors import InputError
from collops.operators import CSRMatrix
from collops.operators.csr import compressed, device_products
from collops.operators.csr.compressed import CompressedRows
from collops.preconditioners import device_rows, multigrid

from .kernels_on_host import COMPILER, Kernels
from .test_multigrid import PROBLEMS, cube_of_27_points, elasticity, line, plane, split

multigrid_module = importlib.import_module("collops.preconditioners.multigrid")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
PRETENDED = Engine("pretended", np, "device")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def launch_with(folder, monkeypatch):
    """A function that launches on the host from now on, with so many threads for a row and places of tables."""

    def replace(lanes=1, slots=(32, 64)):
        on_host = Kernels(folder, lanes)
        for module in (compressed, device_products, device_rows):
            monkeypatch.setattr(module, "launch", on_host.launch)
        monkeypatch.setattr(device_products, "launch_with_tables", on_host.launch_with_tables)
        usual, long = ((lanes, 1, count) for count in slots)
        for name, shape in {"_SINGLE": usual, "_SHORT": usual, "_SOME": usual, "_MANY": usual, "_LONG": long}.items():
            monkeypatch.setattr(device_products, name, shape)

    return replace


@pytest.fixture
def device(launch_with, monkeypatch):
    """The engine of a device whose memory is the host's; all levels are set up there."""
    launch_with()

    def on_device(A: CSRMatrix, engine: Engine) -> CSRMatrix:
        assert engine is PRETENDED
        return A._with_entries([CompressedRows.from_host(block, np.asarray) for block in A.blocks])

    monkeypatch.setattr(device_products, "on_device", on_device)
    monkeypatch.setattr(multigrid_module, "_SMALL", 0)
    monkeypatch.setattr(multigrid_module, "_DENSE", 60)
    return PRETENDED


def matrices_of(M) -> list[CSRMatrix]:
    return [matrix for level in M._levels for matrix in (level.matrix, level.prolongation)]


def assert_equal_bits(M, expected):
    assert (M.rows, M.entries) == (expected.rows, expected.entries) and len(M.rows) > 2
    for mine, other in zip(matrices_of(M), matrices_of(expected), strict=True):
        assert isinstance(mine.entries[0], CompressedRows)
        np.testing.assert_array_equal(mine.ghosts, other.ghosts)
        for a, b in zip(mine.blocks, other.blocks, strict=True):
            assert_equal_entries(a, b)
    for level in M._levels:  # the products of the set-up have transposed the prolongation
        adjoint = level.prolongation.blocks[0].conj().T.tocsr()
        assert_equal_entries(level.prolongation._local_adjoint.to_host(), adjoint)


def assert_equal_entries(a, b):
    for name in ("shape", "indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), name)


@pytest.mark.parametrize("name", ["anisotropic plane", "jumps", "complex cube", "elasticity"])
def test_devices_make_the_same_matrices_as_loops(comm, monkeypatch, device, name):
    """Bit by bit, and again for other values in the same positions."""
    pytest.importorskip("numba")
    monkeypatch.setattr(kernels, "LONG", 1)
    matrix, vectors = elasticity(15) if name == "elasticity" else (PROBLEMS[name][0](), None)
    block = 1 if vectors is None else 2
    A = split(matrix, comm, block)
    vectors = None if vectors is None else vectors[A.rows.slices(comm.rank)[0]]
    M, expected = (multigrid(A, vectors, block=block, engine=engine) for engine in (device, "numpy"))
    assert_equal_bits(M, expected)
    x = collops.random(A.rows, seed=1, comm=comm, dtype=A.dtype)
    np.testing.assert_array_equal((M @ x).gather(), (expected @ x).gather())
    for factor in (2.0, 3.0):
        B = split(factor * matrix, comm, block)
        M.refresh(B)
        expected.refresh(B)
        assert_equal_bits(M, expected)


@pytest.mark.serial
def test_threads_that_share_a_row_make_the_same_matrices(monkeypatch, device, launch_with):
    """They select entries and the largest ones together, and add weak entries in their order."""
    pytest.importorskip("numba")
    monkeypatch.setattr(kernels, "LONG", 1)
    monkeypatch.setattr(multigrid_module, "_DENSE", 10)
    launch_with(2)
    A = CSRMatrix.from_global(plane(12, 1e-3))
    assert_equal_bits(multigrid(A, engine=device), multigrid(A))


def rows_of_many_lengths() -> sp.csr_array:
    """Blocks whose products have one entry in a row, five, nine and fourteen; and empty rows."""
    band = sp.diags_array(np.linspace(1, 2, 5), offsets=[-2, -1, 0, 1, 2], shape=(12, 12))
    dense = np.random.default_rng(0).standard_normal((14, 14))
    return sp.csr_array(sp.block_diag([sp.eye_array(5), sp.csr_array((3, 3)), line(8), band, dense]))


@pytest.mark.parametrize(("lanes", "slots"), [(1, (4, 8)), (2, (8, 16))])
@pytest.mark.serial
def test_products_with_small_tables(launch_with, lanes, slots):
    """Rows that are too long for a table are counted again with a larger one, or with one in global memory."""
    launch_with(lanes, slots)
    matrix = rows_of_many_lengths()
    A = CompressedRows.from_host(matrix, np.asarray)
    square = device_products.product(A, A).to_host()
    expected = sp.csr_array(matrix @ matrix)
    expected.sort_indices()
    np.testing.assert_array_equal(square.indices, expected.indices)
    np.testing.assert_allclose(square.data, expected.data, atol=1e-12)
    pattern = A._replace(data=np.arange(1.0, 1 + A.nnz))
    np.testing.assert_array_equal(pattern.transposed().to_host().toarray(), pattern.to_host().toarray().T)


@pytest.mark.parametrize("dtype", ["f4", "i4"])
@pytest.mark.serial
def test_single_precision_and_integers(device, dtype):
    A = CSRMatrix.from_global(cube_of_27_points(7).astype(dtype))
    M, expected = multigrid(A, engine=device), multigrid(A)
    assert (M.rows, M.entries, M.dtype) == (expected.rows, expected.entries, np.dtype("f8" if dtype == "i4" else dtype))
    x = collops.random(A.rows, seed=1)
    np.testing.assert_allclose((M @ x).gather(), (expected @ x).gather(), rtol=1e-4, atol=1e-4)


def test_small_levels_are_set_up_on_hosts(comm, monkeypatch, device):
    monkeypatch.setattr(multigrid_module, "_SMALL", 400)
    A = split(plane(30), comm)
    M = multigrid(A, engine=device)
    places = [isinstance(level.matrix.entries[0], CompressedRows) for level in M._levels]
    assert places == [rows > 400 for rows in M.rows[:-1]] and len(set(places)) == 2
    x = collops.random(A.rows, seed=1, comm=comm)
    expected = (multigrid(A) @ x).gather()
    np.testing.assert_allclose((M @ x).gather(), expected, atol=1e-12 * abs(expected).max())


def test_errors(comm, device):
    A = split(plane(30), comm)
    with pytest.raises(InputError, match="runs on the engines numpy and cupy, not fixed"):
        multigrid(A, engine=Engine("fixed", np, "host", mutable=False))
