"""Sums, products, powers, adjoints, transposes and conjugates against the matrices that they are."""

from __future__ import annotations

import numpy as np
import pytest

from collops import profile
from collops.array import Layout, from_global, random, zeros
from collops.errors import CollopsError, InputError, LayoutError, UnsupportedTypeError
from collops.operators import (
    BlockDiag,
    Diagonal,
    FirstDerivative,
    Identity,
    LinearOperator,
    SecondDerivative,
    StackedHStack,
    StackedVStack,
    VStack,
)

from .problems import assert_close, blocks, joined, matrix, vector

COLUMNS = 5


@pytest.fixture(params=["f8", "c16"])
def pair(request, comm):
    """Two operators of one shape, and their matrices."""
    dtype = request.param
    a = blocks(comm, COLUMNS, dtype)
    b = [[block[::-1].copy() for block in entries] for entries in a]
    return (
        VStack(a[comm.rank], comm),
        VStack(b[comm.rank], comm),
        np.vstack(joined(a)),
        np.vstack(joined(b)),
    )


def check(op: LinearOperator, whole: np.ndarray, comm) -> None:
    x, y = vector(whole.shape[1], "c16", 1), vector(whole.shape[0], "c16", 2)
    scale = 10 * max(1.0, float(np.abs(whole).max()))
    assert op.shape == whole.shape
    forward = op @ from_global(x, op.domain, comm=comm)
    assert_close(forward.gather(), whole @ x, factor=scale)
    adjoint = op.H @ from_global(y, op.range, comm=comm)
    assert_close(adjoint.gather(), whole.conj().T @ y, factor=scale)
    assert op.dottest(complex_vectors=True)


def test_sums_and_scaling(pair, comm):
    a, b, wa, wb = pair
    check(a + b, wa + wb, comm)
    check(a - b, wa - wb, comm)
    check(-a, -wa, comm)
    check(2.5 * a, 2.5 * wa, comm)
    check(a * 2j, wa * 2j, comm)
    check(a / 4, wa / 4, comm)
    check(a + b - 3 * a + (1 + 2j) * (b - a), wa + wb - 3 * wa + (1 + 2j) * (wb - wa), comm)
    check(np.float32(2) * a, 2 * wa, comm)
    assert (np.float32(2) * a).dtype == a.dtype
    check(np.array(2.0) * a, 2 * wa, comm)


def test_products_and_powers(pair, comm):
    a, b, wa, wb = pair
    check(a.H @ b, wa.conj().T @ wb, comm)
    check(a.H * b, wa.conj().T @ wb, comm)
    check(a @ b.H @ a, wa @ wb.conj().T @ wa, comm)
    normal, whole = a.H @ a, wa.conj().T @ wa
    check(normal**1, whole, comm)
    check(normal**3, whole @ whole @ whole, comm)
    check((normal + 2 * normal) ** 2, 9 * whole @ whole, comm)


def test_products_of_many_factors_on_one_layout(comm):
    """Each factor reads one buffer and writes another: none works in place."""
    a, b = FirstDerivative(17, kind="forward", comm=comm), SecondDerivative(17, comm=comm)
    op, x = a @ b @ a.H @ b, random(a.domain, comm=comm, seed=1)
    for _ in range(2):
        assert_close((op @ x).gather(), (a @ (b @ (a.H @ (b @ x)))).gather())
        assert_close((op.H @ x).gather(), (b.H @ (a @ (b.H @ (a.H @ x)))).gather())


def test_adjoint_transpose_conjugate(pair, comm):
    a, b, wa, wb = pair
    check(a.T, wa.T, comm)
    check(a.conj(), wa.conj(), comm)
    check(a.T.H, wa.conj(), comm)
    check((a.T @ b).conj(), wa.conj().T @ wb.conj(), comm)
    assert a.H.H is a
    assert a.conj().conj() is a
    if a.dtype.kind == "f":
        assert a.conj() is a


def test_results_are_not_shared(comm):
    op = BlockDiag([matrix(3, 3, "f8", comm.rank)], comm)
    twice = op @ op @ op
    x = random(op.domain, comm=comm)
    first = twice @ x
    kept = first.copy()
    second = twice @ (2 * x)
    assert_close(first.gather(), kept.gather())
    assert_close(second.gather(), 2 * kept.gather())
    assert_close((twice @ x.astype("f4")).gather(), kept.gather(), "f4")


def test_types_of_results_do_not_depend_on_earlier_calls(comm):
    for op in (Identity(9, 7, comm=comm, dtype="f4"), VStack([matrix(3, 4, "f4", comm.rank)], comm)):
        for dtype in ("f4", "c8", "f8", "f4", "c16"):
            wanted = np.result_type("f4", dtype)
            assert (op @ random(op.domain, comm=comm, dtype=dtype, seed=1)).dtype == wanted
            assert (op.H @ random(op.range, comm=comm, dtype=dtype, seed=1)).dtype == wanted


class Negative(LinearOperator):
    """An operator that ignores `out`, and cannot be captured."""

    capturable = False

    def __init__(self, layout, comm):
        super().__init__(layout, layout, float, comm)

    def _forward(self, x, out):
        return -x

    _adjoint = _forward


def test_out_has_the_result_of_an_operator_that_ignores_it(comm):
    op = Negative(Layout.split(9, comm.size), comm)
    x, out = random(op.domain, comm=comm, seed=1), zeros(op.domain, comm=comm)
    for apply in (op.forward, op.adjoint):
        out.fill(0)
        assert apply(x, out) is out
        assert_close(out.gather(), -x.gather())


