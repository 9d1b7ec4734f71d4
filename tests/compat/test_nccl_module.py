"""PyLops-MPI's functions and mix-in class for messages: the peer's and ours side by side on the same data."""

from __future__ import annotations

import importlib
import importlib.util
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import collops.compat.pylops_mpi as pylops_mpi
from collops.comm.communicator import Communicator
from collops.comm.failure import Failures
from collops.comm.mpi import ControlChannel
from collops.comm.mpi_transport import MpiTransport
from collops.comm.nccl import NcclTransport
from collops.compat.pylops_mpi._messages import mpi_allgather
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from tests.comm import device
from tests.compat.played import NcclCommunicator, peers_nccl

OURS = "collops.compat.pylops_mpi"
NEEDS_PEER = pytest.mark.skipif(importlib.util.find_spec("pylops_mpi") is None, reason="PyLops-MPI is not installed")
DTYPES = ["float64", "complex64", "int32"]


def values(rank: int, shape: tuple[int, ...], dtype: str = "float64") -> np.ndarray:
    """Numbers whose sums and products are exact, different on each rank."""
    found = (np.arange(int(np.prod(shape))).reshape(shape) + 2 * rank + 1).astype(dtype)
    return found * (1 - 2j) if dtype.startswith("complex") else found


@pytest.fixture(scope="module")
def packages(comm):
    """The peer and ours: their modules, an NCCL communicator each, and how to make device arrays."""
    if importlib.util.find_spec("pylops_mpi") is None:
        pytest.skip("PyLops-MPI is not installed")
    from mpi4py import MPI

    with peers_nccl():
        control = MPI.COMM_WORLD.Dup()
        failures = Failures(ControlChannel(control), 60.0, oversubscribed=True)
        binding: Any = device.Nccl(control.Dup())
        host, nccl = MpiTransport(control, failures), NcclTransport(binding, control.size, control.rank, b"")
        ours = Communicator(host, nccl, control=control, failures=failures)
        yield ("pylops_mpi", NcclCommunicator(control.Dup())), (OURS, ours)


@pytest.fixture(params=["plain", "nccl"])
def sides(request, packages):
    """For the peer and ours: an object of a class derived from the mix-in, and its NCCL communicator or ``None``."""
    found = []
    for package, nccl in packages:
        mix_in = importlib.import_module(f"{package}.Distributed").DistributedMixIn
        found.append((type("Operator", (mix_in,), {})(), nccl if request.param == "nccl" else None))
    return found


def placed(array: np.ndarray, nccl: Any) -> Any:
    return array.copy() if nccl is None else array.copy().view(device.Array)


def options(nccl: Any) -> dict[str, str]:
    return {"engine": "numpy" if nccl is None else "cupy"}


def assert_same(results: list[Any]) -> None:
    theirs, ours = results
    assert type(ours) is type(theirs)
    if isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for pair in zip(theirs, ours, strict=True):
            assert_same(list(pair))
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs, strict=True)
    else:
        assert ours == theirs


@pytest.mark.parametrize(
    ("dtype", "op"),
    [*product(DTYPES, [None, "SUM"]), *product(["float64", "int32"], ["PROD", "MAX", "MIN"])],
)
def test_allreduce(comm, sides, dtype, op) -> None:
    from mpi4py import MPI

    given = {} if op is None else {"op": getattr(MPI, op)}
    results = []
    for operator, nccl in sides:
        sent = placed(values(comm.rank, (2, 3), dtype), nccl)
        results.append(operator._allreduce(MPI.COMM_WORLD, nccl, sent, **given, **options(nccl)))
    assert_same(results)
    assert results[1].shape == (6,)
    if op in (None, "SUM"):
        np.testing.assert_array_equal(results[1], sum(values(r, (6,), dtype) for r in range(comm.size)))


