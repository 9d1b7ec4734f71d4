"""The transports of device arrays on a simulated device: what they make of calls, without a GPU."""

from __future__ import annotations

import copy
import ctypes
import gc
import weakref

import numpy as np
import pytest

from collops.backend import engine_of
from collops.comm import messages, staged
from collops.comm.call import Call
from collops.comm.checked import CallAgreement, CheckedTransport
from collops.comm.communicator import Communicator
from collops.comm.failure import Failures
from collops.comm.mpi import ControlChannel
from collops.comm.mpi_transport import DeviceMpi, MpiTransport
from collops.comm.nccl import NcclTransport
from collops.comm.staged import GpuAwareTransport, StagedTransport
from collops.comm.transport import KnownExchange
from collops.errors import CommunicationError, CommunicationTimeout
from collops.exchange import ExchangePlan
from collops.extend.exchanges import LibraryExchangePlan
from collops.jacobi.problem import Grid, Problem, halo_plan
from collops.profile import count_messages
from tests.comm import checks, device


@pytest.fixture(scope="module")
def xp():
    with device.simulated() as cupy:
        yield cupy


@pytest.fixture(scope="module", params=["nccl", "mpi-p2p", "mpi-all", "staged"])
def joined(request, comm, xp):
    """A communicator whose device arrays go by one transport."""
    from mpi4py import MPI

    if request.param.startswith("mpi") and comm.size == 1:
        pytest.skip("a single rank has no transport of messages")
    control = MPI.COMM_WORLD.Dup()
    failures = Failures(ControlChannel(control), 60.0, oversubscribed=True)
    host = MpiTransport(control, failures)
    if request.param == "nccl":
        transport = NcclTransport(device.Nccl(control.Dup()), control.size, control.rank, b"")  # type: ignore[arg-type]
    elif request.param == "staged":
        transport = StagedTransport(host)
    else:
        transport = GpuAwareTransport(DeviceMpi(control, failures), control.size, request.param.removeprefix("mpi-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged, "CHUNK_BYTES", 48)  # so that short arrays are several chunks, the last one ragged
        patch.setattr(messages, "SHORT_BYTES", 16)
        yield Communicator(host, transport, control=control, failures=failures)


@pytest.mark.parametrize("name", checks.DTYPES)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
def test_reductions(joined, xp, name, op):
    if not (name.startswith("complex") and op != "sum"):
        checks.check_reductions(joined, xp, name, op)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_wins(joined, xp, name, op):
    checks.check_nan_wins(joined, xp, name, op, longest=301)


@pytest.mark.parametrize("name", ["bool", "int16", "uint64"])
@pytest.mark.parametrize("op", ["land", "lor", "lxor"])
def test_logical_reductions(joined, xp, name, op):
    checks.check_reductions(joined, xp, name, op)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_average(joined, xp, name):
    checks.check_average(joined, xp, name)
    checks.check_started_reductions(joined, xp, name)


@pytest.mark.parametrize("name", checks.DTYPES)
def test_movement(joined, xp, name):
    checks.check_movement(joined, xp, name)


@pytest.mark.parametrize("name", ["bfloat16", "complex128"])
def test_messages(joined, xp, name):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged, "CHUNK_BYTES", 4 << 20)
        checks.check_messages(joined, xp, name)


def test_strided_arrays(joined, xp):
    checks.check_strided(joined, xp)


def test_exchange_plans(joined, xp):
    checks.check_plan(joined, xp)
    checks.check_plan_of_several_arrays(joined, xp)


@pytest.mark.parametrize("size", [5, 6, 7, 12, 13])
def test_chunks(joined, xp, size):
    """Around the ends of one and of two chunks of six elements."""
    x = xp.arange(float(size)) + joined.rank
    expected = np.arange(float(size)) * joined.size + sum(range(joined.size))
    np.testing.assert_array_equal(joined.allreduce(x).get(), expected)
    root = joined.size - 1
    np.testing.assert_array_equal(joined.bcast(x, root).get(), np.arange(float(size)) + root)
    right, left = (joined.rank + 1) % joined.size, (joined.rank - 1) % joined.size
    np.testing.assert_array_equal(joined.sendrecv(x, right, xp.zeros(size), left).get(), np.arange(float(size)) + left)


def test_sums_of_small_integers_wrap_around(joined, xp):
    """16-bit integers that NCCL reduces in 32 bits have the values of other transports."""
    x = xp.full(3, 20_000, "int16")
    expected = np.array(20_000 * joined.size).astype("int16")
    np.testing.assert_array_equal(joined.allreduce(x).get(), np.full(3, expected))


def test_a_group_is_one_launch(joined, xp):
    if joined.device_transport != "nccl":
        pytest.skip("other transports have no launches")
    binding = joined._device.binding
    right, left = (joined.rank + 1) % joined.size, (joined.rank - 1) % joined.size
    launches = binding.launches
    out = xp.zeros(3)
    with joined.group():
        joined.send(xp.full(3, float(joined.rank)), right)
        joined.recv(out, left)
        narrow = joined.allreduce(xp.ones(3, "int16"))
        assert not out.any() or joined.size == 1
    assert binding.launches == launches + 1
    np.testing.assert_array_equal(out.get(), np.full(3, float(left)))
    np.testing.assert_array_equal(narrow.get(), np.full(3, joined.size))
    assert float(joined.allreduce(xp.ones(1))[0]) == joined.size


class Stores:
    """Plays short calls: it takes sums of up to three doubles, all-to-alls of as many, and messages to rank 0."""

    def __init__(self, control):
        self._control = control
        self.calls = []
        self.aborted = False

    def add_up(self, source, target, nccl_type, stream):
        if nccl_type != 8 or source.size > 3:
            return False
        self.calls.append("sum")
        target[...] = sum(self._control.allgather(np.asarray(source)))
        return True

    def alltoall(self, source, target, stream):
        if source.size > 3 * self._control.size:
            return False
        self.calls.append("alltoall")
        target[...] = self._control.alltoall(list(np.asarray(source)))
        return True

    def exchange(self, sends, receives, stream, known):
        self.calls.append("exchange")
        known.short = (ctypes.c_void_p * 1)()  # has an address, and so cannot be copied
        here = self._control.rank
        sources = [np.array((ctypes.c_char * n).from_address(address)) for rank, address, n in sends if not rank]
        arrived = self._control.gather(sources)
        for rank, address, nbytes in receives if here == 0 else ():
            ctypes.memmove(address, arrived[rank][0].tobytes(), nbytes)
        return [message for message in sends if message[0]], receives if here else []

    def join(self):
        self.calls.append("join")
        return 7

    def abort(self):
        self.aborted = True


@pytest.fixture
def stores(joined):
    """What runs short calls in the place of NCCL."""
    if joined.device_transport != "nccl":
        pytest.skip("other transports have no short calls of their own")
    joined._device.short = Stores(joined.control)
    yield joined._device.short
    joined._device.short = None


def test_short_calls_do_not_go_by_nccl(joined, xp, stores):
    for size in (1, 3, 4):
        for _ in range(2):  # without and with the fast path
            with count_messages() as messages:
                total = joined.allreduce(xp.arange(float(size)))
            np.testing.assert_array_equal(total.get(), np.arange(float(size)) * joined.size)
            assert (messages["allreduce"], messages.total) == (1, 1)
        blocks = np.arange(float(joined.size * size)).reshape(joined.size, size)
        result = joined.alltoall(xp.asarray(blocks + 100 * joined.rank))
        expected = [blocks[joined.rank] + 100 * rank for rank in range(joined.size)]
        np.testing.assert_array_equal(result.get(), expected)
    assert stores.calls == ["sum", "sum", "alltoall"] * 2
    joined.allreduce(xp.ones(3), "max")
    with joined.group():
        joined.allreduce(xp.ones(3))
        joined.alltoall(xp.ones((joined.size, 1)))
    assert stores.calls == ["sum", "sum", "alltoall"] * 2


def test_exchanges_go_by_nccl_as_far_as_they_are_not_short(joined, xp, stores):
    """Messages to rank 0 do not; inside a group, where nothing is short, and as messages of users, all do."""
    x, out = xp.full(5, joined.rank + 1.0), xp.zeros((joined.size, 5))
    sends = [(rank, x.data.ptr, x.nbytes) for rank in range(joined.size)]
    receives = [(rank, row.data.ptr, row.nbytes) for rank, row in enumerate(out)]
    binding, expected = joined._device.binding, np.arange(1.0, joined.size + 1)
    for on_side_stream in (False, True):
        launches = binding.launches
        out.fill(0)
        joined._device.start_addresses(sends, receives, on_side_stream, KnownExchange()).wait()
        np.testing.assert_array_equal(out[:, 4], expected)
        assert binding.launches - launches == (joined.size > 1)
    assert stores.calls == ["exchange"] * 2
    out.fill(0)
    with joined.group():
        joined._device.start_addresses(sends, receives, False, KnownExchange())
    np.testing.assert_array_equal(out[:, 4], expected)
    out.fill(0)
    joined._device.start_addresses(sends, receives, False, None)
    np.testing.assert_array_equal(out[:, 4], expected)
    joined.sendrecv(x, dest=joined.rank, out=xp.empty_like(x), source=joined.rank)
    assert stores.calls == ["exchange"] * 2


def test_transports_know_their_short_messages(joined, stores):
    stores.message_limit = 24
    assert joined._device.sends_short(24) and not joined._device.sends_short(25)
    joined._device.short = None
    assert not joined._device.sends_short(0) and not joined._host.sends_short(0)


@pytest.mark.parametrize("by_stores", [False, True])
def test_plans_go_by_stores_unless_they_may_not(joined, xp, stores, by_stores):
    following, before = (joined.rank + 1) % joined.size, (joined.rank - 1) % joined.size
    x, y, box = xp.full(3, joined.rank + 1.0), xp.zeros(3), (slice(0, 3),)
    plan = (ExchangePlan if by_stores else LibraryExchangePlan)(joined, [(following, box)], [(before, box)])
    for _ in range(2):
        np.testing.assert_array_equal(plan(x, y), np.full(3, before + 1.0))
        plan = copy.deepcopy(plan)  # as in a deep copy of an operator
    assert stores.calls == ["exchange"] * 2 * (by_stores and joined.size > 1)


def test_halos_of_jacobi_go_by_nccl(joined, xp, stores):
    """Its models by NCCL are compared with others: their messages are NCCL's, however short."""
    grid = Grid(Problem(nx=5, ny=2 * joined.size + 2), joined.size, joined.rank)
    array = xp.full(grid.shape, joined.rank, "float32")
    launches = joined._device.binding.launches
    halo_plan(grid, joined)(array, array)
    assert stores.calls == [] and joined._device.binding.launches - launches == (joined.size > 1)
    assert (array[0, :5] == grid.above).all() and (array[3, :5] == grid.below).all()


def test_kernels_join_short_sums(joined, xp, stores):
    engine = engine_of(xp.ones(1))
    assert joined.sums_in_kernels(engine) and not joined.sums_in_kernels(engine_of(np.ones(1)))
    number = joined.failures.number
    with count_messages() as messages:
        assert joined.join_sum(xp.ones(2)) == 7
    assert (messages["allreduce"], messages.total, messages.records[0][2]) == (1, 1, 16)
    assert joined.failures.number == number + 1 and stores.calls == ["join"]
    with joined.group():
        assert not joined.sums_in_kernels(engine)
    joined._device.short = None
    assert not joined.sums_in_kernels(engine)


def test_checked_calls_are_not_joined(joined, stores):
    """The ranks agree on a call before it begins, which a kernel cannot do."""
    checked = CheckedTransport(
        joined._device, CallAgreement(ControlChannel(joined.control), joined.failures, False), ""
    )
    assert checked.short is None
    joined.failures.checked = False


def test_short_calls_end_when_a_rank_gives_up(joined, xp, stores):
    binding = joined._device.binding
    joined._device.abort()
    assert stores.aborted
    with pytest.raises(CommunicationError):
        joined._device.run(Call("allreduce", xp.ones(1), xp.ones(1), "sum"))
    joined._device.binding = binding


@pytest.mark.parametrize("kind", ["call", "part", "exchange"])
def test_the_memory_of_messages_that_are_given_up_is_kept(comm, xp, kind):
    """A late message may still arrive there, and requests on device pointers do not keep their arrays alive."""
    from mpi4py import MPI

    if comm.size == 1:
        pytest.skip("a single rank waits for nobody")
    control = MPI.COMM_WORLD.Dup()
    transport = DeviceMpi(control, Failures(ControlChannel(control), 0.1, oversubscribed=True))
    late = (control.rank + 1) % control.size
    arrays = [xp.zeros(9) for _ in range(1 if kind == "call" else 3)]
    kept = [weakref.ref(array) for array in arrays]
    receives = [(late, array) for array in arrays]
    with pytest.raises(CommunicationTimeout):
        if kind == "call":
            transport.run(Call("bcast", *arrays, *arrays, root=late))  # nobody is the root
        elif kind == "part":
            parts = transport.start_parts(
                "allreduce", [], [(late, transport.part(array, 0, 9)) for array in arrays], list(arrays)
            )
            parts.received(0)
        else:
            transport.start_exchange([], receives, 0).wait()
    del arrays, receives
    gc.collect()  # the traceback has them
    assert all(array() is not None for array in kept)


@pytest.fixture
def by_messages(joined, monkeypatch):
    """What runs calls of a GPU-aware MPI that takes device pointers in messages only."""
    if joined.device_transport != "mpi" or joined._device._kinds:
        pytest.skip("other transports do not run all calls by messages")
    monkeypatch.setattr(messages, "SHORT_BYTES", 1 << 30)
    monkeypatch.setattr(joined._device._by_messages, "_receive_buffers", {})
    return joined._device._by_messages


@pytest.mark.parametrize("kind", ["allreduce", "reduce", "bcast", "allgather", "alltoall"])
def test_short_calls_by_messages_make_no_arrays(joined, xp, by_messages, monkeypatch, kind):
    """From the second call on nothing is allocated, no view is made, and the stream is waited for once."""
    x = xp.arange(6.0).reshape(2, 3) + joined.rank
    given = xp.asarray(np.broadcast_to(x, (joined.size, 2, 3))) if kind == "alltoall" else x
    out = xp.empty((joined.size, 2, 3) if kind in ("allgather", "alltoall") else (2, 3), "float64")
    parts = np.arange(6.0).reshape(2, 3) + np.arange(joined.size)[:, None, None]
    total = parts.sum(axis=0)
    expected = {"allreduce": total, "reduce": total, "bcast": parts[0], "allgather": parts, "alltoall": parts}[kind]
    done = []
    engine, stream = engine_of(x), xp.cuda.get_current_stream()
    for _ in range(3):
        with monkeypatch.context() as patch:
            for place, name in ((engine, "empty"), (xp, "empty"), (xp, "empty_like")):
                make = getattr(place, name)
                patch.setattr(place, name, lambda *args, make=make, name=name: done.append(name) or make(*args))
            for name in ("reshape", "__getitem__"):
                patch.setattr(device.Array, name, lambda *_: pytest.fail("a view"), raising=False)
            patch.setattr(type(stream), "synchronize", lambda _: done.append("synchronize"))
            done.clear()
            out.fill(-1)
            result = getattr(joined, kind)(given, out=out)
        if result is not None:
            np.testing.assert_array_equal(result.get(), expected)
    assert done == ["synchronize"]


def test_memory_of_reductions_is_of_its_stream(joined, xp, by_messages, monkeypatch):
    """A kernel of another stream may still read what arrived there."""
    arrays = {}
    for _ in range(2):
        for stream in (0, 7):
            monkeypatch.setattr(type(xp.cuda.get_current_stream()), "ptr", stream)
            assert float(joined.allreduce(xp.ones(5))[4]) == joined.size
            ((landing, _),) = (kept for key, kept in by_messages._receive_buffers.items() if key[0] == stream)
            assert arrays.setdefault(stream, landing) is landing
    assert arrays[0][0] is not arrays[7][0]


def test_memory_of_reductions_is_bounded(joined, xp, by_messages):
    longest = messages.MAX_CACHED_BYTES // 8 // (joined.size - 1)
    joined.allreduce(xp.ones(longest + 1))
    assert not by_messages._receive_buffers
    for length in (longest, *range(1, 40)):
        joined.allreduce(xp.ones(length))
    assert [shape for _, shape, _ in by_messages._receive_buffers] == [
        (length,) for length in range(40 - messages.MAX_CACHED_SHAPES, 40)
    ]


def test_memory_of_a_reduction_that_failed_is_not_used_again(comm, xp):
    from mpi4py import MPI

    if comm.size == 1:
        pytest.skip("a single rank waits for nobody")
    control = MPI.COMM_WORLD.Dup()
    failures = Failures(ControlChannel(control), 0.1, oversubscribed=True)
    transport = GpuAwareTransport(DeviceMpi(control, failures), control.size, "p2p")
    x = xp.ones(4)
    transport.run(Call("allreduce", x, x, "sum"))
    ((landing, _),) = transport._by_messages._receive_buffers.values()
    control.Barrier()
    with pytest.raises(CommunicationTimeout):
        if comm.rank:
            failures.until(lambda: False, "another call")
        else:
            transport.run(Call("allreduce", x, x, "sum"))
    kept = transport._by_messages._receive_buffers.values()
    assert [each[0] is landing for each in kept] == ([True] if comm.rank else [])
    assert comm.rank or any(part._memory[1] is landing for part in failures._abandoned if hasattr(part, "_memory"))
