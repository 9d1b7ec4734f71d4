"""MDC piece by piece: the boxes that ranks write, by their kernel run as C++, and the operator, by messages instead.

GPUs write pieces to each other's memory; tests/gpu/test_fredholm.py does so.
"""

from __future__ import annotations

import copy
from functools import cache
from types import SimpleNamespace

import numpy as np
import pylops
import pytest

from collops import profile
from collops.array import Layout, random, zeros
from collops.backend import engine
from collops.operators import MDC
from collops.operators.dense.matrix import BatchedMatrix
from collops.operators.fourier import operator, spread
from collops.operators.fourier.engines import Workspace
from collops.operators.fourier.transform import AxisTransform
from collops.solvers import cgls
from tests.array.cases import values
from tests.boxes_on_host import COMPILER, compiled
from tests.exchange.test_peer_copy import RUN, run

from .fredholm_problems import check, kernel
from .problems import assert_close
from .test_fourier_pipeline import Sent, own_memory, prepare_pieces

COUNTS = (2, 3, 0, 0)  # frequencies of each rank


@pytest.mark.serial
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize(("rows", "columns"), [(8, 33), (9, 17), (11, 16)])
def test_frequencies_to_the_ranks_that_multiply_them(tmp_path_factory, monkeypatch, rows, columns, dtype, count):
    """Shares of the input to ranks with some frequencies, and their products to all ranks."""
    box_kernel = cache(lambda unit: compiled(tmp_path_factory.mktemp("boxes"), unit, RUN))
    monkeypatch.setattr(spread, "_COUNT", count)
    ranks, total, dtype = len(COUNTS), sum(COUNTS), np.dtype(dtype)
    given, taken = (Layout.split((total, n, columns), ranks, sizes=COUNTS) for n in (rows + 2, rows))
    transform = AxisTransform(0, 13, 13, real=True, kept=total)
    spectra, products = values(given.shape, dtype, 1), values(taken.shape, dtype, 2)
    memory = [np.full(2 * (spectra.size + products.size), np.nan, dtype) for _ in range(ranks)]
    monkeypatch.setattr(spread, "should_pipeline", lambda nbytes, workspace: True)
    monkeypatch.setattr(Workspace, "prepare_pieces", lambda workspace, comm: setattr(workspace, "addresses", memory))
    for rank in range(ranks):
        comm = SimpleNamespace(rank=rank, size=ranks, allgather_metadata=lambda able: [able] * ranks)
        found = spread.find_product(transform, transform, given, taken, dtype, comm, engine("numpy"))
        assert found.workspace.size <= len(memory[rank])
        run(box_kernel, found.send, memory, np.ascontiguousarray(spectra[:, found.share]))
        for _, boxes in found.pieces:
            run(box_kernel, boxes, memory, np.ascontiguousarray(products[taken.slices(rank)]))
    for rank, array in enumerate(memory):
        mine = spectra[given.slices(rank)]
        assert np.array_equal(array[: mine.size], mine.ravel())
        assert np.isnan(array[mine.size : found.after]).all()
        whole = array[found.after : found.after + products.size]
        assert np.array_equal(whole, np.concatenate([products[:, part].ravel() for part, _ in found.pieces]))
        assert np.isnan(array[found.after + products.size :]).all()


def some_rows(product):
    """A method of a batch of matrices that can compute some rows of all products alone."""

    def apply(self, x, out, rows=None):
        if rows is None:
            return product(self, x, out)
        out[:, rows] = product(self, x, None)[:, rows]
        return out

    return apply