def test_allreduce_into_a_buffer(comm, sides) -> None:
    from mpi4py import MPI

    results = []
    for operator, nccl in sides:
        into = placed(np.zeros((1, 4)), nccl)
        sent = placed(values(comm.rank, (4,)), nccl)
        results.append(operator._allreduce(MPI.COMM_WORLD, nccl, sent, into, MPI.MAX, **options(nccl)))
        if operator is sides[1][0] or nccl is not None:  # the peer ignores the buffer on hosts
            np.testing.assert_array_equal(into.ravel(), values(comm.size - 1, (4,)))
    assert_same(results)


def test_collectives_of_a_part_of_the_ranks(comm, sides) -> None:
    from mpi4py import MPI

    color = comm.rank % 2
    part = MPI.COMM_WORLD.Split(color, comm.rank)
    results, gathered = [], []
    for number, (operator, nccl) in enumerate(sides):
        group = part
        if nccl is not None:
            group = comm_of(nccl, number, color, part)
        sent = placed(values(comm.rank, (3,)), nccl)
        results.append(operator._allreduce_subcomm(group, nccl, sent, **options(nccl)))
        if nccl is None or number == 1:  # the peer's raises an AttributeError
            gathered.append(operator._allgather_subcomm(group, nccl, sent, **options(nccl)))
    assert_same(results)
    members = range(color, comm.size, 2)
    np.testing.assert_array_equal(results[1], sum(values(r, (3,)) for r in members))
    shapes = sides[1][0]._allgather_subcomm(part, None, (comm.rank, 4))
    assert shapes == [(rank, 4) for rank in members]
    for found in gathered:
        np.testing.assert_array_equal(found, [values(r, (3,)) for r in members])
    part.Free()


def comm_of(nccl: Any, number: int, color: int, part: Any) -> Any:
    """Return the NCCL communicator of the ranks of `color`: the peer's, or ours."""
    if number == 0:
        return NcclCommunicator(part.Dup())
    control = part.Dup()
    binding: Any = device.Nccl(part.Dup())
    failures = Failures(ControlChannel(control), 60.0, oversubscribed=True)
    transport = NcclTransport(binding, part.size, part.rank, b"")
    return Communicator(MpiTransport(control, failures), transport, control=control, failures=failures)


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_allgather(comm, sides, even, dtype) -> None:
    from mpi4py import MPI

    shape = (2, 3) if even else (comm.rank + 1, 4 - comm.rank)
    results = []
    for operator, nccl in sides:
        sent = placed(values(comm.rank, shape, dtype), nccl)
        results.append(operator._allgather(MPI.COMM_WORLD, nccl, sent, **options(nccl)))
    assert_same(results)
    for rank, part in enumerate(results[1]):
        np.testing.assert_array_equal(part, values(rank, (2, 3) if even else (rank + 1, 4 - rank), dtype))


def test_allgather_into_a_buffer(comm, sides) -> None:
    from mpi4py import MPI

    (operator, nccl) = sides[1]
    into = placed(np.zeros(2 * comm.size), nccl)
    found = operator._allgather(MPI.COMM_WORLD, nccl, placed(values(comm.rank, (2,)), nccl), into, **options(nccl))
    expected = [values(rank, (2,)) for rank in range(comm.size)]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(into, np.concatenate(expected))


@pytest.mark.parametrize("of", [lambda r: r + 5, lambda r: (r, 7), lambda r: [r, 2, 3]], ids=["int", "tuple", "list"])
def test_allgather_of_shapes(comm, sides, of) -> None:
    from mpi4py import MPI

    results = [operator._allgather(MPI.COMM_WORLD, nccl, of(comm.rank)) for operator, nccl in sides]
    assert_same(results)
    if sides[1][1] is None:
        assert results[1] == [of(rank) for rank in range(comm.size)]


