"""PyLops-MPI's arrays: partitions, masks, arithmetic on each rank's part, and cases that the peer gets wrong."""

from __future__ import annotations

import numpy as np
import pytest

import collops.compat.pylops_mpi as pylops_mpi
from collops import profile
from collops.compat.pylops_mpi.DistributedArray import local_split, subcomm_split
from collops.errors import LayoutError

Distributed, Stacked, Partition = pylops_mpi.DistributedArray, pylops_mpi.StackedDistributedArray, pylops_mpi.Partition
COPIES = (Partition.BROADCAST, Partition.UNSAFE_BROADCAST)
SHAPE = (7, 5)


def whole(dtype="float64") -> np.ndarray:
    values = np.arange(1.0, 1 + np.prod(SHAPE)).reshape(SHAPE)
    return (values * (1 - 2j) if np.dtype(dtype).kind == "c" else values).astype(dtype)


def halves(size: int) -> list[int]:
    return [2 * rank // size for rank in range(size)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "longdouble"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("partition", list(Partition))
def test_to_dist_and_back(comm, partition, axis, dtype) -> None:
    values = whole(dtype)
    x = Distributed.to_dist(values, partition=partition, axis=axis)
    np.testing.assert_array_equal(x.asarray(), values)
    assert x.dtype == values.dtype
    assert (x.global_shape, x.ndim, x.axis, x.partition) == (SHAPE, 2, axis % 2, partition)
    assert (x.rank, x.size, x.engine) == (comm.rank, comm.size, "numpy")
    assert x.local_shapes[comm.rank] == x.local_shape == x.local_array.shape
    along = [shape[axis] for shape in x.local_shapes]
    assert (sum(along) == SHAPE[axis]) if partition is Partition.SCATTER else set(along) == {SHAPE[axis]}
    assert x.local_shape == local_split(SHAPE, x.base_comm, partition, axis % 2)


def test_parts_of_given_shapes(comm) -> None:
    sizes = [7] + [0] * (comm.size - 1)
    for shapes in (sizes, [(size,) for size in sizes], np.array(sizes)):
        x = Distributed(7, local_shapes=shapes)
        x[:] = np.arange(x.local_shape[0])
        np.testing.assert_array_equal(x.asarray(), np.arange(7))
    with pytest.raises(ValueError, match="don't align with the global shape"):
        Distributed(SHAPE, local_shapes=[(3, 4)] * comm.size)


def test_a_local_array_decides(comm) -> None:
    local = np.full((2, 3), comm.rank, np.float32)
    x = Distributed((2 * comm.size, 3), local_array=local, dtype=np.int8)
    assert x.local_array is local and x.dtype == np.float32
    with pytest.raises(ValueError, match="local_array has shape"):
        Distributed((2 * comm.size, 3), local_array=np.zeros((5, 5)))


def test_wrong_arguments() -> None:
    with pytest.raises(IndexError):
        Distributed(SHAPE, axis=2)
    with pytest.raises(ValueError, match="partition"):
        Distributed(SHAPE, partition="Scatter")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="cupy"):
        Distributed(SHAPE, base_comm_nccl=object())


def test_assignments_to_copies_take_the_first_rank(comm) -> None:
    x = Distributed(4, partition=Partition.BROADCAST)
    with profile.count_messages() as counts:
        x[:] = comm.rank + 1
    np.testing.assert_array_equal(x.local_array, 1)
    assert counts.total == (comm.size > 1)
    y = Distributed(4, partition=Partition.UNSAFE_BROADCAST)
    with profile.count_messages() as counts:
        y[1:3] = comm.rank
    np.testing.assert_array_equal(y[1:3], comm.rank)
    assert counts.total == 0


