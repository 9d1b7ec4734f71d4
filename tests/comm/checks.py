"""What every transport must do, as functions of a communicator and an array namespace: run on hosts and on devices."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
]
OPERATIONS = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
}


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a name, bfloat16 included."""
    if name == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes").bfloat16)
    return np.dtype(name)


def values(rank: int, size: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Small whole numbers, different on every rank, whose sums and products are exact in every dtype."""
    numbers = (np.arange(size) * (rank % 2 + 1) + rank + 1) % 3
    if dtype.kind == "c":
        return (numbers + 1j * ((numbers + rank) % 2)).astype(dtype)
    return numbers.astype(dtype)


def to_host(array: Any) -> np.ndarray:
    return array.get() if hasattr(array, "get") else np.asarray(array)


def check_reductions(comm: Any, xp: Any, name: str, op: str) -> None:
    """allreduce, reduce, reduce_scatter against NumPy on all ranks' values."""
    dtype = dtype_of(name)
    parts = [values(rank, 7, dtype) for rank in range(comm.size)]
    expected = reduce(OPERATIONS[op], parts).astype(dtype)
    x = xp.asarray(parts[comm.rank])

    np.testing.assert_array_equal(to_host(comm.allreduce(x, op)), expected)
    np.testing.assert_array_equal(to_host(x), parts[comm.rank])
    out = xp.zeros_like(x)
    assert comm.allreduce(x, op, out=out) is out
    np.testing.assert_array_equal(to_host(out), expected)
    inplace = x.copy()
    assert comm.allreduce(inplace, op, out=inplace) is inplace
    np.testing.assert_array_equal(to_host(inplace), expected)

    for root in range(comm.size):
        result = comm.reduce(x, op, root)
        assert (result is None) == (comm.rank != root)
        if result is not None:
            np.testing.assert_array_equal(to_host(result), expected)
        inplace = x.copy()
        comm.reduce(inplace, op, root, out=inplace)
        np.testing.assert_array_equal(to_host(inplace), expected if comm.rank == root else parts[comm.rank])

    blocks = [values(rank, 3 * comm.size, dtype).reshape(comm.size, 3) for rank in range(comm.size)]
    scattered = comm.reduce_scatter(xp.asarray(blocks[comm.rank]), op)
    np.testing.assert_array_equal(to_host(scattered), reduce(OPERATIONS[op], blocks).astype(dtype)[comm.rank])


def numbers_with_nan(rank: int, size: int, count: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Return numbers of both signs; of the first ranks + 1, rank *r* alone has NaN at *r* and all do at ranks."""
    numbers = np.random.default_rng([7, rank]).normal(size=count)
    numbers[size + 1 :: 4], numbers[size + 2 :: 4] = np.inf, -np.inf
    # As NumPy makes it and as processors do, which set the sign.
    numbers[[rank, size]] = np.copysign(np.nan, 1 - 2 * (rank % 2))
    return numbers.astype(dtype)


def check_nan_wins(comm: Any, xp: Any, name: str, op: str, longest: int = 30_001) -> None:
    """NaN on any rank is the result on all, by every call that reduces, and other numbers are as they are."""
    dtype, size = dtype_of(name), comm.size
    wide = np.float32 if dtype.itemsize == 2 else dtype  # NumPy does not compare NaN of bfloat16

    def check(found: Any, wanted: np.ndarray) -> None:
        assert found.dtype == dtype
        np.testing.assert_array_equal(to_host(found).astype(wide), wanted)

    for count in (size + 1, size + 40, longest):
        parts = [numbers_with_nan(rank, size, count, dtype) for rank in range(size)]
        expected = reduce(OPERATIONS[op], [part.astype(wide) for part in parts])
        assert np.isnan(expected).sum() == size + 1
        x = xp.asarray(parts[comm.rank])
        for _ in range(2):  # without and with the fast path
            total = comm.allreduce(x, op)
            check(total, expected)
        if dtype.itemsize <= 8:  # long double has bytes without a meaning
            assert len(set(comm.allgather_metadata(to_host(total).tobytes().hex()))) == 1
        check(comm.start_allreduce(x, op)(), expected)
        in_place = x.copy()
        comm.allreduce(in_place, op, out=in_place)
        check(in_place, expected)
        for root in range(size):
            result = comm.reduce(x, op, root)
            assert (result is None) == (comm.rank != root)
            if result is not None:
                check(result, expected)
        blocks = [np.stack([np.roll(part, block) for block in range(size)]) for part in parts]
        scattered = comm.reduce_scatter(xp.asarray(blocks[comm.rank]), op)
        check(scattered, np.roll(expected, comm.rank))
        with comm.group():
            grouped = comm.allreduce(x, op)
        check(grouped, expected)
    for rank in range(size):
        alone = xp.full((), np.nan if comm.rank == rank else comm.rank, dtype)
        assert np.isnan(to_host(comm.allreduce(alone, op)).astype(wide))


def check_started_reductions(comm: Any, xp: Any, name: str) -> None:
    """Several allreduces at once, finished in another order than they began in, with another call in between."""
    dtype = dtype_of(name)
    parts = [values(rank, 6, dtype).reshape(2, 3) for rank in range(comm.size)]
    expected = reduce(OPERATIONS["sum"], parts).astype(dtype)
    x, strided = xp.asarray(parts[comm.rank]), xp.zeros((3, 2), dtype).T
    first = comm.start_allreduce(x)
    second = comm.start_allreduce(x, out=strided)
    assert int(comm.allreduce(xp.ones((), "int32"))) == comm.size
    if dtype.kind != "b":
        third = comm.start_allreduce(x, "avg")
        for _ in range(2):  # a second call of the function changes nothing
            np.testing.assert_array_equal(to_host(third()), (expected / comm.size).astype(dtype))
    assert second() is strided
    np.testing.assert_array_equal(to_host(strided), expected)
    np.testing.assert_array_equal(to_host(first()), expected)


def check_average(comm: Any, xp: Any, name: str) -> None:
    """The mean of 0, 2, 4, ... by every call that reduces."""
    dtype = dtype_of(name)
    x, mean = xp.full(5, comm.rank * 2, dtype), np.full(5, comm.size - 1, dtype)
    np.testing.assert_array_equal(to_host(comm.allreduce(x, "avg")), mean)
    for root in range(comm.size):
        result = comm.reduce(x, "avg", root)
        assert (result is None) == (comm.rank != root)
        if result is not None:
            np.testing.assert_array_equal(to_host(result), mean)
    blocks = xp.full((comm.size, 5), comm.rank * 2, dtype)
    np.testing.assert_array_equal(to_host(comm.reduce_scatter(blocks, "avg")), mean)


def check_movement(comm: Any, xp: Any, name: str) -> None:
    """Everything that moves values unchanged, equal and unequal counts, empty ranks included."""
    dtype = dtype_of(name)
    rank, size = comm.rank, comm.size
    parts = [values(r, 6, dtype).reshape(2, 3) for r in range(size)]
    x = xp.asarray(parts[rank])
    for root in range(size):
        np.testing.assert_array_equal(to_host(comm.bcast(x, root)), parts[root])
        np.testing.assert_array_equal(to_host(x), parts[rank])
        in_place = x.copy()
        assert comm.bcast(in_place, root, out=in_place) is in_place
        np.testing.assert_array_equal(to_host(in_place), parts[root])
        gathered = comm.gather(x, root)
        assert (gathered is None) == (rank != root)
        if gathered is not None:
            np.testing.assert_array_equal(to_host(gathered), np.stack(parts))
        given = xp.asarray(np.stack(parts)) if rank == root else None
        out = xp.empty((2, 3), dtype)
        np.testing.assert_array_equal(to_host(comm.scatter(given, root, out=out)), parts[rank])
    np.testing.assert_array_equal(to_host(comm.allgather(x)), np.stack(parts))

    rows = [r % 3 for r in range(size)]  # rank 0 has none
    ragged = [values(r, 2 * rows[r], dtype).reshape(rows[r], 2) for r in range(size)]
    mine = xp.asarray(ragged[rank])
    whole = np.concatenate(ragged)
    np.testing.assert_array_equal(to_host(comm.allgatherv(mine, rows)), whole)
    np.testing.assert_array_equal(to_host(comm.allgatherv(mine)), whole)
    last = size - 1
    gathered = comm.gatherv(mine, rows, last)
    assert (gathered is None) == (rank != last)
    if gathered is not None:
        np.testing.assert_array_equal(to_host(gathered), whole)
    given = xp.asarray(whole) if rank == last else mine
    np.testing.assert_array_equal(to_host(comm.scatterv(given, rows, last)), ragged[rank])

    table = [values(r, 2 * size, dtype).reshape(size, 2) for r in range(size)]
    expected = np.stack([table[r][rank] for r in range(size)])
    np.testing.assert_array_equal(to_host(comm.alltoall(xp.asarray(table[rank]))), expected)
    table = [values(r, 3000 * size, dtype).reshape(size, 3000) for r in range(size)]  # more than is sent at once
    in_place = xp.asarray(table[rank])
    assert comm.alltoall(in_place, out=in_place) is in_place
    np.testing.assert_array_equal(
        to_host(in_place), np.stack([values(r, 3000 * size, dtype).reshape(size, 3000)[rank] for r in range(size)])
    )

    def rows_between(sender: int, receiver: int) -> int:
        return (sender + 2 * receiver) % 3

    leaving = [rows_between(rank, r) for r in range(size)]
    arriving = [rows_between(r, rank) for r in range(size)]
    pieces = [[values(10 * s + r, rows_between(s, r), dtype) for r in range(size)] for s in range(size)]
    result = comm.alltoallv(xp.asarray(np.concatenate(pieces[rank])), leaving, arriving)
    np.testing.assert_array_equal(to_host(result), np.concatenate([pieces[s][rank] for s in range(size)]))


def check_messages(comm: Any, xp: Any, name: str) -> None:
    """A ring, one call at a time and as a group; long enough to be cut into chunks by a staged transport."""
    dtype = dtype_of(name)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for size in (0, 5, 700_001):
        x = xp.asarray(values(comm.rank, size, dtype))
        out = xp.empty_like(x)
        assert comm.sendrecv(x, right, out, left) is out
        np.testing.assert_array_equal(to_host(out), values(left, size, dtype))
        back = xp.empty_like(x)
        with comm.group():
            comm.send(out, left, tag=3)
            comm.recv(back, right, tag=3)
        np.testing.assert_array_equal(to_host(back), to_host(x))


def check_strided(comm: Any, xp: Any) -> None:
    """Arrays that are not contiguous, as input and as output."""
    grid = xp.arange(24, dtype="float64").reshape(4, 6)
    expected = np.arange(24.0).reshape(4, 6)[:, ::2] * comm.size
    np.testing.assert_array_equal(to_host(comm.allreduce(grid[:, ::2])), expected)
    np.testing.assert_array_equal(to_host(comm.allreduce(grid.T)), comm.size * to_host(grid).T)
    target = xp.zeros((4, 6))
    assert comm.allreduce(grid[:, ::2], out=target[:, 1::2]) is not None
    np.testing.assert_array_equal(to_host(target)[:, 1::2], expected)
    assert not to_host(target)[:, ::2].any()
    out = xp.zeros((6, 4)).T
    comm.sendrecv(grid, (comm.rank + 1) % comm.size, out, (comm.rank - 1) % comm.size)
    np.testing.assert_array_equal(to_host(out), to_host(grid))


def check_plan(comm: Any, xp: Any) -> None:
    """A periodic halo of an uneven block partition, several exchanges in flight at once."""
    from collops.exchange import ExchangePlan

    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    rows = 2 + rank
    inner_first, inner_last = (slice(1, 2), slice(0, 3)), (slice(rows, rows + 1), slice(0, 3))
    halo_first, halo_last = (slice(0, 1), slice(0, 3)), (slice(rows + 1, rows + 2), slice(0, 3))
    plan = ExchangePlan(comm, [(left, inner_first), (right, inner_last)], [(right, halo_last), (left, halo_first)])
    fields = []
    for number in range(3):
        field = np.zeros((rows + 2, 3))
        field[1:-1] = 100 * number + 10 * rank + np.arange(rows)[:, None] + np.arange(3) / 10
        fields.append(xp.asarray(field))
    exchanges = [plan.start(field, field) for field in fields]
    for number, exchange in enumerate(exchanges):
        field = to_host(exchange.finish())
        above = 100 * number + 10 * left + (2 + left - 1) + np.arange(3) / 10
        below = 100 * number + 10 * right + np.arange(3) / 10
        np.testing.assert_array_equal(field[0], above)
        np.testing.assert_array_equal(field[-1], below)

    # The same with columns, whose boxes are not contiguous.
    turned = ExchangePlan(
        comm,
        [(left, inner_first[::-1]), (right, inner_last[::-1])],
        [(right, halo_last[::-1]), (left, halo_first[::-1])],
    )
    source = np.zeros((3, rows + 2))
    source[:, 1:-1] = 10 * rank + np.arange(rows)
    result = to_host(turned(xp.asarray(source), xp.asarray(source)))
    np.testing.assert_array_equal(result[:, 0], np.full(3, 10.0 * left + 1 + left))
    np.testing.assert_array_equal(result[:, -1], np.full(3, 10.0 * right))


def check_plan_of_several_arrays(comm: Any, xp: Any) -> None:
    """Boxes of two arrays, one contiguous and one not, to the next rank, in one exchange beside other work."""
    from collops.exchange import ExchangePlan

    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.size == 1:
        return
    row, column = (slice(1, 2), slice(0, 4)), (slice(0, 3), slice(2, 3))
    target_row, target_column = (slice(2, 6),), (slice(7, 10),)
    plan = ExchangePlan(
        comm, [(right, row), (right, column)], [(left, target_row), (left, target_column)], parts=[1, 0]
    )
    sources = [xp.asarray(np.arange(12.0).reshape(3, 4) + 100 * number + 1000 * comm.rank) for number in range(2)]
    for on_side_stream in (False, True, True):
        target = xp.zeros(10)
        exchange = plan.start(sources, target, on_side_stream=on_side_stream)
        other = sources[0] * 2  # beside it
        result = to_host(exchange.finish())
        np.testing.assert_array_equal(result[2:6], np.arange(4.0, 8) + 100 + 1000 * left)
        np.testing.assert_array_equal(result[7:], np.array([2.0, 6, 10]) + 1000 * left)
        assert not result[:2].any() and result[6] == 0
        np.testing.assert_array_equal(to_host(other), 2 * to_host(sources[0]))