def test_allgather_keeps_python_objects(comm) -> None:
    def of(rank: int) -> Any:
        numbers = (np.int64(rank), np.float32(0.1), np.complex64(1 - 2j), np.bool_(rank == 1), 2**70, rank == 0)
        return [(rank, numbers, "\u03bb\n"), [1.5, None, float("inf"), 1e-310 + 2j], (), []]

    def with_types(value: Any) -> Any:
        return [type(value), *map(with_types, value)] if isinstance(value, list | tuple) else (type(value), value)

    operator = pylops_mpi.Distributed.DistributedMixIn()
    for found in (
        operator._allgather(None, None, of(comm.rank)),
        operator._allgather(None, None, tuple(of(comm.rank))),
    ):
        assert isinstance(found, list) and len(found) == comm.size
        assert [with_types(list(part)) for part in found] == [with_types(of(rank)) for rank in range(comm.size)]
    assert isinstance(found[0], tuple)


@pytest.mark.parametrize(
    "wrong", [np.ones(2), {"a": 1}, b"x", np.datetime64("2020")], ids=lambda value: type(value).__name__
)
def test_allgather_refuses_other_objects_on_all_ranks(comm, wrong) -> None:
    given = (1, wrong) if comm.rank == comm.size - 1 else (1, 2)
    with pytest.raises(UnsupportedTypeError, match="gather arrays by themselves"):
        pylops_mpi.Distributed.DistributedMixIn()._allgather(None, None, given)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bcast(comm, sides, dtype) -> None:
    from mpi4py import MPI

    root, results = comm.size - 1, []
    for operator, nccl in sides:
        buffer = placed(values(comm.rank, (2, 2), dtype), nccl)
        results.append(operator._bcast(MPI.COMM_WORLD, nccl, buffer, root, **options(nccl)))
        assert results[-1] is buffer
    assert_same(results)
    np.testing.assert_array_equal(results[1], values(root, (2, 2), dtype))


@pytest.mark.parametrize("count", [None, 2])
def test_messages_along_a_chain(comm, sides, count) -> None:
    from mpi4py import MPI

    results = []
    for operator, nccl in sides:
        received = placed(np.full((2, 2), -1.0), nccl)
        if comm.rank > 0:
            source = comm.rank - 1
            found = operator._recv(MPI.COMM_WORLD, nccl, received, source, count, tag=3, **options(nccl))
            assert found is received
        if comm.rank < comm.size - 1:
            sent = placed(values(comm.rank, (2, 2)), nccl)
            operator._send(MPI.COMM_WORLD, nccl, sent, comm.rank + 1, count, tag=3, **options(nccl))
        results.append(received)
    assert_same(results)
    if comm.rank > 0:
        kept = slice(count)
        np.testing.assert_array_equal(results[1].ravel()[kept], values(comm.rank - 1, (4,))[kept])


def test_exchange_around_a_ring(comm, sides) -> None:
    from mpi4py import MPI

    results = []
    for operator, nccl in sides:
        sent, received = placed(values(comm.rank, (3,)), nccl), placed(np.zeros(3), nccl)
        ends = {"dest": (comm.rank + 1) % comm.size, "source": (comm.rank - 1) % comm.size}
        found = operator._sendrecv(MPI.COMM_WORLD, nccl, sent, received, **ends, **options(nccl))
        assert found is received
        results.append(received)
    assert_same(results)
    np.testing.assert_array_equal(results[1], values((comm.rank - 1) % comm.size, (3,)))


@NEEDS_PEER
def test_exchange_with_nobody(comm) -> None:
    from mpi4py import MPI

    results = []
    for package in ("pylops_mpi", OURS):
        module = importlib.import_module(f"{package}.utils._mpi")
        before = comm.rank - 1 if comm.rank else MPI.PROC_NULL
        after = comm.rank + 1 if comm.rank < comm.size - 1 else MPI.PROC_NULL
        received = np.full(3, -1.0)
        module.mpi_sendrecv(MPI.COMM_WORLD, values(comm.rank, (3,)), received, after, 4, before, 4)
        counted = np.zeros(2, np.int32)
        if comm.rank < comm.size - 1:
            module.mpi_send(MPI.COMM_WORLD, np.array([comm.rank, 9], np.int32), comm.rank + 1)
        if comm.rank:
            counted = module.mpi_recv(MPI.COMM_WORLD, None, comm.rank - 1, 2)
        results.append([received, counted])
    assert_same(results)
    assert (results[1][0][0] == -1.0) is np.bool_(comm.rank == 0)


