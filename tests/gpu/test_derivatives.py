"""Derivatives and halos on device arrays: against the same on the host, beside an exchange, and as a replayed graph."""

from __future__ import annotations

import numpy as np
import pylops
import pytest

from collops import profile
from collops.array import DistributedArray, Layout, StackedArray, StackedLayout, dots, from_global, random, zeros
from collops.array.fused import Square
from collops.operators import (
    BlockDiag,
    FirstDerivative,
    Gradient,
    Laplacian,
    LinearOperator,
    SecondDerivative,
    StackedVStack,
)
from collops.operators.halo import Halo
from collops.solvers import cgls
from tests.operators.derivatives.problems import assert_same, layouts, values

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

DTYPES = ["f4", "f8", "c8", "c16"]


@pytest.fixture(params=["exchange first", "exchange beside"])
def beside(request, monkeypatch):
    """Both ways to order the exchange, whatever the size."""

    from collops.operators.derivatives.kernels import cuda

    monkeypatch.setattr(cuda, "_LARGE", 0 if request.param == "exchange beside" else 1 << 60)


def arrays(layout, comm, dtype, seed):
    """One array, or a stack, on the host and on the device."""
    if isinstance(layout, StackedLayout):
        pairs = [arrays(part, comm, dtype, seed + number) for number, part in enumerate(layout)]
        return StackedArray([host for host, _ in pairs]), StackedArray([there for _, there in pairs])
    array = values(layout.shape, dtype, seed)
    host = from_global(array, layout, comm=comm)
    return host, DistributedArray(layout, comm, cupy.asarray(host.local_array))


