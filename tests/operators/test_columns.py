"""Blocks of columns: an operator applied to each of them."""

from __future__ import annotations

import numpy as np
import pylops
import pytest
import scipy.sparse as sp

import collops
from collops import profile
from collops.array import StackedArray, from_global
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import Columns, Diagonal, FirstDerivative, Identity, StackedVStack, VStack, lift_local
from collops.operators.csr import CSRMatrix
from tests.solvers.problems import assert_close, problem, random_matrix


@pytest.mark.parametrize(("kind", "dtype"), [("vstack", "f8"), ("block_diag", "c8"), ("hstack", "f4")])
def test_each_column_is_the_image_of_its_own(comm, kind, dtype):
    op, serial, _, _ = problem(kind, comm, dtype)
    X = random_matrix(3, op.domain.size, dtype, 5)
    block = Columns.join([from_global(x, op.domain, comm=comm) for x in X])
    assert block.shape == (3, op.domain.size)
    image = Columns(op, 3) @ block
    assert_close(image.gather(), np.stack([serial @ x for x in X]), dtype)
    for column, x in zip(Columns.split(image), X, strict=True):
        assert column.layout is op.range
        assert_close(column.gather(), serial @ x, dtype)
    Columns(op, 3).dottest()


def test_stacked_arrays_of_several_axes(comm):
    """The parts of a stack are blocks of their own; an axis other than the first may be split."""
    layout = collops.Layout.split((5, 3 * comm.size), comm.size, axis=1)
    D = FirstDerivative(layout, axis=1, comm=comm)
    op = StackedVStack([D, 2 * Identity(layout, comm=comm)])
    arrays = [collops.random(layout, seed=seed, comm=comm) for seed in (1, 2)]
    image = Columns(op, 2).forward(Columns.join(arrays))
    assert isinstance(image, StackedArray) and image[0].shape == (2, *layout.shape)
    for array, column in zip(arrays, Columns.split(image), strict=True):
        assert column.layout is op.range
        np.testing.assert_array_equal(column[1].local_array, 2 * array.local_array)
        np.testing.assert_array_equal(column[0].local_array, (D @ array).local_array)
    Columns(op, 2).dottest()


class Recorded:
    """A local operator whose products are those of a matrix, and which notes how many columns each has."""

    def __init__(self, matrix) -> None:
        self.local, self.columns = lift_local(matrix), []
        self.shape, self.dtype = self.local.shape, self.local.dtype
        self.forward_local, self.adjoint_local = self.local.forward_local, self.local.adjoint_local

    def forward_columns(self, X, out):
        self.columns.append(len(X))
        return self.local.forward_columns(X, out)

    def adjoint_columns(self, Y, out):
        self.columns.append(len(Y))
        return self.local.adjoint_columns(Y, out)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_matrices_multiply_all_columns_at_once(comm, sparse, dtype):
    """Also in sums and products, with several matrices on a rank or none, in blocks of 64."""
    matrices = [random_matrix(rows, 7, dtype, rows) for rows in (4, 5, 6)]
    kinds = [sp.csr_array(matrix) if sparse else matrix for matrix in matrices]
    recorded = [Recorded(matrix) for matrix in (kinds if comm.rank == comm.size - 1 else [])]
    A, whole = VStack(recorded, comm), np.vstack(matrices)
    D = Diagonal(collops.full(A.range, 2.0, comm=comm))
    H = A.H @ D @ (0.5 * A) + 3.0 * Identity(A.domain, comm=comm)
    X = random_matrix(81, 7, dtype, 5)
    block = Columns.join([from_global(x, A.domain, comm=comm) for x in X])
    with profile.count_messages() as sent:
        image = Columns(H, 81) @ block
    assert_close(image.gather(), X @ (whole.conj().T @ whole).T + 3 * X, dtype)
    assert [message.operation for message in sent.records] == ["allreduce"] * (2 * (comm.size > 1))
    for each in recorded:
        assert each.columns == [64, 64, 17, 17]
    Columns(A, 3).dottest()
    assert Columns(H, 81).width == 64 and Columns(D, 81).width == 1


