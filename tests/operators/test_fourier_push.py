"""Fourier transforms whose parts are written to the memory of other ranks, against NumPy on gathered data.

GPUs write to each other's memory. Here a file that all ranks have mapped stands in for that.
"""

from __future__ import annotations

import tempfile
from types import SimpleNamespace

import numpy as np
import pytest

from collops import backend
from collops.array import Layout, from_global, zeros
from collops.exchange.boxes import extent
from collops.exchange.peer_copy import PeerCopy
from collops.operators import FFT, FFT2D, FFTND
from collops.operators.fourier import operator, push, route
from collops.operators.fourier.engines import PIECES, Workspace
from collops.operators.fourier.transform import JointTransform
from collops.solvers import cgls
from tests.array.cases import layouts, values

from .problems import assert_close, views_of_repeated_calls


def start(copy, memory, array):
    """Do on the host what the kernel of a copy does on a GPU, in rows of bytes."""
    assert array.itemsize == copy._itemsize and copy.arguments(array.strides, 0) is not None
    for (rank, box, local), strides, offset in zip(copy._boxes, copy._strides, copy._offsets, strict=True):
        np.ndarray(extent(box), array.dtype, memory[rank], offset, strides)[...] = array[local]
    return SimpleNamespace(wait=lambda: None)


def prepare_pieces(workspace, comm):
    nbytes = max(comm.allgather_metadata(workspace.size * workspace.complex.itemsize))
    with tempfile.NamedTemporaryFile() as file:
        name = comm.allgather_metadata(file.name)[0]
        if comm.rank == 0:
            file.truncate(comm.size * nbytes)
        comm.barrier()
        workspace.addresses = list(np.memmap(name, np.uint8, "r+", shape=(comm.size, nbytes)))
        comm.barrier()
    workspace.barrier, workspace._rank = comm.barrier, comm.rank


def own_memory(workspace, slot):
    if slot == PIECES:
        return workspace.addresses[workspace._rank].view(workspace.complex)[: workspace.size]
    return workspace._buffers.local(slot, (workspace.size,), workspace.complex, workspace.engine)


@pytest.fixture(autouse=True)
def mapped_memory(monkeypatch):
    """Of arrays of any size and of short rows, and without copies on every rank, which save messages of small ones."""
    monkeypatch.setattr(operator, "should_pipeline", lambda nbytes, workspace: workspace.engine.mutable)
    monkeypatch.setattr(operator, "find_pipeline", lambda *options: None)  # see test_fourier_pipeline.py
    monkeypatch.setattr(backend, "_SHORTEST_ROW", 1)
    monkeypatch.setattr(PeerCopy, "start", start)
    monkeypatch.setattr(Workspace, "prepare_pieces", prepare_pieces)
    monkeypatch.setattr(Workspace, "_memory", own_memory)
    monkeypatch.setattr(route, "_MESSAGE", 1)


def check(op, comm) -> None:
    """Compare with NumPy both ways, twice, with and without out, and run the dot test."""
    x, y = values(op.dims, op.rdtype, 1), values(op.dimsd, op.cdtype, 2)
    for apply, given, domain, expected, range in (
        (op.forward, x, op.domain, np.fft.fftn(x, axes=op.axes, norm="ortho"), op.range),
        (op.adjoint, y, op.range, np.fft.ifftn(y, axes=op.axes, norm="ortho"), op.domain),
    ):
        source = from_global(given, domain, comm=comm)
        for out in (None, zeros(range, comm=comm, dtype=op.cdtype)):
            assert_close(apply(source, out).gather(), expected, op.cdtype)
        assert_close(source.gather(), given)
    assert op.dottest()


def pushed(op) -> list[push.Push]:
    """The steps of an operator, which has been applied, that write to other ranks."""
    (workspace,) = op._workspaces.values()
    owners = [getattr(step.apply, "__self__", None) for step in op._programs(workspace.complex.itemsize)[0]]
    return [owner for owner in owners if isinstance(owner, push.Push)]


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(
    ("shape", "axes"), [((11, 23), (0, 1)), ((7, 6, 5), (0, 1, 2)), ((5, 21, 9), (0, 1)), ((9, 4, 5), (0,))]
)
def test_one_move(comm, monkeypatch, shape, axes, count, dtype):
    monkeypatch.setattr(push, "_COUNT", count)
    op = FFTND(shape, axes, dtype=dtype, comm=comm)
    check(op, comm)
    assert comm.size == 1 or pushed(op)


