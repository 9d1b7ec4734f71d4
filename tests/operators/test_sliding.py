"""Sliding windows and patches against PyLops on gathered data, with windows of uneven and empty ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pylops
import pytest
from pylops.signalprocessing import Patch2D, Patch3D, Sliding1D, Sliding2D, Sliding3D

from collops import profile
from collops.array import Layout, from_global, random, zeros
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import Patch, Sliding
from tests.array.cases import values

from .problems import assert_close, matrix

TAPERS = ["hanning", "cosine", "cosinesquare", "cosinesqrt", None]
# Data, windows, overlaps, and the model of a window; samples remain after the last window, and an overlap is odd.
SLIDING: dict[Any, tuple] = {
    Sliding1D: (23, 6, 3, 4),
    Sliding2D: ((23, 3), 7, 3, (2, 3)),
    Sliding3D: ((13, 11, 2), (5, 6), (2, 3), (2, 3, 2)),
}
PATCHES: dict[Any, tuple] = {
    Patch2D: ((17, 12), (5, 6), (2, 3), (2, 3)),
    Patch3D: ((9, 7, 6), (4, 4, 3), (2, 1, 0), (2, 1, 2)),
}


def numbers(value) -> tuple[int, ...]:
    return tuple(np.atleast_1d(value).tolist())


def counted(dimsd, nwin, nover) -> tuple[int, ...]:
    """The numbers of windows that fit."""
    return tuple((n - w) // (w - o) + 1 for n, w, o in zip(*map(numbers, (dimsd, nwin, nover)), strict=False))


def both(kind, A, taper, save, dimsd, nwin, nover, nop, comm, layout=None, **options):
    """Return the operator of PyLops and ours, with the matrix `A` for each window."""
    nwins = counted(dimsd, nwin, nover)
    dims = [n * count for n, count in zip(numbers(nop), nwins, strict=False)] + [*numbers(nop)[len(nwins) :]]
    serial: dict[str, Any] = {"tapertype": taper, "savetaper": save}
    if kind in (Sliding3D, Patch2D, Patch3D):
        serial["nop"] = nop
    shape = dims[0] if kind is Sliding1D else tuple(dims)
    theirs = kind(pylops.MatrixMult(A, dtype=A.dtype), shape, dimsd, nwin, nover, **serial)
    where = dimsd if layout is None else layout
    if kind in PATCHES:
        return theirs, Patch(A, shape, where, nwin, nover, nop, taper, save, comm=comm, **options)
    return theirs, Sliding(A, shape, where, nwin, nover, taper, save, comm=comm, **options)


def check(theirs, ours, comm, dtype) -> None:
    """Compare both ways, with and without out, and run the dot test."""
    assert tuple(np.squeeze(theirs.dims).tolist()) == ours.dims
    for apply, reference, given, taken in (
        (ours.forward, theirs, ours.domain, ours.range),
        (ours.adjoint, theirs.H, ours.range, ours.domain),
    ):
        x = values(given.shape, dtype, 1)
        expected = (reference @ x.ravel()).reshape(taken.shape)
        for out in (None, from_global(np.full(taken.shape, np.nan, dtype), taken, comm=comm)):
            for _ in range(2):
                result = apply(from_global(x, given, comm=comm), out)
                assert out is None or result is out
                assert result.dtype == np.dtype(dtype)
                assert_close(result.gather(), expected, dtype)
    assert ours.dottest()


def window(nwin, nop, dimsd, dtype) -> np.ndarray:
    rows = int(np.prod([*numbers(nwin), *numbers(dimsd)[len(numbers(nwin)) :]]))
    return matrix(rows, int(np.prod(nop)), dtype, 3)


@pytest.mark.parametrize("save", [True, False])
@pytest.mark.parametrize("taper", TAPERS)
@pytest.mark.parametrize("kind", [*SLIDING, *PATCHES])
def test_as_pylops(comm, kind, taper, save):
    dimsd, nwin, nover, nop = {**SLIDING, **PATCHES}[kind]
    for dtype in ("f8", "c8"):
        A = window(nwin, nop, dimsd, dtype)
        check(*both(kind, A, taper, save, dimsd, nwin, nover, nop, comm), comm, dtype)


@pytest.mark.parametrize("kind", [Sliding2D, Sliding3D, Patch2D])
def test_other_layouts(comm, kind):
    """One rank has all but one row, others none; blocks smaller than a window; both axes split; every rank has all."""
    dimsd, nwin, nover, nop = {**SLIDING, **PATCHES}[kind]
    ranks, rows = comm.size, dimsd[0]
    most = [rows - 1, *[0] * (ranks - 2), 1] if ranks > 1 else [rows]
    layouts = [Layout.split(dimsd, ranks, sizes=most), Layout.split(dimsd, ranks, sizes=most[::-1])]
    layouts.append(Layout.replicated(dimsd, ranks))
    if kind is not Sliding2D:
        layouts.append(Layout.split(dimsd, ranks, 1))
        halves = (2, ranks // 2) if ranks % 2 == 0 else (1, ranks)
        layouts.append(Layout.grid(dimsd, (*halves, *[1] * (len(dimsd) - 2))))
    for layout in layouts:
        A = window(nwin, nop, dimsd, "c16")
        theirs, ours = both(kind, A, "hanning", True, dimsd, nwin, nover, nop, comm, layout)
        assert ours.range is layout
        windows, samples = ours.domain.slices(comm.rank)[0], layout.slices(comm.rank)[0]
        starts = np.arange(ours.nwins[0]) * (numbers(nwin)[0] - numbers(nover)[0])
        assert windows == slice(*np.searchsorted(starts, (samples.start, samples.stop)))
        check(theirs, ours, comm, "c16")


def test_windows_across_several_ranks(comm):
    """The window is longer than the block of any rank, and starts at every sample."""
    theirs, ours = both(Sliding1D, matrix(8, 3, "f8", 1), None, True, 11, 8, 7, 3, comm)
    assert ours.nwins == (4,)
    check(theirs, ours, comm, "f8")


def test_operators_of_pylops_and_one_for_each_window(comm):
    dimsd, nwin, nover = (19, 4), 5, 2
    smooth = pylops.Smoothing2D((3, 3), (5, 4))
    count = counted(dimsd, nwin, nover)[0]
    dims = (count * 5, 4)
    check(Sliding2D(smooth, dims, dimsd, nwin, nover), Sliding(smooth, dims, dimsd, nwin, nover, comm=comm), comm, "f8")
    several = [pylops.MatrixMult(matrix(20, 20, "f8", seed)) for seed in range(count)]
    weights = Sliding2D(pylops.Identity(20), dims, dimsd, nwin, nover)
    theirs = weights @ pylops.BlockDiag(several)
    mine = Sliding(several, dims, dimsd, nwin, nover, comm=comm).domain.slices(comm.rank)[0]
    needed = [op if mine.start <= number < mine.stop else None for number, op in enumerate(several)]
    ours = Sliding(needed, dims, dimsd, nwin, nover, comm=comm)
    theirs.dims = ours.dims
    check(theirs, ours, comm, "f8")


def test_scalings(comm):
    """PyLops 2.8 accepts them but does not apply them: each window's model is scaled instead."""
    dimsd, nwin, nover, nop = PATCHES[Patch2D]
    A, count = window(nwin, nop, dimsd, "f8"), int(np.prod(counted(dimsd, nwin, nover)))
    scalings = np.arange(1.0, 1 + count)
    for taper, save in (("hanning", True), ("hanning", False), (None, True)):
        theirs, ours = both(Patch2D, A, taper, save, dimsd, nwin, nover, nop, comm, scalings=scalings)
        scaled = theirs @ pylops.Diagonal(np.repeat(scalings, A.shape[1]))
        scaled.dims = ours.dims
        check(scaled, ours, comm, "f8")


