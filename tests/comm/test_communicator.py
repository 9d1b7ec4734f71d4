"""Communicators on host arrays, against NumPy on every rank's values."""

from __future__ import annotations

from unittest.mock import ANY

import numpy as np
import pytest

import collops
from collops.comm import communicator
from collops.comm.agreement import name_ranks
from collops.errors import (
    CollopsError,
    CommunicationError,
    InputError,
    LayoutError,
    TransportError,
    UnsupportedTypeError,
)
from tests.comm import checks


@pytest.mark.parametrize("name", checks.DTYPES)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
def test_reductions(comm, name, op):
    if name.startswith("complex") and op != "sum":
        with pytest.raises(UnsupportedTypeError, match="complex"):
            comm.allreduce(np.ones(3, name), op)
    else:
        checks.check_reductions(comm, np, name, op)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "longdouble"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_wins(comm, name, op):
    checks.check_nan_wins(comm, np, name, op)


@pytest.mark.parametrize("name", ["bool", "int16", "uint64"])
@pytest.mark.parametrize("op", ["land", "lor", "lxor"])
def test_logical_reductions(comm, name, op):
    checks.check_reductions(comm, np, name, op)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_average(comm, name):
    checks.check_average(comm, np, name)


@pytest.mark.parametrize("name", ["bool", "bfloat16", "float64", "complex64"])
def test_reductions_that_are_finished_later(comm, name):
    checks.check_started_reductions(comm, np, name)


@pytest.mark.serial
@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_integers_in_place_of_floating_numbers(name, op):
    """Of any bits: subnormal numbers, infinities, zeros of both signs, and NaN with any payload."""
    from collops.comm.reductions import sortable, unsorted

    dtype = np.dtype(name)
    bits = np.dtype(f"u{dtype.itemsize}")
    drawn = np.random.default_rng(3).integers(0, np.iinfo(bits).max, 20_000, bits, endpoint=True)
    drawn = np.arange(1 << 16, dtype=bits) if dtype.itemsize == 2 else drawn
    special = np.array([0.0, np.inf, np.nan, np.finfo(dtype).max, np.finfo(dtype).tiny, 1.0], dtype)
    x = np.concatenate([drawn.view(dtype), special, -special, np.finfo(dtype).smallest_subnormal * special])
    y = np.random.default_rng(4).permutation(x)
    ufunc = checks.OPERATIONS[op]
    found = unsorted(ufunc(sortable(x, op, np), sortable(y, op, np)), dtype, np)
    assert found.dtype == dtype and np.isnan(found).sum() > 12
    np.testing.assert_array_equal(found, ufunc(x, y))
    numbers = x[~np.isnan(x)]
    assert unsorted(sortable(numbers, op, np), dtype, np).tobytes() == numbers.tobytes()


@pytest.mark.serial
def test_averages_of_complex_numbers_are_rounded_once():
    from collops.comm.reductions import divide

    for size in (3, 7, 14, 15):
        average = np.full((), 6 * size * (1 - 1j), np.complex64)
        divide(average, size)
        assert average == 6 - 6j


@pytest.mark.serial
def test_half_types_are_reduced_on_any_number_of_communicators():
    MPI = pytest.importorskip("mpi4py.MPI", reason="needs mpi4py")

    from collops.comm.mpi_transport import MpiTransport

    half = np.dtype("float16")
    for _ in range(40):
        transport = MpiTransport(MPI.COMM_SELF, None)  # pyright: ignore[reportArgumentType]
        sums, means, largest = (transport.reduction(half, op)[1] for op in ("sum", "avg", "max"))
        assert sums == means and sums != largest


@pytest.mark.parametrize("name", checks.DTYPES)
def test_movement(comm, name):
    checks.check_movement(comm, np, name)


@pytest.mark.parametrize("name", ["bool", "bfloat16", "float64", "complex128"])
def test_messages(comm, name):
    checks.check_messages(comm, np, name)


def test_strided_arrays(comm):
    checks.check_strided(comm, np)


def test_exchange_plan(comm):
    checks.check_plan(comm, np)