def test_functions_of_the_nccl_module(comm, packages) -> None:
    results = []
    shapes = [(2, 4 - rank) for rank in range(comm.size)]
    for package, nccl in packages:
        module = importlib.import_module(f"{package}.utils._nccl")
        rank = comm.rank
        sent = placed(values(rank, (3,)), nccl)
        into = placed(np.zeros(3 * comm.size), nccl)
        assert module.nccl_allgather(nccl, sent, into) is into
        reduced = placed(np.zeros(3), nccl)
        assert module.nccl_allreduce(nccl, sent, reduced) is reduced
        broadcast = sent.copy()
        assert module.nccl_bcast(nccl, broadcast, comm.size - 1) is None
        ring = placed(np.zeros(3), nccl)
        module.nccl_sendrecv(nccl, sent, (rank + 1) % comm.size, ring, (rank - 1) % comm.size)
        chain = placed(np.zeros(3), nccl)
        if rank:
            module.nccl_recv(nccl, chain, rank - 1)
        if rank < comm.size - 1:
            module.nccl_send(nccl, sent, rank + 1, 3)
        part = placed(values(rank, shapes[rank], "complex64"), nccl)
        padded = module._prepare_allgather_inputs_nccl(part, shapes, "cupy")
        joined = module.nccl_asarray(nccl, part, shapes, 1)
        sizes = [module._nccl_buf_size(part), module._nccl_buf_size(part, 2), module._nccl_buf_size(sent)]
        gathered = module.nccl_allgather(nccl, sent), module.nccl_allgather(nccl, rank)
        results.append([into, reduced, broadcast, ring, chain, *padded, joined, *sizes, *gathered])
    assert_same(results)
    np.testing.assert_array_equal(
        results[1][7], np.concatenate([values(r, shapes[r], "complex64") for r in range(comm.size)], 1)
    )


def test_numbers_of_nccl(packages) -> None:
    from mpi4py import MPI

    theirs, ours = (importlib.import_module(f"{package}.utils._nccl") for package, _ in packages)
    for op in (MPI.SUM, MPI.PROD, MPI.MAX, MPI.MIN):
        assert ours.mpi_op_to_nccl(op) == theirs.mpi_op_to_nccl(op)
        assert ours.mpi_op_to_nccl(op).name == theirs.mpi_op_to_nccl(op).name
    for module in (theirs, ours):
        with pytest.raises(ValueError, match="NCCL"):
            module.mpi_op_to_nccl(MPI.BAND)
    assert {name: ours.cupy_to_nccl_dtype[name] for name in theirs.cupy_to_nccl_dtype} == theirs.cupy_to_nccl_dtype


def test_synchronisation(packages, monkeypatch) -> None:
    import cupy

    calls = []
    for devices, expected in ((0, 0), (1, 2)):
        runtime = SimpleNamespace(getDeviceCount=lambda n=devices: n, deviceSynchronize=lambda: calls.append(1))
        monkeypatch.setattr(cupy.cuda, "runtime", runtime)
        for package, _ in packages:
            importlib.import_module(f"{package}.utils._nccl")._nccl_sync()
        assert len(calls) == expected


@NEEDS_PEER
@pytest.mark.parametrize("shapes", [[(2, 3), (2, 3)], [(2, 3), (1, 5), (4, 1)], [(3,), (0,), (1,)], [(), ()]])
def test_buffers_of_gatherings(shapes) -> None:
    found = []
    for package in ("pylops_mpi", OURS):
        prepare = importlib.import_module(f"{package}.utils._mpi")._prepare_allgather_inputs_mpi
        unroll = importlib.import_module(f"{package}.utils._common")._unroll_allgather_recv
        sent, buffer, starts, counts = prepare(values(0, shapes[0]).T, shapes, "numpy")
        assert sent.flags.c_contiguous
        parts = [values(rank, shape).ravel() for rank, shape in enumerate(shapes)]
        buffer[:] = np.concatenate(parts)
        # The peer cannot unroll arrays without axes.
        unrolled = unroll(buffer, shapes[0], shapes, starts) if shapes[0] else []
        found.append([sent, buffer, starts, counts, unrolled])
    assert_same(found)