@pytest.mark.parametrize(
    ("axis", "axes", "sent", "arrived"),
    [
        (0, (0, 1), 4, 1),
        (1, (0, 1), 1, 4),  # the transform before the move is along the rows
        (1, (1,), 1, 4),  # there is none before it
        (0, (0,), 1, 1),  # the only transform is along the rows
        (2, (1, 2), 4, 1),
    ],
)
def test_which_rows_are_cut(comm, axis, axes, sent, arrived):
    op = FFTND(Layout.split((9, 8, 7), comm.size, axis), axes, dtype="c16", comm=comm)
    check(op, comm)
    if comm.size > 1:
        (step,) = pushed(op)
        assert (len(step.there.sent), len(step.there.arrived)) == (sent, arrived)
        assert (len(step.back.sent), len(step.back.arrived)) == (arrived, sent)


def test_every_layout(comm):
    """Grids too, copies, and other layouts for the data: like the model, with other blocks, or not split."""
    shape = (5, 4, 7)
    uneven = Layout.split(shape, comm.size, sizes=[*[0] * (comm.size - 1), 5])
    for layout in layouts(shape, comm.size):
        for target in (None, "domain", uneven, Layout.replicated(shape, comm.size)):
            check(FFTND(layout, dtype="c16", comm=comm, range_layout=target), comm)


def test_other_steps_around_it(comm):
    """Transforms that are real, shift, or change an extent; both numbers of bytes; a move of real numbers."""
    split = Layout.split((9, 43), comm.size, 1)
    for dims, options in (
        ((9, 43), {"real": True}),
        ((9, 43), {"fftshift_after": True}),
        ((9, 43), {"nffts": (12, 50)}),
        (split, {"real": True}),
        (split, {"real": True, "nffts": (12, 50)}),
    ):
        for dtype in ("f4", "f8"):
            op = FFT2D(dims, dtype=dtype, comm=comm, **options)
            x, y = values(op.dims, op.rdtype, 1), values(op.dimsd, op.cdtype, 2)
            with pytest.MonkeyPatch.context() as alone:
                alone.setattr(operator, "should_pipeline", lambda nbytes, workspace: False)
                whole = FFT2D(dims, dtype=dtype, comm=comm, **options)
                forward = whole.forward(from_global(x, op.domain, comm=comm)).gather()
                adjoint = whole.adjoint(from_global(y, op.range, comm=comm)).gather()
            assert_close(op.forward(from_global(x, op.domain, comm=comm)).gather(), forward, op.cdtype)
            assert_close(op.adjoint(from_global(y, op.range, comm=comm)).gather(), adjoint, op.cdtype)


def test_nothing_is_allocated_again(comm):
    op = FFTND((6, 5, 4), comm=comm)
    x = from_global(values((6, 5, 4), "c16", 1), op.domain, comm=comm)
    assert (comm.size > 1) == any(slot == PIECES for slot, *_ in views_of_repeated_calls(op, x))


def test_no_rank_runs_ahead(comm, monkeypatch):
    """A barrier before memory is written again, and before what others have written is transformed."""
    if comm.size == 1:
        pytest.skip("one rank moves nothing")
    steps = []

    def noted(word, apply):
        return lambda *arguments: (steps.append(word), apply(*arguments))[1]

    monkeypatch.setattr(push, "_COUNT", 2)
    monkeypatch.setattr(PeerCopy, "start", lambda *arguments: (start(*arguments), steps.append("write"))[0])
    monkeypatch.setattr(JointTransform, "forward", noted("transform", JointTransform.forward))
    monkeypatch.setattr(JointTransform, "adjoint", noted("transform", JointTransform.adjoint))
    op = FFT2D((6, 9), dtype="c16", comm=comm)
    x = from_global(values((6, 9), "c16", 1), op.domain, comm=comm)
    y = op.forward(x)
    (workspace,) = op._workspaces.values()
    workspace.barrier = noted("barrier", workspace.barrier)
    for apply, given, expected in (
        (op.forward, x, ["transform", "barrier", "write", "transform", "write", "barrier", "transform"]),
        (op.adjoint, y, ["transform", "barrier", "write", "write", *["barrier", "transform"] * 2]),
    ):
        steps.clear()
        apply(given)
        assert steps == expected


def test_within_a_solver(comm):
    op = FFT((12, 10), 0, comm=comm, dtype="c16")
    x = values((12, 10), "c16", 1)
    y = op.forward(from_global(x, op.domain, comm=comm))
    assert_close(cgls(op, y, niter=3, tol=0).x.gather(), x, factor=10)
