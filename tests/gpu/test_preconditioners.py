"""Preconditioners on device arrays against the same on the host; launched, and replayed in a solver's CUDA graph."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops.apps import solve
from collops.apps.recipe import run_job
from collops.errors import InputError, UnsupportedTypeError
from collops.preconditioners import block_jacobi, multigrid, two_level
from tests.apps.jobs import Listener
from tests.preconditioners.matrices import distributed, poisson
from tests.preconditioners.test_multigrid import cube_of_27_points, plane, split

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


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


def test_multigrid_in_single_precision_and_refreshed(comm):
    """Vectors remain in double precision; device copies of the matrices are made again."""
    A, B = (split(factor * cube_of_27_points(11) * np.pi, comm) for factor in (1, 2))
    y = collops.random(A.rows, seed=1, comm=comm, engine="cupy")
    exact, rounded = multigrid(A), multigrid(A, single_precision=True)
    difference = float((rounded @ y - exact @ y).norm()) / float((exact @ y).norm())
    assert 1e-9 < difference < 1e-6
    iterations = [collops.cg(A, y, niter=60, rtol=1e-8, M=M).iterations for M in (exact, rounded)]
    assert iterations[0] == iterations[1]
    for M in (exact, rounded):
        before = M @ y
        M.refresh(B)
        np.testing.assert_allclose(
            cupy.asnumpy((2 * (M @ y)).gather()), cupy.asnumpy(before.gather()), rtol=1e-6, atol=1e-9
        )


KINDS = {
    "dense blocks": lambda A: block_jacobi(A, "dense", block_size=5),
    "ILU(0)": lambda A: block_jacobi(A, "ilu0"),
    "two levels": lambda A: two_level(A, aggregates=20),
    "two levels, blocks": lambda A: two_level(A, block_jacobi(A, "ilu0"), aggregates=20),
}


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("name", KINDS)
def test_blocks_and_two_levels(comm, name, dtype):
    """Also for vectors of another type than the matrix; the step of CG is recorded where the messages can be."""
    A = distributed(poisson(7, dtype=dtype), comm)
    M = KINDS[name](A)
    for kind, tolerance in ((dtype, 1e-11), ("c8", 1e-4)):
        x, y = (collops.random(A.rows, seed=1, comm=comm, dtype=kind, engine=engine) for engine in ("numpy", "cupy"))
        for op in (M, M.H):
            found = op @ y
            np.testing.assert_allclose(cupy.asnumpy(found.gather()), (op @ x).gather(), rtol=tolerance, atol=tolerance)
    x, y = (collops.random(A.rows, seed=2, comm=comm, dtype=dtype, engine=engine) for engine in ("numpy", "cupy"))
    on_host = collops.cg(A, x, niter=60, rtol=1e-8, M=M)
    assert M.capturable or not A.capturable
    for graph in (False, A.capturable):
        result = collops.cg(A, y, niter=60, rtol=1e-8, M=M, graph=graph)
        assert result.iterations == on_host.iterations
        np.testing.assert_allclose(cupy.asnumpy(result.x.gather()), on_host.x.gather(), rtol=1e-7, atol=1e-7)


def test_factors_on_the_host_raise(comm):
    A = distributed(poisson(3), comm)
    with pytest.raises(UnsupportedTypeError, match=r"on devices use block_jacobi\(A, 'ilu0'\)"):
        block_jacobi(A) @ collops.ones(A.rows, comm=comm, engine="cupy")


@pytest.mark.parametrize("precondition", ["two-level", "multigrid"])
def test_the_command_solves_on_devices(comm, tmp_path, precondition):
    folder = comm.allgather_metadata(str(tmp_path))[0]
    options = {"points": 340, "precondition": precondition, "partition": "rows", "out": folder, "tol": 1e-8}
    host, device = (
        run_job(solve.run, solve.Options(engine=engine, overwrite=True, **options), comm, Listener()).numbers
        for engine in ("numpy", "cupy")
    )
    assert device["engine"] == "cupy" and device["iterations"] == host["iterations"]
    assert device["relative_error"] == pytest.approx(host["relative_error"], rel=1e-3)


def test_the_command_cannot_use_factors_on_devices(comm, tmp_path):
    folder = comm.allgather_metadata(str(tmp_path))[0]
    with pytest.raises(InputError, match="block-jacobi runs on the host only"):
        options = solve.Options(points=60, engine="cupy", precondition="block-jacobi", out=folder)
        run_job(solve.run, options, comm, Listener())
