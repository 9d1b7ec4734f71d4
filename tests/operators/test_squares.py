"""Results with their squares: operators whose kernels add up what they write, and what is made of them.

Kernels of NumPy pretend to be those of a device: they leave sums of squares, and inner products take these.
"""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pylops
import pytest
from scipy import sparse

from collops import profile
from collops.array import Layout, StackedArray, dots, random, zeros
from collops.array.kernels import numpy_kernels
from collops.comm import alone
from collops.operators import (
    BlockDiag,
    Columns,
    CSRMatrix,
    Diagonal,
    FirstDerivative,
    Gradient,
    HStack,
    Laplacian,
    LinearOperator,
    StackedBlockDiag,
    StackedHStack,
    StackedVStack,
    VStack,
)
from collops.operators.derivatives.kernels.array_kernels import ArrayKernel
from collops.solvers import cgls


def sums_of(*arrays):
    """Partial sums of the squares of arrays, in no natural order."""
    flat = np.concatenate([array.ravel() for array in arrays]).astype("f8")
    return np.array([np.sum(flat[first::3] ** 2) for first in range(3)])


@pytest.fixture
def taken(monkeypatch):
    """Kernels that leave sums of squares; a list of the numbers of them that each inner product takes."""
    run, combine, multiply = ArrayKernel.run, numpy_kernels.axpby, numpy_kernels.dots
    counts = []

    def run_and_sum(self, part, sources, targets, landing, squares=None):
        result = run(self, part, sources, targets, landing)
        if squares is not None and part != "inner":
            squares.append((sums_of(*targets), None))
        return result

    def combine_and_sum(a, x, b, y, out):
        assert combine(a, x, b, y, out) is out
        return sums_of(out)

    def multiply_or_sum(slots, dtype, conjugate):
        counts.extend(sum(y is None for _, y in pairs) for pairs in slots)
        known = [sum(x.sum() for x, y in pairs if y is None) for pairs in slots]
        others = multiply([[(x, y) for x, y in pairs if y is not None] for pairs in slots], dtype, conjugate)
        return (others + known).astype(dtype)

    monkeypatch.setattr(ArrayKernel, "run", run_and_sum)
    monkeypatch.setattr(numpy_kernels, "axpby_and_squares", combine_and_sum, raising=False)
    monkeypatch.setattr(numpy_kernels, "dots", multiply_or_sum)
    return counts


class OwnMemory(LinearOperator):
    """Returns its own array, which the next product overwrites."""

    def __init__(self, size):
        layout = Layout.split(size, 1)
        super().__init__(layout, layout, "f4", alone())
        self.result = zeros(layout, comm=self.comm, dtype="f4")

    def _forward(self, x, out):
        self.result.local_array[:] = 2 * x.local_array
        return self.result

    _adjoint = _forward


def operators(comm):
    """Operators, and the least number of sums that this rank takes, forward and in the adjoint."""
    size, rank = comm.size, comm.rank
    layout = Layout.split((4 * size + 3, 5), size)
    laplacian = Laplacian(layout, comm=comm, dtype="f4")
    local = pylops.FirstDerivative(layout.local_shape(rank), axis=0, dtype="float32")
    derivative = BlockDiag([local], comm)
    n = layout.local_size(rank)
    matrix = np.random.default_rng(rank).standard_normal((rank + 2, n)).astype("f4")
    dense = BlockDiag([matrix], comm)
    own = OwnMemory(n)
    rows = Layout.split((size + 2, 7), size, sizes=[size + 2, *[0] * (size - 1)])
    replicated = Laplacian(Layout.replicated((6, 5), size), comm=comm, dtype="f4")
    return {
        "derivative": (FirstDerivative(layout, 1, comm=comm, dtype="f4"), 1, 1),
        "empty ranks": (Laplacian(rows, comm=comm, dtype="f4"), 1, 1),
        "gradient": (Gradient(layout, comm=comm, dtype="f4"), 1, 1),
        "replicated": (replicated, 1, 1),
        "flat": (laplacian.flat, 1, 1),
        "local": (derivative, 1, 1),
        "two local": (BlockDiag([local] * 2, comm), 2, 2),
        "local and dense": (BlockDiag([local, matrix], comm), 0, 0),
        "own memory": (BlockDiag([own, own, local], comm), 1, 1),
        "shared by local": (VStack([pylops.FirstDerivative(30, dtype="float32")], comm), 1, 0),
        "sum of local": (HStack([pylops.FirstDerivative(30, dtype="float32")], comm), 0, 1),
        "dense": (dense, 0, 0),
        "stack": (StackedVStack([derivative, laplacian.flat]), 2, 1),
        "other way round": (StackedVStack([laplacian.flat, derivative]), 2, 0),
        "with a dense one": (StackedVStack([dense, laplacian.flat]), 1, 1),
        "twice": (StackedVStack([laplacian, laplacian]), 2, 1),
        "of one": (StackedVStack([laplacian]), 1, 1),
        "nested": (
            StackedVStack([StackedVStack([laplacian, laplacian]), Gradient(layout, comm=comm, dtype="f4")]),
            3,
            0,
        ),
        "side by side": (StackedHStack([laplacian, laplacian]), 1, 2),
        "diagonal": (
            StackedBlockDiag([laplacian, Diagonal(np.float32(2) + random(layout, comm=comm, dtype="f4"))]),
            1,
            1,
        ),
        # The other ranks' copies do not count in a sum.
        "with copies": (StackedBlockDiag([laplacian, replicated]), 2 * (rank == 0), 2 * (rank == 0)),
    }


