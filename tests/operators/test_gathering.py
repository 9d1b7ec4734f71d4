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
from collops.operators import MDC
from collops.operators.fourier import gathering, operator
from collops.operators.fourier.engines import Workspace
from collops.operators.fourier.transform import AxisTransform
from collops.operators.fredholm1 import _BatchedMatrix
from collops.solvers import cgls
from tests.array.cases import values
from tests.boxes_on_host import COMPILER, compiled
from tests.exchange.test_peer_copy import RUN, run

from .fredholm_problems import check, kernel
from .problems import assert_close
from .test_fourier_pipeline import Sent, own_memory, prepare_pieces

COUNTS = (2, 0, 1, 2)  # frequencies of each rank


@pytest.mark.serial
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize(("rows", "columns"), [(8, 33), (9, 17), (11, 16)])
def test_each_rank_gets_all_frequencies(tmp_path_factory, monkeypatch, rows, columns, dtype, count):
    box_kernel = cache(lambda unit: compiled(tmp_path_factory.mktemp("boxes"), unit, RUN))
    monkeypatch.setattr(gathering, "_COUNT", count)
    monkeypatch.setattr(gathering, "pays", lambda nbytes, workspace: True)
    ranks, total, dtype = len(COUNTS), sum(COUNTS), np.dtype(dtype)
    times = Layout.replicated((13, rows, columns), ranks)
    spectra = Layout.split((total, rows, columns), ranks, sizes=COUNTS)
    transform = AxisTransform(0, 13, 13, real=True, kept=total)
    whole = values(spectra.shape, dtype, 1)
    memory = [np.full(whole.size, np.nan, dtype) for _ in range(ranks)]
    chosen = []
    for rank in range(ranks):
        comm = SimpleNamespace(rank=rank, size=ranks, allgather_metadata=lambda able: [able] * ranks)
        workspace = SimpleNamespace(addresses=memory, complex=dtype)
        found = gathering.find_gathering(transform, times, spectra, dtype, True, comm, workspace)
        part = np.ascontiguousarray(whole[spectra.slices(rank)])
        assert len(found.pieces) == count and found.part == part.shape and found.whole == whole.shape
        for _, boxes in found.pieces:
            run(box_kernel, boxes, memory, part)
        chosen = [rows for rows, _ in found.pieces]
    for array in memory:
        assert np.array_equal(array, np.concatenate([whole[:, rows].ravel() for rows in chosen]))


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

    monkeypatch.setattr(gathering, "_COUNT", 3)
    monkeypatch.setattr(gathering, "pays", lambda nbytes, workspace: True)
    monkeypatch.setattr(gathering, "region_copy", Noted)
    monkeypatch.setattr(operator, "pays", lambda nbytes, workspace: workspace.engine.mutable)
    monkeypatch.setattr(Workspace, "prepare_pieces", prepare)
    monkeypatch.setattr(Workspace, "_memory", own_memory)
    monkeypatch.setattr(_BatchedMatrix, "by_rows", True)
    for name in ("forward", "adjoint"):
        monkeypatch.setattr(_BatchedMatrix, name, some_rows(getattr(_BatchedMatrix, name)))
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
    whole, mine = kernel(comm, 9, 6, dtype, COUNTS)
    complex_whole = whole.astype(np.result_type(dtype, "c8"))
    reference = pylops.waveeqprocessing.MDC(complex_whole, 9, 11, 0.1, 2.0, twosided, fftengine="scipy")
    op = MDC(mine, 9, 11, len(whole), 0.1, 2.0, twosided, comm=comm)
    check(op, reference, comm, whole.real.dtype)
    check(copy.deepcopy(op), reference, comm, whole.real.dtype)
    steps.clear()
    assert messages(op, comm) == 2 * [(0, 3 * (comm.size > 1))]
    # No rank writes before all have read what was in the memory, and none reads before all have written.
    assert steps == 2 * (["barrier", *3 * ["start"], *3 * ["wait", "barrier"]])
    # Results in another precision, and complex ones, are converted.
    x = random(op.domain, comm=comm, dtype=op.dtype)
    expected = op.forward(x).gather()
    for kind in ("f8", "c16"):
        assert_close(op.forward(x, zeros(op.range, comm=comm, dtype=kind)).gather(), expected, op.dtype)


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize(
    ("options", "rows", "expected"),
    [
        ({"data": "split"}, 9, [(0, 1), (0, 4)]),
        ({"model": "split"}, 9, [(0, 4), (0, 1)]),
        ({"conj": True}, 9, [(1, 0), (1, 0)]),
        ({}, 5, [(1, 0), (0, 3)]),  # fewer rows than pieces take
    ],
)
def test_what_is_cut(comm, options, rows, expected):
    """Nothing where a rank has a share of the result, where products are conjugated, and of few rows or columns."""
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
