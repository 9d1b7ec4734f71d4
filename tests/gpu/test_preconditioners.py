"""Multigrid on device arrays against the same on the host; launched, and replayed in a solver's CUDA graph."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops.preconditioners import multigrid
from tests.preconditioners.test_multigrid import cube_of_27_points, plane, split

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture(autouse=True)
def device(comm):
    """A device, and a transport for it."""
    if comm.device_transport is None and comm.size > 1:
        pytest.skip("no device on every rank")


@pytest.mark.parametrize("make", [lambda: plane(40, 1e-3), lambda: cube_of_27_points(11)])
def test_multigrid(comm, make):
    A = split(make(), comm)
    M = multigrid(A)
    x = collops.random(A.rows, seed=1, comm=comm)
    y = collops.random(A.rows, seed=1, comm=comm, engine="cupy")
    np.testing.assert_allclose(cupy.asnumpy((M @ y).gather()), (M @ x).gather(), rtol=1e-11, atol=1e-11)
    on_host = collops.cg(A, x, niter=60, rtol=1e-8, M=M)
    for graph in (False, M.capturable):
        result = collops.cg(A, y, niter=60, rtol=1e-8, M=M, graph=graph)
        assert result.iterations == on_host.iterations
        np.testing.assert_allclose(cupy.asnumpy(result.x.gather()), on_host.x.gather(), rtol=1e-7, atol=1e-7)