def test_a_single_window_is_not_tapered(comm):
    """Both of its edges are outer edges; for PyLops 2.8 it depends on savetaper which one."""
    op = Sliding(np.eye(6), 6, 7, 6, 2, comm=comm)
    x = values((1, 6), "f8", 1)
    assert_close(op.forward(from_global(x, op.domain, comm=comm)).gather(), [*x[0], 0.0])
    assert op.dottest()


def test_types(comm):
    A = matrix(6, 4, "f4", 1)
    op = Sliding(A, 24, 21, 6, 3, comm=comm)
    assert op.dims == (6, 4) and op.dtype == np.float32
    reference = Sliding(A.astype("f8"), 24, 21, 6, 3, comm=comm)
    for dtype in ("f8", "c8", "c16"):
        x, y = (from_global(values(layout.shape, dtype, 2), layout, comm=comm) for layout in (op.domain, op.range))
        for result, expected in ((op @ x, reference @ x), (op.H @ y, reference.H @ y)):
            assert result.dtype == np.result_type("f4", dtype)
            assert_close(result.gather(), expected.gather(), "f4")
        narrow = op.forward(x, zeros(op.range, comm=comm, dtype="c8"))
        assert_close(narrow.gather(), (reference @ x).gather(), "f4")
    with pytest.raises(UnsupportedTypeError, match="does not fit"):
        op.forward(x, zeros(op.range, comm=comm, dtype="f4"))
    double = op.astype("f8")
    assert double.dtype == np.float64 and double.dottest()
    assert_close((double @ x).gather(), (reference @ x).gather(), "f8")
    fourier = Sliding(pylops.signalprocessing.FFT(6, real=True).H, 6 * 4, 21, 6, 3, comm=comm)
    assert fourier.dtype.kind == "c" and not fourier.clinear and fourier.dottest()


