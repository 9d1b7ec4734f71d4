"""Methods of SciPy on distributed operators, against dense answers."""

import numpy as np
import pytest
from scipy.sparse import linalg

import collops
from collops import Layout, profile
from collops.bridges.scipy import as_scipy
from collops.errors import InputError, LayoutError, UnsupportedTypeError

ROWS, COLUMNS = 23, 11


def numbers(*shape, dtype=float, seed=0):
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(shape)
    return values + 1j * generator.standard_normal(shape) if np.dtype(dtype).kind == "c" else values.astype(dtype)


def tall(comm, dtype=float):
    """A dense matrix, and the operator whose rows are split unevenly over the ranks."""
    A = numbers(ROWS, COLUMNS, dtype=dtype)
    ends = np.linspace(0, ROWS, comm.size + 1).astype(int)
    ends[1:-1] += 1
    return A, collops.VStack([A[ends[comm.rank] : ends[comm.rank + 1]]], comm)


def symmetric(comm):
    """A symmetric positive definite matrix, and the operator whose vectors are split over the ranks."""
    B = numbers(COLUMNS, COLUMNS, seed=1)
    A = B @ B.T + np.eye(COLUMNS)
    layout = Layout.split(COLUMNS, comm.size)
    rows = collops.VStack([A[layout.slices(comm.rank)]], comm)
    return A, rows @ collops.VStack([np.eye(COLUMNS)[layout.slices(comm.rank)]], comm).H


def stacked(comm):
    """A dense matrix, and an operator from one array to two, whose flat vectors follow each other."""
    layout = Layout.split((5, 3), comm.size)
    D = collops.StackedVStack([collops.FirstDerivative((5, 3), comm=comm), collops.Identity(layout, comm=comm) * 2])
    columns = [collops.from_global(row.reshape(5, 3), layout, comm=comm) for row in np.eye(15)]
    return np.stack([np.concatenate([part.ravel() for part in (D @ x).gather()]) for x in columns], axis=1), D


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_products(comm, engine, dtype):
    if engine == "jax":
        pytest.importorskip("jax", reason="JAX is not installed")
    A, op = tall(comm, dtype)
    S, lifted = (as_scipy(op, engine=engine) for _ in range(2))
    assert S.shape == (ROWS, COLUMNS) and S.dtype == A.dtype
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if engine == "jax" or dtype == "float32" else {"rtol": 1e-12}
    x, y = numbers(COLUMNS, dtype=dtype), numbers(ROWS, dtype=dtype)
    X, Y = numbers(COLUMNS, 3, dtype=dtype), numbers(ROWS, 2, dtype=dtype)
    for product, expected in (
        (S.matvec(x), A @ x),
        (S.matvec(x[:, None]), A @ x[:, None]),
        (S.rmatvec(y), A.conj().T @ y),
        (S @ X, A @ X),
        (S.matmat(X[:, :1]), A @ X[:, :1]),
        (S.matmat(X[:, :0]), A @ X[:, :0]),
        (S.rmatmat(Y), A.conj().T @ Y),
        (S.T @ y, A.T @ y),
        ((2 * lifted + S) @ x, 3 * A @ x),
    ):
        np.testing.assert_allclose(product, expected, **tolerance)
        assert product.dtype == expected.dtype or engine == "jax"
        assert product.flags.writeable


def test_stacked_arrays_follow_each_other(comm):
    A, D = stacked(comm)
    S = as_scipy(D)
    x, y = numbers(15), numbers(30)
    np.testing.assert_allclose(S @ x, A @ x)
    np.testing.assert_allclose(S.H @ y, A.T @ y)
    np.testing.assert_allclose(S @ numbers(15, 4), A @ numbers(15, 4))
    np.testing.assert_allclose(S.rmatmat(numbers(30, 2)), A.T @ numbers(30, 2))


def test_messages(comm):
    _, op = tall(comm)
    S, x, X = as_scipy(op), np.ones(COLUMNS), np.ones((COLUMNS, 3))
    S.matvec(x), S.matmat(X)
    expected = {"agreement": 1} if comm.size > 1 else {}
    with profile.count_messages() as messages:
        S.matvec(x)
    assert messages.counts() == (expected | {"allgatherv": 1} if comm.size > 1 else {})
    with profile.count_messages() as messages:
        S.matmat(X)
    assert messages.counts() == (expected | {"alltoallv": 1} if comm.size > 1 else {})
    with profile.count_messages() as messages:
        S.rmatvec(np.ones(ROWS))  # the domain is replicated
    assert messages.counts() == (expected | {"allreduce": 1} if comm.size > 1 else {})


