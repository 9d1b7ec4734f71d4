"""PETSc on distributed arrays: its products and solvers against dense matrices and collops' own, and shared memory."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse import linalg as sparse_linalg

import collops
from collops import Layout, StackedArray, StackedLayout, profile
from collops.errors import InputError, LayoutError, UnsupportedTypeError

petsc4py = pytest.importorskip("petsc4py", reason="petsc4py is not installed")

from petsc4py import PETSc  # noqa: E402 - after it is known that petsc4py is there

from collops.bridges.petsc import as_petsc, from_petsc, preconditioner, to_petsc  # noqa: E402

SCALAR = np.dtype(PETSc.ScalarType)
COMPLEX = SCALAR.kind == "c"


def numbers(*shape, seed=0):
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(shape)
    return values + 1j * generator.standard_normal(shape) if COMPLEX else values


def uneven(shape, comm, axis=0):
    """A layout whose last rank has one element less, and the first as many more."""
    sizes = np.diff(np.linspace(0, shape[axis], comm.size + 1).astype(int))
    sizes[0] += 1
    sizes[-1] -= 1
    return Layout.split(shape, comm.size, axis, sizes=sizes)


def tall(comm):
    """A dense matrix of 13 rows and 7 columns, and the sparse operator with uneven parts."""
    A = numbers(13, 7)
    rows, columns = uneven((13,), comm), uneven((7,), comm)
    return A, collops.CSRMatrix(sparse.csr_array(A[rows.slices(comm.rank)]), columns, comm=comm)


def smoothing(comm, shape=(7, 5)):
    """A symmetric positive definite operator on a grid whose columns are split, and its dense matrix in C order."""
    layout = uneven(shape, comm, axis=1)
    D, E = (collops.FirstDerivative(layout, axis=axis, kind="forward", comm=comm) for axis in (0, 1))
    op = D.H @ D + E.H @ E + 0.5 * collops.Identity(layout, comm=comm)
    differences = []
    for size in shape:
        d = np.eye(size, k=1) - np.eye(size)
        d[-1] = 0
        differences.append(d.T @ d)
    dense = np.kron(differences[0], np.eye(shape[1])) + np.kron(np.eye(shape[0]), differences[1])
    return op, dense + 0.5 * np.eye(len(dense))


def vector(values, layout, comm):
    return collops.from_global(np.asarray(values, SCALAR).reshape(layout.shape), layout, comm=comm)


def test_memory_is_shared(comm):
    """Of arrays of any layout without copies, and of vectors: nothing is copied, and no message sent afterwards."""
    for layout in (uneven((7,), comm), uneven((5, 7), comm, axis=1)):
        x = vector(numbers(layout.size), layout, comm)
        v = to_petsc(x)
        assert v.getSizes() == (layout.local_size(comm.rank), layout.size)
        np.testing.assert_array_equal(v.getArray(readonly=True), x.local_array.ravel())
        np.testing.assert_allclose(v.norm(), float(x.norm()))
        v.scale(2)
        y = from_petsc(v, layout, comm=comm)
        assert y.layout is layout and (not y.local_array.size or np.shares_memory(x.local_array, y.local_array))
        x += 1
        v.stateIncrease()  # otherwise PETSc returns the norm that it has kept
        np.testing.assert_allclose(v.norm(), np.linalg.norm(y.gather()))
    flat = from_petsc(v, comm=comm)
    assert flat.shape == (35,) and flat.layout.local_size(comm.rank) == layout.local_size(comm.rank)


def test_a_stacked_array_in_the_memory_of_a_vector(comm):
    layout = StackedLayout([uneven((5, 3), comm), Layout.split(4, comm.size), StackedLayout([uneven((7,), comm)])])
    n = layout.local_size(comm.rank)
    v = PETSc.Vec().createMPI((n, layout.size), comm=comm.control or PETSc.COMM_SELF)
    x = from_petsc(v, layout, comm=comm)
    assert isinstance(x, StackedArray) and x.layout is layout
    x += collops.StackedArray([x[0] + 3, x[1] + 5, x[2] + 5])
    v.stateIncrease()
    assert v.sum() == 3 * 15 + 5 * 11


def test_products(comm):
    A, op = tall(comm)
    x, y = numbers(7, seed=1), numbers(13, seed=2)
    for matrix in (as_petsc(op), to_petsc(op)):
        assert matrix.getSizes() == ((op.rows.local_size(comm.rank), 13), (op.columns.local_size(comm.rank), 7))
        right, left = to_petsc(vector(x, op.domain, comm)), to_petsc(vector(y, op.range, comm))
        result, back = matrix.createVecLeft(), matrix.createVecRight()
        for product, source, target, expected in (
            (matrix.mult, right, result, A @ x),
            (matrix.multTranspose, left, back, A.T @ y),
            (matrix.multHermitian, left, back, A.conj().T @ y),
        ):
            product(source, target)
            np.testing.assert_allclose(from_petsc(target, comm=comm).gather(), expected, rtol=1e-12)


def test_products_send_only_their_messages(comm):
    op, _ = smoothing(comm)
    A = as_petsc(op)
    x, y = A.createVecs()
    x.set(1)
    A.mult(x, y)
    with profile.count_messages() as ours:
        op.forward(vector(np.ones(35), op.domain, comm))
    with profile.count_messages() as messages:
        A.mult(x, y)
    assert messages.counts() == ours.counts()


@pytest.mark.parametrize("method", ["cg", "gmres", "lsqr"])
def test_solvers_of_petsc(comm, method):
    """KSP on a collops operator: the solution of the dense system, in as many iterations as collops takes."""
    if method == "lsqr":
        dense, op = tall(comm)
    else:
        op, dense = smoothing(comm)
    b = vector(numbers(op.range.size), op.range, comm)
    ksp = PETSc.KSP().create(comm.control or PETSc.COMM_SELF)
    ksp.setOperators(as_petsc(op))
    ksp.setType(method)
    ksp.pc.setType("none")
    ksp.setTolerances(rtol=1e-12, atol=1e-50, max_it=80)
    ksp.setNormType(PETSc.KSP.NormType.UNPRECONDITIONED if method == "cg" else PETSc.KSP.NormType.DEFAULT)
    x = collops.zeros(op.domain, comm=comm, dtype=SCALAR)
    ksp.solve(to_petsc(b), to_petsc(x))
    np.testing.assert_allclose(x.gather().ravel(), np.linalg.lstsq(dense, b.gather().ravel())[0], rtol=1e-8, atol=1e-10)
    if method == "cg":
        result = collops.cg(op, b, niter=80, rtol=1e-12)
        np.testing.assert_allclose(x.gather(), result.x.gather(), rtol=1e-9, atol=1e-11)
        assert abs(ksp.getIterationNumber() - result.iterations) <= 1


def test_preconditioners_both_ways(comm):
    """A preconditioner of collops in PETSc, and one of PETSc in collops, on a grid as on a vector."""
    op, dense = smoothing(comm)
    b = vector(numbers(35), op.range, comm)
    expected = np.linalg.solve(dense, b.gather().ravel())
    M = collops.Diagonal(vector(1 / np.diag(dense), op.domain, comm))
    ksp = PETSc.KSP().create(comm.control or PETSc.COMM_SELF)
    ksp.setOperators(as_petsc(op), as_petsc(M))
    ksp.pc.setType("mat")
    ksp.setType("cg")
    ksp.setTolerances(rtol=1e-12)
    x = collops.zeros(op.domain, comm=comm, dtype=SCALAR)
    ksp.solve(to_petsc(b), to_petsc(x))
    np.testing.assert_allclose(x.gather().ravel(), expected, rtol=1e-8, atol=1e-10)


def banded(comm, size=11):
    """A nonsymmetric sparse matrix, and the same in PETSc."""
    A = sparse.diags_array([-1.0, 4.0, 0.5j if COMPLEX else 0.5], offsets=[-1, 0, 1], shape=(size, size)).tocsr()
    rows = uneven((size,), comm)
    op = collops.CSRMatrix(A[rows.slices(comm.rank)[0]], rows, comm=comm)
    return A.toarray(), op, to_petsc(op)


def test_preconditioners_of_petsc(comm):
    A, op, matrix = banded(comm)
    pc = PETSc.PC().create(comm.control or PETSc.COMM_SELF)
    pc.setOperators(matrix)
    pc.setType("bjacobi")
    pc.setUp()
    layout = op.rows
    M = from_petsc(pc, comm=comm)
    assert M.domain is M.range is layout and M.dtype == SCALAR
    b = vector(numbers(11, seed=3), layout, comm)
    part = layout.slices(comm.rank)
    block = A[part * 2]  # tridiagonal: its incomplete factors are exact
    np.testing.assert_allclose((M @ b).local_array, np.linalg.solve(block, b.local_array), rtol=1e-10)
    np.testing.assert_allclose((M.H @ b).local_array, np.linalg.solve(block.conj().T, b.local_array), rtol=1e-10)
    assert M.dottest()
    result = collops.gmres(op, b, M=M, niter=30, rtol=1e-12)
    np.testing.assert_allclose(result.x.gather(), np.linalg.solve(A, b.gather()), rtol=1e-8)
    grid = uneven((11, 1), comm)
    assert from_petsc(pc, grid, comm=comm).domain is grid


def poisson(comm, n=24):
    """Poisson's equation on a square, with uneven rows."""
    line, one = sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)), sparse.eye_array(n)
    matrix = sparse.csr_array(sparse.kron(line, one) + sparse.kron(one, line))
    rows = uneven((n * n,), comm)
    return matrix, collops.CSRMatrix(matrix[rows.slices(comm.rank)[0]], rows, comm=comm)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ("gamg", 16),
        ({"pc_type": "gamg", "pc_gamg_threshold": 0.02, "mg_levels_ksp_max_it": 3}, 12),
        ({"pc_type": "bjacobi", "sub_pc_type": "lu"}, 40),
        ({"pc_type": "hypre", "pc_hypre_type": "boomeramg"}, 12),
    ],
    ids=["gamg", "gamg with options", "bjacobi", "hypre"],
)
def test_options_make_a_preconditioner(comm, options, most):
    """Of collops' solvers: the solution of SciPy in few iterations, and the exact adjoint."""
    A, op = poisson(comm)
    if "hypre" in str(options) and COMPLEX:
        pytest.skip("hypre is for real numbers")
    M = preconditioner(op, options)
    b = vector(numbers(576, seed=4), op.range, comm)
    expected = sparse_linalg.spsolve(sparse.csc_array(A), b.gather())
    plain = collops.cg(op, b, niter=200, rtol=1e-10)
    for solver in (collops.cg, collops.gmres):
        result = solver(op, b, M=M, niter=200, rtol=1e-10)
        assert result.status.successful and result.iterations <= most < plain.iterations
        np.testing.assert_allclose(result.x.gather(), expected, rtol=1e-7, atol=1e-7)
    if "hypre" not in str(options):  # has no transpose
        assert M.dottest()
    assert not [name for name in PETSc.Options().getAll() if "collops" in name]