def test_long_columns_are_applied_in_smaller_blocks(comm, monkeypatch):
    """Also if only the arrays between two factors are long."""
    monkeypatch.setattr("collops.operators.columns._MAX_ELEMENTS", 20 * 300)
    matrix = random_matrix(300, 7, "f8", 1)
    recorded = Recorded(matrix)
    A = VStack([recorded] if comm.rank == 0 else [], comm)
    X = random_matrix(50, 7, "f8", 2)
    H = Columns(A.H @ A, 50)
    image = H @ Columns.join([from_global(x, A.domain, comm=comm) for x in X])
    assert_close(image.gather(), X @ (matrix.T @ matrix), "f8")
    assert H.width == 20 and recorded.columns == ([20, 20, 20, 20, 10, 10] if comm.rank == 0 else [])


@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_a_sparse_matrix_exchanges_all_columns_at_once(comm, dtype):
    matrix = random_matrix(11, 9, dtype, 3) * (random_matrix(11, 9, "f8", 4) > 0)
    A = CSRMatrix.from_global(sp.csr_array(matrix), comm=comm)
    X, Y = random_matrix(20, 9, "f4", 5), random_matrix(20, 11, dtype, 6)
    columns, sent = Columns(A, 20), []
    x, y = (
        Columns.join([from_global(part, layout, comm=comm) for part in block])
        for block, layout in ((X, A.domain), (Y, A.range))
    )
    one, of_one = Columns.split(x)[0], Columns.split(y)[0]
    for apply in (lambda: columns @ x, lambda: A @ one, lambda: columns.H @ y, lambda: A.H @ of_one):
        apply()  # makes the exchange ready
        with profile.count_messages() as counted:
            apply()
        sent.append(len(counted.records))
    assert_close((columns @ x).gather(), X @ matrix.T, dtype)
    assert_close((columns.H @ y).gather(), Y @ matrix.conj(), dtype)
    assert sent[0] == sent[1] and sent[2] == sent[3] and (comm.size == 1 or min(sent) > 0)


def test_a_subclass_with_its_own_product(comm):
    class Twice(VStack):
        def _forward(self, x, out):
            image = super()._forward(x, out)
            image *= 2
            return image

    op = Twice([np.eye(4)], comm)
    x = collops.ones(op.domain, comm=comm)
    assert float((Columns(op, 2) @ Columns.join([x, x])).max()) == 2.0


def test_messages_are_those_of_each_column(comm):
    """Unless an operator takes all columns together."""
    one = VStack([pylops.Identity(4)], comm)
    y = collops.ones(one.range, comm=comm)
    block = Columns.join([y, y, y])
    for each, messages in ((VStack([np.eye(4)], comm), 1), (one, 3)):
        with profile.count_messages() as sent:
            Columns(each, 3).adjoint(block)
            block.mean(axis=0)
        assert [message.operation for message in sent.records] == ["allreduce"] * (messages * (comm.size > 1))


def test_arguments(comm):
    x, op = collops.ones(4, comm=comm), Identity(4, comm=comm)
    for count in (0, True, 1.5):
        with pytest.raises(InputError, match="the number of columns must be an integer of at least 1"):
            Columns(op, count)
    assert Columns(op, np.int64(2)).shape == (8, 8)
    with pytest.raises(UnsupportedTypeError, match="distributed operator"):
        Columns(np.eye(3), 2)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="at least one column"):
        Columns.join([])
    with pytest.raises(LayoutError, match="different layouts"):
        Columns.join([x, collops.ones(5, comm=comm)])
    with pytest.raises(UnsupportedTypeError, match="not numpy"):
        Columns.join([np.ones(3)])
    whole = collops.Layout.replicated
    uneven = collops.StackedLayout([whole((2, 4), comm.size), whole((3, 4), comm.size)])
    for layout in (x.layout, whole((0, 4), comm.size), uneven):
        with pytest.raises(LayoutError, match="unsplit first axis"):
            Columns.split(collops.zeros(layout, comm=comm))