def test_least_squares(comm):
    A, op = tall(comm)
    y = numbers(ROWS)
    x = linalg.lsqr(as_scipy(op), y, atol=1e-12, btol=1e-12)[0]
    np.testing.assert_allclose(x, np.linalg.lstsq(A, y)[0], rtol=1e-8)
    comm.agree("the solution", x.tobytes().hex())


def test_eigenvalues(comm):
    A, op = symmetric(comm)
    expected, v0 = np.linalg.eigvalsh(A)[-2:], numbers(COLUMNS)
    S = as_scipy(op)
    values, vectors = linalg.eigsh(S, k=2, v0=v0)
    np.testing.assert_allclose(values, expected, rtol=1e-8)
    np.testing.assert_allclose(A @ vectors, vectors * values, atol=1e-8)
    values, _ = linalg.lobpcg(S, numbers(COLUMNS, 2), tol=1e-7, maxiter=100)
    np.testing.assert_allclose(np.sort(values), expected, rtol=1e-8)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_singular_values(comm, dtype):
    A, op = tall(comm, dtype)
    left, values, right = linalg.svds(as_scipy(op), k=3, v0=numbers(COLUMNS))
    np.testing.assert_allclose(values, np.linalg.svd(A)[1][2::-1], rtol=1e-8)
    np.testing.assert_allclose(A.conj().T @ left, right.conj().T * values, atol=1e-8)


def test_gmres_with_a_preconditioner(comm):
    A, op = symmetric(comm)
    b = numbers(COLUMNS)
    M = collops.Diagonal(collops.from_global(1 / np.diag(A), op.domain, comm=comm))
    x, info = linalg.gmres(as_scipy(op), b, M=as_scipy(M), rtol=1e-10, atol=0)
    assert info == 0
    np.testing.assert_allclose(x, np.linalg.solve(A, b), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_the_padding_of_long_double_is_not_compared(comm):
    A, op = tall(comm, "float64")
    x = np.full(16 * COLUMNS, comm.rank + 1, np.uint8).view(np.longdouble)
    np.add(numbers(COLUMNS), 0, out=x)  # leaves the padding, which differs between ranks
    np.testing.assert_allclose(as_scipy(op) @ x, A @ x, rtol=1e-12)
    column = np.matrix(x.astype(float)).T
    np.testing.assert_allclose(as_scipy(op) @ column, A @ column, rtol=1e-12)


def test_vectors_that_differ(comm):
    """SciPy's own random start vectors: the first product raises one error on all ranks."""
    _, op = symmetric(comm)
    S = as_scipy(op)
    for call in (
        lambda: linalg.eigsh(S, k=2, v0=np.random.default_rng(comm.rank).random(COLUMNS)),
        lambda: linalg.lobpcg(S, np.random.default_rng(comm.rank).random((COLUMNS, 2))),
        lambda: S.rmatvec(np.full(COLUMNS, comm.rank)),
        lambda: S.matmat(np.ones((COLUMNS, 2 + comm.rank))),
    ):
        if comm.size == 1:
            call()
            continue
        with pytest.raises(InputError, match=r"v0=numpy.random.default_rng\(0\).*differs between ranks") as caught:
            call()
        assert caught.value.on_all_ranks


def test_operators_that_have_no_form(comm):
    with pytest.raises(UnsupportedTypeError, match=r"as_scipy takes .*VStack"):
        as_scipy(linalg.aslinearoperator(np.eye(3)))
    with pytest.raises(UnsupportedTypeError, match="takes real parts"):
        as_scipy(collops.FFT((8, 2), axis=0, real=True, comm=comm))
    with pytest.raises(InputError, match="no engine"):
        as_scipy(collops.Identity(3, comm=comm), engine="abacus")
    if comm.size > 1:
        groups = Layout.replicated(4, comm.size, mask=range(comm.size))
        with pytest.raises(LayoutError, match="values of its own"):
            as_scipy(collops.Identity(groups, comm=comm))
    with pytest.raises(UnsupportedTypeError, match="gather"):
        as_scipy(collops.Identity(3, comm=comm)).matvec(collops.ones(3, comm=comm))