@pytest.fixture
def steps(monkeypatch):
    """Pieces by messages, of spectra of any size and on hosts: the list of what they start and wait for."""
    done = []

    class Noted(Sent):
        def start(self, workspace, array):
            done.append("start")
            moving = super().start(workspace, array)
            return SimpleNamespace(wait=lambda: (done.append("wait"), moving.wait()))

    def prepare(workspace, comm):
        prepare_pieces(workspace, comm)
        workspace.barrier = lambda: done.append("barrier")

    monkeypatch.setattr(spread, "_COUNT", 3)
    monkeypatch.setattr(spread, "should_pipeline", lambda nbytes, workspace: True)
    monkeypatch.setattr(spread, "region_copy", Noted)
    monkeypatch.setattr(operator, "should_pipeline", lambda nbytes, workspace: workspace.engine.mutable)
    monkeypatch.setattr(Workspace, "prepare_pieces", prepare)
    monkeypatch.setattr(Workspace, "_memory", own_memory)
    monkeypatch.setattr(BatchedMatrix, "by_rows", True)
    for name in ("forward", "adjoint"):
        monkeypatch.setattr(BatchedMatrix, name, some_rows(getattr(BatchedMatrix, name)))
    return done


def messages(op, comm):
    """How many gathers and other messages each direction takes."""
    counts = []
    for apply, layout in ((op.forward, op.domain), (op.adjoint, op.range)):
        x = random(layout, comm=comm, dtype=op.dtype)
        with profile.count_messages() as sent:
            apply(x)
        counts.append((sent["allgatherv"], sent["alltoallv"]))
    return counts


@pytest.mark.parametrize("twosided", [True, False])
@pytest.mark.parametrize("dtype", ["f4", "c8", "c16"])
def test_mdc(comm, steps, dtype, twosided):
    """Real matrices too, whose products with spectra are complex."""
    whole, mine = kernel(comm, 9, 8, dtype, COUNTS)
    complex_whole = whole.astype(np.result_type(dtype, "c8"))
    reference = pylops.waveeqprocessing.MDC(complex_whole, 9, 11, 0.1, 2.0, twosided, fftengine="scipy")
    op = MDC(mine, 9, 11, len(whole), 0.1, 2.0, twosided, comm=comm)
    check(op, reference, comm, whole.real.dtype)
    check(copy.deepcopy(op), reference, comm, whole.real.dtype)
    steps.clear()
    assert messages(op, comm) == 2 * [(0, 4 * (comm.size > 1))]
    # No rank writes before all have read what was in the memory, and none reads before all have written.
    assert steps == 2 * (["barrier", "start", "wait", "barrier", *3 * ["start"], *3 * ["wait", "barrier"]])
    # The kernels take arrays of one precision only.
    other = random(op.domain, comm=comm, dtype="f4" if op.dtype == "f8" else "f8")
    with profile.count_messages() as sent:
        result = op.forward(other, zeros(op.range, comm=comm, dtype=op.dtype))
    assert (sent["allgatherv"], sent["alltoallv"]) == (int(comm.size > 1), 0)
    assert_close(result.gather(), op.forward(other).gather(), "f4")
    # Results in another precision, and complex ones, are converted.
    x = random(op.domain, comm=comm, dtype=op.dtype)
    expected = op.forward(x).gather()
    for kind in ("f8", "c16"):
        assert_close(op.forward(x, zeros(op.range, comm=comm, dtype=kind)).gather(), expected, op.dtype)


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize(
    ("options", "rows", "expected"),
    [
        ({"data": "split"}, 9, [(0, 1), (1, 1)]),
        ({"model": "split"}, 9, [(1, 1), (0, 1)]),
        ({"conj": True}, 9, [(1, 0), (1, 0)]),
        ({}, 3, [(1, 0), (1, 0)]),  # fewer rows than pieces take
    ],
)
def test_what_is_cut(comm, options, rows, expected):
    """Nothing where a side is not whole on every rank, where products are conjugated, and of few rows or columns."""
    _, mine = kernel(comm, rows, 8, "c16", COUNTS)
    op = MDC(mine, 9, 8, **options, comm=comm)
    assert op.dottest()
    assert messages(op, comm) == (expected if comm.size > 1 else 2 * [(0, 0)])


@pytest.mark.usefixtures("steps")
def test_within_a_solver(comm):
    _, mine = kernel(comm, 9, 6, "c16", COUNTS)
    op = MDC(mine, 9, 8, comm=comm)
    y = op.forward(random(op.domain, comm=comm))
    x = cgls(op, y, niter=60, tol=1e-20).x
    assert_close(op.forward(x).gather(), y.gather(), "f4")
