"""Derivatives on any layout against serial PyLops, forward and adjoint; and what is sent for them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pylops
import pytest

from collops import profile
from collops.array import Layout, StackedArray, StackedLayout, random, zeros
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import BlockDiag, FirstDerivative, Gradient, Laplacian, SecondDerivative, StackedVStack
from collops.operators.derivatives.kernels.array_kernels import ArrayKernel
from collops.solvers import cgls

from .problems import assert_same, distributed, layouts, part, values

DTYPES = ["f4", "f8", "c8", "c16"]
KINDS = [("forward", True), ("backward", False), ("centered", False), ("centered", True)]
FIRST = [*((*kind, 3) for kind in KINDS), ("centered", False, 5), ("centered", True, 5)]


def check(op, serial, comm, dtype) -> None:
    """Compare an operator from one array to one array with PyLops', both ways, with and without out."""
    layout = op.domain
    x, y = values(layout.shape, dtype, 1), values(layout.shape, dtype, 2)
    for apply, given, expected in (
        (op.forward, x, serial.matvec(x.ravel())),
        (op.adjoint, y, serial.rmatvec(y.ravel())),
    ):
        wanted = part(expected.reshape(layout.shape), layout, comm)
        out = zeros(layout, comm=comm, dtype=dtype)
        out.fill(np.nan)
        for target in (None, out):
            source = distributed(given, layout, comm)
            result = apply(source, target)
            assert target is None or result is target
            assert result.layout is layout and result.dtype == np.dtype(dtype)
            assert_same(result.local_array, wanted, dtype)
            np.testing.assert_array_equal(source.local_array, part(given, layout, comm))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "edge", "order"), FIRST)
def test_first_derivative(comm, kind, edge, order, dtype):
    for layout in layouts(comm.size):
        for axis in range(layout.ndim):
            op = FirstDerivative(layout, axis, 0.5, kind, edge, order, comm=comm, dtype=dtype)
            serial = pylops.FirstDerivative(layout.shape, axis, 0.5, kind, edge, order, dtype=dtype)
            if order == 5 and edge and layout.shape[axis] == 3:
                continue  # of three points, PyLops' adjoint is not that of its forward
            check(op, serial, comm, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "edge"), KINDS)
def test_second_derivative(comm, kind, edge, dtype):
    for layout in layouts(comm.size):
        for axis in range(-layout.ndim, 0):
            op = SecondDerivative(layout, axis, 0.5, kind, edge, comm=comm, dtype=dtype)
            check(op, pylops.SecondDerivative(layout.shape, axis, 0.5, kind, edge, dtype=dtype), comm, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "edge"), KINDS)
def test_laplacian(comm, kind, edge, dtype):
    for layout in layouts(comm.size):
        for axes in [(0,)] if layout.ndim == 1 else [(-2, -1), (-1, *range(layout.ndim - 1))]:
            weights, sampling = (1.0, -0.25, 3.0)[: len(axes)], (1.0, 0.5, 2.0)[: len(axes)]
            op = Laplacian(layout, axes, weights, sampling, edge, kind, comm=comm, dtype=dtype)
            if layout.ndim == 1:
                serial = pylops.SecondDerivative(layout.shape, 0, 1.0, kind, edge, dtype=dtype)
            else:
                serial = pylops.Laplacian(layout.shape, axes, weights, sampling, edge, kind, dtype=dtype)
            check(op, serial, comm, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "edge"), KINDS)
def test_gradient(comm, kind, edge, dtype):
    for layout in layouts(comm.size):
        sampling = [0.5, 1.0, 2.0][: layout.ndim]
        op = Gradient(layout, sampling, edge, kind, comm=comm, dtype=dtype)
        assert op.range is StackedLayout([layout] * layout.ndim)
        x, ys = values(layout.shape, dtype, 1), [values(layout.shape, dtype, 3 + axis) for axis in range(layout.ndim)]
        serial = [
            pylops.FirstDerivative(layout.shape, axis, step, kind, edge, dtype=dtype)
            for axis, step in enumerate(sampling)
        ]
        for out in (None, zeros(op.range, comm=comm, dtype=dtype)):
            result = op.forward(distributed(x, layout, comm), out)
            for one, derivative in zip(result.arrays, serial, strict=True):
                expected = derivative.matvec(x.ravel()).reshape(layout.shape)
                assert_same(one.local_array, part(expected, layout, comm), dtype)
        y = StackedArray([distributed(one, layout, comm) for one in ys])
        for out in (None, zeros(layout, comm=comm, dtype=dtype)):
            expected = sum(derivative.rmatvec(one.ravel()) for derivative, one in zip(serial, ys, strict=True))
            result = op.adjoint(y, out)
            assert_same(result.local_array, part(expected.reshape(layout.shape), layout, comm), dtype)


