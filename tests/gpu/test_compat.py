"""PyLops-MPI's interface with CuPy arrays, with its NCCL communicator and without: against the same on the host."""

from __future__ import annotations

import numpy as np
import pylops
import pytest

import collops.compat.pylops_mpi as pylops_mpi
from collops.compat.pylops_mpi.optimization.eigs import power_iteration
from collops.compat.pylops_mpi.utils._nccl import initialize_nccl_comm
from tests.operators.problems import assert_close, vector

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

Distributed, Partition = pylops_mpi.DistributedArray, pylops_mpi.Partition
DIMS = (9, 6)


@pytest.fixture(params=[False, True], ids=["plain", "nccl"])
def nccl(comm, request):
    """The argument base_comm_nccl."""
    if not request.param:
        return None
    if comm.size > 1 and comm.device_transport != "nccl":
        pytest.skip("device arrays do not go by NCCL")
    return initialize_nccl_comm()


def both(values, nccl, **options):
    """Return an array on the host and on the device."""
    host = Distributed.to_dist(values, **options)
    device = Distributed.to_dist(cupy.asarray(values), base_comm_nccl=nccl, **options)
    assert device.engine == "cupy" and device.base_comm_nccl is nccl
    return host, device


def close(device, host) -> None:
    assert_close(cupy.asnumpy(device.asarray()), host.asarray())


@pytest.mark.parametrize("partition", list(Partition))
def test_arrays(nccl, partition) -> None:
    x, dx = both(vector(54, "complex128", 1).reshape(DIMS), nccl, partition=partition, axis=1)
    for made, expected in ((dx + dx, x + x), (2j * dx, 2j * x), (dx.conj(), x.conj()), (dx - dx, x - x)):
        close(made, expected)
    assert dx.dot(dx, vdot=True) == pytest.approx(x.dot(x, vdot=True))
    assert dx.norm() == pytest.approx(x.norm())
    np.testing.assert_allclose(cupy.asnumpy(dx.norm(2, axis=0)), x.norm(2, axis=0))
    close(dx.redistribute(0), x.redistribute(0))
    close(dx.ravel(), x.ravel())
    if partition is Partition.SCATTER:
        assert_close(cupy.asnumpy(dx.add_ghost_cells(1, 2)), x.add_ghost_cells(1, 2))


def test_operators_and_solvers(comm, nccl) -> None:
    matrix = vector(30, "float64", 1).reshape(6, 5)
    # As in the peer's documentation.
    host = pylops_mpi.MPIVStack([pylops.MatrixMult(matrix + comm.rank)])
    device = pylops_mpi.MPIVStack([pylops.MatrixMult(cupy.asarray(matrix + comm.rank))])
    x, dx = both(vector(5, "float64", 2), nccl, partition=Partition.BROADCAST)
    close(device @ dx, host @ x)
    close(device.H @ (device @ dx), host.H @ (host @ x))
    options = {"niter": 4, "tol": 0.0, "damp": 0.1}
    found = pylops_mpi.cgls(device, device @ dx, dx.zeros_like(), **options)
    expected = pylops_mpi.cgls(host, host @ x, x.zeros_like(), **options)
    assert_close(cupy.asnumpy(found[0].asarray()), expected[0].asarray(), factor=1000)
    np.testing.assert_allclose(found[5], expected[5], rtol=1e-8, atol=1e-10)
    value, *_ = power_iteration(device.H @ device, dx.empty_like(), niter=100, backend="cupy")
    assert value == pytest.approx(power_iteration(host.H @ host, x.empty_like(), niter=100)[0], rel=1e-3)


def test_local_operator_on_copies(nccl) -> None:
    matrix = vector(30, "float64", 1).reshape(6, 5)
    x, dx = both(vector(5, "float64", 2), nccl, partition=Partition.BROADCAST)
    host, device = (pylops_mpi.MPILinearOperator(pylops.MatrixMult(m)) for m in (matrix, cupy.asarray(matrix)))
    close(device @ dx, host @ x)
    close(device.H @ (device @ dx), host.H @ (host @ x))


def test_derivatives_in_a_regularized_inversion(comm, nccl) -> None:
    x, dx = both(vector(54, "float64", 2), nccl)
    laplacian = pylops_mpi.MPILaplacian(DIMS)
    x, dx = laplacian @ x, laplacian @ dx
    close(dx, x)
    close(pylops_mpi.MPIGradient(DIMS) @ dx, pylops_mpi.MPIGradient(DIMS) @ x)
    weights = np.linspace(1.0, 2.0, x.local_shape[0])
    ops = [pylops_mpi.MPIBlockDiag([pylops.Diagonal(w)]) for w in (weights, cupy.asarray(weights))]
    found = []
    for diagonal, start in zip(ops, (x, dx), strict=True):
        op = pylops_mpi.MPIStackedVStack([diagonal, 0.3 * laplacian])
        data = pylops_mpi.StackedDistributedArray([diagonal @ start, start.zeros_like()])
        found.append(pylops_mpi.cgls(op, data, start.zeros_like(), niter=8, tol=0.0)[0])
    assert_close(cupy.asnumpy(found[1].asarray()), found[0].asarray(), factor=1000)