def test_an_out_that_cannot_hold_the_result_is_refused_on_all_ranks(comm):
    # Only the last rank has an operator with imaginary parts.
    dtype = "c16" if comm.rank == comm.size - 1 else "f8"
    for op in (BlockDiag([matrix(3, 3, dtype, comm.rank)], comm), VStack([matrix(3, 3, dtype, comm.rank)], comm)):
        for each in (op, op.H, StackedHStack([op, 2 * op])):
            x = random(each.domain, comm=comm)
            for kind in ("f8", "i8", "?"):
                with pytest.raises(UnsupportedTypeError, match=f"complex128, .* out of dtype {np.dtype(kind)}"):
                    each.forward(x, zeros(each.range, comm=comm, dtype=kind))
            assert_close(each.forward(x, zeros(each.range, comm=comm, dtype="c16")).gather(), (each @ x).gather())
    halves = BlockDiag([np.full((2, 2), 0.5)], comm)
    with pytest.raises(UnsupportedTypeError, match="float64, which does not fit into out of dtype int64"):
        halves.forward(random(halves.domain, comm=comm), zeros(halves.range, comm=comm, dtype=int))


def test_an_operator_that_cannot_be_captured_makes_no_other_one_capturable(comm):
    layout = Layout.split(9, comm.size)
    one, other = Negative(layout, comm), Identity(layout, comm=comm)
    assert (other + other).capturable and (other @ other).capturable
    made = [one + other, other @ one, one.H, StackedVStack([other, one]), (1j * one).conj()]
    assert not any(op.capturable for op in made)


def test_stacks_add_up_their_operators(comm):
    parts = [kind(17, comm=comm) for kind in (Identity, FirstDerivative, SecondDerivative)]
    x = random(parts[0].domain, comm=comm, seed=1)
    stack = StackedVStack(parts)
    y = stack @ x
    total = sum((part.H @ piece).gather() for part, piece in zip(parts, y, strict=True))
    for _ in range(2):
        assert_close((stack.H @ y).gather(), total)
    beside = StackedHStack(parts)
    total = sum((part @ piece).gather() for part, piece in zip(parts, y, strict=True))
    assert_close((beside @ y).gather(), total)


def test_a_matrix_declared_single_keeps_single(comm):
    op = BlockDiag([matrix(3, 3, "f4", comm.rank)], comm)
    assert (2 * op @ op + op).forward(random(op.domain, comm=comm, dtype="f4")).dtype == np.float32


def test_algebra_sends_nothing_by_itself(comm):
    op = BlockDiag([matrix(3, 3, "c8", comm.rank)], comm)
    with profile.count_messages() as sent:
        combined = (2 * op - op.T @ op.H).conj() ** 2
        combined.forward(random(op.domain, comm=comm, dtype="c8"))
    assert sent.total == 0


def test_misfits_are_refused(comm):
    a, square = VStack([np.ones((2, 4))], comm), BlockDiag([np.eye(3)], comm)
    with pytest.raises(LayoutError, match="operators in a sum"):
        a + square
    with pytest.raises(LayoutError, match="product"):
        a @ square
    with pytest.raises(LayoutError, match="power needs"):
        a**2
    for exponent in (0, -1, 1.5):
        with pytest.raises(InputError, match="powers 1, 2, 3"):
            square**exponent  # type: ignore[operator]
    with pytest.raises(TypeError):
        a + 1  # type: ignore[operator]


def test_numbers_do_not_change_the_precision(comm):
    op, half = (Identity(3, comm=comm, dtype=dtype) for dtype in ("float64", "bfloat16"))
    for number in (2, 0.5, np.float64(3), np.array(4.0)):
        assert (number * half).dtype == (half / number).dtype == half.dtype
    assert (2j * half).dtype == np.complex64
    assert 1 * op is 1.0 * op is op
    assert ((1 + 0j) * op).dtype == np.complex128
    for zero in (0, 0.0, 0j, np.float32(0), np.array(0)):
        with pytest.raises(InputError, match="divided by zero"):
            op / zero


def test_operators_of_several_communicators_do_not_meet(comm):
    other = comm.split(0)
    if other is comm:
        pytest.skip("a program of one rank without MPI has one communicator")
    a, b = Identity(3, comm=comm), Identity(3, comm=other)
    for meet in (
        lambda: a + b,
        lambda: a @ b,
        lambda: StackedVStack([a, b]),
        lambda: Diagonal(zeros(3, comm=comm), comm=other),
        lambda: a.forward(zeros(3, comm=other)),
        lambda: a.adjoint(zeros(3, comm=comm), zeros(3, comm=other)),
    ):
        with pytest.raises(LayoutError, match="communicator"):
            meet()


@pytest.mark.parametrize("dtype", ["f2", "f8"])
def test_dottest_finds_a_wrong_adjoint(comm, dtype):
    class Wrong(BlockDiag):
        def _adjoint(self, y, out):
            return self._forward(y, out)

    wrong = Wrong([matrix(3, 3, dtype, comm.rank)], comm)
    with pytest.raises(CollopsError, match=r"<A u, v> = .* <u, A\^H v> = "):
        wrong.dottest()
    assert not wrong.dottest(raises=False)
    assert BlockDiag([matrix(3, 3, dtype, comm.rank)], comm).dottest()
    assert BlockDiag([matrix(3, 3, "f8", comm.rank)], comm).dottest(rtol=1e-14, seed=7)
    for rtol in (np.nan, np.inf, -1e-3):
        with pytest.raises(InputError, match="rtol must be a finite number"):
            wrong.dottest(rtol=rtol)
