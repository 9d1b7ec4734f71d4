"""Communicators on host arrays, against NumPy on every rank's values."""

from __future__ import annotations

import numpy as np
import pytest

import collops
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


@pytest.mark.parametrize("name", ["bool", "int16", "uint64"])
@pytest.mark.parametrize("op", ["land", "lor", "lxor"])
def test_logical_reductions(comm, name, op):
    checks.check_reductions(comm, np, name, op)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_average(comm, name):
    checks.check_average(comm, np, name)


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


@pytest.mark.parametrize(
    ("x", "op"),
    [(np.ones(2, bool), "avg"), (np.ones(2, int), "avg"), (np.ones(2), "lor"), (np.ones(2), "median")],
)
def test_meaningless_reductions_are_refused(comm, x, op):
    with pytest.raises(UnsupportedTypeError):
        comm.allreduce(x, op)


def test_strings_are_refused(comm):
    with pytest.raises(UnsupportedTypeError):
        comm.allreduce(np.array(["a"]))


def test_bad_arguments(comm):
    with pytest.raises(LayoutError, match="shape"):
        comm.allreduce(np.ones(3), out=np.ones(4))
    with pytest.raises(UnsupportedTypeError, match="dtype"):
        comm.allreduce(np.ones(3), out=np.ones(3, np.float32))
    with pytest.raises(InputError, match="no rank"):
        comm.bcast(np.ones(3), root=comm.size)
    with pytest.raises(InputError, match="tag"):
        comm.send(np.ones(3), 0, tag=-1)
    with pytest.raises(LayoutError, match="counts"):
        comm.allgatherv(np.ones(3), [3] * (comm.size + 1))
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
    assert part.size == groups.count(groups[comm.rank])
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
    with pytest.raises(CollopsError, match="strange"):
        comm.check(RuntimeError("strange"))


def test_metadata_keeps_order(comm):
    rows = comm.allgather_metadata({"rank": comm.rank, "shape": (comm.rank, 2)})
    assert rows == [{"rank": rank, "shape": [rank, 2]} for rank in range(comm.size)]


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


def test_world_is_one_object(comm):
    assert collops.world() is comm
    with pytest.raises(InputError, match="carrier pigeon"):
        collops.world("carrier pigeon")
    assert str(comm.size) in comm.describe()


def test_device_transports_need_devices(comm):
    if comm.size == 1 or comm.device_transport is not None:
        pytest.skip("every rank has a device, or no wire is needed")
    with pytest.raises(TransportError, match="GPU"):
        collops.world("nccl")