def test_exchange_plans_in_flight(comm):
    """Plans between the same ranks, started in one order and finished in another, among messages with small tags."""
    comm = comm.split(0, key=comm.rank)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    plans = []
    for size in (2, 5, 3):
        box = (slice(0, size),)
        plans.append(collops.ExchangePlan(comm, [(right, box)], [(left, box)]))
    tags = range(8)
    received = [np.zeros(3) for _ in tags]
    with comm.group():
        for tag in tags:
            comm.send(np.full(3, 100.0 * comm.rank + tag), right, tag)
        exchanges = [plan.start(np.full(5, 10.0 * comm.rank + n), np.zeros(5)) for n, plan in enumerate(plans)]
        for tag in tags:
            comm.recv(received[tag], left, tag)
    for number in (2, 0, 1) if comm.rank % 2 else (1, 2, 0):
        size = (2, 5, 3)[number]
        expected = np.array([10.0 * left + number] * size + [0.0] * (5 - size))
        np.testing.assert_array_equal(exchanges[number].finish(), expected)
    for tag in tags:
        np.testing.assert_array_equal(received[tag], np.full(3, 100.0 * left + tag))


def test_exchange_plan_of_vectors_with_gaps(comm):
    """Vectors and boxes with steps, on both sides: what arrives is not contiguous there."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    odd, last = (slice(1, 6, 2),), (slice(3, 6),)
    x = np.arange(12.0) + 100 * comm.rank
    for sends, receives, view in ((odd, odd, x), (last, odd, x), (odd, last, x[::2]), (last, last, x[::2])):
        plan = collops.ExchangePlan(comm, [(right, sends)], [(left, receives)])
        target = np.zeros(12)[:: view.strides[0] // 8]
        expected = np.zeros(view.size)
        expected[receives] = (view + 100 * (left - comm.rank))[sends]
        np.testing.assert_array_equal(plan(view, target), expected)


def test_exchange_plan_of_several_arrays(comm):
    checks.check_plan_of_several_arrays(comm, np)


def test_numbers_become_arrays(comm):
    assert float(comm.allreduce(2.5)) == 2.5 * comm.size
    assert int(comm.allreduce(np.int32(3), "max")) == 3
    assert comm.allreduce(1.0).shape == ()


def test_empty_arrays(comm):
    assert comm.allreduce(np.zeros((0, 3))).shape == (0, 3)
    assert comm.bcast(np.zeros(0, np.int8)).shape == (0,)
    assert comm.allgatherv(np.zeros((0, 2))).shape == (0, 2)


def test_alltoall_again(comm):
    """The same for blocks."""
    size = comm.size
    blocks = np.arange(3.0 * size * size).reshape(size, size, 3)  # by sender and receiver
    x, expected = blocks[comm.rank].copy(), blocks[:, comm.rank]
    np.testing.assert_array_equal(comm.alltoall(x), expected)
    wide = np.zeros((size, 6))
    for given, out in ((x, None), (x, np.empty((size, 3))), (x, wide[:, ::2]), (np.repeat(x, 2, 1)[:, ::2], None)):
        result = comm.alltoall(given, out=out)
        assert out is None or result is out
        np.testing.assert_array_equal(result, expected)
    given = x.copy()
    assert comm.alltoall(given, out=given) is given
    np.testing.assert_array_equal(given, expected)
    fixed = np.zeros((size, 3))
    fixed.flags.writeable = False
    for given, out, error in (
        (x, np.empty((size, 4)), LayoutError),
        (x, np.empty((size, 3), "f4"), UnsupportedTypeError),
        (x, [[0.0] * 3] * size, UnsupportedTypeError),
        (x, fixed, UnsupportedTypeError),
        (np.zeros((size + 1, 3)), None, LayoutError),
        (np.zeros(()), None, LayoutError),
    ):
        with pytest.raises(error, match=r"out|list|blocks"):
            comm.alltoall(given, out=out)
    with collops.profile.count_messages() as messages:
        comm.alltoall(x)
    assert (messages["alltoall"], messages.total) == (1, 1)


def test_allreduce_again(comm):
    """What follows a call of the same dtype and operation is not validated again in full, with the same outcome."""
    x = np.arange(6.0) + comm.rank
    expected = comm.allreduce(x)
    grid = np.zeros((6, 2))
    for given, out in ((x, None), (x, np.empty(6)), (x, grid[:, 0]), (np.repeat(x, 2)[::2], None), (x.copy(), "x")):
        target = given if isinstance(out, str) else out
        result = comm.allreduce(given, out=target)
        assert target is None or result is target
        np.testing.assert_array_equal(result, expected)
    fixed = np.zeros(6)
    fixed.flags.writeable = False
    for given, out, error in (
        (x, np.empty(7), LayoutError),
        (x, np.empty((6, 1)), LayoutError),
        (x, np.empty(6, "f4"), UnsupportedTypeError),
        (x, [0.0] * 6, UnsupportedTypeError),
        (x, fixed, UnsupportedTypeError),
        (fixed, fixed, UnsupportedTypeError),
    ):
        with pytest.raises(error, match=r"out|list"):
            comm.allreduce(given, out=out)
    for op in (["sum"], None, "SUM"):
        with pytest.raises(UnsupportedTypeError, match="no reduction"):
            comm.allreduce(x, op)
    np.testing.assert_array_equal(comm.allreduce(x), expected)


def test_calls_again_are_not_validated_in_full(comm, monkeypatch):
    """Neither those on scalars of NumPy, such as inner products."""
    if comm.transport_of(np.ones(1)).reductions is None:
        pytest.skip("this transport keeps nothing of earlier reductions")
    x, blocks = collops.ones(5, comm=comm), np.arange(2.0 * comm.size).reshape(comm.size, 2)
    number = np.float32(comm.rank)

    def run():
        comm.barrier()
        return float(x.dot(x)), comm.allreduce(number), comm.alltoall(blocks)

    first = run()
    begun = comm.failures.number
    monkeypatch.setattr(communicator, "validated", lambda *_: pytest.fail("validated"))
    product, total, moved = run()
    assert comm.failures.number == begun + 4
    assert (product, type(total), total.shape, total.dtype.name) == (5.0, np.ndarray, (), "float32")
    assert float(total) == sum(range(comm.size)) == float(first[1])
    np.testing.assert_array_equal(moved, np.tile(blocks[comm.rank], (comm.size, 1)))


@pytest.mark.parametrize(
    ("x", "op"),
    [(np.ones(2, bool), "avg"), (np.ones(2, int), "avg"), (np.ones(2), "lor"), (np.ones(2), "median")],
)
def test_meaningless_reductions_are_rejected(comm, x, op):
    with pytest.raises(UnsupportedTypeError):
        comm.allreduce(x, op)


def test_strings_are_rejected(comm):
    with pytest.raises(UnsupportedTypeError):
        comm.allreduce(np.array(["a"]))


def test_bad_arguments(comm):
    with pytest.raises(LayoutError, match="shape"):
        comm.allreduce(np.ones(3), out=np.ones(4))
    with pytest.raises(UnsupportedTypeError, match="dtype"):
        comm.allreduce(np.ones(3), out=np.ones(3, np.float32))
    with pytest.raises(InputError, match="must be a rank from 0 to"):
        comm.bcast(np.ones(3), root=comm.size)
    with pytest.raises(InputError, match="tag"):
        comm.send(np.ones(3), 0, tag=-1)
    with pytest.raises(LayoutError, match="counts"):
        comm.allgatherv(np.ones(3), [3] * (comm.size + 1))
    with pytest.raises(TypeError):
        comm.allgatherv(np.ones(3), [3.5] * comm.size)  # pyright: ignore[reportArgumentType]
    with pytest.raises(LayoutError, match="blocks"):
        comm.alltoall(np.ones((comm.size + 1, 2)))


def test_split_orders_by_key(comm):
    part = comm.split(comm.rank % 2, key=-comm.rank)
    members = [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2][::-1]
    assert (part.size, part.rank) == (len(members), members.index(comm.rank))
    assert comm.split(comm.rank % 2, key=-comm.rank) is part
    assert float(part.allreduce(float(comm.rank))) == sum(members)


def test_split_without_color(comm):
    part = comm.split(None if comm.rank == 0 else 1)
    assert (part is None) == (comm.rank == 0)
    if part is not None:
        assert part.size == comm.size - 1


def test_subgroup_is_made_once(comm):
    groups = tuple(7 if rank < 2 else 3 for rank in range(comm.size))
    part = comm.subgroup(groups)
    members = [rank for rank in range(comm.size) if groups[rank] == groups[comm.rank]]
    assert (part.size, part.rank) == (len(members), members.index(comm.rank))
    with collops.profile.count_messages() as messages:
        assert comm.subgroup(groups) is part
    assert messages.total == 0
    assert comm.subgroup((0,) * comm.size) is comm


def test_check_raises_everywhere(comm):
    comm.check(None)
    last = comm.size - 1
    with pytest.raises(InputError, match="no such file") as caught:
        comm.check(InputError("no such file") if comm.rank == last else None)
    assert comm.size == 1 or f"rank {last}" in str(caught.value)
    with pytest.raises(ValueError, match="odd"):
        comm.check(ValueError("odd"))
    # Of several errors the first, which names the ranks unless all of them have failed.
    for first in range(min(2, comm.size)):
        with pytest.raises(InputError) as caught:
            comm.check(None if comm.rank < first else InputError(f"error {comm.rank}"))
        named = f"{name_ranks(range(first, comm.size))}: " if first else ""
        assert str(caught.value) == f"{named}error {first}"
    with pytest.raises(CollopsError, match="strange"):
        comm.check(RuntimeError("strange"))


def test_metadata_keeps_order(comm):
    rows = comm.allgather_metadata({"rank": comm.rank, "shape": (comm.rank, 2)})
    assert rows == [{"rank": rank, "shape": [rank, 2]} for rank in range(comm.size)]


def calls_that_send(comm):
    """Every method of a communicator that sends something: a call of it, and what it counts as on several ranks."""
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    x, blocks, out = np.ones(3), np.ones((size, 2)), np.empty(2)

    def message():
        with comm.group():
            comm.send(x, right)
            comm.recv(np.empty(3), left)

    def reduce_later():
        finish = comm.start_allreduce(x)
        finish()

    return {
        "allreduce": (lambda: comm.allreduce(x), {"allreduce": 3}),
        "start_allreduce": (reduce_later, {"allreduce": 3}),
        "reduce": (lambda: comm.reduce(x, root=size - 1), {"reduce": 3}),
        "bcast": (lambda: comm.bcast(x, root=size - 1), {"bcast": 3}),
        "allgather": (lambda: comm.allgather(x), {"allgather": 3}),
        "allgatherv": (lambda: comm.allgatherv(x, [3] * size), {"allgatherv": 3}),
        "gather": (lambda: comm.gather(x, root=size - 1), {"gather": 3}),
        "gatherv": (lambda: comm.gatherv(x, [3] * size), {"gatherv": 3}),
        "scatter": (lambda: comm.scatter(None if rank else blocks, out=out), {"scatter": 2 if rank else 2 * size}),
        "scatterv": (
            lambda: comm.scatterv(x[:0] if rank else x, [3, *[0] * (size - 1)]),
            {"scatterv": 0 if rank else 3},
        ),
        "reduce_scatter": (lambda: comm.reduce_scatter(blocks), {"reduce_scatter": 2 * size}),
        "alltoall": (lambda: comm.alltoall(blocks), {"alltoall": 2 * size}),
        "alltoallv": (lambda: comm.alltoallv(np.ones(size), [1] * size, [1] * size), {"alltoallv": size}),
        "send": (message, {"send": 3, "recv": 3}),
        "recv": (message, {"send": 3, "recv": 3}),
        "sendrecv": (lambda: comm.sendrecv(x, right, np.empty(3), left), {"sendrecv": 3}),
        "barrier": (comm.barrier, {"barrier": 0}),
        "allgather_metadata": (lambda: comm.allgather_metadata(7), {"metadata": 1}),
        "check": (lambda: comm.check(None), {"metadata": 1}),
        "agree": (lambda: comm.agree("a number", 7), {"agreement": 2}),
        "split": (lambda: comm.split(0, key=-size - rank), {"metadata": ANY, "split": 0}),
        "subgroup": (lambda: comm.subgroup((*range(size - 1), 77)), {"split": 0}),
        "symmetric": (lambda: comm.symmetric(3, engine="numpy").free(), None),
    }


SEND_NOTHING = {
    "announce",
    "begin",
    "describe",
    "group",
    "next_plan_tag",
    "reject",
    "sums_in_kernels",
    "transport_of",
    "wait",
    "wait_until",
}


ON_DEVICES = {"join_sum"}  # tests/comm/test_device_transports.py


def test_every_call_that_sends_is_counted(comm, one_host):
    methods = {name for name in dir(comm) if callable(getattr(comm, name)) and not name.startswith("_")}
    calls = calls_that_send(comm)
    assert methods == calls.keys() | SEND_NOTHING | ON_DEVICES
    for name, (call, expected) in calls.items():
        with collops.profile.count_messages() as messages:
            call()
        if comm.size > 1 and expected is not None:
            assert {record.operation: record.elements for record in messages.records} == expected, name
            assert messages.total == len(expected), name


def test_counters(comm):
    x = np.ones(8, np.float32)
    with collops.profile.count_messages() as messages:
        comm.allreduce(x, out=x)
        comm.allgatherv(x)
    assert messages["allreduce"] == 1
    assert messages["metadata"] == (comm.size > 1)
    assert (messages.records[0].elements, messages.records[0].nbytes) == (8, 32)


def test_a_world_of_one_needs_no_partner(comm):
    alone = comm.subgroup(tuple(range(comm.size)))
    alone.send(np.arange(3), 0, tag=1)
    np.testing.assert_array_equal(alone.recv(np.empty(3, int), 0, tag=1), [0, 1, 2])
    with pytest.raises(CommunicationError, match="nothing was sent"):
        alone.recv(np.empty(3, int), 0)


def test_groups_do_not_nest(comm):
    with comm.group(), pytest.raises(CommunicationError, match="nested"), comm.group():
        pass


def test_arrays_of_a_group_are_contiguous(comm):
    """They are read, and results are written, when it ends."""
    columns = np.zeros((4, 2))[:, :1]
    for call in (
        lambda: comm.allreduce(columns),
        lambda: comm.allreduce(np.zeros((4, 1)), out=columns),
        lambda: comm.send(columns, comm.rank),
        lambda: comm.recv(columns, comm.rank),
    ):
        with comm.group(), pytest.raises(LayoutError, match="contiguous"):
            call()


def test_world_is_one_object(comm):
    assert collops.world() is comm
    with pytest.raises(InputError, match="carrier pigeon"):
        collops.world("carrier pigeon")
    assert str(comm.size) in comm.describe()


def test_communicators_of_mpi_are_told_apart_when_handles_are_used_again(comm):
    MPI = pytest.importorskip("mpi4py.MPI", reason="needs mpi4py")

    found = []
    for parts in (1, comm.size):
        given = MPI.COMM_WORLD.Split(comm.rank % parts, comm.rank)
        found.append(collops.from_mpi4py(given))
        assert collops.from_mpi4py(given) is found[-1]
        given.Free()
    assert [part.size for part in found] == [comm.size, 1]
    assert float(found[0].allreduce(1.0)) == comm.size  # it has a duplicate of its own


def test_what_is_no_communicator_of_mpi_is_rejected(comm):
    MPI = pytest.importorskip("mpi4py.MPI", reason="needs mpi4py")

    for wrong in (None, 3, comm, MPI.COMM_NULL):
        with pytest.raises(UnsupportedTypeError, match="intracommunicator"):
            collops.from_mpi4py(wrong)


def test_what_one_rank_asks_for_is_rejected_on_all(comm, monkeypatch):
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    with pytest.raises(InputError, match=r"ask for different transports:\n  rank 0: mpi\n  rank.*: auto") as caught:
        collops.from_mpi4py(comm.control.Dup(), "auto" if comm.rank else "mpi")
    assert caught.value.on_all_ranks
    if comm.rank == 0:
        monkeypatch.setenv("COLLOPS_GPU_AWARE_MPI", "perhaps")
    with pytest.raises(InputError, match="rank 0: COLLOPS_GPU_AWARE_MPI='perhaps'"):
        collops.from_mpi4py(comm.control.Dup())
    assert float(comm.allreduce(1.0)) == comm.size


def test_device_transports_need_devices(comm):
    if comm.size == 1 or comm.device_transport is not None:
        pytest.skip("every rank has a device, or no transport is needed")
    with pytest.raises(TransportError, match="GPU"):
        collops.world("nccl")


@pytest.mark.parametrize("begin", [0, 1], ids=["the same elements", "elements further on"])
@pytest.mark.parametrize("width", [3, 100_000])
def test_results_in_memory_of_the_argument(comm, begin, width):
    """MPI does not allow overlapping buffers: MPICH ends the program, or long messages arrive with wrong values."""
    size, other = comm.size, (comm.rank + 1) % comm.size
    source = (comm.rank - 1) % size
    calls = {
        "allreduce": lambda x, out: comm.allreduce(x, out=out),
        "maximum": lambda x, out: comm.start_allreduce(x, "max", out=out)(),
        "alltoall": lambda x, out: comm.alltoall(x, out=out),
        "reduce_scatter": lambda x, out: comm.reduce_scatter(x, out=out[0]),
        "allgather": lambda x, out: comm.allgather(x[0], out=out),
        "sendrecv": lambda x, out: comm.sendrecv(x, other, out, source),
    }
    for name, call in calls.items():
        values = (1e6 * comm.rank + np.arange(size * width)).reshape(size, width)
        expected = call(values.copy(), np.empty_like(values))
        memory = np.zeros(values.size + 1)
        x, out = (memory[start : start + values.size].reshape(size, width) for start in (0, begin))
        x[:] = values
        np.testing.assert_array_equal(call(x, out), expected, err_msg=name)
