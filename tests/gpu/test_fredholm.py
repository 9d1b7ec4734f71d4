"""Fredholm integrals and multi-dimensional convolution on devices: against the host, and as a replayed CUDA graph."""

from __future__ import annotations

import copy

import numpy as np
import pylops
import pytest

from collops import profile
from collops.array import from_global, zeros
from collops.errors import UnsupportedTypeError
from collops.operators import MDC, Fredholm1
from collops.operators.dense.device import batched
from collops.operators.fourier import pipeline, spread
from collops.solvers import cgls
from tests.array.cases import values
from tests.operators.fredholm_problems import FORMS, kernel
from tests.solvers.problems import assert_close

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

DTYPES = ["f4", "f8", "c8", "c16"]
REPLAYED = "replayed CUDA graph"
COUNTS = (2, 0, 3, 1)  # frequencies of each rank


def check(host, op, comm, dtype) -> None:
    """Compare the device's operator with the host's, both ways, and run the dot test."""
    for name, layout in (("forward", op.domain), ("adjoint", op.range)):
        x = values(layout.shape, dtype, 1)
        expected = getattr(host, name)(from_global(x, layout, comm=comm)).gather()
        given = from_global(cupy.asarray(x), layout, comm=comm)
        for _ in range(2):
            assert_close(getattr(op, name)(given).gather().get(), expected, dtype)
    assert op.dottest(engine="cupy")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("batch", "rows", "columns"), [(1, 1, 1), (5, 7, 4), (3, 64, 128), (0, 2, 3), (2, 0, 3), (2, 3, 0)]
)
def test_batches(batch, rows, columns, dtype):
    matrices = values((batch, rows, columns), dtype, 1)
    op = batched(cupy.asarray(matrices), False, True)
    assert op.capturable
    for width in (1, 3):
        x, y = values((batch, columns, width), dtype, 2), values((batch, rows, width), dtype, 3)
        for apply, given, expected in (
            (op.forward, x, matrices @ x),
            (op.adjoint, y, matrices.conj().swapaxes(1, 2) @ y),
        ):
            for chosen in (slice(None), slice(-2, None)):
                out = cupy.full(expected.shape, np.nan, dtype)
                assert apply(cupy.asarray(given), out, chosen) is out
                filled = expected[:, chosen]
                assert_close(out.get()[:, chosen], filled, dtype)
                assert np.count_nonzero(np.isnan(out.get())) == expected.size - filled.size


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_fredholm(comm, dtype, form):
    _, mine = kernel(comm, 5, 4, dtype)
    for nz in (1, 3):
        host = Fredholm1(mine, nz, model=form, data=form, comm=comm)
        for options in ({}, {"saveGt": True, "usematmul": False}):
            op = Fredholm1(cupy.asarray(mine), nz, **options, model=form, data=form, comm=comm)
            check(host, op, comm, dtype)
            if np.dtype(dtype).kind == "f":
                assert op.dottest(engine="cupy", complex_vectors=True)


def test_half_precision_and_other_engines(comm):
    _, mine = kernel(comm, 5, 4, "f2")
    op = Fredholm1(cupy.asarray(mine), comm=comm)
    assert not op.capturable
    x = values(op.dims, "f2", 1)
    result = op.forward(from_global(cupy.asarray(x), op.domain, comm=comm)).gather().get()
    whole, _ = kernel(comm, 5, 4, "f2")
    np.testing.assert_allclose(result.astype("f4"), whole.astype("f4") @ x.astype("f4"), atol=0.05)
    with pytest.raises(UnsupportedTypeError, match="cupy"):
        op.forward(zeros(op.domain, comm=comm))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_mdc(comm, dtype, form):
    _, mine = kernel(comm, 3, 4, dtype, (2, 0, 1, 1))
    for conj in (False, True):
        options = {"conj": conj, "model": form, "data": form, "comm": comm}
        host, op = MDC(mine, 9, 2, **options), MDC(cupy.asarray(mine), 9, 2, **options)
        check(host, op, comm, mine.real.dtype)


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_within_a_solver(comm, form, graph):
    _, mine = kernel(comm, 6, 4, "c16", (2, 0, 1, 1))
    options = {"conj": True, "model": form, "data": form, "comm": comm}
    host, op = MDC(mine, 9, 2, **options), MDC(cupy.asarray(mine), 9, 2, **options)
    assert op.capturable
    y = values(op.dimsd, "f8", 1)
    expected = cgls(host, from_global(y, host.range, comm=comm), niter=6, tol=0).x.gather()
    result = cgls(op, from_global(cupy.asarray(y), op.range, comm=comm), niter=6, tol=0, graph=graph)
    assert result.execution == (REPLAYED if graph else "eager")
    assert_close(result.x.gather().get(), expected, factor=10)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_mdc_piece_by_piece(comm, monkeypatch, dtype, count):
    """As PyLops does it, the whole result on every rank; several arrays are launched without a wait between them."""
    monkeypatch.setattr(pipeline, "_LARGE", 0)
    monkeypatch.setattr(spread, "_COUNT", count)
    whole, mine = kernel(comm, 33, 26, dtype, COUNTS)
    reference = pylops.waveeqprocessing.MDC(whole.astype("c16"), 31, 7, 0.1, 2.0)
    op = MDC(cupy.asarray(mine), 31, 7, dt=0.1, dr=2.0, comm=comm)
    twin = copy.deepcopy(op)
    for name, theirs, given, taken in (
        ("forward", reference, op.domain, op.range),
        ("adjoint", reference.H, op.range, op.domain),
    ):
        arrays = [values(given.shape, op.dtype, seed) for seed in range(3)]
        sources = [from_global(cupy.asarray(x), given, comm=comm) for x in arrays]
        with profile.count_messages() as sent:
            results = [getattr(op, name)(x) for x in sources]
        if comm.size > 1:
            mapped = comm.transport_of(sources[0].local_array).short is not None
            assert (sent["alltoallv"], sent["allgatherv"]) == ((3 * (1 + count), 0) if mapped else (0, 3))
        results.append(getattr(twin, name)(sources[0]))
        for x, result in zip([*arrays, arrays[0]], results, strict=True):
            expected = (theirs @ x.astype("f8").ravel()).reshape(taken.shape)
            assert_close(result.local_array.get(), expected, op.dtype)
    assert op.dottest(engine="cupy")


@pytest.mark.parametrize("graph", [True, False])
def test_mdc_piece_by_piece_within_a_solver(comm, monkeypatch, graph):
    """In a recorded step, whose replays follow each other, and with a result of another precision."""
    monkeypatch.setattr(pipeline, "_LARGE", 0)
    _, mine = kernel(comm, 24, 16, "c16", COUNTS)
    host, op = MDC(mine, 13, 5, comm=comm), MDC(cupy.asarray(mine), 13, 5, comm=comm)
    y = values(op.dimsd, "f8", 1)
    expected = cgls(host, from_global(y, host.range, comm=comm), niter=6, tol=0).x.gather()
    given = from_global(cupy.asarray(y), op.range, comm=comm)
    result = cgls(op, given, niter=6, tol=0, graph=graph)
    assert result.execution == (REPLAYED if graph else "eager")
    assert_close(result.x.gather().get(), expected, factor=10)
    narrow = op.adjoint(given, zeros(op.domain, comm=comm, dtype="f4", engine="cupy"))
    assert_close(narrow.gather().get(), op.adjoint(given).gather().get(), "f4")