def test_gradient_into_arrays_of_two_dtypes(comm, monkeypatch):
    """A kernel writes arrays of one dtype: on a device, wider numbers would be written beyond the end of an array."""
    given, run = [], ArrayKernel.run

    def run_and_note(self, part, sources, targets, *others):
        given.extend(array.dtype for array in (*sources, *targets))
        return run(self, part, sources, targets, *others)

    monkeypatch.setattr(ArrayKernel, "run", run_and_note)
    for layout in layouts(comm.size):
        op = Gradient(layout, comm=comm)
        x = values(layout.shape, "f8", 1)
        dtypes = [("f8", "f4")[axis % 2] for axis in range(layout.ndim)]
        out = StackedArray([zeros(layout, comm=comm, dtype=dtype) for dtype in dtypes])
        memory = [leaf.local_array for leaf in out.leaves]
        assert op.forward(distributed(x, layout, comm), out) is out
        for axis, (leaf, dtype) in enumerate(zip(out.leaves, dtypes, strict=True)):
            expected = pylops.FirstDerivative(layout.shape, axis).matvec(x.ravel()).reshape(layout.shape)
            assert leaf.local_array is memory[axis]
            assert_same(leaf.local_array, part(expected, layout, comm).astype(dtype), dtype)
    assert set(given) == {np.dtype("f8")}


@pytest.mark.parametrize("dtype", DTYPES)
def test_dot_tests(comm, dtype):
    for layout in layouts(comm.size):
        edge = min(layout.shape) > 2
        for op in (
            FirstDerivative(layout, -1, edge=edge, order=5, comm=comm, dtype=dtype),
            SecondDerivative(layout, 0, edge=edge, comm=comm, dtype=dtype),
            Laplacian(layout, range(layout.ndim), *[[2.0] * layout.ndim] * 2, edge=edge, comm=comm, dtype=dtype),
            Gradient(layout, 0.5, edge=edge, comm=comm, dtype=dtype),
        ):
            assert op.dottest()


def test_large_blocks(comm):
    """More than one block of the cache, in all axes."""
    layout = Layout.split((37 * comm.size, 3, 2000), comm.size)
    x = values(layout.shape, "f8", 1)
    for op, serial in (
        (Laplacian(layout, (0, 1, 2), (1, 2, 3), (1, 1, 1), True, comm=comm), (0, 1, 2)),
        (SecondDerivative(layout, 2, edge=True, comm=comm), (2,)),
    ):
        weights = (1, 2, 3) if len(serial) == 3 else (1,)
        expected = sum(
            weight * pylops.SecondDerivative(layout.shape, axis, edge=True).matvec(x.ravel())
            for axis, weight in zip(serial, weights, strict=True)
        ).reshape(layout.shape)
        assert_same(op.forward(distributed(x, layout, comm)).local_array, part(expected, layout, comm), "f8")
    vector = Layout.split(200_000 * comm.size, comm.size)
    x = values(vector.shape, "f4", 2)
    expected = pylops.FirstDerivative(vector.shape, kind="centered", order=5, edge=True, dtype="f4").matvec(x)
    op = FirstDerivative(vector, order=5, edge=True, comm=comm, dtype="f4")
    assert_same(op.forward(distributed(x, vector, comm)).local_array, part(expected, vector, comm), "f4")


def neighbours(comm) -> int:
    """How many ranks are next to this one."""
    return (comm.rank > 0) + (comm.rank < comm.size - 1)


def test_one_exchange_along_split_axes_and_none_along_others(comm):
    shape = (6 * comm.size, 5)
    split = {"exchange": 1} if comm.size > 1 else {}
    for op, counts in (
        (FirstDerivative(shape, 0, comm=comm), split),
        (FirstDerivative(shape, 1, comm=comm), {}),
        (SecondDerivative(shape, 0, comm=comm), split),
        (SecondDerivative(shape, 1, comm=comm), {}),
        (Laplacian(shape, comm=comm), split),
        (Laplacian(shape, (1,), (1,), (1,), comm=comm), {}),
        (Gradient(shape, comm=comm), split),
    ):
        x, y = random(op.domain, comm=comm), random(op.range, comm=comm)
        for apply, given in ((op.forward, x), (op.adjoint, y)):
            with profile.count_messages() as messages:
                apply(given)
            assert messages.counts() == counts, op
            if counts:
                assert messages.records[0].elements == neighbours(comm) * 5