@pytest.mark.parametrize("partition", list(Partition))
def test_arithmetic(partition) -> None:
    a, b = whole(), whole("complex128")
    x, y = (Distributed.to_dist(values, partition=partition) for values in (a, b))
    with profile.count_messages() as counts:
        results = [x + y, x - y, x * y, -x, 2 * x, x * 2j, x + 1, x - 1, np.float32(3) * x, x.add(y), x.multiply(y)]
        results += [y.conj(), x.copy(), x.zeros_like(), x * np.arange(5.0)]
    assert counts.total == 0
    expected = [a + b, a - b, a * b, -a, 2 * a, a * 2j, a + 1, a - 1, 3 * a, a + b, a * b]
    expected += [b.conj(), a, 0 * a, a * np.arange(5.0)]
    for result, value in zip(results, expected, strict=True):
        assert result.partition is partition
        np.testing.assert_array_equal(result.asarray(), value)
    memory = y.local_array
    y += x
    y -= 2 * x
    y.iadd(x)
    assert y.local_array is memory
    np.testing.assert_allclose(y.asarray(), b)


@pytest.mark.parametrize("partition", list(Partition))
def test_reductions(comm, partition) -> None:
    a = whole("complex128")
    x = Distributed.to_dist(a, partition=partition, axis=1)
    with profile.count_messages() as counts:
        dot, vdot = x.dot(x), x.dot(x, vdot=True)
    assert counts.total == (2 if partition is Partition.SCATTER and comm.size > 1 else 0)
    assert isinstance(dot, complex) and dot == pytest.approx((a * a).sum())
    assert vdot == pytest.approx(np.vdot(a, a))
    for order in (None, 0, 1, 2, np.inf, -np.inf):
        norm = x.norm(order)
        assert isinstance(norm, float) and norm == pytest.approx(np.linalg.norm(a.ravel(), order))
    for axis in (0, 1, -1):
        np.testing.assert_allclose(x.norm(2, axis=axis), np.linalg.norm(a, 2, axis=axis))


def test_masks_are_kept_and_followed(comm) -> None:
    mask = halves(comm.size)
    x = Distributed.to_dist(np.arange(3.0 * comm.size), mask=mask)
    for made in (x + x, 2 * x, x.copy(), x.conj(), x.zeros_like(), x.empty_like(), x.ravel(), x.reshape((1, 3), 1)):
        assert made.mask == mask
        assert made.native.layout.mask == x.native.layout.mask
    group = [rank for rank in range(comm.size) if mask[rank] == mask[comm.rank]]
    mine = np.concatenate([np.arange(3.0) + 3 * rank for rank in group])
    assert x.dot(x) == pytest.approx(mine @ mine)
    assert x.norm(1) == mine.sum()
    np.testing.assert_array_equal(x.asarray(masked=True), mine)
    np.testing.assert_array_equal(x.asarray(), np.arange(3.0 * comm.size))
    assert x.sub_comm.Get_size() == len(group)
    split = subcomm_split(mask, x.base_comm)
    assert split.Get_size() == len(group)
    split.Free()
    if comm.size > 1:
        with pytest.raises(LayoutError):
            x + Distributed.to_dist(np.arange(3.0 * comm.size))


@pytest.mark.parametrize("partition", COPIES)
def test_inner_products_of_masked_copies(comm, partition) -> None:
    """Each group adds up the shares that its ranks would have of the copies."""
    mask, values = halves(comm.size), whole("complex128")
    x = Distributed.to_dist(values, partition=partition, mask=mask)
    shares = np.array_split(values, comm.size)
    mine = np.concatenate([share for share, group in zip(shares, mask, strict=True) if group == mask[comm.rank]])
    both = Stacked([x, x])
    np.testing.assert_allclose(x.dot(x), (mine * mine).sum())
    np.testing.assert_allclose(x.dot(x, vdot=True), (abs(mine) ** 2).sum())
    np.testing.assert_allclose(both.dot(both, vdot=True), 2 * (abs(mine) ** 2).sum())


def test_masks_along_the_second_axis(comm) -> None:
    mask = halves(comm.size)
    values = np.arange(6.0 * comm.size).reshape(3, -1)
    x = Distributed.to_dist(values, axis=1, mask=mask)
    columns = [rank for rank in range(comm.size) if mask[rank] == mask[comm.rank]]
    mine = values[:, 2 * columns[0] : 2 * columns[-1] + 2]
    np.testing.assert_array_equal(x.asarray(masked=True), mine)
    np.testing.assert_allclose(x.norm(2, axis=1), np.linalg.norm(mine, axis=1))