def test_messages(comm):
    """One exchange, of the samples of a rank's windows beyond its block; with blocks of whole steps, of the overlap."""
    windows, nwin, nover = 3 * comm.size, 5, 2
    rows = windows * (nwin - nover) + nover
    sizes = [9] * (comm.size - 1) + [9 + nover]
    layout = Layout.split((rows, 4), comm.size, sizes=sizes)
    op = Sliding(matrix(20, 6, "f8", 1), (windows * 3, 2), layout, nwin, nover, comm=comm)
    assert op.domain.sizes[0] == (3,) * comm.size
    last, first = comm.rank == comm.size - 1, comm.rank == 0
    for apply, given, sent in ((op.forward, op.domain, not last), (op.adjoint, op.range, not first)):
        x = random(given, comm=comm)
        with profile.count_messages() as messages:
            apply(x)
        assert messages.counts() == ({"exchange": 1} if comm.size > 1 else {})
        assert all(message.elements == sent * nover * 4 for message in messages.records)


def test_no_message_along_an_axis_that_is_not_split(comm):
    layout = Layout.replicated((23,), comm.size)
    op = Sliding(matrix(6, 4, "f8", 1), 24, layout, 6, 3, comm=comm)
    with profile.count_messages() as messages:
        op.adjoint(op.forward(random(op.domain, comm=comm)))
    assert messages.total == 0


@pytest.mark.usefixtures("jax_double")
@pytest.mark.parametrize(("kind", "first"), [(Sliding2D, True), (Patch2D, False)])
def test_jax(comm, kind, first):
    """Forward, and derivatives, by which JAX finds the adjoint; in one case all windows are on one rank."""
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    dimsd, nwin, nover, nop = {**SLIDING, **PATCHES}[kind]
    A = window(nwin, nop, dimsd, "f8")
    sizes = [dimsd[0] - 2, *[0] * (comm.size - 2), 2] if first and comm.size > 1 else None
    layout = Layout.split(dimsd, comm.size, sizes=sizes)
    _, op = both(kind, A, "hanning", True, dimsd, nwin, nover, nop, comm, layout)
    x, y = (values(layout.shape, "f8", 2) for layout in (op.domain, op.range))
    expected = [
        (op @ from_global(x, op.domain, comm=comm)).gather(),
        (op.H @ from_global(y, layout, comm=comm)).gather(),
    ]
    x, y = (from_global(jax.numpy.asarray(x), layout, comm=comm) for x, layout in ((x, op.domain), (y, op.range)))

    @jax.jit
    def everything(x, y):
        (result, back), (image, forth) = jax.vjp(op.forward, x), jax.vjp(op.adjoint, y)
        return result, back(y)[0], image, forth(x)[0]

    for found, each in zip(everything(x, y), (*expected, *expected[::-1]), strict=True):
        np.testing.assert_allclose(np.asarray(found.gather()), each, atol=1e-12)


def test_what_does_not_fit_is_refused(comm):
    A = np.ones((6, 4))
    last = comm.rank == comm.size - 1
    cases: list[tuple[tuple[Any, ...], type[Exception], str]] = [
        ((A, 24, 21, 22, 3), InputError, "nwin must be at most"),
        ((A, 24, 21, 6, 4), InputError, "nover must be at most 3"),
        ((A, 24, 21, 6, 6, None), InputError, "nover must be at most 5"),
        ((A, 24, 21, 6, 3, "cosine_square"), InputError, "tapertype must be"),
        ((A, 24, 21, (6, 6), (3, 3)), InputError, "leading axes"),
        ((A, 25, 21, 6, 3), LayoutError, "multiples"),
        ((A, (24, 1), 21, 6, 3), LayoutError, "dims must have 1"),
        (([A] * 5, 24, 21, 6, 3), InputError, "a list of 6"),
        ((A.T if last else A, 24, 21, 6, 3), LayoutError, "needs the shape"),
        (([None] * 6, 24, 21, 6, 3), UnsupportedTypeError, "not a local operator"),
    ]
    for arguments, error, match in cases:
        with pytest.raises(error, match=match):
            Sliding(*arguments, comm=comm)
    with pytest.raises(InputError, match="6 real numbers"):
        Sliding(A, 24, 21, 6, 3, scalings=[1.0, 2.0], comm=comm)
    if comm.size > 1:
        with pytest.raises(LayoutError, match="must not be split"):
            Sliding(A, (12, 2), Layout.split((12, 2 * comm.size), comm.size, 1), 6, 0, comm=comm)
    with pytest.raises(InputError, match="2 extents"):
        Patch(A, (24, 1), (21, 1), (6,), (3,), (4, 1), comm=comm)
    with pytest.raises(LayoutError, match="models of"):
        Patch(A, (24, 1), (21, 1), (6, 1), (3, 0), (2, 2), comm=comm)
