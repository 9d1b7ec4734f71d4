"""Preconditioners against dense matrices, and the iterations of CG with them on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg

import collops
from collops import profile
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.preconditioners import block_jacobi, chebyshev, inner_solve, jacobi, two_level
from collops.preconditioners.two_level import _coarse
from collops.solvers import Status, cg, gmres, minres

from .matrices import distributed, mine, poisson


def dense(op) -> np.ndarray:
    """Return the matrix of an operator, column by column."""
    columns = []
    for unit in np.eye(op.shape[1]):
        columns.append((op @ collops.from_global(unit, op.domain, comm=op.comm)).gather())
    return np.stack(columns, axis=1)


KINDS = {
    "jacobi": jacobi,
    "block LU": block_jacobi,
    "block ILU": lambda A: block_jacobi(A, "ilu", drop_tol=1e-2),
    "dense blocks": lambda A: block_jacobi(A, "dense", block_size=5),
    "ILU(0)": lambda A: block_jacobi(A, "ilu0"),
    "chebyshev": lambda A: chebyshev(A, 3, M=jacobi(A)),
    "two levels": lambda A: two_level(A, aggregates=20),
}


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("name", KINDS)
def test_adjoints(comm, name, dtype):
    """Also of an unsymmetric matrix, and with vectors of another type than the matrix."""
    matrix = poisson(4, dtype=dtype) + sp.diags_array(np.full((1, 63), 0.5), offsets=[1], shape=(64, 64))
    M = KINDS[name](distributed(sp.csr_array(matrix) if name != "two levels" else poisson(4, dtype=dtype), comm))
    assert M.dottest()
    x = collops.random(M.domain, comm=comm, dtype="c8", seed=1)
    real, imaginary = (
        (M @ collops.from_global(part.astype("f8"), M.domain, comm=comm)).gather()
        for part in (x.gather().real, x.gather().imag)
    )
    np.testing.assert_allclose((M @ x).gather(), real + 1j * imaginary, atol=1e-5)


def test_jacobi_is_the_inverse_of_the_diagonal(comm):
    matrix = poisson(3, dtype="c16")
    A = distributed(matrix, comm)
    np.testing.assert_allclose(dense(jacobi(A)), np.diag(1 / matrix.diagonal()))
    given = collops.from_global(np.arange(1.0, 6), comm=comm)
    np.testing.assert_allclose(dense(jacobi(given)), np.diag(1 / np.arange(1.0, 6)))


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_sums_of_rows_make_a_convergent_iteration(comm, dtype):
    """Where the diagonal alone diverges: with strong couplings of one sign."""
    phases = np.exp(1j * np.arange(40)) if dtype == "c16" else np.ones(40)
    matrix = (np.eye(40) + 0.9 * phases[:, None] * phases.conj() * (1 - np.eye(40))).astype(dtype)
    A = distributed(sp.csr_array(matrix), comm)
    M = jacobi(A, l1=True)
    np.testing.assert_allclose(dense(M), np.diag(1 / abs(matrix).sum(axis=1)))
    rates = [abs(np.linalg.eigvals(np.eye(40) - dense(op) @ matrix)).max() for op in (jacobi(A), M)]
    assert rates[0] > 2 and rates[1] < 1


def test_block_jacobi_is_the_inverse_of_the_blocks(comm):
    matrix = poisson(3, dtype="c16")
    A = distributed(matrix, comm)
    blocks = [np.linalg.inv(matrix.toarray()[np.ix_(rows, rows)]) for rows in mine(matrix, A)]
    np.testing.assert_allclose(dense(block_jacobi(A)), scipy.linalg.block_diag(*blocks), atol=1e-12)


def test_incomplete_factors_approach_the_inverse_of_the_blocks(comm):
    matrix = poisson(5)
    A = distributed(matrix, comm)
    x = collops.random(A.rows, comm=comm, seed=1)
    image, exact = block_jacobi(A, "ilu", drop_tol=1e-3) @ x, block_jacobi(A) @ x
    assert 1e-8 < float((image - exact).norm() / exact.norm()) < 0.05


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_dense_blocks_of_consecutive_rows(comm, dtype):
    """Of each rank; the last block has fewer rows. Scales of rows and columns do not matter."""
    matrix = poisson(3, dtype=dtype) + sp.diags_array(np.full((1, 26), 0.5), offsets=[1], shape=(27, 27))
    A = distributed(sp.csr_array(matrix), comm)
    blocks = [
        np.linalg.inv(matrix.toarray()[np.ix_(rows[first : first + 5], rows[first : first + 5])])
        for rows in mine(matrix, A)
        for first in range(0, len(rows), 5)
    ]
    expected = scipy.linalg.block_diag(*blocks)
    np.testing.assert_allclose(dense(block_jacobi(A, "dense", block_size=5)), expected, atol=1e-14)
    scale = 10.0 ** np.random.default_rng(0).uniform(-9, 9, 27)
    rows, columns = sp.diags_array(scale) @ matrix, matrix @ sp.diags_array(scale)
    of_rows, of_columns = (
        dense(block_jacobi(distributed(sp.csr_array(each), comm), "dense", block_size=5)) for each in (rows, columns)
    )
    np.testing.assert_allclose(of_rows * scale, expected, atol=1e-12)
    np.testing.assert_allclose(scale[:, None] * of_columns, expected, atol=1e-12)
    integers = distributed(sp.csr_array(sp.eye_array(27) * 4).astype("i4"), comm)
    np.testing.assert_allclose(dense(block_jacobi(integers, "dense")), np.eye(27) / 4)


def factors_without_fill(A):
    """Gaussian elimination that changes only entries that are not 0 [Saad 2003, algorithm 10.4]."""
    A = A.copy()
    nonzero = A != 0
    for i in range(1, len(A)):
        for k in np.flatnonzero(nonzero[i, :i]):
            A[i, k] /= A[k, k]
            later = nonzero[i] & (np.arange(len(A)) > k)
            A[i, later] -= A[i, k] * A[k, later]
    D = np.diag(np.diag(A))
    return np.tril(A, -1), D, np.linalg.solve(D, np.triu(A, 1))


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_incomplete_factors_without_fill(comm, symmetric, dtype):
    """Those of elimination, and the first terms of the series of their inverses; Hermitian as the matrix is."""
    matrix = poisson(4, dtype=dtype)
    if not symmetric:
        matrix = sp.csr_array(matrix + sp.diags_array(np.full((1, 63), 0.5), offsets=[1], shape=(64, 64)))
    A = distributed(matrix, comm)
    factors = [factors_without_fill(matrix.toarray()[np.ix_(rows, rows)]) for rows in mine(matrix, A) if len(rows)]
    L, D, U = (scipy.linalg.block_diag(*each) for each in zip(*factors, strict=True))
    one = np.eye(64)
    for sweeps, left, right in ((0, one, one), (2, one - L + L @ L, one - U + U @ U)):
        found = dense(block_jacobi(A, "ilu0", sweeps=sweeps))
        np.testing.assert_allclose(found, right @ np.linalg.inv(D) @ left, atol=1e-6)
        if symmetric:
            np.testing.assert_allclose(found, found.conj().T, atol=1e-15)
    x, y = (collops.random(A.range, comm=comm, seed=seed, dtype=dtype) for seed in (1, 2))
    series, exact = block_jacobi(A, "ilu0", sweeps=64) @ x, right_of(L, D, U, x.gather())
    np.testing.assert_allclose(series.gather(), exact, atol=1e-6)
    if not symmetric:
        result = gmres(A, y, M=block_jacobi(A, "ilu0"), rtol=1e-10)
        expected = scipy.sparse.linalg.spsolve(sp.csc_array(matrix), y.gather())
        assert result.status is Status.CONVERGED and result.iterations < gmres(A, y, rtol=1e-10).iterations
        np.testing.assert_allclose(result.x.gather(), expected, atol=1e-8)


def right_of(L, D, U, x):
    one = np.eye(len(L))
    return np.linalg.solve((one + L) @ D @ (one + U), x)


def test_symmetric_but_for_rounding_and_in_single_precision(comm):
    """As finite elements are assembled: factors of CG must be Hermitian all the same."""
    noise = 1 + 1e-7 * np.random.default_rng(0).standard_normal((64, 64))
    matrix = sp.csr_array(poisson(4).toarray() * noise).astype("f4")
    M = block_jacobi(distributed(matrix, comm), "ilu0")
    found = dense(M)
    assert M.dtype == np.dtype("f4")
    np.testing.assert_allclose(found, found.T, atol=1e-6)


def test_factors_that_have_not_converged_warn_on_every_rank(comm):
    """The last pivot of a line is found after as many iterations as the line has rows; only one rank has a line."""
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(90, 90))
    A = distributed(sp.block_diag([line, *[sp.eye_array(90)] * (comm.size - 1)], format="csr"), comm)
    with pytest.warns(RuntimeWarning, match=r"not converged: iteration 50 still changed entries by [3-5]e-04"):
        block_jacobi(A, "ilu0")


def test_chebyshev_is_the_polynomial(comm):
    """The error of the iteration is the Chebyshev polynomial of the textbook."""
    matrix = poisson(3)
    A, scaling = distributed(matrix, comm), np.diag(1 / matrix.diagonal())
    values, vectors = scipy.linalg.eigh(matrix.toarray(), np.linalg.inv(scaling))
    low, high, degree = 0.3, 2.1, 4
    T = np.polynomial.chebyshev.Chebyshev.basis(degree + 1)
    error = T((high + low - 2 * values) / (high - low)) / T((high + low) / (high - low))
    expected = vectors @ np.diag((1 - error) / values) @ vectors.T
    M = chebyshev(A, degree, (low, high), M=jacobi(A))
    np.testing.assert_allclose(dense(M), expected, atol=1e-10)


def test_chebyshev_finds_its_bounds(comm):
    matrix = poisson(5, dtype="c16")
    M = chebyshev(distributed(matrix, comm), 2)
    largest = np.linalg.eigvalsh(matrix.toarray()).max()
    assert largest < M.bounds[1] < 1.15 * largest


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_two_levels_are_smoother_and_galerkin_correction(comm, dtype):
    matrix = poisson(4, dtype=dtype)
    A = distributed(matrix, comm)
    labels = [np.arange(len(rows)) // 7 for rows in mine(matrix, A)]
    constants = scipy.linalg.block_diag(*(np.eye(max(each, default=-1) + 1)[each] for each in labels))
    whole = matrix.toarray()
    scaled = whole / np.diag(whole)[:, None]
    P = (np.eye(64) - 4 / 3 / np.abs(scaled).sum(axis=1).max() * scaled) @ constants
    coarse = P @ np.linalg.inv(P.conj().T @ whole @ P) @ P.conj().T
    M = two_level(A, jacobi(A), labels[comm.rank])
    np.testing.assert_allclose(dense(M), coarse + np.diag(1 / np.diag(whole)), atol=1e-10)


def test_iterations_hardly_depend_on_the_ranks(comm):
    """Those on one rank are known; with 3 they may differ by the cut of the aggregates."""
    matrix = poisson(16)
    A = distributed(matrix, comm)
    y = A @ collops.random(A.rows, comm=comm, seed=1)
    tolerance = (1e-8 * float(y.norm())) ** 2
    plain, two = (cg(A, y, M=M, niter=500, tol=tolerance) for M in (None, two_level(A, aggregates=100)))
    alone = CG_ALONE.setdefault("iterations", _iterations_alone(matrix))
    assert abs(two.iterations - alone) <= 3
    assert two.iterations < plain.iterations / 2 and two.details["condition"] < plain.details["condition"] / 10


CG_ALONE: dict[str, int] = {}


def _iterations_alone(matrix) -> int:
    own = collops.comm.alone()
    A = collops.CSRMatrix.from_global(matrix, comm=own)
    y = A @ collops.random(A.rows, comm=own, seed=1)
    return cg(A, y, M=two_level(A, aggregates=100), niter=500, tol=(1e-8 * float(y.norm())) ** 2).iterations


@pytest.mark.parametrize(
    ("name", "products"),
    [("jacobi", 0), ("block LU", 0), ("dense blocks", 0), ("ILU(0)", 0), ("chebyshev", 3), ("two levels", 2)],
)
def test_messages(comm, name, products):
    """None for blocks; those of the products with the matrix; and one allreduce of the coarse vector."""
    A = distributed(poisson(4), comm)
    M, x = KINDS[name](A), collops.ones(A.rows, comm=comm)
    with profile.count_messages() as product:
        A @ x
    M @ x
    with profile.count_messages() as counts:
        M @ x
    assert counts["allreduce"] == (1 if name == "two levels" and comm.size > 1 else 0)
    assert counts.total - counts["allreduce"] == products * product.total


def test_pyamg_solves_the_blocks(comm):
    pytest.importorskip("pyamg", reason="PyAMG is not installed")
    A = distributed(poisson(), comm)
    M = block_jacobi(A, "amg")
    assert M.dottest()
    y = A @ collops.ones(A.rows, comm=comm)
    result = cg(A, y, M=M, niter=100, tol=1e-16)
    exact = cg(A, y, M=block_jacobi(A), niter=100, tol=1e-16)
    assert result.status is Status.CONVERGED
    np.testing.assert_allclose(result.x.gather(), 1, atol=1e-6)
    assert result.iterations <= exact.iterations + 15
    again = block_jacobi(A, "amg") @ y
    np.testing.assert_array_equal(again.local_array, (M @ y).local_array)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_scales_of_rows_and_columns_do_not_make_a_block_singular(comm, dtype):
    scale = sp.diags_array(10.0 ** np.linspace(-9, 9, 4**3))
    for matrix in (scale @ poisson(4, dtype=dtype), poisson(4, dtype=dtype) @ scale):
        A = distributed(matrix.astype(dtype), comm)
        M = block_jacobi(A)
        assert np.isfinite((M @ collops.ones(A.rows, dtype=dtype, comm=comm)).local_array).all()


def test_unusable_arguments(comm):
    A = distributed(poisson(3), comm)
    rows = A.rows.local_size(comm.rank)
    with pytest.raises(InputError, match="0 or not finite"):
        jacobi(np.array([1.0, 0.0]), comm=comm)
    with pytest.raises(UnsupportedTypeError, match="has no method diagonal"):
        jacobi(collops.FirstDerivative(8, comm=comm))
    with pytest.raises(UnsupportedTypeError, match="needs a CSRMatrix"):
        jacobi(np.ones(3), l1=True, comm=comm)
    with pytest.raises(UnsupportedTypeError, match="needs a CSRMatrix"):
        block_jacobi(collops.Identity(3, comm=comm))  # pyright: ignore[reportArgumentType]
    with pytest.raises(LayoutError, match="split alike"):
        block_jacobi(collops.CSRMatrix.from_global(sp.csr_array(np.ones((4, 5))), comm=comm))
    with pytest.raises(InputError, match="'lu', 'ilu', 'amg', 'ilu0' or 'dense', not 'ic'"):
        block_jacobi(A, "ic")
    singular = collops.CSRMatrix.from_global(sp.csr_array(np.ones((2 * comm.size, 2 * comm.size))), comm=comm)
    with pytest.raises(InputError, match="no LU factors"):
        block_jacobi(singular)
    for size in (2, 3):
        with pytest.raises(InputError, match=f"at most {size} rows is singular: choose another block_size"):
            block_jacobi(singular, "dense", block_size=size)
    empty = collops.CSRMatrix.from_global(sp.csr_array(np.diag([1.0] * 4 + [0.0])), comm=comm)
    with pytest.raises(InputError, match="is singular"):
        block_jacobi(empty, "dense")
    with pytest.raises(InputError, match="no incomplete factors: a pivot is 0 or not finite"):
        block_jacobi(empty, "ilu0")
    indefinite = collops.CSRMatrix.from_global(sp.block_diag([[[1.0, 2.0], [2.0, 1.0]]] * comm.size), comm=comm)
    with pytest.raises(InputError, match="no incomplete factors: a pivot is not positive"):
        block_jacobi(indefinite, "ilu0")
    for options in ({"block_size": 0}, {"block_size": 1.5}):
        with pytest.raises(InputError, match="block_size must be"):
            block_jacobi(A, "dense", **options)
    with pytest.raises(InputError, match="sweeps must be"):
        block_jacobi(A, "ilu0", sweeps=-1)
    # Skew-symmetric matrices of odd size are singular, but rounding gives them LU factors, whose product is nonsense.
    skew = sp.random_array((13, 13), density=0.5, random_state=0)
    blocks = sp.block_diag([skew - skew.T] * comm.size, format="csr")
    with pytest.raises(InputError, match="no LU factors: to the precision of float64"):
        block_jacobi(collops.CSRMatrix.from_global(blocks, comm=comm))
    with pytest.raises(InputError, match="at most 13 rows is singular"):
        block_jacobi(collops.CSRMatrix.from_global(blocks, comm=comm), "dense", block_size=13)
    for bounds in ((0, 1), (2, 1), (1, float("inf"))):
        with pytest.raises(InputError, match="bounds must be two positive numbers"):
            chebyshev(A, 2, bounds)
    with pytest.raises(LayoutError, match="one layout on both sides"):
        chebyshev(collops.VStack([np.ones((2, 3))], comm))
    with pytest.raises(InputError, match="aggregates must be"):
        two_level(A, aggregates=np.zeros(rows + 1, int))
    with pytest.raises(InputError, match="aggregates must be an integer"):
        two_level(A, aggregates=0)


@pytest.mark.parametrize(("dtype", "single"), [("f8", "f4"), ("c16", "c8")])
def test_refined_to_double_precision(comm, dtype, single):
    """Every product inside is of single precision, in which alone the solver cannot find this solution."""
    matrix = poisson(5, dtype=dtype)
    A, in_single = (distributed(matrix.astype(each), comm) for each in (dtype, single))
    seen = set()
    multiply = in_single._forward
    in_single._forward = lambda x, out: seen.add(str(x.dtype)) or multiply(x, out)
    x = collops.random(A.domain, comm=comm, dtype=dtype, seed=1)
    y = A @ x
    M = inner_solve(in_single, niter=200, tol=0, rtol=1e-5)
    refined = gmres(A, y, M=M, flexible=True, rtol=1e-13)
    assert refined.status is Status.CONVERGED and refined.iterations <= 5
    assert seen == {str(np.dtype(single))}
    np.testing.assert_allclose(refined.x.gather(), scipy.sparse.linalg.spsolve(matrix.tocsc(), y.gather()), rtol=1e-11)
    alone = cg(in_single, y.astype(single), niter=200)
    assert abs(alone.x.gather() - x.gather()).max() > 1e-8


@pytest.mark.parametrize(("low", "rtol"), [("float32", 1e-4), ("bfloat16", 1e-2)])
def test_dense_matrices_are_refined_from_lower_precision(comm, low, rtol):
    """A residual of 1e-12, and the solution of LAPACK, for condition numbers of 100 and, of least squares, 20."""
    generator = np.random.default_rng(4)
    vectors = np.linalg.qr(generator.standard_normal((60, 60)))[0]
    matrix = (vectors * np.geomspace(0.02, 2, 60)) @ vectors.T
    A = collops.BlockDiag([matrix + 0.1 * comm.rank * np.eye(60)], comm)
    whole = sp.block_diag([matrix + 0.1 * rank * np.eye(60) for rank in range(comm.size)]).toarray()
    y = collops.from_global(generator.standard_normal(60 * comm.size), A.range, comm=comm)
    M = inner_solve(A.astype(low), niter=200, tol=0, rtol=rtol)
    refined = gmres(A, y, M=M, flexible=True, rtol=1e-12)
    assert refined.status is Status.CONVERGED and refined.iterations <= 15
    assert np.linalg.norm(whole @ refined.x.gather() - y.gather()) <= 2e-12 * np.linalg.norm(y.gather())
    np.testing.assert_allclose(refined.x.gather(), np.linalg.solve(whole, y.gather()), rtol=0, atol=1e-9)
    alone = cg(A.astype(low), y.astype("f4"), niter=200, tol=0, rtol=1e-7)
    assert np.linalg.norm(whole @ alone.x.gather() - y.gather()) > 1e-8 * np.linalg.norm(y.gather())

    tall = vectors[:, :30] * np.geomspace(0.1, 2, 30)
    mine = np.array_split(np.arange(60), comm.size)[comm.rank]
    A = collops.VStack([tall[mine]], comm)
    y = collops.from_global(generator.standard_normal(60), A.range, comm=comm)
    B = A.astype(low)
    refined = gmres(A.H @ A, A.H @ y, M=inner_solve(B.H @ B, niter=200, tol=0, rtol=rtol), flexible=True, rtol=1e-12)
    assert refined.status is Status.CONVERGED and refined.iterations <= 15
    expected = np.linalg.lstsq(tall, y.gather(), rcond=None)[0]
    np.testing.assert_allclose(refined.x.gather(), expected, rtol=0, atol=1e-10)


def test_sparse_matrices_are_refined_from_single_precision(comm):
    whole = poisson(5)
    A = distributed(whole, comm)
    y = collops.random(A.range, comm=comm, seed=1)
    refined = gmres(A, y, M=inner_solve(A.astype("float32"), niter=300, tol=0, rtol=1e-4), flexible=True, rtol=1e-12)
    assert refined.status is Status.CONVERGED and refined.iterations <= 5
    expected = scipy.sparse.linalg.spsolve(whole.tocsc(), y.gather())
    np.testing.assert_allclose(refined.x.gather(), expected, rtol=0, atol=1e-11)


def test_inner_solver_with_its_own_preconditioner(comm):
    A = distributed(poisson(4), comm)
    y = collops.random(A.range, comm=comm, seed=1)
    M = inner_solve(A, minres, M=jacobi(A), rtol=1e-3)
    result = gmres(A, y, M=M, flexible=True, rtol=1e-10)
    np.testing.assert_allclose((A @ result.x).gather(), y.gather(), atol=1e-9)
    with pytest.raises(NotImplementedError, match="InnerSolve has no adjoint"):
        M.adjoint(y)
    with pytest.raises(LayoutError, match="inner_solve needs an operator with one layout"):
        inner_solve(collops.VStack([np.ones((2, 3))], comm))


def test_the_smoothing_of_aggregates_has_the_norm_of_all_ranks(comm):
    """Only the rows of the first rank reach the largest row sum of the scaled matrix."""
    rows, n = 6, 6 * comm.size
    couplings = np.where(np.arange(n - 1) < rows, -1.0, -0.05)
    matrix = np.diag(np.full(n, 2.0)) + np.diag(couplings, 1) + np.diag(couplings, -1)
    A = collops.CSRMatrix.from_global(sp.csr_array(matrix), comm=comm)
    mine = A.rows.local_size(comm.rank)
    functions, coarse = _coarse(A, np.arange(mine) // 3, np.dtype("f8"))
    start = int(sum(A.rows.local_size(rank) for rank in range(comm.rank)))
    counts = [-(-A.rows.local_size(rank) // 3) for rank in range(comm.size)]
    labels = np.concatenate([sum(counts[:r]) + np.arange(A.rows.local_size(r)) // 3 for r in range(comm.size)])
    indicators = np.eye(sum(counts))[labels]
    norm = (abs(matrix) / 2.0).sum(axis=1).max()
    expected = indicators - 4 / 3 / norm * (matrix / 2.0) @ indicators
    np.testing.assert_allclose(functions.toarray(), expected[start : start + mine], atol=1e-14)
    np.testing.assert_allclose(coarse.toarray(), expected.T @ matrix @ expected, atol=1e-13)