def test_other_shapes(comm) -> None:
    values = whole()
    x = Distributed.to_dist(values, axis=1)
    with profile.count_messages() as counts:
        moved = x.redistribute(0)
    assert counts.total == (comm.size > 1)
    assert moved.axis == 0 and x.redistribute(1) is x
    np.testing.assert_array_equal(moved.asarray(), values)
    flat = x.ravel()
    assert flat.global_shape == (values.size,)
    np.testing.assert_array_equal(flat.local_array, x.local_array.ravel())
    np.testing.assert_array_equal(x.ravel(order="F").local_array, x.local_array.ravel(order="F"))
    back = flat.reshape(x.local_shape, axis=1)
    assert back.global_shape == SHAPE
    np.testing.assert_array_equal(back.asarray(), values)
    for wrong in (lambda: x.redistribute(2), lambda: flat.reshape(x.local_shape, axis=2)):
        with pytest.raises(IndexError, match="Axis 2 out of range"):
            wrong()


@pytest.mark.parametrize(("front", "back"), [(None, None), (1, None), (None, 2), (1, 1), (4, 3)])
def test_ghost_cells(comm, front, back) -> None:
    values = whole()
    for axis in (0, 1):
        x = Distributed.to_dist(values, axis=axis)
        mine = x.native.layout.slices(comm.rank)[axis]
        begin, end = max(0, mine.start - (front or 0)), min(SHAPE[axis], mine.stop + (back or 0))
        expected = values[begin:end] if axis == 0 else values[:, begin:end]
        np.testing.assert_array_equal(x.add_ghost_cells(front, back), expected)


def test_stacked_arrays(comm) -> None:
    a, b = np.arange(5.0), np.arange(2.0, 9.0)
    x = Distributed.to_dist(a)
    y = Distributed.to_dist(b, partition=Partition.BROADCAST)
    stacked = Stacked([x, Stacked([y, x])])
    full = np.concatenate([a, b, a])
    assert stacked.global_shape == (full.size,) and stacked.engine == "numpy" and stacked.dtype == np.float64
    assert (stacked.rank, stacked.size, stacked.narrays) == (comm.rank, comm.size, 2)
    assert stacked[0] is x
    np.testing.assert_array_equal(stacked.asarray(), full)
    for made, value in (
        (stacked + stacked, 2 * full),
        (stacked - stacked, 0 * full),
        (stacked * stacked, full**2),
        (-stacked, -full),
        (3 * stacked, 3 * full),
        (stacked.copy(), full),
        (stacked.conj(), full),
        (stacked.zeros_like(), 0 * full),
    ):
        np.testing.assert_array_equal(made.asarray(), value)
    with profile.count_messages() as counts:
        dot = stacked.dot(stacked)
    assert dot == full @ full and isinstance(dot, float)
    assert counts.total == (comm.size > 1)
    for order in (0, 1, 2, np.inf):
        assert stacked.norm(order) == pytest.approx(np.linalg.norm(full, order))
    other = stacked.copy()
    other += stacked
    np.testing.assert_array_equal(other.asarray(), 2 * full)
    other[0] = 4
    np.testing.assert_array_equal(other[0].asarray(), 4)
    with pytest.raises(ValueError):
        stacked + Stacked([x])


def test_an_error_on_one_rank_is_raised_on_all(comm) -> None:
    # The peer waits without end if one rank fails before a message.
    x = Distributed(6 * comm.size)
    x[:] = 1
    with pytest.raises(LayoutError):
        x.reshape((2, 3) if comm.rank < comm.size - 1 else (7,), axis=0)
    assert x.norm(1) == 6 * comm.size
    copies = Distributed(6, partition=Partition.BROADCAST)
    if comm.size > 1:
        with pytest.raises(LayoutError, match=r"be identical for .*, not \(2, 3\) and \(3, 2\)"):
            copies.reshape((2, 3) if comm.rank else (3, 2))
