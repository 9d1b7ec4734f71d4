"""Lifting of local operators: matrices, PyLops, SciPy, and anything with matvec and rmatvec."""

from __future__ import annotations

import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pylops
import pytest
import scipy.sparse

from collops.comm import alone
from collops.errors import LayoutError, UnsupportedTypeError
from collops.operators import Gradient, Laplacian, lift_local
from collops.operators.dense.matrix import DenseMatrix
from collops.operators.local import DiagonalMatrix, LiftedOperator, OneRank, SparseMatrix

from .problems import assert_close, matrix, vector


class Duck:
    """An operator of nobody's package, with column vectors as results."""

    def __init__(self, whole: np.ndarray) -> None:
        self.whole, self.shape, self.dtype = whole, whole.shape, whole.dtype

    def matvec(self, x):
        return (self.whole @ x)[:, None]

    def rmatvec(self, y):
        return (self.whole.conj().T @ y)[:, None]


MAKERS = {
    "array": (lambda m: m, DenseMatrix),
    "fortran": (np.asfortranarray, DenseMatrix),
    "matrix": (lambda m: m.view(np.matrix), DenseMatrix),
    "strided": (lambda m: np.repeat(m, 2, axis=1)[:, ::2], DenseMatrix),
    "MatrixMult": (lambda m: pylops.MatrixMult(m, dtype=m.dtype), DenseMatrix),
    "FunctionOperator": (
        lambda m: pylops.FunctionOperator(lambda x: m @ x, lambda y: m.conj().T @ y, *m.shape, dtype=m.dtype),
        LiftedOperator,
    ),
    "csr": (scipy.sparse.csr_array, SparseMatrix),
    "coo": (scipy.sparse.coo_matrix, SparseMatrix),
    "aslinearoperator": (scipy.sparse.linalg.aslinearoperator, LiftedOperator),
    "duck": (Duck, LiftedOperator),
}


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("name", MAKERS)
def test_lifting(name, dtype):
    whole = matrix(7, 4, dtype, 1)
    make, kind = MAKERS[name]
    op = lift_local(make(whole))
    assert isinstance(op, kind)
    assert op.shape == (7, 4) and op.dtype == np.dtype(dtype)
    x, y = vector(4, dtype, 2), vector(7, dtype, 3)
    for apply, given, expected in (
        (op.forward_local, x, whole @ x),
        (op.adjoint_local, y, whole.conj().T @ y),
    ):
        kept = given.copy()
        for _ in range(2):
            out = np.full(len(expected), np.nan, dtype)
            assert apply(given, out) is out
            assert_close(out, expected, dtype)
        assert_close(np.ravel(apply(given, None)), expected, dtype)
        np.testing.assert_array_equal(given, kept)


def test_what_obeys_the_protocol_is_taken_as_it_is():
    op = DenseMatrix(np.eye(3))
    assert lift_local(op) is op


def test_matrices_that_are_not_dense_products():
    whole = matrix(3, 3, "f8", 1)
    several = lift_local(pylops.MatrixMult(whole, otherdims=2))
    x = vector(6, "f8", 2)
    assert isinstance(several, LiftedOperator)
    assert_close(several.forward_local(x, np.empty(6)), (whole @ x.reshape(3, 2)).ravel())
    sparse = lift_local(pylops.MatrixMult(scipy.sparse.csr_matrix(whole)))
    assert_close(sparse.adjoint_local(x[:3], np.empty(3)), whole.T @ x[:3])


