"""Blocks of columns: an operator applied to each of them."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops import profile
from collops.array import StackedArray, from_global
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import Columns, FirstDerivative, Identity, StackedVStack
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


def test_messages_are_those_of_each_column(comm):
    op, _, _, y = problem("vstack", comm, "f8")
    block = Columns.join([y, y, y])
    with profile.count_messages() as sent:
        Columns(op, 3).adjoint(block)
        block.mean(axis=0)
    assert [message.operation for message in sent.records] == ["allreduce"] * (3 * (comm.size > 1))


def test_arguments(comm):
    x, op = collops.ones(4, comm=comm), Identity(4, comm=comm)
    for count in (0, True, 1.5):
        with pytest.raises(InputError, match="at least one column"):
            Columns(op, count)
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
        with pytest.raises(LayoutError, match="first axis of its columns"):
            Columns.split(collops.zeros(layout, comm=comm))
