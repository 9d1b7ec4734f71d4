"""Fourier transforms of device arrays: against the host, in every layout, launched and as a replayed CUDA graph."""

from __future__ import annotations

import numpy as np
import pytest

from collops.array import Layout, from_global, random, redistribute, zeros
from collops.operators import FFT, FFT2D, FFTND
from collops.operators.fourier import pipeline, push
from collops.solvers import cgls
from tests.array.cases import layouts, values
from tests.solvers.problems import assert_close

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

KINDS = [("f4", True), ("f8", True), ("f4", False), ("c8", False), ("c16", False)]


def check(op, comm) -> None:
    """Compare device arrays with host arrays, both ways, twice, and run the dot test."""
    for apply, shape, layout, dtype in (
        (op.forward, op.dims, op.domain, op.rdtype),
        (op.adjoint, op.dimsd, op.range, op.cdtype),
    ):
        x = values(shape, dtype, 1)
        expected = apply(from_global(x, layout, comm=comm)).gather()
        given = from_global(cupy.asarray(x), layout, comm=comm)
        for _ in range(2):  # plans are made, then found
            result = apply(given)
            assert result.engine.name == "cupy" and result.dtype == expected.dtype
            assert_close(result.gather().get(), expected, op.cdtype)
        assert_close(given.gather().get(), x, op.cdtype)
    assert op.dottest(engine="cupy")


@pytest.mark.parametrize(("dtype", "real"), KINDS)
@pytest.mark.parametrize(("shape", "axes"), [((7,), (0,)), ((5, 4), (0, 1)), ((5, 4), (1, 0)), ((4, 3, 6), (2, 0, 1))])
def test_agrees_with_the_host(comm, shape, axes, dtype, real):
    for layout in layouts(shape, comm.size):
        check(FFTND(layout, axes, real=real, dtype=dtype, comm=comm), comm)


@pytest.mark.parametrize(("dtype", "real"), KINDS)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(3, 8, 5), (40, 9, 6), (1, 1, 1), (2, 131, 3)])
def test_one_axis_of_three(comm, shape, axis, dtype, real):
    for norm in ("ortho", "none", "1/n"):
        check(FFT(Layout.split(shape, comm.size, 2), axis, norm=norm, real=real, dtype=dtype, comm=comm), comm)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 144, 20), 1), ((49, 40), 0), ((17, 3, 33), 0), ((344, 20), 0), ((94, 40), 0)]
)
def test_lines(comm, shape, axis, dtype):
    """By the kernel in one pass, but for a length with a factor above 43; one column is cut off."""
    for norm in ("ortho", "none"):
        check(FFT(Layout.split(shape, comm.size, len(shape) - 1), axis, norm=norm, dtype=dtype, comm=comm), comm)
        check(
            FFTND(Layout.replicated(shape, comm.size), norm=norm, axes=(axis, axis - 1), dtype=dtype, comm=comm), comm
        )


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("samples", [9, 131, 300, 600])
def test_real_transforms_of_many_columns(comm, samples, dtype):
    """By the kernel of each length, and at the end without it."""
    for columns in (16, 37):
        shape = (2, samples, columns)
        for lengths in (None, samples + 3, samples - 1):
            options = {"norm": "1/n", "real": True, "ifftshift_before": True, "fftshift_after": True}
            check(FFT(Layout.replicated(shape, comm.size), 1, lengths, **options, dtype=dtype, comm=comm), comm)
            check(FFT(Layout.split(shape, comm.size), 1, lengths, real=True, dtype=dtype, comm=comm), comm)


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("aside", [True, False])
def test_large_arrays_within_a_solver(comm, monkeypatch, graph, aside):
    """Rows by cuFFT, and columns, which scale for both, by the kernel of lines, in a recorded step too.

    Messages on a side stream, while the rest is copied, as of larger arrays.
    """
    monkeypatch.setattr(redistribute, "_LARGE", 0 if aside else 1 << 60)
    op = FFT2D((1100, 1023 * comm.size), dtype="c8", comm=comm, range_layout="domain")
    x = random(op.domain, comm=comm, dtype="c8", engine="cupy")
    expected = np.fft.fft2(x.gather().get().astype("c16"), norm="ortho")
    y = op.forward(x)
    assert_close(y.gather().get(), expected, "f4")
    result = cgls(op, y, niter=3, tol=0, graph=graph)
    assert result.execution == ("replayed CUDA graph" if graph else "eager")
    assert_close(result.x.gather().get(), x.gather().get(), "f4", factor=10)