def test_options_of_block_jacobi(comm):
    """With the factors of each rank's rows: the options reach the solver of the blocks."""
    A, op, _ = banded(comm)
    b = vector(numbers(11, seed=3), op.rows, comm)
    block = A[op.rows.slices(comm.rank) * 2]
    for kind, expected in (("lu", np.linalg.solve(block, b.local_array)), ("jacobi", b.local_array / np.diag(block))):
        M = preconditioner(op, {"pc_type": "bjacobi", "sub_ksp_type": "preonly", "sub_pc_type": kind})
        np.testing.assert_allclose((M @ b).local_array, expected, rtol=1e-10)
        assert M.dottest()


def test_preconditioners_that_petsc_cannot_make(comm):
    _, op = poisson(comm, 4)
    singular = collops.CSRMatrix.from_global(sparse.csr_array(np.ones((6, 6))), comm=comm)
    for matrix, options, message in (
        (op, "nothing", "'nothing'}: Unable to find requested PC type nothing"),
        (op, {"pc_type": "gamg", "pc_gamg_threshold": "much"}, "Input string much has no"),
        (singular, {"pc_type": "bjacobi", "sub_pc_type": "lu"}, "is not finite"),
    ):
        with pytest.raises(InputError, match=message):
            preconditioner(matrix, options)
    with pytest.raises(UnsupportedTypeError, match="takes a CSRMatrix"):
        preconditioner(op.H, "jacobi")
    with pytest.raises(LayoutError, match="split alike"):
        preconditioner(tall(comm)[1], "jacobi")