NAMES = [
    "derivative",
    "empty ranks",
    "gradient",
    "replicated",
    "flat",
    "local",
    "two local",
    "local and dense",
    "own memory",
    "shared by local",
    "sum of local",
    "dense",
    "stack",
    "other way round",
    "with a dense one",
    "twice",
    "of one",
    "nested",
    "side by side",
    "diagonal",
    "with copies",
]


@pytest.mark.parametrize("name", NAMES)
def test_square_of_a_result(comm, name, taken):
    op, *least = operators(comm)[name]
    for way, number in enumerate(least):
        given, wanted = (op.domain, op.range)[:: 1 - 2 * way]
        x = random(given, seed=3, comm=comm, dtype="f4")
        out = zeros(wanted, comm=comm, dtype="f4")
        expected = (op._adjoint if way else op._forward)(x, None)
        for _ in range(2):
            result, square = (op._adjoint_and_square if way else op._forward_and_square)(x, out)
            taken.clear()
            with profile.count_messages() as messages:
                products = dots(square, (x, x))
            assert messages.total <= (comm.size > 1)
            assert taken[0] == number
            np.testing.assert_allclose(float(products[0]), float(expected.norm()) ** 2, rtol=1e-5)
            np.testing.assert_allclose(float(dots(square)[0]), float(expected.norm()) ** 2, rtol=1e-5)
            for leaf, other in zip(result.leaves, expected.leaves, strict=True):
                np.testing.assert_allclose(leaf.local_array, other.local_array, atol=1e-5)


def test_complex_results_have_no_sums(comm, taken):
    op = Gradient(Layout.split((2 * comm.size + 1, 5), comm.size), comm=comm, dtype="c8")
    x, y = (random(side, seed=3, comm=comm, dtype="c8") for side in (op.domain, op.range))
    for apply, given, wanted in ((op._forward_and_square, x, op.range), (op._adjoint_and_square, y, op.domain)):
        result, square = apply(given, zeros(wanted, comm=comm, dtype="c8"))
        np.testing.assert_allclose(float(dots(square)[0]), float(result.norm()) ** 2, rtol=1e-5)
    assert not any(taken)


def test_without_kernels_that_sum(comm):
    op, *_ = operators(comm)["stack"]
    x, out = (random(side, comm=comm, dtype="f4") for side in (op.domain, op.range))
    for memory in (None, out):
        result, square = op._forward_and_square(x, memory)
        assert square.parts is None and square[0] is square[1] is result


class Twice:
    """A mix-in for a class that replaces the products of another."""

    def _forward(self, x, out):
        result = super()._forward(x, out)
        result *= 2
        return result

    def _adjoint(self, y, out):
        result = super()._adjoint(y, out)
        result *= 2
        return result


def doubled(base, inherited, comm):
    """An operator, and one of a subclass whose products are twice as large."""
    kind = type("Doubled", (Twice, base), {})
    if inherited:
        kind = type("Derived", (kind,), {})
    matrix = np.random.default_rng(comm.rank).standard_normal((comm.rank + 2, 9)).astype("f4")
    if base is Laplacian:
        given, options = Layout.split((2 * comm.size + 1, 7), comm.size), {"dtype": "f4"}
    elif base is CSRMatrix:
        given, options = sparse.csr_array(matrix), {"columns": Layout.split(9, comm.size)}
    else:
        given, options = [pylops.FirstDerivative(9, dtype="float32") if base is BlockDiag else matrix], {}
    return base(given, comm=comm, **options), kind(given, comm=comm, **options)


@pytest.mark.parametrize("inherited", [False, True])
@pytest.mark.parametrize("base", [Laplacian, BlockDiag, VStack, CSRMatrix])
def test_a_subclass_with_its_own_products(comm, base, inherited, taken):
    """They are not those that the base class adds, squares, and applies to several columns at once."""
    one, twice = doubled(base, inherited, comm)
    two = 2 * one
    pairs = [(twice, two), (twice.H, two.H), (StackedVStack([one, twice]), StackedVStack([one, two]))]
    pairs.append((StackedHStack([one, twice]), StackedHStack([one, two])))
    pairs.append((StackedVStack([one.flat, twice.flat]), StackedVStack([one.flat, two.flat])))
    for op, expected in pairs:
        x, y = (random(side, seed=2, comm=comm, dtype="f4") for side in (op.domain, op.range))
        for apply, source, wanted in (
            (op._forward_and_square, x, expected.forward(x)),
            (op._adjoint_and_square, y, expected.adjoint(y)),
        ):
            result, square = apply(source, zeros(wanted.layout, comm=comm, dtype="f4"))
            np.testing.assert_allclose(float(dots(square)[0]), float(wanted.norm()) ** 2, rtol=1e-5)
            assert_alike(result, wanted)
    assert twice.dottest()
    assert Columns(twice, 3).width == 1
    for op, expected in ((twice, two), (twice.H, two.H), (twice.H @ one, two.H @ one)):
        block = Columns.join([random(op.domain, seed=seed, comm=comm, dtype="f4") for seed in range(3)])
        assert_alike(Columns(op, 3) @ block, Columns(expected, 3) @ block)
    y = random(one.range, seed=4, comm=comm, dtype="f4")
    stack, expected = (StackedVStack([one, op]) for op in (twice, two))
    y = StackedArray([y, y])
    assert_alike(cgls(stack, y, niter=3, tol=0).x, cgls(expected, y, niter=3, tol=0).x)


