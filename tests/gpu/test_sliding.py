"""Sliding windows and patches on devices: against the host, and as a replayed CUDA graph."""

from __future__ import annotations

import pytest

from collops.array import from_global
from collops.operators import Patch, Sliding
from collops.solvers import cgls
from tests.array.cases import values
from tests.operators.problems import matrix
from tests.solvers.problems import assert_close

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

DTYPES = ["f4", "f8", "c8", "c16"]
REPLAYED = "replayed CUDA graph"


def operators(A, comm) -> list[Sliding]:
    """Windows along one axis of two, and along two, with the matrix `A` for each."""
    return [
        Sliding(A, (7 * 4, 3), (36, 5), 6, 1, comm=comm),
        Patch(A, (3 * 4, 4 * 3), (15, 17), (6, 5), (2, 1), (4, 3), savetaper=False, comm=comm),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_as_on_the_host(comm, dtype):
    """With a matrix on the device, one on the host, and an operator that is applied to one window after another."""
    A = matrix(30, 12, dtype, 1)
    for host, *others in zip(operators(A, comm), operators(cupy.asarray(A), comm), strict=True):
        for op in (host, *others):
            for name, layout in (("forward", op.domain), ("adjoint", op.range)):
                x = values(layout.shape, dtype, 1)
                expected = getattr(host, name)(from_global(x, layout, comm=comm)).gather()
                given = from_global(cupy.asarray(x), layout, comm=comm)
                for _ in range(2):
                    assert_close(getattr(op, name)(given).gather().get(), expected, dtype)
            assert op.dottest(engine="cupy")


@pytest.mark.parametrize("number", [0, 1])
def test_within_a_solver(comm, number):
    host, op = (operators(A, comm)[number] for A in (matrix(30, 12, "f8", 1), cupy.asarray(matrix(30, 12, "f8", 1))))
    y = values(op.dimsd, "f8", 1)
    expected = cgls(host, from_global(y, host.range, comm=comm), niter=6, tol=0).x.gather()
    result = cgls(op, from_global(cupy.asarray(y), op.range, comm=comm), niter=6, tol=0, graph=True)
    assert op.capturable and result.execution == REPLAYED
    assert_close(result.x.gather().get(), expected, factor=10)