def test_matrices_of_petsc(comm):
    A, op, matrix = banded(comm)
    x = vector(numbers(11, seed=1), op.domain, comm)
    single = x.astype("complex64" if COMPLEX else "float32")
    copied = from_petsc(matrix, comm=comm)
    assert isinstance(copied, collops.CSRMatrix) and copied.rows is op.rows and copied.columns is op.columns
    lifted = from_petsc(PETSc.Mat().createTranspose(matrix), comm=comm)
    for found, dense in ((copied, A), (lifted, A.T)):
        np.testing.assert_allclose((found @ x).gather(), dense @ x.gather(), rtol=1e-12)
        np.testing.assert_allclose((found.H @ x).gather(), dense.conj().T @ x.gather(), rtol=1e-12)
        out = collops.zeros(found.range, comm=comm, dtype=single.dtype)
        assert found.forward(single, out=out) is out
        np.testing.assert_allclose(out.gather(), dense @ single.gather(), rtol=1e-5)
    assert from_petsc(as_petsc(op), comm=comm) is op
    np.testing.assert_allclose(from_petsc(as_petsc(op).getDiagonal(), comm=comm).gather(), np.diag(A))
    A, op = tall(comm)
    copied = from_petsc(to_petsc(op), comm=comm)
    assert copied.shape == (13, 7) and copied.rows is op.rows and copied.columns is op.columns
    lifted = from_petsc(PETSc.Mat().createTranspose(to_petsc(op)), comm=comm)
    for found, dense in ((lifted, A.T), (lifted.H, A.conj())):
        x = vector(numbers(dense.shape[1], seed=2), found.domain, comm)
        np.testing.assert_allclose((found @ x).gather(), dense @ x.gather(), rtol=1e-12)