@pytest.mark.parametrize("target", ["domain", None])
@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("shape", [(1100, 1023), (98, 61, 131), (40, 6, 700)])
def test_piece_by_piece(comm, monkeypatch, shape, count, target):
    """As whole parts; transforms of several arrays are launched without a wait between them."""
    for module in (pipeline, push):
        monkeypatch.setattr(module, "_COUNT", count)
    options = {"dtype": "c8", "comm": comm, "range_layout": target}
    whole, op = (FFTND(shape, range(len(shape)), **options) for _ in range(2))
    for name, layout in (("forward", op.domain), ("adjoint", op.range)):
        given = [random(layout, seed=seed, comm=comm, dtype="c8", engine="cupy") for seed in range(4)]
        expected = [getattr(whole, name)(x).gather().get() for x in given]
        with monkeypatch.context() as pieces:
            pieces.setattr(pipeline, "_LARGE", 0)
            results = [getattr(op, name)(x) for x in given]
        for result, right in zip(results, expected, strict=True):
            assert_close(result.gather().get(), right, "c8")
    (workspace,) = op._workspaces.values()
    mapped = comm.transport_of(given[0].local_array).short is not None
    assert (workspace.addresses is not None) == (mapped and comm.size > 1)
    assert op.dottest(engine="cupy")


@pytest.mark.parametrize("target", ["domain", None])
@pytest.mark.parametrize("graph", [True, False])
def test_piece_by_piece_within_a_solver(comm, monkeypatch, graph, target):
    """In a recorded step, whose replays follow each other."""
    monkeypatch.setattr(pipeline, "_LARGE", 0)
    op = FFTND((96, 130, 70), dtype="c8", comm=comm, range_layout=target)
    x = random(op.domain, comm=comm, dtype="c8", engine="cupy")
    y = op.forward(x)
    assert_close(y.gather().get(), np.fft.fftn(x.gather().get().astype("c16"), norm="ortho"), "f4")
    result = cgls(op, y, niter=5, tol=0, graph=graph)
    assert result.execution == ("replayed CUDA graph" if graph else "eager")
    assert_close(result.x.gather().get(), x.gather().get(), "f4", factor=10)


@pytest.mark.parametrize(("dtype", "real"), KINDS)
def test_options(comm, dtype, real):
    for lengths in ((None, None), (9, 7), (4, 3)):
        op = FFT2D(
            *((6, 5), (0, 1), lengths, 1.0, "1/n", real, True, True), dtype=dtype, comm=comm, range_layout="domain"
        )
        check(op, comm)


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize(("dtype", "real"), KINDS)
def test_within_a_solver(comm, dtype, real, graph):
    op = FFT2D((12, 10), nffts=(16, 12), real=real, dtype=dtype, comm=comm)
    x = values((12, 10), op.rdtype, 1)
    y = op.forward(from_global(cupy.asarray(x), op.domain, comm=comm))
    result = cgls(op, y, niter=6, tol=0, graph=graph)
    assert result.execution == ("replayed CUDA graph" if graph else "eager")
    assert_close(result.x.gather().get(), x, op.cdtype, factor=10)


def test_other_dtypes_and_strides(comm):
    op = FFT((6, 4), axis=0, real=True, dtype="f4", comm=comm)
    host = values((6, 4), "f8", 1)
    x = zeros(op.domain, comm=comm, engine="cupy")
    x.local_array = cupy.repeat(cupy.asarray(host), 2, axis=1)[op.domain.slices(comm.rank)[:1]][:, ::2]
    wide = zeros(op.range, comm=comm, dtype="c16", engine="cupy")
    expected = op.forward(from_global(host, op.domain, comm=comm), zeros(op.range, comm=comm, dtype="c16")).gather()
    assert_close(op.forward(x, wide).gather().get(), expected, "f8")
    back = op.adjoint(wide, zeros(op.domain, comm=comm, dtype="c16", engine="cupy"))
    assert_close(back.gather().get(), host, "f8")


def test_work_stays_on_the_current_stream(comm):
    op = FFTND((6, 5, 4), comm=comm, dtype="c8")
    x = random(op.domain, comm=comm, dtype="c8", engine="cupy")
    expected = np.fft.fftn(x.gather().get(), norm="ortho")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        y = op.forward(x)
        stream.synchronize()
        assert_close(y.gather().get(), expected, "f4")
