"""Operators on the jax engine agree with themselves on NumPy arrays, eagerly and traced; derivatives are adjoints."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import collops
from collops import operators as ops
from collops.errors import UnsupportedTypeError
from collops.seismic.kirchhoff import FixedTables, Kirchhoff, LocalKirchhoff
from tests.operators.problems import matrix

pytestmark = pytest.mark.usefixtures("jax_double")
jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy
MATRIX = np.random.default_rng(1).standard_normal((6, 4))
SQUARE = np.random.default_rng(2).standard_normal((8, 8))


def split_kirchhoff(comm):
    """An image of six columns, of which a third rank has none, with nodes at every second one."""
    axes, t, line = (10.0 * np.arange(5), 10.0 * np.arange(6)), 0.004 * np.arange(40), np.array([[5.0, 40.0], [0, 0]])
    layout = collops.Layout.split((6, 5), comm.size, sizes=[3, 3, 0, 0][: comm.size] if comm.size > 1 else None)
    options = {"mode": "analytic", "kernels": "numpy", "coarsen": 2, "comm": comm, "layout": layout}
    return Kirchhoff(*axes, t, line, line, 1500.0, np.ones(3), 1, **options)


CASES = {
    "VStack": (lambda comm: ops.VStack([MATRIX, MATRIX[:2]], comm), float),
    "HStack": (lambda comm: ops.HStack([MATRIX + 1j], comm), complex),
    "BlockDiag": (lambda comm: ops.BlockDiag([MATRIX] * (comm.rank != 1), comm), float),
    "sparse": (lambda comm: ops.BlockDiag([scipy.sparse.csr_array(MATRIX)], comm), float),
    "FirstDerivative": (lambda comm: ops.FirstDerivative((9, 3), edge=True, order=5, comm=comm), float),
    "one-sided": (lambda comm: ops.FirstDerivative((7, 2), kind="forward", comm=comm), float),
    "Laplacian": (lambda comm: ops.Laplacian((9, 4), comm=comm), complex),
    "Gradient": (lambda comm: ops.Gradient((7, 4), comm=comm), float),
    "FFT": (lambda comm: ops.FFT((8, 5), axis=0, real=True, comm=comm), float),
    "Restriction": (lambda comm: ops.Restriction((8, 3), [1, 4, 6], axis=0, comm=comm), float),
    "repeated": (lambda comm: ops.Restriction((8, 3), [7, 1, 1, 6], axis=0, comm=comm), float),
    "Kirchhoff": (split_kirchhoff, float),
    "algebra": (lambda comm: 2 * ops.Identity(9, comm=comm) - ops.SecondDerivative(9, comm=comm).H, float),
}


def gathered(x):
    parts = x.gather()
    return np.concatenate([np.asarray(part).ravel() for part in (parts if isinstance(parts, list) else [parts])])


@pytest.mark.parametrize("name", CASES)
def test_forward_adjoint_and_derivative(comm, name):
    make, dtype = CASES[name]
    A = make(comm)
    given, traced = (
        [
            collops.random(layout, seed=2, dtype=kind, comm=comm, engine=engine)
            for layout, kind in ((A.domain, dtype), (A.range, np.result_type(dtype, A.dtype)))
        ]
        for engine in ("numpy", "jax")
    )
    x, y = traced
    np.testing.assert_allclose(gathered(A.forward(x)), gathered(A.forward(given[0])), atol=1e-12)
    np.testing.assert_allclose(gathered(jax.jit(A.adjoint)(y)), gathered(A.adjoint(given[1])), atol=1e-12)
    if dtype is float:
        # A transpose does not conjugate.
        (slope,) = jax.jit(lambda x, y: jax.vjp(A.forward, x)[1](y))(x, y)
        np.testing.assert_allclose(gathered(slope), gathered(A.adjoint(given[1].conj())), atol=1e-12)


def test_a_local_kirchhoff_operator_rejects_complex_arrays_before_it_calls_the_host():
    tables = FixedTables.from_seconds(np.full((1, 4), 0.01), np.full((1, 4), 0.02), 0.004, 20, "float64")
    operator = LocalKirchhoff(tables, (4,), np.ones(1), 0, kernels="numpy", engine="numpy")
    for apply, size in ((operator.forward_local, 4), (operator.adjoint_local, 20)):
        with pytest.raises(UnsupportedTypeError, match="needs real arrays"):
            apply(jnp.zeros(size, complex), None)


OF_MATRICES = {
    "block": lambda comm, matrix, name: ops.MatrixMult(matrix, 5, "block", process_grid=(comm.size, 1), comm=comm),
    "whole rows": lambda comm, _, name: ops.MatrixMult(collops.from_global(SQUARE, comm=comm, engine=name), 4, "summa"),
    "SUMMA": lambda comm, _, name: ops.MatrixMult(
        collops.from_global(SQUARE, comm=comm, engine=name), 4, "summa", process_grid=(1, comm.size)
    ),
    "rounds": lambda comm, _, name: ops.MatrixMult(
        collops.from_global(SQUARE, comm=comm, engine=name), 4, "summa", process_grid=(comm.size, 1)
    ),
    "MDC": lambda comm, matrix, name: ops.MDC(matrix[None] * (1 + 1j), nt=2 * comm.size + 1, nv=2, comm=comm),
}


@pytest.mark.parametrize("name", OF_MATRICES)
def test_operators_of_matrices(comm, name, monkeypatch):
    """Their vectors are of the engine of their matrices."""
    if name in ("SUMMA", "rounds"):
        monkeypatch.setattr("collops.operators.matrix_mult.choice._MAX_KEPT", 0)
        monkeypatch.setattr("collops.operators.matrix_mult.choice._ROUND", 100)
    block = np.random.default_rng(comm.rank).standard_normal((3, 4))
    ours, theirs = (
        OF_MATRICES[name](comm, collops.backend.engine(engine).from_host(block), engine) for engine in ("numpy", "jax")
    )
    (x, dx), (y, dy) = (
        [collops.random(layout, seed=2, comm=comm, engine=engine) for engine in ("numpy", "jax")]
        for layout in (ours.domain, ours.range)
    )
    want = gathered(ours.forward(x)), *[gathered(ours.adjoint(y))] * 2

    @jax.jit
    def everything(x, y):
        return theirs.forward(x), theirs.adjoint(y), jax.vjp(theirs.forward, x)[1](y)[0]

    for found, each in zip(everything(dx, dy), want, strict=True):
        np.testing.assert_allclose(gathered(found), each, atol=1e-12)
    out = collops.ones(ours.range, comm=comm, dtype=dx.dtype, engine="jax")
    assert theirs.forward(dx, out) is out
    np.testing.assert_allclose(gathered(out), want[0], atol=1e-12)


@pytest.mark.parametrize("traced", [False, True])
def test_a_complex_matrix_of_jax(comm, traced):
    """Its adjoint needs the conjugate of the vector, which is an array like the matrix where nothing is traced."""
    block = matrix(3, 4, "c16", comm.rank)
    ours, theirs = (ops.VStack([array], comm) for array in (block, jnp.asarray(block)))
    y, dy = (collops.random(ours.range, seed=2, dtype=complex, comm=comm, engine=engine) for engine in ("numpy", "jax"))
    adjoint = jax.jit(theirs.adjoint) if traced else theirs.adjoint
    np.testing.assert_allclose(gathered(adjoint(dy)), gathered(ours.adjoint(y)), atol=1e-12)


def test_complex_multiples_of_a_real_operator(comm):
    diagonal = np.arange(1.0, 8)
    A = 2j * ops.Diagonal(diagonal, comm=comm)
    x = collops.random(A.domain, seed=1, comm=comm, engine="jax")
    np.testing.assert_allclose(gathered(A.forward(x)), 2j * diagonal * gathered(x))
    np.testing.assert_allclose(gathered(A.adjoint(x)), -2j * diagonal * gathered(x))


def test_an_array_is_a_tree(comm):
    x = collops.random((7, 3), seed=1, comm=comm, engine="jax")
    (leaf,) = jax.tree.leaves(x)
    assert isinstance(leaf, jax.Array) and leaf.shape == x.layout.local_shape(comm.rank)
    doubled = jax.jit(lambda x: 2 * x)(x)
    assert doubled.layout is x.layout and doubled.comm is comm
    np.testing.assert_array_equal(gathered(doubled), 2 * gathered(x))
    parts = np.sin(collops.StackedArray([x, doubled]))
    np.testing.assert_allclose(gathered(parts), np.sin(np.concatenate([gathered(x), gathered(doubled)])))
    with pytest.raises(collops.errors.UnsupportedTypeError, match=r"collops\.where"):
        np.sin(x, where=x > 0)
    slope = jax.grad(lambda x: x.vdot(x) + (x * 3).sum())(x)
    np.testing.assert_allclose(gathered(slope), 2 * gathered(x) + 3)


@pytest.mark.parametrize("given", ["numpy", "jax"])
def test_matrices_in_bfloat16(comm, given):
    """A matrix of either package, in one program with vectors of JAX; the transpose of the derivative as well."""
    A = ops.VStack([collops.backend.engine(given).from_host(MATRIX.astype("f4"))], comm).astype("bfloat16")
    expected = np.concatenate([np.asarray(jnp.asarray(MATRIX, "bfloat16"), "f8")] * comm.size)
    x, y = (collops.random(layout, seed=2, comm=comm, engine="jax", dtype="float32") for layout in (A.domain, A.range))

    @jax.jit
    def everything(x, y):
        return A.forward(x), A.adjoint(y), jax.vjp(A.forward, x)[1](y)[0]

    forward, *adjoints = everything(x, y)
    assert forward.dtype == np.float32
    np.testing.assert_allclose(gathered(forward), expected @ gathered(x), atol=1e-5)
    for found in (*adjoints, A.adjoint(y)):
        np.testing.assert_allclose(gathered(found), expected.T @ gathered(y), atol=1e-5)


BIDIAGONAL = np.eye(11) + np.eye(11, k=1)
LOCAL = {
    "differences of neighbours": lambda comm: ops.FirstDerivative(11, kind="forward", comm=comm),
    "a halo on one side": lambda comm: ops.Halo(11, (0, 1), comm=comm),
    "a bidiagonal matrix": lambda comm: ops.CSRMatrix.from_global(scipy.sparse.csr_matrix(BIDIAGONAL), comm=comm),
    "its adjoint": lambda comm: ops.CSRMatrix.from_global(scipy.sparse.csr_matrix(BIDIAGONAL), comm=comm).H,
    "samples": lambda comm: ops.Restriction(11, [0, 10, 9], comm=comm),
}


@pytest.mark.parametrize("name", LOCAL)
def test_second_derivatives(comm, name):
    """Derivatives of derivatives have the messages of a rank that only sends, or only receives, in a direction."""
    op = LOCAL[name](comm)
    dense = np.stack([(op @ collops.from_global(column, comm=comm)).gather() for column in np.eye(11)], 1)
    x, v = (collops.random(11, seed=seed, comm=comm, engine="jax") for seed in (1, 2))
    X, V = (np.asarray(each.gather()) for each in (x, v))
    expected = dense.T @ np.diag(dense @ X) @ dense @ V
    gradient = jax.grad(lambda x: jnp.sum(op.forward(x).local_array ** 3) / 6)
    np.testing.assert_allclose(jax.jvp(gradient, (x,), (v,))[1].gather(), expected, atol=1e-13)
    reverse = jax.jit(jax.grad(lambda x: jnp.sum(gradient(x).local_array * v.local_array)))
    np.testing.assert_allclose(reverse(x).gather(), expected, atol=1e-13)


@pytest.mark.parametrize("kind", ["block", "summa"])
def test_derivatives_by_a_matrix(comm, kind):
    """Of a product, and of a solution; on several ranks, a clear error where the operand is traced as well."""
    y, goal = np.random.default_rng(3).standard_normal((2, 8, 3))
    A = collops.from_global(jnp.asarray(SQUARE), comm=comm)
    op = ops.MatrixMult(A, 3, kind)
    x, image, data, model = (
        collops.from_global(jnp.asarray(values), layout, comm=comm)
        for values, layout in ((y, op.domain), (goal, op.range), (y, op.range), (goal, op.domain))
    )
    gradient = jax.jit(jax.grad(lambda A: image.vdot(ops.MatrixMult(A, 3, kind) @ x)))(A)
    np.testing.assert_allclose(gradient.gather(), goal @ y.T, rtol=1e-12)

    def fitted(A):
        return model.vdot(collops.cgls(ops.MatrixMult(A, 3, kind), data, niter=60, rtol=1e-14).x)

    if comm.size > 1:
        with pytest.raises(UnsupportedTypeError, match="JAX cannot trace the matrix of MatrixMult and its operand"):
            jax.grad(fitted)(A)
        return
    dual = np.linalg.solve(SQUARE.T, goal)
    expected = -dual @ np.linalg.solve(SQUARE, y).T
    np.testing.assert_allclose(jax.jit(jax.grad(fitted))(A).gather(), expected, atol=1e-6 * np.abs(expected).max())