def test_nonlinear_equations(comm):
    """SNES with the derivative as a collops operator: x + x^3 + D^H D x = b."""
    op, dense = smoothing(comm)
    layout = op.domain
    b = vector(numbers(35, seed=5).real, layout, comm)

    def residual(snes, x, f):
        values = from_petsc(x, layout, comm=comm)
        from_petsc(f, layout, comm=comm).local_array[...] = (op @ values + values**3 - b).local_array

    def derivative(snes, x, J, P):
        values = from_petsc(x, layout, comm=comm)
        J.setPythonContext(as_petsc(op + collops.Diagonal(3 * values**2)).getPythonContext())
        J.assemble()

    x = collops.zeros(layout, comm=comm, dtype=SCALAR)
    snes = PETSc.SNES().create(comm.control or PETSc.COMM_SELF)
    snes.setFunction(residual, to_petsc(b * 0))
    snes.setJacobian(derivative, as_petsc(op))
    snes.ksp.pc.setType("none")
    snes.ksp.setTolerances(rtol=1e-10)
    snes.setTolerances(rtol=1e-12)
    snes.solve(None, to_petsc(x))
    values = x.gather().ravel()
    np.testing.assert_allclose(dense @ values + values**3, b.gather().ravel(), atol=1e-9)
    assert snes.getConvergedReason() > 0 and snes.getIterationNumber() < 10  # Newton's


def test_errors(comm):
    op, _ = smoothing(comm)
    x = vector(numbers(35), op.domain, comm)
    for call, error, message in (
        (lambda: as_petsc(np.eye(3)), UnsupportedTypeError, "as_petsc takes a distributed operator"),
        (lambda: as_petsc(collops.FFT((8, 2), axis=0, real=True, comm=comm)), UnsupportedTypeError, "real"),
        (lambda: to_petsc(x.local_array), UnsupportedTypeError, "to_petsc takes .*from_petsc.vector, layout"),
        (lambda: to_petsc(StackedArray([x, x])), UnsupportedTypeError, "to_petsc takes"),
        (
            lambda: to_petsc(x.astype("complex64" if COMPLEX else "float32")),
            UnsupportedTypeError,
            f"vectors of PETSc are {SCALAR}",
        ),
        (lambda: from_petsc(x), UnsupportedTypeError, "from_petsc takes a Vec, Mat or PC"),
        (lambda: from_petsc(as_petsc(op), op.domain, comm=comm), InputError, "leave out layout="),
        (lambda: from_petsc(to_petsc(x), uneven((36,), comm), comm=comm), LayoutError, "the ranks have"),
    ):
        with pytest.raises(error, match=message):
            call()
    strided = collops.from_local(np.ones((4, 3), SCALAR, order="F"), comm=comm)
    with pytest.raises(UnsupportedTypeError, match="contiguous"):
        to_petsc(strided)
    if not COMPLEX:
        with pytest.raises(UnsupportedTypeError, match="complex128, but this PETSc"):
            as_petsc(1j * op)
        _, sparse_op, matrix = banded(comm)
        lifted = from_petsc(PETSc.Mat().createTranspose(matrix), comm=comm)
        with pytest.raises(UnsupportedTypeError, match="no imaginary part"):
            lifted.forward(1j * vector(np.ones(11), sparse_op.rows, comm))
    if comm.size > 1:
        with pytest.raises(LayoutError, match=r"on one rank, unlike in .*redistribute"):
            as_petsc(collops.Identity(Layout.replicated(4, comm.size), comm=comm))
        with pytest.raises(LayoutError, match=r"on 1 ranks.*from_mpi4py"):
            from_petsc(PETSc.Vec().createSeq(3), comm=comm)
