"""Collective calls that only some ranks reject: an error on all of them, and no later message is spoiled."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops.comm.agreement import collective_errors
from collops.errors import CallMismatch, CommunicationError, InputError, LayoutError, UnsupportedTypeError


@pytest.fixture
def own(comm):
    """Return a communicator of the same ranks that may be lost."""
    if comm.size == 1:
        pytest.skip("one rank has nobody to disagree with")
    return collops.from_mpi4py(comm.control.Dup())


def wrong_counts(comm, here):
    comm.allgatherv(np.ones((2, 3)), [3] * comm.size if here else [2] * comm.size)


def wrong_sum_of_counts(comm, here):
    comm.alltoallv(np.ones(comm.size + here), [1] * comm.size, [1] * comm.size)


def wrong_target(comm, here):
    comm.allreduce(np.ones(3), out=np.ones(4 if here else 3))


def wrong_start(comm, here):
    comm.start_allreduce(np.ones(3), out=np.ones(4 if here else 3))()


def wrong_while_a_reduction_is_under_way(comm, here):
    finish = comm.start_allreduce(np.ones(3))
    wrong_target(comm, here)
    finish()


def wrong_target_after_metadata(comm, here):
    comm.allgatherv(np.ones((2, 3)), out=np.ones((2 * comm.size + here, 3)))


def wrong_dtype(comm, here):
    comm.allgather(np.array(["a"]) if here else np.ones(3))


def wrong_blocks(comm, here):
    comm.alltoall(np.ones((comm.size + here, 2)))


def wrong_color(comm, here):
    comm.split(-3 if here else 0)


def wrong_metadata(comm, here):
    comm.allgather_metadata({1, 2} if here else [1, 2])


REFUSED = [
    (wrong_counts, LayoutError),
    (wrong_sum_of_counts, LayoutError),
    (wrong_target, LayoutError),
    (wrong_start, LayoutError),
    (wrong_while_a_reduction_is_under_way, LayoutError),
    (wrong_target_after_metadata, LayoutError),
    (wrong_dtype, UnsupportedTypeError),
    (wrong_blocks, LayoutError),
    (wrong_color, InputError),
    (wrong_metadata, TypeError),
]


def in_step(comm):
    """Return whether collective calls still find each other."""
    total = comm.allreduce(np.arange(3.0) + comm.rank)
    comm.barrier()
    return total.tolist() == [k * comm.size + comm.size * (comm.size - 1) / 2 for k in range(3)]


@pytest.mark.parametrize(("call", "error"), REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_all_ranks_raise_what_some_reject(comm, call, error):
    """The calls, once rejected on all ranks, by the first only, by all but the last; and the ranks go on."""
    for rejecting in (range(comm.size), [0], range(comm.size - 1)):
        if comm.size == 1 and 0 not in rejecting:
            continue
        with pytest.raises(error) as caught:
            call(comm, comm.rank in rejecting)
        if comm.rank not in rejecting:
            assert str(caught.value).startswith(("rank 0", "ranks 0"))
        assert in_step(comm)
    assert comm.failures is None or not comm.failures.attention


def test_errors_of_files_are_shared_where_they_are_named(comm):
    with pytest.raises(OSError, match="no such disk") as caught, collective_errors(comm, OSError):
        if comm.rank == comm.size - 1:
            raise OSError("no such disk")
    assert caught.value.on_all_ranks  # type: ignore[attr-defined]


def test_one_rejection_after_another(comm):
    if comm.size == 1:
        pytest.skip("one rank has nobody to disagree with")
    for rejecting in range(2 * comm.size):
        with pytest.raises(LayoutError, match="counts"):
            wrong_counts(comm, comm.rank == rejecting % comm.size)
    assert in_step(comm)


def test_an_error_that_leaves_a_group_does_not_wait_for_its_messages(own):
    with pytest.raises(ZeroDivisionError), own.group():
        own.recv(np.zeros(3), (own.rank + 1) % own.size)
        raise ZeroDivisionError("mine")
    for call in (own.barrier, lambda: own.send(np.zeros(3), (own.rank - 1) % own.size)):
        with pytest.raises(CommunicationError, match="a group was left by ZeroDivisionError: mine"):
            call()


@pytest.mark.parametrize(
    "call",
    [
        lambda comm, here: comm.reduce(np.ones(3), root=1, out=np.ones(4 if here else 3)),
        lambda comm, here: comm.bcast(np.ones(3), root=0, out=np.ones(4 if here else 3)),
        lambda comm, here: comm.gather(np.ones(3), root=-1 if here else 0),
    ],
)
def test_ranks_that_have_gone_on_lose_the_communicator(comm, own, call):
    """What a rank has sent without waiting cannot be taken back: all calls raise from then on, and say why."""
    try:
        call(own, own.rank == 1)
        gone_on = True
    except (LayoutError, InputError):
        gone_on = False
    # Which calls end without waiting is up to MPI.
    if not any(comm.allgather_metadata(gone_on)):
        assert in_step(own)
        return
    for _ in range(2):
        with pytest.raises(
            CommunicationError, match=r"rank 1 raised \w+ in \w+ at .*test_rejections.py:\d+ .*: (out|root)"
        ):
            own.allreduce(1.0)
    with pytest.raises(CommunicationError, match="can no longer be used"):
        own.send(np.ones(1), 0)


def test_exchanges_that_are_rejected(own):
    after, before = (own.rank + 1) % own.size, (own.rank - 1) % own.size
    plan = collops.ExchangePlan(own, [(after, (slice(0, 2),))], [(before, (slice(0, 2),))])
    target = np.zeros(3)
    with pytest.raises((UnsupportedTypeError, CommunicationError)):
        plan(np.ones(3, "f4" if own.rank == 0 else "f8"), target)
        own.barrier()
    with pytest.raises(CommunicationError):
        plan(np.ones(3), target)


def test_rejections_where_calls_are_checked(comm, monkeypatch):
    if comm.size == 1:
        pytest.skip("one rank has nobody to disagree with")
    monkeypatch.setenv("COLLOPS_CHECK", "calls")
    checked = collops.from_mpi4py(comm.control.Dup())
    with pytest.raises(LayoutError) if comm.rank == 0 else pytest.raises(CallMismatch):
        wrong_counts(checked, checked.rank == 0)
    if comm.rank == 0:
        with pytest.raises(CallMismatch):
            checked.barrier()
    assert in_step(checked)
