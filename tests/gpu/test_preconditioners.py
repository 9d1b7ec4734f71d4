"""Preconditioners on device arrays against the same on the host; launched, and replayed in a solver's CUDA graph."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg

import collops
from collops.apps import solve
from collops.apps.recipe import run_job
from collops.array import kernels
from collops.errors import InputError, UnsupportedTypeError
from collops.operators.csr import device_products
from collops.operators.csr.compressed import CompressedRows
from collops.preconditioners import block_jacobi, multigrid, two_level
from tests.apps.jobs import Listener
from tests.preconditioners.matrices import distributed, poisson
from tests.preconditioners.test_multigrid import cube_of_27_points, elasticity, jumps, plane, split

multigrid_module = importlib.import_module("collops.preconditioners.multigrid")

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.mark.parametrize("make", [lambda: plane(40, 1e-3), lambda: cube_of_27_points(11)])
def test_multigrid(comm, make):
    A = split(make(), comm)
    M = multigrid(A)
    x = collops.random(A.rows, seed=1, comm=comm)
    y = collops.random(A.rows, seed=1, comm=comm, engine="cupy")
    np.testing.assert_allclose(cupy.asnumpy((M @ y).gather()), (M @ x).gather(), rtol=1e-11, atol=1e-11)
    on_host = collops.cg(A, x, niter=60, rtol=1e-8, M=M)
    for graph in (False, M.capturable):
        result = collops.cg(A, y, niter=60, rtol=1e-8, M=M, graph=graph)
        assert result.iterations == on_host.iterations
        np.testing.assert_allclose(cupy.asnumpy(result.x.gather()), on_host.x.gather(), rtol=1e-7, atol=1e-7)


def test_multigrid_in_single_precision_and_refreshed(comm):
    """Vectors remain in double precision; device copies of the matrices are made again."""
    A, B = (split(factor * cube_of_27_points(11) * np.pi, comm) for factor in (1, 2))
    y = collops.random(A.rows, seed=1, comm=comm, engine="cupy")
    exact, rounded = multigrid(A), multigrid(A, single_precision=True)
    difference = float((rounded @ y - exact @ y).norm()) / float((exact @ y).norm())
    assert 1e-9 < difference < 1e-6
    iterations = [collops.cg(A, y, niter=60, rtol=1e-8, M=M).iterations for M in (exact, rounded)]
    assert iterations[0] == iterations[1]
    for M in (exact, rounded):
        before = M @ y
        M.refresh(B)
        np.testing.assert_allclose(
            cupy.asnumpy((2 * (M @ y)).gather()), cupy.asnumpy(before.gather()), rtol=1e-6, atol=1e-9
        )


SET_UP = {
    "anisotropic plane": lambda: plane(60, 1e-3),
    "cube of 27 points": lambda: cube_of_27_points(16),
    "jumps": lambda: jumps(48),
    "complex cube": lambda: poisson(12, dtype="c16"),
    "complex cube in single precision": lambda: poisson(12, dtype="c8"),
    "plane in single precision": lambda: plane(60).astype("f4"),
}


@pytest.mark.parametrize("name", SET_UP)
def test_set_up_of_multigrid_on_devices(comm, monkeypatch, name):
    """The same matrices as on the host, in double precision bit by bit; the same bits from a repeated set-up."""
    monkeypatch.setattr(multigrid_module, "_SMALL", 0)
    monkeypatch.setattr(multigrid_module, "_DENSE", 60)
    A = split(SET_UP[name](), comm)
    loops = A.dtype.char == "d" and kernels.loops() is not None
    if loops:  # SciPy adds in another order
        monkeypatch.setattr(kernels, "LONG", 1)
    M, again, expected = multigrid(A, engine="cupy"), multigrid(A, engine="cupy"), multigrid(A)
    tolerance = 1e-11 if A.dtype.char in "dD" else 1e-4
    for _ in range(3):
        assert (M.rows, M.entries) == (expected.rows, expected.entries) and len(M.rows) > 2
        assert_equal_matrices(M, again)
        if loops:
            assert_equal_matrices(M, expected)
        for engine in ("cupy", "numpy"):
            x = collops.random(A.rows, seed=1, comm=comm, dtype=A.dtype, engine=engine)
            image = cupy.asnumpy((expected @ x).gather())
            np.testing.assert_allclose(
                cupy.asnumpy((M @ x).gather()), image, rtol=tolerance, atol=tolerance * abs(image).max()
            )
        for each in (M, again, expected):
            each.refresh(split(2 * SET_UP[name](), comm))


def test_set_up_of_elasticity_on_devices(comm, monkeypatch):
    """Two unknowns of a point and three vectors: the matrices of the host, and the solution of SciPy."""
    monkeypatch.setattr(multigrid_module, "_SMALL", 0)
    monkeypatch.setattr(multigrid_module, "_DENSE", 60)
    if kernels.loops() is not None:  # SciPy adds in another order
        monkeypatch.setattr(kernels, "LONG", 1)
    matrix, vectors = elasticity(24)
    A = split(matrix, comm, 2)
    vectors = vectors[A.rows.slices(comm.rank)[0]]
    M, expected = (multigrid(A, vectors, block=2, engine=engine) for engine in ("cupy", "numpy"))
    assert (M.rows, M.entries) == (expected.rows, expected.entries) and len(M.rows) > 2
    if kernels.loops() is not None:
        assert_equal_matrices(M, expected)
    x, y = (collops.random(A.rows, seed=1, comm=comm, engine=engine) for engine in ("numpy", "cupy"))
    on_host, result = (collops.cg(A, b, niter=60, rtol=1e-10, M=each) for b, each in ((x, expected), (y, M)))
    assert result.iterations == on_host.iterations
    solution = scipy.sparse.linalg.spsolve(sp.csc_array(matrix), x.gather())
    np.testing.assert_allclose(cupy.asnumpy(result.x.gather()), solution, rtol=1e-6, atol=1e-6 * abs(solution).max())


def assert_equal_matrices(M, other):
    for level, same in zip(M._levels, other._levels, strict=True):
        for mine, theirs in ((level.matrix, same.matrix), (level.prolongation, same.prolongation)):
            for a, b in zip(mine.blocks, theirs.blocks, strict=True):
                for part in ("indptr", "indices", "data"):
                    np.testing.assert_array_equal(getattr(a, part), getattr(b, part))


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_products_of_sparse_matrices_on_devices(dtype):
    """With rows of all lengths, for each kind of table."""
    rng = np.random.default_rng(0)
    few = sp.random_array((300, 3000), density=0.3 / 3000, rng=rng)
    some, many = (sp.random_array((3000, 3000), density=n / 3000, rng=rng) for n in (5, 40))
    dense = sp.csr_array(np.ones((3, 3000)))
    for left, right in ((some, some), (many, some), (some, many), (some, few.T), (sp.vstack([some, dense]), many)):
        a, b = (sp.csr_array(matrix).astype(dtype) for matrix in (left, right))
        expected = sp.csr_array(a @ b)
        expected.sort_indices()
        first, second = (CompressedRows.from_host(matrix, cupy.asarray) for matrix in (a, b))
        found = device_products.product(first, second).to_host()
        np.testing.assert_array_equal(found.indptr, expected.indptr)
        np.testing.assert_array_equal(found.indices, expected.indices)
        np.testing.assert_allclose(found.data, expected.data, rtol=1e-4 if dtype in ("f4", "c8") else 1e-12)
        back = second.transposed(conjugate=True).to_host()
        np.testing.assert_array_equal(back.toarray(), b.toarray().conj().T)


def test_the_set_up_raises_before_it_fills_the_device(comm, monkeypatch):
    monkeypatch.setattr(multigrid_module, "free_memory", lambda engine: 1000)
    with pytest.raises(InputError, match=r"multigrid needs about .* of memory"):
        multigrid(split(plane(40), comm), engine="cupy")


KINDS = {
    "dense blocks": lambda A: block_jacobi(A, "dense", block_size=5),
    "ILU(0)": lambda A: block_jacobi(A, "ilu0"),
    "two levels": lambda A: two_level(A, aggregates=20),
    "two levels, blocks": lambda A: two_level(A, block_jacobi(A, "ilu0"), aggregates=20),
}


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("name", KINDS)
def test_blocks_and_two_levels(comm, name, dtype):
    """Also for vectors of another type than the matrix; the step of CG is recorded where the messages can be."""
    A = distributed(poisson(7, dtype=dtype), comm)
    M = KINDS[name](A)
    for kind, tolerance in ((dtype, 1e-11), ("c8", 1e-4)):
        x, y = (collops.random(A.rows, seed=1, comm=comm, dtype=kind, engine=engine) for engine in ("numpy", "cupy"))
        for op in (M, M.H):
            found = op @ y
            np.testing.assert_allclose(cupy.asnumpy(found.gather()), (op @ x).gather(), rtol=tolerance, atol=tolerance)
    x, y = (collops.random(A.rows, seed=2, comm=comm, dtype=dtype, engine=engine) for engine in ("numpy", "cupy"))
    on_host = collops.cg(A, x, niter=60, rtol=1e-8, M=M)
    assert M.capturable or not A.capturable
    for graph in (False, A.capturable):
        result = collops.cg(A, y, niter=60, rtol=1e-8, M=M, graph=graph)
        assert result.iterations == on_host.iterations
        np.testing.assert_allclose(cupy.asnumpy(result.x.gather()), on_host.x.gather(), rtol=1e-7, atol=1e-7)


def test_factors_on_the_host_raise(comm):
    A = distributed(poisson(3), comm)
    with pytest.raises(UnsupportedTypeError, match=r"on devices use block_jacobi\(A, 'ilu0'\)"):
        block_jacobi(A) @ collops.ones(A.rows, comm=comm, engine="cupy")


@pytest.mark.parametrize("precondition", ["two-level", "multigrid"])
def test_the_command_solves_on_devices(comm, tmp_path, precondition):
    folder = comm.allgather_metadata(str(tmp_path))[0]
    options = {"points": 340, "precondition": precondition, "partition": "rows", "out": folder, "tol": 1e-8}
    host, device = (
        run_job(solve.run, solve.Options(engine=engine, overwrite=True, **options), comm, Listener()).numbers
        for engine in ("numpy", "cupy")
    )
    assert device["engine"] == "cupy" and device["iterations"] == host["iterations"]
    assert device["relative_error"] == pytest.approx(host["relative_error"], rel=1e-3)


def test_the_command_cannot_use_factors_on_devices(comm, tmp_path):
    folder = comm.allgather_metadata(str(tmp_path))[0]
    with pytest.raises(InputError, match="block-jacobi runs on the host only"):
        options = solve.Options(points=60, engine="cupy", precondition="block-jacobi", out=folder)
        run_job(solve.run, options, comm, Listener())