def assert_alike(result, wanted):
    for leaf, other in zip(result.leaves, wanted.leaves, strict=True):
        np.testing.assert_allclose(leaf.local_array, other.local_array, rtol=1e-4, atol=2e-5)


def test_an_object_with_its_own_adjoint(comm, taken):
    """Its forward is still that of its class."""
    one, other = (Laplacian((2 * comm.size + 1, 7), comm=comm, dtype="f4") for _ in range(2))
    other._adjoint = (3 * one).adjoint
    stack, x = StackedVStack([one, other]), random(one.range, seed=3, comm=comm, dtype="f4")
    image, back = one.forward(x), one.adjoint(x)
    assert_alike(stack.forward(x), StackedArray([image, image]))
    assert_alike(stack.adjoint(StackedArray([x, x])), 4 * back)
    assert_alike(StackedHStack([one, other]).adjoint(x), StackedArray([back, 3 * back]))
    out = zeros(stack.range, comm=comm, dtype="f4")
    assert any(y is None for _, y in stack._forward_and_square(x, out)[1].parts)


def test_a_copy_in_another_precision_has_its_own_products(comm, taken):
    """Not those of the operator that it is a copy of, which has been applied before."""
    matrix = np.random.default_rng(comm.rank).standard_normal((4, 9))
    sharp = VStack([matrix], comm)
    x = random(sharp.domain, comm=comm)
    Columns(sharp, 2).forward(Columns.join([x, x]))
    rounded = sharp.astype("bfloat16")
    for result in (
        rounded._forward_and_square(x, zeros(rounded.range, comm=comm))[0],
        Columns.split(Columns(rounded, 2) @ Columns.join([x, x]))[1],
        StackedVStack([rounded, rounded]).forward(x)[1],
    ):
        np.testing.assert_allclose(result.local_array, rounded.forward(x).local_array, atol=1e-5)
        assert np.abs(result.local_array - matrix @ x.local_array).max() > 1e-4


@pytest.mark.parametrize("name", ["stack", "with a dense one", "side by side"])
def test_an_operator_that_was_used_is_freed_at_once(comm, taken, name):
    """Its matrices and tables may fill the memory of a device, and must not wait for the garbage collector."""
    op, *_ = operators(comm)[name]
    y = random(op.range, seed=3, comm=comm)
    cgls(op, y, niter=2, damp=0.5, progress=False)
    op._adjoint_and_square(y, None)
    known = weakref.ref(op)
    gc.disable()
    try:
        del op
        assert known() is None
    finally:
        gc.enable()


def test_a_copy_with_another_transport_has_its_own_products(comm, taken):
    """Also after the operator has been used in a stack, and on kernels that leave squares."""
    A = CSRMatrix(sparse.random(5, 5 * comm.size, 0.5, "csr", random_state=comm.rank), comm=comm)
    x = random(A.domain, comm=comm)
    StackedVStack([A, A])._forward_and_square(x, None)
    A._forward_and_square(x, zeros(A.range, comm=comm))
    other = A.with_transport("staged")
    assert [form.apply.__self__ for form in other._directions] == [other, other]


@pytest.mark.parametrize("options", [{}, {"damp": 0.5}, {"M": True}, {"reductions": 1}, {"reductions": "pipelined"}])
@pytest.mark.parametrize("name", ["stack", "with a dense one", "replicated", "with copies", "side by side"])
def test_iterates(comm, name, options, request):
    """CGLS takes the same steps, with the same messages."""
    op, *_ = operators(comm)[name]
    options = {name: op.H @ op if value is True else value for name, value in options.items()}
    y = random(op.range, seed=5, comm=comm, dtype="f4")
    with profile.count_messages() as messages:
        expected = cgls(op, y, niter=5, tol=0, **options)
    taken = request.getfixturevalue("taken")
    with profile.count_messages() as same:
        result = cgls(op, y, niter=5, tol=0, **options)
    assert same.counts() == messages.counts()
    assert result.iterations == expected.iterations == 5
    # On several ranks, products of copies are made the same on all by an empty split part, without what is known.
    assert any(taken) or name in ("replicated", "with copies")
    for leaf, other in zip(result.x.leaves, expected.x.leaves, strict=True):
        scale = float(np.abs(other.local_array).max(initial=1))
        np.testing.assert_allclose(leaf.local_array, other.local_array, atol=1e-4 * scale)
