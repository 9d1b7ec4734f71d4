"""PyLops-MPI's module of NCCL and its mix-in class on GPUs: ours, the peer's where it is installed, and NumPy."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np
import pytest

import collops.compat.pylops_mpi as pylops_mpi
from collops.compat.pylops_mpi.Distributed import DistributedMixIn
from collops.compat.pylops_mpi.utils._nccl import initialize_nccl_comm

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

PACKAGES = [
    "collops.compat.pylops_mpi",
    pytest.param(
        "pylops_mpi",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("pylops_mpi") is None, reason="PyLops-MPI is not installed: ours alone is checked"
        ),
    ),
]
_nccl: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _nccl(device, comm):
    """Skip if device arrays are sent without NCCL."""
    if comm.size > 1 and comm.device_transport != "nccl":
        pytest.skip("device arrays do not go by NCCL")


def peers_communicator(comm) -> Any:
    """Make CuPy's NCCL communicator on the devices that the ranks use already; the peer's function chooses others."""
    nccl = importlib.import_module("cupy.cuda.nccl")
    if not nccl.available:
        pytest.skip("CuPy finds no NCCL, which PyLops-MPI needs")
    from mpi4py import MPI

    unique_id = MPI.COMM_WORLD.bcast(nccl.get_unique_id() if comm.rank == 0 else None)
    return nccl.NcclCommunicator(comm.size, unique_id, comm.rank)


@pytest.fixture(params=PACKAGES)
def package(request, comm) -> tuple[Any, Any, Any]:
    """The module of NCCL, an NCCL communicator, and an object of a class derived from the mix-in."""
    if request.param not in _nccl:
        ours = request.param.startswith("collops")
        _nccl[request.param] = initialize_nccl_comm() if ours else peers_communicator(comm)
    module = importlib.import_module(f"{request.param}.utils._nccl")
    mix_in = importlib.import_module(f"{request.param}.Distributed").DistributedMixIn
    return module, _nccl[request.param], type("Operator", (mix_in,), {})()


def values(rank: int, n: int, dtype: str = "float64") -> np.ndarray:
    found = (np.arange(n) + 2 * rank + 1).astype(dtype)
    return found * (1 - 2j) if dtype.startswith("complex") else found


@pytest.mark.parametrize("dtype", ["float32", "complex128", "int64"])
def test_collective_functions(comm, package, dtype) -> None:
    module, nccl, _ = package
    sent = cupy.asarray(values(comm.rank, 5, dtype))
    every = [values(rank, 5, dtype) for rank in range(comm.size)]
    np.testing.assert_array_equal(module.nccl_allreduce(nccl, sent).get(), sum(every))
    np.testing.assert_array_equal(module.nccl_allgather(nccl, sent).get(), np.concatenate(every))
    into = cupy.zeros(5 * comm.size, dtype)
    assert module.nccl_allgather(nccl, sent, recv_buf=into) is into
    np.testing.assert_array_equal(into.get(), np.concatenate(every))
    module.nccl_bcast(nccl, sent, comm.size - 1)
    np.testing.assert_array_equal(sent.get(), every[-1])


def test_gathering_of_uneven_parts(comm, package) -> None:
    module, nccl, operator = package
    from mpi4py import MPI

    unroll = importlib.import_module(module.__name__.replace("_nccl", "_common"))._unroll_allgather_recv
    local = cupy.asarray(values(comm.rank, 3 + comm.rank))
    shapes = MPI.COMM_WORLD.allgather(local.shape)
    sent, received = module._prepare_allgather_inputs_nccl(local, shapes, engine="cupy")
    parts = unroll(module.nccl_allgather(nccl, sent, received), sent.shape, shapes)
    gathered = operator._allgather(MPI.COMM_WORLD, nccl, local, engine="cupy")
    joined = module.nccl_asarray(nccl, local, shapes, 0)
    for rank in range(comm.size):
        np.testing.assert_array_equal(parts[rank].get(), values(rank, 3 + rank))
        np.testing.assert_array_equal(gathered[rank].get(), values(rank, 3 + rank))
    np.testing.assert_array_equal(joined.get(), np.concatenate([values(r, 3 + r) for r in range(comm.size)]))


def test_messages(comm, package) -> None:
    module, nccl, operator = package
    if comm.size == 1:
        pytest.skip("messages need two ranks")
    sent, ring, chain = cupy.asarray(values(comm.rank, 4)), cupy.zeros(4), cupy.zeros(4)
    before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    module.nccl_sendrecv(nccl, sent, after, ring, before)
    np.testing.assert_array_equal(ring.get(), values(before, 4))
    if comm.rank:
        operator._recv(None, nccl, chain, comm.rank - 1, count=2, engine="cupy")
    if comm.rank < comm.size - 1:
        operator._send(None, nccl, sent, comm.rank + 1, count=2, engine="cupy")
    np.testing.assert_array_equal(chain.get()[:2], values(comm.rank - 1, 2) if comm.rank else [0.0, 0.0])


@pytest.mark.parametrize("plain", [False, True], ids=["nccl", "plain"])
def test_mix_in(comm, package, plain) -> None:
    module, nccl, operator = package
    from mpi4py import MPI

    if plain:
        nccl = None
    sent = cupy.asarray(values(comm.rank, 4))
    every = [values(rank, 4) for rank in range(comm.size)]
    reduced = operator._allreduce(MPI.COMM_WORLD, nccl, sent, engine="cupy")
    np.testing.assert_array_equal(reduced.get(), sum(every))
    found = operator._bcast(MPI.COMM_WORLD, nccl, sent, root=comm.size - 1, engine="cupy")
    np.testing.assert_array_equal(found.get(), every[-1])
    mask = [rank % 2 for rank in range(comm.size)]
    group = MPI.COMM_WORLD.Split(mask[comm.rank]) if plain else module.nccl_split(mask)
    sent = cupy.asarray(values(comm.rank, 4))
    reduced = operator._allreduce_subcomm(group, nccl, sent, engine="cupy")
    np.testing.assert_array_equal(reduced.get(), sum(every[comm.rank % 2 :: 2]))


def test_a_users_operator(comm) -> None:
    """Every rank gets the sum of all parts, with arrays that have our NCCL communicator."""

    class Summed(DistributedMixIn, pylops_mpi.MPILinearOperator):
        def _matvec(self, x):
            kind = pylops_mpi.Partition.UNSAFE_BROADCAST
            y = pylops_mpi.DistributedArray(4, x.base_comm, x.base_comm_nccl, kind, engine=x.engine, dtype=x.dtype)
            y[:] = self._allreduce(x.base_comm, x.base_comm_nccl, x.local_array, engine=x.engine)
            return y

    nccl = initialize_nccl_comm()
    x = pylops_mpi.DistributedArray(4 * comm.size, base_comm_nccl=nccl, engine="cupy")
    x[:] = cupy.asarray(values(comm.rank, 4))
    y = Summed(shape=(4, 4 * comm.size), dtype=np.float64) @ x
    np.testing.assert_array_equal(y.local_array.get(), sum(values(rank, 4) for rank in range(comm.size)))