def test_one_exchange_for_all_axes_of_a_process_grid(comm):
    if comm.size % 2:
        pytest.skip("needs an even number of ranks")
    layout = Layout.grid((8, 4 * comm.size), (2, comm.size // 2))
    for op in (Laplacian(layout, comm=comm), Gradient(layout, comm=comm)):
        x, y = random(op.domain, comm=comm), random(op.range, comm=comm)
        with profile.count_messages() as messages:
            op.adjoint(op.forward(x, y))
        assert messages.counts() == {"exchange": 2}


def test_one_sided_formulas_send_one_way(comm):
    op = FirstDerivative(4 * comm.size, kind="forward", comm=comm)
    if comm.size == 1:
        return
    for apply, elements in ((op.forward, comm.rank > 0), (op.adjoint, comm.rank < comm.size - 1)):
        with profile.count_messages() as messages:
            apply(random(op.domain, comm=comm))
        assert messages.records[0].elements == elements


def test_iteration_of_a_regularized_solver(comm):
    """[BlockDiag; Laplacian]: two exchanges, at most two scalar allreduces, and nothing else."""
    layout = Layout.split((5 * comm.size, 4), comm.size)
    n = layout.local_size(comm.rank)
    blocks = BlockDiag([pylops.FirstDerivative(layout.local_shape(comm.rank), axis=0) if n else np.eye(0)], comm)
    op = StackedVStack([blocks, Laplacian(layout, comm=comm).flat])
    data = op.forward(random(op.domain, comm=comm, seed=3))

    def sent(niter):
        with profile.count_messages() as messages:
            cgls(op, data, niter=niter, tol=0.0)
        return messages.counts()

    few, many = sent(3), sent(7)
    difference = {name: many[name] - few.get(name, 0) for name in many}
    if comm.size == 1:
        assert not any(difference.values())
        return
    assert difference.pop("exchange") == 4 * 2
    assert 0 < difference.pop("allreduce") <= 4 * 2
    assert not any(difference.values())


def test_types(comm):
    op = FirstDerivative(4 * comm.size, comm=comm, dtype="f4")
    assert op.forward(random(op.domain, comm=comm, dtype="f4")).dtype == np.float32
    x = random(op.domain, comm=comm, dtype="c16")
    assert op.forward(x).dtype == np.complex128
    with pytest.raises(UnsupportedTypeError, match="does not fit"):
        op.forward(x, zeros(op.range, comm=comm, dtype="f4"))
    with pytest.raises(UnsupportedTypeError, match="complex weights"):
        Laplacian((4 * comm.size, 3), weights=(0.5 + 1j, 1), comm=comm)
    integers = zeros(op.domain, comm=comm, dtype="i8")
    assert op.forward(integers).dtype == np.float64
    half = FirstDerivative(4 * comm.size, comm=comm, dtype="f2")
    x = random(op.domain, comm=comm, dtype="f4").astype("f2")
    expected = half.forward(x.astype("f4")).local_array
    np.testing.assert_allclose(half.forward(x).local_array, expected, atol=1e-2)


def test_shape_is_split_along_its_first_axis(comm):
    op = Laplacian((5, 6), comm=comm)
    assert op.domain is op.range is Layout.split((5, 6), comm.size)
    assert Gradient(7, comm=comm).domain is Layout.split(7, comm.size)


def test_nothing_at_all(comm):
    op = SecondDerivative((0, 3), comm=comm)
    assert op.forward(zeros(op.domain, comm=comm)).local_array.size == 0
    assert op.adjoint(zeros(op.domain, comm=comm)).local_array.size == 0


def test_refused(comm):
    for wrong in (
        lambda: FirstDerivative(5, kind="upwind", comm=comm),
        lambda: FirstDerivative(5, order=4, comm=comm),
        lambda: SecondDerivative(5, sampling=0, comm=comm),
        lambda: Laplacian((5, 5), (0, 1), (1,), (1, 1), comm=comm),
        lambda: Laplacian((5, 5), (0, 0), comm=comm),
        lambda: Laplacian((5, 5), (), (), (), comm=comm),
        lambda: Gradient((5, 5), (1, 1, 1), comm=comm),
    ):
        with pytest.raises(InputError):
            wrong()
    for wrong in (
        lambda: FirstDerivative(5, 1, comm=comm),
        lambda: FirstDerivative(1, edge=True, comm=comm),
        lambda: SecondDerivative((5, 2), 1, edge=True, comm=comm),
        lambda: Laplacian(5, comm=comm),
        lambda: FirstDerivative(Layout.split(5, comm.size + 1), comm=comm),
    ):
        with pytest.raises(LayoutError):
            wrong()


def test_only_exchanges_that_take_long_overlap(comm, monkeypatch):
    """Messages of four doubles: GPUs of one host pass up to `limit` bytes faster than they launch a second kernel."""
    if comm.size == 1:
        pytest.skip("one rank sends nothing")
    stencil, _ = FirstDerivative((3 * comm.size, 4), comm=comm)._stencils
    assert stencil._takes_long(np.zeros(4))
    for limit, long in ((31, True), (32, False)):
        transport = SimpleNamespace(sends_short=lambda nbytes, limit=limit: nbytes <= limit)
        monkeypatch.setattr(type(comm), "transport_of", lambda _, __, transport=transport: transport)
        assert stencil._takes_long(np.zeros(4)) is long
