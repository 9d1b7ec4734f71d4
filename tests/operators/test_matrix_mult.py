"""Products of distributed matrices against NumPy: both algorithms, any grid, uneven and empty blocks, all types."""

from __future__ import annotations

import numpy as np
import pylops
import pytest

from collops import profile
from collops.array import Layout, from_global, random, zeros
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import MatrixMult, best_process_grid
from collops.operators.dense import multiply
from collops.operators.matrix_mult import choice, distributed
from collops.operators.matrix_mult.summa import rounds

from .problems import assert_close, matrix

DTYPES = ["f4", "f8", "c8", "c16"]
SIZES = [(11, 7, 5), (3, 2, 2), (1, 9, 4), (6, 1, 1), (2, 3, 0)]


@pytest.fixture(params=["sent rows", "kept rows"])
def algorithm(request, monkeypatch):
    """Rows of small matrices are kept whole; without that they are sent like those of large ones."""
    if request.param == "sent rows":
        monkeypatch.setattr(choice, "_MAX_KEPT", -1)
    return request.param


def grids(ranks: int) -> list[tuple[int, int]]:
    return [(p, ranks // p) for p in range(1, ranks + 1) if ranks % p == 0]


def check(op, whole, comm, dtype, messages: bool = True) -> None:
    """Compare an operator with its matrix, both ways, with and without out, and run its dot test."""
    assert op.domain.shape[0] == whole.shape[1] and op.range.shape == (len(whole), op.domain.shape[1])
    x, y = matrix(*op.domain.shape, dtype, 1), matrix(*op.range.shape, dtype, 2)
    xd, yd = from_global(x, op.domain, comm=comm), from_global(y, op.range, comm=comm)
    for apply, given, expected, layout in (
        (op.forward, xd, whole @ x, op.range),
        (op.adjoint, yd, whole.conj().T @ y, op.domain),
    ):
        for out in (None, from_global(np.full(layout.shape, np.nan, expected.dtype), layout, comm=comm)):
            result = apply(given, out)
            assert out is None or result is out
            assert result.layout is layout and result.dtype == expected.dtype
            assert_close(result.gather(), expected, dtype)
    assert op.dottest()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_summa(comm, algorithm, sizes, dtype):
    rows, inner, columns = sizes
    whole = matrix(rows, inner, dtype, 7)
    for grid in grids(comm.size):
        op = MatrixMult(from_global(whole, comm=comm), columns, "summa", process_grid=grid)
        assert op.process_grid == grid and op.kind == "summa" and op.dtype == np.dtype(dtype)
        assert op.domain is Layout.grid((inner, columns), grid)
        assert op.range is Layout.grid((rows, columns), grid)
        check(op, whole, comm, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_block(comm, sizes, dtype):
    rows, inner, columns = sizes
    whole = matrix(rows, inner, dtype, 7)
    for grid in grids(comm.size):
        for gather in (False, True):
            op = MatrixMult(from_global(whole, comm=comm), columns, "block", process_grid=grid, gather_range=gather)
            assert op.domain is Layout((inner, columns), comm.size, grid, (None, 1))
            assert op.range is Layout((rows, columns), comm.size, grid, (None if gather else 0, 1))
            check(op, whole, comm, dtype)


@pytest.mark.parametrize("dtype", ["f8", "c8"])
def test_unlike_blocks(comm, algorithm, dtype):
    """Matrix and model cut the inner extent in different places, and some blocks are empty."""
    rows, inner, columns = 9, 13, 6
    whole = matrix(rows, inner, dtype, 7)

    def uneven(extent: int, parts: int, first: int) -> list[int]:
        return [extent] if parts == 1 else [first, *[0] * (parts - 2), extent - first]

    for p, q in grids(comm.size):
        layout = Layout.grid((rows, inner), (p, q), sizes=[uneven(rows, p, 1), uneven(inner, q, 10)])
        model = Layout.grid((inner, columns), (p, q), sizes=[uneven(inner, p, 3), uneven(columns, q, 0)])
        op = MatrixMult(from_global(whole, layout, comm=comm), model, "summa", process_grid=(p, q))
        assert op.domain is model
        assert op.range is Layout.grid((rows, columns), (p, q), sizes=[layout.sizes[0], model.sizes[1]])
        check(op, whole, comm, dtype)


@pytest.mark.parametrize("sizes", [(5, 23, 4), (6, 24, 4), (5, 3, 2)])
def test_many_rounds(comm, algorithm, monkeypatch, sizes):
    rows, inner, columns = sizes
    whole = matrix(rows, inner, "c16", 7)
    monkeypatch.setattr(choice, "_ROUND", 1)
    for grid in grids(comm.size):
        op = MatrixMult(from_global(whole, comm=comm), columns, "summa", process_grid=grid)
        check(op, whole, comm, "c16")


@pytest.mark.parametrize("kind", ["summa", "block"])
@pytest.mark.parametrize(("own", "other"), [("f4", "c8"), ("f4", "f8"), ("c8", "f4"), ("f8", "c8"), ("i8", "f8")])
def test_matrix_and_model_of_different_types(comm, algorithm, kind, own, other):
    whole = (10 * matrix(7, 5, "c8" if own == "c8" else "f8", 7)).astype(own)
    op = MatrixMult(from_global(whole, comm=comm), 3, kind, gather_range=kind == "block")
    for _ in range(2):
        x, y = matrix(5, 3, other, 1), matrix(7, 3, other, 2)
        forward = op.forward(from_global(x, op.domain, comm=comm))
        adjoint = op.adjoint(from_global(y, op.range, comm=comm))
        assert forward.dtype == adjoint.dtype == np.result_type(own, other)
        assert_close(forward.gather(), whole @ x, "f4")
        assert_close(adjoint.gather(), whole.conj().T @ y, "f4")
    if np.dtype(own).kind != "c" and np.dtype(other).kind == "c":
        with pytest.raises(UnsupportedTypeError, match="does not fit"):
            op.forward(random(op.domain, comm=comm, dtype=other), zeros(op.range, comm=comm))


def test_strided_model(comm):
    whole = matrix(4, 6, "f8", 7)
    op = MatrixMult(from_global(whole, comm=comm), 3)
    x = zeros(op.domain, comm=comm)
    wide = matrix(*np.multiply(x.local_array.shape, 2), "f8", comm.rank)
    x.local_array = wide[::2, ::2]
    assert_close(op.forward(x).gather(), whole @ x.gather())


@pytest.mark.parametrize("kind", ["summa", "block"])
def test_blocks_of_every_rank(comm, kind):
    """The peer's convention: each rank brings its own block."""
    whole = matrix(7, 5, "c16", 3)
    for p, q in grids(comm.size):
        layout = Layout((7, 5), comm.size, (p, q), (0, 1 if kind == "summa" else None))
        block = whole[layout.slices(comm.rank)]
        with profile.count_messages() as sent:
            op = MatrixMult(block, 4, kind, process_grid=(p, q), comm=comm)
        assert sent["metadata"] <= 2
        check(op, whole, comm, "c16")
    default = MatrixMult(whole if comm.size == 1 else whole[:, :1], 4, comm=comm) if comm.size < 4 else None
    assert default is None or default.process_grid == best_process_grid(comm.size) == (1, comm.size)


@pytest.mark.parametrize("number", [1, 2])
def test_messages_of_summa(comm, algorithm, monkeypatch, number):
    whole = matrix(8, 12, "f4", 3)
    for p, q in grids(comm.size):
        monkeypatch.setattr(distributed, "rounds_for", lambda *_: number)
        op = MatrixMult(from_global(whole, comm=comm), 8, "summa", process_grid=(p, q))
        x, y = random(op.domain, comm=comm, dtype="f4"), random(op.range, comm=comm, dtype="f4")
        sent = {}
        for name, apply, given in (("forward", op.forward, x), ("adjoint", op.adjoint, y)):
            with profile.count_messages() as sent[name]:
                apply(given)
        of_matrix, of_model = number * (algorithm == "sent rows" and q > 1), number * (p > 1)
        assert sent["forward"].total == sent["forward"]["allgatherv"] == of_matrix + of_model
        assert sent["adjoint"].total == of_matrix + of_model
        assert (sent["adjoint"]["allgatherv"], sent["adjoint"]["reduce_scatter"]) == (of_matrix, of_model)


def test_messages_of_block(comm):
    whole = matrix(8, 6, "f4", 3)
    for p, q in grids(comm.size):
        for gather in (False, True):
            op = MatrixMult(from_global(whole, comm=comm), 8, "block", process_grid=(p, q), gather_range=gather)
            x, y = random(op.domain, comm=comm, dtype="f4"), random(op.range, comm=comm, dtype="f4")
            with profile.count_messages() as sent:
                op.forward(x)
            assert sent.total == sent["allgatherv"] == (gather and p > 1)
            with profile.count_messages() as sent:
                op.adjoint(y)
            assert sent.total == sent["allreduce"] == (p > 1)


def test_a_matrix_that_lies_right_is_not_moved(comm):
    layout = Layout.grid((8, 6), best_process_grid(comm.size)[::-1])
    A = from_global(matrix(8, 6, "f8", 1), layout, comm=comm)
    rows = from_global(matrix(8, 6, "f8", 1), comm=comm)
    MatrixMult(A, 3, "summa", process_grid=best_process_grid(comm.size)[::-1])
    MatrixMult(rows, 3, "block")
    with profile.count_messages() as sent:
        MatrixMult(A, 3, "summa", process_grid=best_process_grid(comm.size)[::-1])
        op = MatrixMult(rows, 3, "block")
    assert op.process_grid == (comm.size, 1)
    assert sent.total == sent["allgatherv"] <= 1  # small rows are gathered once


def test_algebra_and_pylops(comm):
    whole = matrix(6, 6, "c16", 3)
    op = MatrixMult(from_global(whole, comm=comm), 4, dtype="c16")
    serial = pylops.MatrixMult(whole, otherdims=(4,), dtype="c16")
    x = matrix(6, 4, "c16", 1)
    xd = from_global(x, op.domain, comm=comm)
    assert_close((op.H @ op).forward(xd).gather().ravel(), serial.H @ (serial @ x.ravel()), factor=10)
    assert_close(op.conj().forward(xd).gather(), whole.conj() @ x)
    assert op.shape == serial.shape
    flat = op.flat if op.domain.split_axes == (0,) else None
    assert flat is None or flat.shape == op.shape


def test_the_faster_kind_is_the_default(comm):
    """The layout of a given model, a process grid and gather_range leave the model of the time fewer choices."""
    whole = matrix(7, 5, "f8", 3)
    A = from_global(whole, comm=comm)
    op = MatrixMult(A, 3)
    assert (op.kind, op.process_grid) == choice.fastest(every_choice(comm.size), choice.Problem(7, 5, 3, 8, "host"))
    check(op, whole, comm, "f8")
    assert MatrixMult(A, 3, gather_range=True).kind == "block"
    assert MatrixMult(A, 3, dtype="c16").dtype == "c16"
    for grid in grids(comm.size):
        assert MatrixMult(A, 3, process_grid=grid).process_grid == grid
        for kind in ("summa", "block"):
            model = MatrixMult(A, 3, kind, process_grid=grid).domain
            op = MatrixMult(A, model)
            assert op.domain is model
            check(op, whole, comm, "f8")


def every_choice(ranks: int) -> list[choice.Choice]:
    return [choice.Choice(kind, grid) for grid in grids(ranks) for kind in ("summa", "block")]


def test_the_model_of_the_time():
    """What sends least is chosen if it needs no more than twice the memory of matrices split over all ranks."""
    many = choice.fastest(every_choice(64), choice.Problem(32768, 32768, 32768, 4, "device"))
    assert many == ("summa", (8, 8))  # blocks would need five times the memory
    # Of a small matrix each rank can have the whole: then nothing is sent.
    assert choice.fastest(every_choice(4), choice.Problem(1000, 1000, 100_000, 4, "device")).grid == (1, 4)
    # A tall one stays split by rows.
    assert choice.fastest(every_choice(4), choice.Problem(400_000, 1000, 64, 4, "device")).grid == (4, 1)
    assert choice.fastest(every_choice(16), choice.Problem(100, 100_000, 100_000, 8, "device")).kind == "summa"
    without_messages = choice.seconds(choice.Choice("block", (1, 8)), choice.Problem(8192, 8192, 8192, 4, "device"))
    assert without_messages == pytest.approx(2 * 2 * 8192**3 / 8 / 4.5e13)
    sent = choice.seconds(choice.Choice("block", (8, 1)), choice.Problem(8192, 8192, 8192, 4, "device"))
    assert sent - without_messages == pytest.approx(2 * 7 / 8 * 8192**2 * 4 / 2e11 + 15e-6)


def test_best_grids():
    assert best_process_grid(1) == (1, 1)
    assert best_process_grid(6) == (2, 3)
    assert best_process_grid(7) == (1, 7)
    assert best_process_grid(4, (100, 100), 100) == (2, 2)
    assert best_process_grid(4, (10000, 100), 10) == (4, 1)  # the model is small: only it is sent
    assert best_process_grid(4, (10, 100), 10000) == (1, 4)
    assert best_process_grid(12) == (3, 4)
    for wrong in ((0,), (4, (5, 6, 7)), (4, (5, 6), -1), (4, (5, -6), 1)):
        with pytest.raises(LayoutError):
            best_process_grid(*wrong)


def test_panels_have_one_owner():
    (found,) = rounds([10, 0, 3], [3, 10])
    assert [(panel.width, panel.column, panel.row) for panel in found] == [(3, 0, 0), (7, 0, 1), (3, 2, 1)]
    assert [(panel.in_matrix, panel.in_model) for panel in found] == [
        (slice(0, 3), slice(0, 3)),
        (slice(3, 10), slice(0, 7)),
        (slice(0, 3), slice(7, 10)),
    ]
    assert rounds([0, 0], [0]) == []


def test_every_rank_sends_in_every_round():
    found = rounds([4, 3], [4, 3], 3)
    assert [[(panel.column, panel.in_matrix) for panel in panels] for panels in found] == [
        [(0, slice(0, 2)), (1, slice(0, 1))],
        [(0, slice(2, 3)), (1, slice(1, 2))],
        [(0, slice(3, 4)), (1, slice(2, 3))],
    ]
    assert [panel.width for panels in rounds([2], [2], 8) for panel in panels] == [1, 1]


@pytest.mark.parametrize("dtype", [*DTYPES, "f2", "i8"])
def test_local_products_work_in_given_memory(dtype):
    a, b, y = (
        np.round(4 * matrix(*shape, "c16" if dtype in "c8 c16" else "f8", 3)).astype(dtype)
        for shape in ((4, 3), (3, 2), (4, 2))
    )
    out = np.ones((4, 2), dtype)
    multiply(a, b, out, accumulate=True)
    np.testing.assert_array_equal(out, a @ b + np.ones((4, 2), dtype))
    out = np.zeros((3, 2), dtype)
    multiply(a, y, out, adjoint=True)
    np.testing.assert_array_equal(out, a.conj().T @ y)
    multiply(a[:0], y[:0], out, adjoint=True, accumulate=True)
    np.testing.assert_array_equal(out, a.conj().T @ y)
    multiply(a[:0], y[:0], out, adjoint=True)
    assert not out.any()


def test_errors_are_the_same_on_every_rank(comm):
    A = from_global(np.ones((4, 6)), comm=comm)
    with pytest.raises(InputError, match="kind"):
        MatrixMult(A, 3, "cannon")
    with pytest.raises(InputError, match="process grid"):
        MatrixMult(A, 3, process_grid=(comm.size, 2))
    with pytest.raises(InputError, match="gather_range"):
        MatrixMult(A, 3, "summa", gather_range=True)
    with pytest.raises(LayoutError, match="two axes"):
        MatrixMult(from_global(np.ones(4), comm=comm), 3)
    with pytest.raises(LayoutError, match="two axes"):
        MatrixMult(np.ones(4) if comm.rank == comm.size - 1 else np.ones((4, 4)), 3, comm=comm)
    with pytest.raises(UnsupportedTypeError, match="expected an array"):
        MatrixMult("matrix", 3, comm=comm)
    with pytest.raises(UnsupportedTypeError, match=r"byte order: use astype\('float64'\)"):
        MatrixMult(np.ones((4, 4)).astype(">f8" if comm.rank == comm.size - 1 else "=f8"), 3, comm=comm)
    with pytest.raises(UnsupportedTypeError, match="complex"):
        MatrixMult(from_global(np.ones((4, 6)) * 1j, comm=comm), 3, dtype="f8")
    with pytest.raises(LayoutError, match="a model with 6 rows"):
        MatrixMult(A, Layout.split((5, 3), comm.size))
    if comm.size > 1:
        with pytest.raises(LayoutError, match="does not fit a grid"):
            MatrixMult(A, Layout.split((6, 3), comm.size, 1), process_grid=(comm.size, 1))
        with pytest.raises(LayoutError, match="does not fit its row and column"):
            MatrixMult(np.ones((4 + comm.rank, 3)), 3, process_grid=(1, comm.size), comm=comm)
        with pytest.raises(LayoutError, match="one dtype"):
            MatrixMult(np.ones((4, 3), "f4" if comm.rank else "f8"), 3, comm=comm)