def check(op, comm, dtype):
    """Compare both ways with the host, twice, with and without out."""
    for apply, given, wanted in ((op.forward, op.domain, op.range), (op.adjoint, op.range, op.domain)):
        host, there = arrays(given, comm, dtype, 5)
        expected = apply(host)
        out = zeros(wanted, comm=comm, dtype=dtype, engine="cupy")
        for leaf in out.leaves:
            leaf.fill(np.nan)
        for target in (None, out, out):
            result = apply(there, target)
            assert target is None or result is target
            for one, other in zip(result.leaves, expected.leaves, strict=True):
                assert_same(one.local_array.get(), other.local_array, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_axis(comm, dtype, beside):
    for layout in layouts(comm.size):
        for axis in range(layout.ndim):
            edge = layout.shape[axis] > 2
            check(FirstDerivative(layout, axis, 0.5, edge=edge, order=5, comm=comm, dtype=dtype), comm, dtype)
            check(SecondDerivative(layout, axis, 0.5, "forward", comm=comm, dtype=dtype), comm, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_axes(comm, dtype, beside):
    for layout in layouts(comm.size):
        ones = [2.0] * layout.ndim
        check(Laplacian(layout, range(layout.ndim), ones, ones, True, comm=comm, dtype=dtype), comm, dtype)
        check(Gradient(layout, 0.5, edge=True, comm=comm, dtype=dtype), comm, dtype)


@pytest.mark.parametrize("shape", [(64, 512), (257, 384), (300, 7), (40, 6, 64)])
def test_larger_arrays(comm, shape, beside):
    layout = Layout.split(shape, comm.size)
    check(Laplacian(layout, comm=comm, dtype="f4"), comm, "f4")
    check(Laplacian(layout, range(len(shape)), *[[1.0] * len(shape)] * 2, True, comm=comm), comm, "f8")
    check(FirstDerivative(layout, comm=comm, dtype="c8"), comm, "c8")


def test_arrays_that_begin_anywhere(comm, beside):
    """Addresses that are no multiples of 16 bytes."""
    layout = Layout.split((4 * comm.size, 8), comm.size)
    op = Laplacian(layout, comm=comm, dtype="f4")
    host, _ = arrays(layout, comm, "f4", 1)
    size = host.local_array.size
    memory, result = cupy.empty(size + 1, "f4"), cupy.full(size + 1, np.nan, "f4")
    memory[1:] = cupy.asarray(host.local_array.ravel())
    x = DistributedArray(layout, comm, memory[1:].reshape(host.local_array.shape))
    out = DistributedArray(layout, comm, result[1:].reshape(host.local_array.shape))
    op.forward(x, out)
    assert_same(out.local_array.get(), op.forward(host).local_array, "f4")


def test_half_precision_by_ufuncs(comm):
    layout = Layout.split((5 * comm.size, 3), comm.size)
    op = FirstDerivative(layout, comm=comm, dtype="f2")
    host, there = arrays(layout, comm, "f2", 1)
    np.testing.assert_allclose(op.forward(there).local_array.get(), op.forward(host).local_array, atol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_halo(comm, dtype):
    for layout in layouts(comm.size):
        check(Halo(layout, 2, comm=comm, dtype=dtype), comm, dtype)


def test_replayed(comm, beside):
    """A captured forward and adjoint give what the launched ones give."""
    layout = Layout.split((16 * comm.size, 64), comm.size)
    for op in (Laplacian(layout, comm=comm, dtype="f4"), Gradient(layout, comm=comm, dtype="f4")):
        _, x = arrays(op.domain, comm, "f4", 2)
        y = op.forward(x)
        back = op.adjoint(y)
        wanted = back.local_array.get()
        stream = cupy.cuda.Stream(non_blocking=False)
        cupy.cuda.get_current_stream().synchronize()
        with stream:
            op.adjoint(op.forward(x, y), back)
            stream.begin_capture()
            op.adjoint(op.forward(x, y), back)
            graph = stream.end_capture()
            back.fill(np.nan)
            for _ in range(3):
                graph.launch(stream)
            stream.synchronize()
        np.testing.assert_array_equal(back.local_array.get(), wanted)


def test_iteration_of_a_regularized_solver(comm, beside):
    layout = Layout.split((8 * comm.size, 16), comm.size)
    n = layout.local_size(comm.rank)
    block = np.eye(n, dtype="f4") - np.eye(n, k=1, dtype="f4")
    host = StackedVStack([BlockDiag([block], comm), Laplacian(layout, comm=comm, dtype="f4").flat])
    there = StackedVStack([BlockDiag([cupy.asarray(block)], comm), Laplacian(layout, comm=comm, dtype="f4").flat])
    data, data_there = arrays(host.range, comm, "f4", 3)
    expected = cgls(host, data, niter=8, tol=0.0)
    with profile.count_messages() as messages:
        result = cgls(there, data_there, niter=8, tol=0.0)
    scale = float(abs(expected.x.local_array).max())
    np.testing.assert_allclose(result.x.local_array.get(), expected.x.local_array, atol=1e-3 * scale)
    if comm.size > 1:
        assert messages["exchange"] in (2 * 8, 2 * 8 + 1)


def regularized(comm, layout, dtype):
    """A derivative of each rank's own rows on top of a Laplacian over all."""
    local = pylops.FirstDerivative(layout.local_shape(comm.rank), axis=0, dtype=np.dtype(dtype).name)
    return StackedVStack([BlockDiag([local], comm), Laplacian(layout, comm=comm, dtype=dtype).flat])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(9, 7), (257, 384), (300, 1024), (64, 21), (4100, 1024)])
def test_squares_of_results(comm, shape, dtype, beside):
    """Kernels add up the squares of what they write: right, and always the same bits."""
    layout = Layout.split((shape[0] * comm.size, shape[1]), comm.size)
    second = Layout.split(layout.shape, comm.size, axis=1)
    for op in (
        FirstDerivative(layout, order=5, comm=comm, dtype=dtype),
        SecondDerivative(second, 1, edge=True, comm=comm, dtype=dtype),
        Laplacian(layout, edge=True, comm=comm, dtype=dtype),
        Gradient(layout, edge=True, comm=comm, dtype=dtype),
        Laplacian(Layout.replicated(shape, comm.size), comm=comm, dtype=dtype),
        regularized(comm, layout, dtype),
    ):
        x, y = (random(side, comm=comm, dtype=dtype, engine="cupy") for side in (op.domain, op.range))
        for apply, both, given in (
            (op._forward, op._forward_and_square, x),
            (op._adjoint, op._adjoint_and_square, y),
        ):
            expected = apply(given, None)
            out = expected.copy()
            for leaf in out.leaves:
                leaf.fill(np.nan)
            found = set()
            for _ in range(4):
                result, square = both(given, out)
                assert all(other is None for _, other in square.parts)
                found.add(float(dots(square)[0]))
            for one, other in zip(result.leaves, expected.leaves, strict=True):
                cupy.testing.assert_array_equal(one.local_array, other.local_array)
            assert len(found) == 1
            double = sum(
                float(cupy.linalg.norm(leaf.local_array.ravel().astype("f8")) ** 2) for leaf in expected.leaves
            )
            shared = op.domain is Layout.replicated(shape, comm.size)
            wanted = double if shared else sum(sum(part) for part in comm.allgather_metadata([double]))
            np.testing.assert_allclose(found.pop(), wanted, rtol=1e-5 if dtype == "f4" else 1e-12)


def test_one_message_for_several_sums(comm):
    layout = Layout.split((16 * comm.size, 64), comm.size)
    op = regularized(comm, layout, "f4")
    result, square = op._forward_and_square(
        random(op.domain, comm=comm, dtype="f4", engine="cupy"), zeros(op.range, comm=comm, dtype="f4", engine="cupy")
    )
    other = random(op.range, comm=comm, dtype="f4", engine="cupy")
    for pairs in ((square,), (square, (other, other)), (square, (result, other), square), (square,) * 3):
        with profile.count_messages() as messages:
            products = dots(*pairs)
        assert messages.total == (comm.size > 1)
        np.testing.assert_allclose(
            [float(value) for value in products], [float(x.dot(y)) for x, y in pairs], rtol=1e-4, atol=1e-2
        )


@pytest.mark.parametrize("name", ["f4", "f8"])
def test_regularized_iterations_with_squares(comm, name, beside, monkeypatch):
    """Replayed, launched, and without the sums of the kernels; 20 steps, so that memory of a step is used again."""
    op = regularized(comm, Layout.split((40 * comm.size, 96), comm.size), name)
    y = random(op.range, seed=1, comm=comm, dtype=name, engine="cupy")
    replayed = cgls(op, y, niter=20, tol=0, graph=True)
    launched = cgls(op, y, niter=20, tol=0, graph=False)
    cupy.testing.assert_array_equal(replayed.x.local_array, launched.x.local_array)
    monkeypatch.setattr(LinearOperator, "_forward_and_square", lambda self, x, out: known(self._forward(x, out)))
    monkeypatch.setattr(LinearOperator, "_adjoint_and_square", lambda self, y, out: known(self._adjoint(y, out)))
    without = cgls(op, y, niter=20, tol=0, graph=False)
    scale = float(abs(without.x.local_array).max())
    atol = (1e-3 if name == "f4" else 1e-10) * scale
    np.testing.assert_allclose(replayed.x.local_array.get(), without.x.local_array.get(), atol=atol)


def known(result):
    """A result and its square, which is still to be computed."""
    return result, Square(result)


def test_one_exchange(comm):
    op = Laplacian((8 * comm.size, 8), comm=comm)
    x = random(op.domain, comm=comm, engine="cupy")
    with profile.count_messages() as messages:
        op.adjoint(op.forward(x))
    assert messages.counts() == ({"exchange": 2} if comm.size > 1 else {})