@pytest.mark.parametrize("given", ["f4", "f8", "c8", "i8"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_mixed_types(dtype, given):
    whole = (10 * matrix(4, 3, "f8", 1)).astype(dtype)
    x = (10 * vector(3, "f8", 2)).astype(given)
    out = np.empty(4, np.result_type(dtype, given, "f4"))
    op = lift_local(whole)
    assert_close(op.forward_local(x, out), whole @ x, "f4", factor=100)
    assert_close(op.adjoint_local(out, np.empty(3, out.dtype)), whole.T @ out, "f4", factor=1e4)


def test_empty_matrices():
    for shape in ((0, 3), (3, 0)):
        op = lift_local(np.ones(shape))
        assert_close(op.forward_local(np.ones(shape[1]), np.full(shape[0], np.nan)), np.zeros(shape[0]))
        assert_close(op.adjoint_local(np.ones(shape[0]), np.full(shape[1], np.nan)), np.zeros(shape[1]))


def test_imaginary_parts_are_not_dropped():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for op in (lift_local(1j * np.eye(2)), lift_local(Duck(1j * np.eye(2)))):
            with pytest.raises(UnsupportedTypeError, match="complex"):
                op.forward_local(np.ones(2), np.empty(2))


def test_wrong_sizes_are_refused():
    short = Duck(np.ones((3, 2)))
    short.shape = (4, 2)
    with pytest.raises(LayoutError, match="shape"):
        lift_local(short).forward_local(np.ones(2), np.empty(4))


def test_results_may_be_lists_but_not_missing():
    class Lists(Duck):
        def matvec(self, x):
            return (self.whole @ x).tolist() if x[0] else None

    op = lift_local(Lists(np.arange(6.0).reshape(3, 2)))
    assert_close(op.forward_local(np.ones(2), np.empty(3)), [1.0, 5.0, 9.0])
    assert_close(op.forward_local(np.ones(2), None), [1.0, 5.0, 9.0])
    with pytest.raises(LayoutError, match=r"must return shape \(3,\), not \(\)"):
        op.forward_local(np.zeros(2), np.empty(3))
    for result, error in (([None, 1, 2], UnsupportedTypeError), ([[1, 2], [3]], LayoutError)):
        op = lift_local(SimpleNamespace(shape=(3, 2), dtype=np.dtype(float), matvec=lambda x, y=result: y, rmatvec=len))
        with pytest.raises(error, match="the product of a local operator"):
            op.forward_local(np.ones(2), np.empty(3))


def test_results_may_be_tensors_but_not_gradients():
    """Tensors of PyTorch have dtypes of their own, and become arrays unless they require gradients."""

    class Tensor:
        dtype = "torch.float64"

        def __init__(self, values) -> None:
            self.values = values

        def __array__(self, dtype=None, copy=None):
            if self.values[0] == 0:
                raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
            return self.values

    class Network(Duck):
        def matvec(self, x):
            return Tensor(self.whole @ x)

    op = lift_local(Network(np.arange(6.0).reshape(3, 2)))
    assert_close(op.forward_local(np.ones(2), np.empty(3)), [1.0, 5.0, 9.0])
    with pytest.raises(UnsupportedTypeError, match=r"Tensor, cannot become an array: .* requires grad"):
        op.forward_local(np.zeros(2), np.empty(3))
    with pytest.raises(UnsupportedTypeError, match=r"must be a dtype of NumPy, not 'torch.float64'"):
        lift_local(SimpleNamespace(shape=(3, 2), dtype=Tensor.dtype, matvec=len, rmatvec=len))


@pytest.mark.parametrize("thing", [None, 3, "x", object(), [1, 2]])
def test_what_is_no_operator_is_refused(thing):
    with pytest.raises(UnsupportedTypeError, match="not a local operator"):
        lift_local(thing)


@pytest.mark.serial
def test_operators_do_not_import_what_they_lift():
    code = (
        "import sys, numpy, scipy.linalg\n"
        "before = set(sys.modules)  # SciPy 1.13 imports scipy.sparse here\n"
        "from collops.operators import VStack; import collops.solvers; VStack([numpy.eye(2)])\n"
        "lifted = {'pylops', 'cupy', 'jax', 'rich', 'matplotlib', 'scipy.sparse'}\n"
        "print(sorted(lifted & set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize(
    "make",
    [
        lambda dtype: pylops.FirstDerivative((7, 5), axis=1, sampling=0.5, kind="forward", dtype=dtype),
        lambda dtype: pylops.FirstDerivative((7, 5), axis=0, order=5, edge=True, dtype=dtype),
        lambda dtype: pylops.SecondDerivative((7, 5), axis=0, sampling=2.0, edge=True, dtype=dtype),
        lambda dtype: pylops.Laplacian((7, 5), weights=(2, 3), sampling=(0.5, 2), kind="backward", dtype=dtype),
    ],
)
def test_derivatives_of_pylops_are_ours(make, dtype):
    theirs = make(dtype)
    ours = lift_local(theirs)
    assert isinstance(ours, OneRank)
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    x = vector(35, dtype, 1)
    out = np.empty_like(x)
    assert ours.forward_local(x, out) is out
    assert_close(out, theirs.matvec(x), dtype)
    assert_close(ours.adjoint_local(x, None), theirs.rmatvec(x), dtype)


def test_whole_numbers_stay_with_pylops():
    assert isinstance(lift_local(pylops.FirstDerivative(5, dtype="int64")), LiftedOperator)


def test_operators_of_one_rank_are_local(comm):
    ours = lift_local(Laplacian((4, 6), comm=alone()))
    x = vector(24, "f8", 1)
    assert_close(ours.forward_local(x, None), pylops.Laplacian((4, 6)).matvec(x), "f8")
    with pytest.raises(LayoutError, match="stack"):
        lift_local(Gradient((4, 6), comm=alone()))
    if comm.size > 1:
        with pytest.raises(UnsupportedTypeError, match=f"{comm.size} ranks"):
            lift_local(Laplacian((4, 6), comm=comm))


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_diagonals_of_pylops(dtype):
    """They are applied without temporary arrays, also to vectors of another dtype."""
    diagonal = matrix(3, 4, dtype, 5)
    theirs = pylops.Diagonal(diagonal, dtype=dtype)
    op = lift_local(theirs)
    assert isinstance(op, DiagonalMatrix) and op.shape == (12, 12) and op.dtype == np.dtype(dtype)
    for kind in (dtype, "f8", "c16"):
        x = vector(12, kind, 2)
        for apply, expected in ((op.forward_local, theirs.matvec(x)), (op.adjoint_local, theirs.rmatvec(x))):
            np.testing.assert_array_equal(apply(x, None), expected)
            out = np.full(12, np.nan, np.result_type(dtype, kind))
            assert apply(x, out) is out
            np.testing.assert_array_equal(out, expected)


def test_diagonals_of_pylops_that_are_left_to_it():
    along_an_axis = pylops.Diagonal(np.arange(3.0), dims=(3, 4), axis=0)
    of_another_dtype = pylops.Diagonal(np.arange(3.0), dtype="c16")
    for op in (along_an_axis, of_another_dtype):
        local = lift_local(op)
        assert isinstance(local, LiftedOperator)
        x = vector(op.shape[1], "f8", 1)
        np.testing.assert_array_equal(local.forward_local(x, None), op.matvec(x))
