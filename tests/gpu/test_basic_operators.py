"""Identity, Diagonal, Restriction, Sum, Transpose, Zero and varying convolution on devices: against the host."""

from __future__ import annotations

import numpy as np
import pytest

from collops.array import DistributedArray, Layout, from_global, random
from collops.operators import (
    BlockDiag,
    Diagonal,
    Identity,
    NonStationaryConvolve1D,
    Restriction,
    StackedVStack,
    Sum,
    Transpose,
    Zero,
)
from collops.solvers import cgls
from tests.operators.problems import assert_close, matrix

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

DTYPES = ["f4", "f8", "c8", "c16"]
SHAPE = (23, 4, 19)
REPLAYED = "replayed CUDA graph"


def layouts(ranks: int) -> list[Layout]:
    grid = (2, ranks // 2, 1) if ranks % 2 == 0 else (1, 1, ranks)
    return [Layout.split(SHAPE, ranks), Layout.grid(SHAPE, grid), Layout.replicated(SHAPE, ranks)]


def on_device(x: DistributedArray) -> DistributedArray:
    return DistributedArray(x.layout, x.comm, cupy.asarray(x.local_array))


def check(op, comm, dtype, factor: float = 1.0) -> None:
    """Compare an operator on the device with itself on the host, launched and as a replayed graph."""
    x, y = random(op.domain, comm=comm, dtype=dtype, seed=1), random(op.range, comm=comm, dtype=dtype, seed=2)
    for apply, given, layout in ((op.forward, x, op.range), (op.adjoint, y, op.domain)):
        expected = apply(given).local_array
        there, out = on_device(given), random(layout, comm=comm, dtype=dtype, engine="cupy")
        result = apply(there, out)
        assert result is out and result.layout is layout
        assert_close(out.local_array.get(), expected, dtype, factor)
        assert_close(apply(there).local_array.get(), expected, dtype, factor)
        with cupy.cuda.Stream(non_blocking=False) as stream:
            pool = cupy.cuda.MemoryPool()
            with cupy.cuda.using_allocator(pool.malloc):
                apply(there, out)
                out.local_array.fill(7)
                stream.begin_capture()
                apply(there, out)
                graph = stream.end_capture()
                graph.launch(stream)
            stream.synchronize()
            assert_close(out.local_array.get(), expected, dtype, factor)
    assert op.dottest(engine="cupy")


@pytest.mark.parametrize("dtype", DTYPES)
def test_basic_operators(comm, dtype):
    diagonal = matrix(SHAPE[0], SHAPE[1] * SHAPE[2], dtype, 1).reshape(SHAPE)
    for layout in layouts(comm.size):
        check(Identity(layout, comm=comm, dtype=dtype), comm, dtype)
        check(Identity((20, 4, 7), layout, comm=comm, dtype=dtype), comm, dtype)
        check(Zero((3, 4), layout, comm=comm, dtype=dtype), comm, dtype)
        check(Diagonal(diagonal, layout, comm=comm), comm, dtype)
        check(Diagonal(diagonal[:, 0, 0], layout, 0, comm=comm), comm, dtype)
        check(Transpose(layout, (2, 0, 1), comm=comm, dtype=dtype), comm, dtype)
        for axis in range(3):
            check(Sum(layout, axis, comm=comm, dtype=dtype), comm, dtype)


def test_a_diagonal_that_is_on_the_device(comm):
    host = from_global(matrix(23, 5, "c8", 1), comm=comm)
    assert_close(
        Diagonal(on_device(host)).forward(on_device(host)).local_array.get(),
        Diagonal(host).forward(host).local_array,
        "c8",
    )
    op = Diagonal(cupy.arange(4, dtype="f8"), (5, 4), comm=comm)
    x = random(op.domain, comm=comm, engine="cupy")
    assert_close(op.forward(x).local_array.get(), x.local_array.get() * np.arange(4.0))


@pytest.mark.parametrize("indices", [[0, 2, 3, 22], [1, 3, 5], [0, 2, 2, 2, 6, -1], [6, 5, 4, 2, 0], [3, 0, 6, 3, -1]])
@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_restriction(comm, indices, dtype):
    for layout in layouts(comm.size):
        for rebalance in (False, True):
            check(Restriction(layout, indices, 0, rebalance=rebalance, comm=comm, dtype=dtype), comm, dtype)


@pytest.mark.parametrize("taps", [1, 5, 21])
@pytest.mark.parametrize("dtype", DTYPES)
def test_convolution(comm, dtype, taps):
    for layout in layouts(comm.size):
        for axis, ih in ((0, (3, 9, 15)), (1, (0, 1, 2)), (2, (8, 11, 14)), (2, (7,))):
            hs = matrix(len(ih), taps, dtype, 1)
            check(NonStationaryConvolve1D(layout, hs, ih, axis, comm=comm, dtype=dtype), comm, dtype, factor=5)


def test_convolution_of_complex_data_with_real_filters(comm):
    op = NonStationaryConvolve1D((40, 3), matrix(2, 5, "f4", 1), (10, 30), 0, comm=comm, dtype="f4")
    check(op, comm, "c8", factor=5)


def test_replayed_within_a_solver(comm):
    op = NonStationaryConvolve1D((40, 3), matrix(2, 5, "f8", 1), (10, 30), 0, comm=comm)
    y = random(op.range, comm=comm)
    expected = cgls(op, y, niter=6, tol=0)
    result = cgls(op, on_device(y), niter=6, tol=0)
    assert result.execution == REPLAYED
    assert_close(result.x.gather().get(), expected.x.gather(), factor=100)
    stack = StackedVStack([op.flat, BlockDiag([cupy.eye(op.domain.local_size(comm.rank))], comm)])
    assert stack.dottest(engine="cupy")
