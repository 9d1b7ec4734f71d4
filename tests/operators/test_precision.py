"""Operators in other precisions: what they compute, in which dtype, and that a form that does not exist is refused."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import collops
from collops.errors import InputError, UnsupportedTypeError
from collops.operators.dense.generic import bfloat16_matrix

from .problems import assert_close, blocks, joined, matrix


def rounded(values: np.ndarray) -> np.ndarray:
    """Return the nearest numbers with eight significant bits, in double precision."""
    fraction, exponent = np.frexp(values.astype("f8"))
    return np.ldexp(np.round(fraction * 2**8), exponent - 8)


def stacks(comm, dtype="f8"):
    """Return stacks of dense matrices, uneven over the ranks, some ranks without any, each with its whole matrix."""
    ops = blocks(comm, 6, dtype)
    mine, every = ops[comm.rank], joined(ops)
    wide = [np.ascontiguousarray(each.conj().T) for each in every]
    return (
        (collops.VStack(mine, comm), np.concatenate(every)),
        (collops.HStack([each.conj().T for each in mine], comm), np.concatenate(wide, axis=1)),
        (collops.BlockDiag(mine, comm), sp.block_diag(every).toarray()),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stacks_of_dense_matrices(comm, dtype):
    nearest = rounded if dtype == "bfloat16" else (lambda values: values.astype("f4").astype("f8"))
    for A, whole in stacks(comm):
        B = A.astype(dtype)
        assert (type(B), B.domain, B.range, B.dtype) == (type(A), A.domain, A.range, np.float32)
        assert A.dtype == np.float64 and B.astype("float32") is B
        expected = nearest(whole)
        assert np.abs(expected - whole).max() > 1e-9
        for kind in ("f4", "c8"):
            x, y = matrix(whole.shape[1], 1, kind, 1)[:, 0], matrix(whole.shape[0], 1, kind, 2)[:, 0]
            forward = B.forward(collops.from_global(x, B.domain, comm=comm))
            adjoint = B.adjoint(collops.from_global(y, B.range, comm=comm))
            assert forward.dtype == adjoint.dtype == kind
            assert_close(forward.gather(), expected @ x, "f4")
            assert_close(adjoint.gather(), expected.T @ y, "f4")
        out = collops.ones(B.range, comm=comm, dtype="f4")
        assert B.forward(collops.from_global(x.real.copy(), B.domain, comm=comm), out) is out
        assert_close(out.gather(), expected @ x.real, "f4")
        assert B.dottest(rtol=1e-5)
        with collops.profile.count_messages() as sent:
            B.forward(collops.ones(B.domain, comm=comm, dtype="f4"))
        assert sent.total == (isinstance(B, collops.HStack) and comm.size > 1)


@pytest.mark.parametrize("shape", [(1, 1), (3, 70001), (517, 300), (0, 4), (4, 0)])
def test_matrix_in_bfloat16_is_widened_in_blocks(shape):
    values = np.asfortranarray(matrix(*shape, "f4", 3).astype("f8"))  # those of float64 are rounded to float32 first
    local = bfloat16_matrix(values)
    assert local.matrix.nbytes == 2 * values.size and local.shape == shape
    x, y = matrix(shape[1], 1, "f4", 1)[:, 0], matrix(shape[0], 1, "f4", 2)[:, 0]
    assert_close(local.forward_local(x, None), rounded(values) @ x, "f4")
    assert_close(local.adjoint_local(y, None), rounded(values).T @ y, "f4")
    X, Y = matrix(3, shape[1], "f4", 4), matrix(3, shape[0], "f4", 5)
    assert_close(local.forward_columns(X, np.empty((3, shape[0]), "f4")), X @ rounded(values).T, "f4")
    assert_close(local.adjoint_columns(Y, np.empty((3, shape[1]), "f4")), Y @ rounded(values), "f4")


def test_rounding_is_that_of_ml_dtypes():
    """Ties go to the even neighbour, large numbers become infinite, and what is not a number stays so."""
    bfloat16 = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").bfloat16
    ties = np.float32([1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, 0.0, -0.0, 1e-41, 3.4e38, np.inf, -np.inf, np.nan])
    odd = np.uint32([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001]).view("f4")  # not numbers, with unusual bits
    values = np.concatenate([ties, odd, matrix(200, 1, "f4", 1)[:, 0]])
    bits = bfloat16_matrix(values[None]).matrix[0]
    numbers = ~np.isnan(values)
    expected = np.where(numbers, values, 0).astype(bfloat16)
    np.testing.assert_array_equal(bits[numbers], expected.view("u2")[numbers])
    assert np.isnan(bits.view(bfloat16).astype("f4"))[~numbers].all()


def test_sparse_matrices(comm):
    whole = sp.random_array((23, 23), density=0.3, random_state=np.random.default_rng(5)).tocsr() + sp.eye_array(23)
    A = collops.CSRMatrix.from_global(whole.tocsr(), comm=comm)
    B = A.astype("float32")
    x = matrix(23, 1, "f4", 1)[:, 0]
    given = collops.from_global(x, A.domain, comm=comm)
    assert 1e-9 < np.abs(B.forward(given.astype("f8")).gather() - whole @ x.astype("f8")).max() < 1e-5
    assert B.forward(given).dtype == np.float32 and A.forward(given).dtype == np.float64
    assert all(block.dtype == np.float32 for block in B.blocks)
    assert_close(B.forward(given).gather(), whole @ x, "f4")
    assert_close(B.adjoint(given).gather(), whole.T @ x, "f4")
    assert np.abs(A.forward(given.astype("f8")).gather() - whole @ x.astype("f8")).max() < 1e-13
    local = collops.BlockDiag([whole], comm).astype("float32")
    assert local.dtype == np.float32 and local.dottest(rtol=1e-5)
    for op in (A, collops.BlockDiag([whole], comm)):
        with pytest.raises(UnsupportedTypeError, match="cannot be converted to bfloat16; dense matrices have"):
            op.astype("bfloat16")


def test_operators_without_coefficients_and_diagonals(comm):
    D = collops.FirstDerivative(13, comm=comm)
    others = (
        *(collops.Identity(13, comm=comm), collops.Zero(3, comm=comm), collops.Laplacian((5, 4), comm=comm)),
        *(collops.Sum((5, 4), 0, comm=comm), collops.Transpose((5, 4), (1, 0), comm=comm)),
        *(collops.Restriction((9, 3), [7, 1, 4], axis=0, comm=comm), collops.Halo((9, 3), 1, comm=comm)),
    )
    for op in (D, *others):
        for dtype in ("float32", "bfloat16"):
            low = op.astype(dtype)
            assert low.dtype == np.float32 and op.dtype == np.float64
            x = collops.random(op.domain, comm=comm, dtype="f4", seed=1)
            assert low.forward(x).dtype == np.float32 and op.forward(x).dtype == np.float64
            assert_close(low.forward(x).gather(), op.forward(x).gather(), "f4")
    W = collops.Diagonal(matrix(13, 1, "c16", 3)[:, 0], comm=comm)
    x = collops.random(W.domain, comm=comm, dtype="c8", seed=1)
    for apply, low in ((W.forward, W.astype("c8").forward), (W.adjoint, W.astype("c8").adjoint)):
        assert low(x).dtype == np.complex64
        assert_close(low(x).gather(), apply(x).gather(), "f4")
    with pytest.raises(UnsupportedTypeError, match="Diagonal of float64 cannot be converted to bfloat16"):
        collops.Diagonal(np.ones(3), comm=comm).astype("bfloat16")


def test_operators_made_of_others(comm):
    (A, whole), *_ = stacks(comm)
    L = collops.SecondDerivative(collops.Layout.replicated(6, comm.size), comm=comm)
    combined = 2 * A.H @ A + 0.5 * L.H @ L
    x = matrix(6, 1, "f4", 1)[:, 0]
    given = collops.from_global(x, A.domain, comm=comm)
    second = np.stack([L.forward(collops.from_global(e, L.domain, comm=comm)).gather() for e in np.eye(6)], axis=1)
    for dtype, kept in (("float32", whole), ("bfloat16", rounded(whole))):
        low = combined.astype(dtype)
        assert low.dtype == np.float32 and low.forward(given).dtype == np.float32
        assert_close(low.forward(given).gather(), 2 * kept.T @ (kept @ x) + 0.5 * second.T @ (second @ x), "f4", 10)
    stack = collops.StackedVStack([A, 0.1 * L]).astype("bfloat16")
    above, below = stack.forward(given).arrays
    assert above.dtype == below.dtype == np.float32
    assert_close(above.gather(), rounded(whole) @ x, "f4")
    assert_close(below.gather(), 0.1 * second @ x, "f4")
    (C, whole), *_ = stacks(comm, "c16")
    z = collops.random(C.range, comm=comm, dtype="c8", seed=2)
    assert C.T.astype("c8").forward(z).dtype == np.complex64
    assert_close(C.T.astype("c8").forward(z).gather(), whole.T @ z.gather(), "f4")
    assert_close(C.conj().astype("c8").adjoint(z).gather(), whole.T @ z.gather(), "f4")


def test_distributed_matrix(comm):
    whole = matrix(9, 7, "f8", 3)
    for kind in ("summa", "block"):
        A = collops.MatrixMult(collops.from_global(whole, comm=comm), 4, kind)
        B = A.astype("float32")
        x = collops.random(B.domain, comm=comm, dtype="f4", seed=1)
        assert (B.dtype, B.forward(x).dtype, A.forward(x).dtype) == (np.float32, np.float32, np.float64)
        assert_close(B.forward(x).gather(), whole @ x.gather(), "f4")
        with pytest.raises(UnsupportedTypeError, match="MatrixMult of float64 cannot be converted to bfloat16"):
            A.astype("bfloat16")


def test_what_has_no_form(comm):
    (A, _), *_ = stacks(comm)
    (C, _), *_ = stacks(comm, "c16")
    with pytest.raises(InputError, match="no dtype"):
        A.astype("single precision")
    with pytest.raises(UnsupportedTypeError, match="converted to float32, float64"):
        A.astype("float16")
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(UnsupportedTypeError, match="does not fit"):
            C.astype(dtype)
    with pytest.raises(UnsupportedTypeError, match="FFT of complex128 cannot be converted to complex64"):
        collops.FFT(collops.Layout.replicated(8, comm.size), comm=comm).astype("complex64")

    class Own:
        shape, dtype = (3, 3), np.dtype("f8")

        def forward_local(self, x, out):
            return x

        adjoint_local = forward_local

    mixed = collops.BlockDiag([Own() if comm.rank == comm.size - 1 else np.eye(3)], comm)
    with pytest.raises(UnsupportedTypeError, match="Own of float64 cannot be converted to float32"):
        mixed.astype("float32")  # on every rank