@NEEDS_PEER
def test_a_users_operator(comm) -> None:
    """An operator as users write it for the peer: the sum of all ranks' parts, and its adjoint."""
    found = []
    for package in ("pylops_mpi", OURS):
        peer = importlib.import_module(package)
        mix_in = importlib.import_module(f"{package}.Distributed").DistributedMixIn

        class Summed(mix_in, peer.MPILinearOperator):
            package = peer

            def _matvec(self, x):
                kind = self.package.Partition.UNSAFE_BROADCAST
                y = self.package.DistributedArray(4, x.base_comm, x.base_comm_nccl, kind, dtype=x.dtype)
                y[:] = self._allreduce(x.base_comm, x.base_comm_nccl, x.local_array, engine=x.engine)
                return y

            def _rmatvec(self, x):
                y = self.package.DistributedArray(4 * x.size, x.base_comm, x.base_comm_nccl, dtype=x.dtype)
                y[:] = x.local_array
                return y

        op = Summed(shape=(4, 4 * comm.size), dtype=np.float64)
        x = peer.DistributedArray(4 * comm.size)
        x[:] = values(comm.rank, (4,))
        y = op @ x
        found.append([y.local_array, (op.H @ y).asarray(), *x._allgather(x.base_comm, None, x.local_array)])
    assert_same(found)
    np.testing.assert_array_equal(found[1][0], sum(values(r, (4,)) for r in range(comm.size)))


def test_errors(comm) -> None:
    from mpi4py import MPI

    module: Any = importlib.import_module(f"{OURS}.utils._mpi")
    for op in (MPI.BAND, "sum"):
        with pytest.raises(UnsupportedTypeError, match="there is no reduction"):
            module.mpi_allreduce(MPI.COMM_WORLD, np.ones(2), op=op)
    with pytest.raises(ValueError, match="recv_buf, or count"):
        module.mpi_recv(MPI.COMM_WORLD)
    with pytest.raises(InputError, match="source"):
        module.mpi_recv(MPI.COMM_WORLD, np.ones(2), MPI.ANY_SOURCE)
    with pytest.raises(InputError, match="tag"):
        module.mpi_recv(MPI.COMM_WORLD, np.ones(2), 0, tag=MPI.ANY_TAG)
    with pytest.raises(InputError, match="recvbuf"):
        module.mpi_sendrecv(MPI.COMM_WORLD, np.ones(2), None)
    with pytest.raises(InputError, match="NCCL"):
        pylops_mpi.Distributed.DistributedMixIn()._recv(None, comm)
    with pytest.raises(LayoutError, match="contiguous"):
        module.mpi_recv(MPI.COMM_WORLD, np.ones((3, 3))[:, 0])
    with pytest.raises(UnsupportedTypeError, match="intracommunicator of mpi4py"):
        module.mpi_allreduce(object(), np.ones(2))


def test_split_of_a_native_communicator(comm, monkeypatch) -> None:
    mask = [rank % 2 for rank in range(comm.size)]
    group = importlib.import_module(f"{OURS}.DistributedArray").subcomm_split(mask, comm)
    assert group.size == mask.count(comm.rank % 2)
    monkeypatch.setenv("NCCL_PYLOPS_MPI", "0")
    with pytest.raises(RuntimeError, match="NCCL_PYLOPS_MPI"):
        pylops_mpi.utils._nccl.nccl_split(mask)


def test_allgather_needs_one_dtype(comm) -> None:
    from mpi4py import MPI

    if comm.size == 1:
        pytest.skip("one rank has one dtype")
    part = np.zeros(0) if comm.rank == 0 else np.ones(2, np.float32)
    with pytest.raises(UnsupportedTypeError, match="one dtype, not float64, float32"):
        mpi_allgather(MPI.COMM_WORLD, part)
