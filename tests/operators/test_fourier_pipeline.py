"""Fourier transforms piece by piece, against NumPy on gathered data, and what may not be cut.

GPUs copy pieces to and from each other's memory. Messages stand in for that; tests/exchange/test_peer_copy.py has the
boxes.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from collops import profile
from collops.array import Layout, from_global, transfers, zeros
from collops.exchange import ExchangePlan
from collops.operators import FFT, FFT2D, FFTND
from collops.operators.fourier import operator, pipeline, route
from collops.operators.fourier.engines import Workspace
from collops.operators.fourier.transform import JointTransform
from collops.solvers import cgls
from tests.array.cases import layouts, values

from .problems import assert_close, views_of_repeated_calls


class Sent:
    """What a copy between GPUs does, by messages, in a workspace instead of at addresses."""

    def __init__(self, comm, layout, wanted, begins, itemsize, *, writes):
        moves = transfers(layout, comm.rank, wanted)
        sends, receives = [[(peer, box) for peer, _, box in side] for side in moves[:2]]
        ends = (sends, receives) if writes else (receives, sends)
        self._plan = ExchangePlan(comm, *ends, kind="alltoallv", travels=moves.travels)
        self._begin, self._writes = begins[comm.rank], writes
        self._shape = tuple(stop - start for start, stop in wanted(comm.rank)[0])

    def supports(self, shape):
        return True

    def start(self, workspace, array):
        size = np.prod(self._shape, dtype=int)
        region = workspace.take("pieces", (workspace.size,))[self._begin : self._begin + size].reshape(self._shape)
        moving = self._plan.start(*((array, region) if self._writes else (region, array)))
        return SimpleNamespace(wait=moving.finish)


def prepare_pieces(workspace, comm):
    workspace.addresses = workspace
    workspace.barrier = lambda: None


def own_memory(workspace, slot):
    return workspace._buffers.local(slot, (workspace.size,), workspace.complex, workspace.engine)


@pytest.fixture(autouse=True)
def pieces_by_messages(monkeypatch):
    """Of arrays of any size, and without copies on every rank, which save messages of small ones."""
    monkeypatch.setattr(operator, "should_pipeline", lambda nbytes, workspace: workspace.engine.mutable)
    monkeypatch.setattr(pipeline, "region_copy", Sent)
    monkeypatch.setattr(operator, "find_push", lambda *options: None)  # see test_fourier_push.py
    monkeypatch.setattr(Workspace, "prepare_pieces", prepare_pieces)
    monkeypatch.setattr(Workspace, "_memory", own_memory)
    monkeypatch.setattr(route, "_MESSAGE", 1)


def check(op, comm, moves, **lengths) -> None:
    """Compare with NumPy both ways, with and without out, count the messages, and run the dot test."""
    x, y = values(op.dims, op.rdtype, 1), values(op.dimsd, op.cdtype, 2)
    for apply, given, domain, expected, range in (
        (op.forward, x, op.domain, np.fft.fftn(x, **lengths, axes=op.axes, norm="ortho"), op.range),
        (op.adjoint, y, op.range, np.fft.ifftn(y, axes=op.axes, norm="ortho"), op.domain),
    ):
        source = from_global(given, domain, comm=comm)
        for out in (None, zeros(range, comm=comm, dtype=op.cdtype)):
            with profile.count_messages() as sent:
                result = apply(source, out)
            assert sent["alltoallv"] == moves
            assert_close(result.gather(), expected, op.cdtype)
        assert_close(source.gather(), given)
    assert op.dottest()


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize(("shape", "axes"), [((11, 23), (0, 1)), ((7, 23, 4), (0, 1, 2)), ((5, 21, 9), (2, 0))])
def test_moves_there_and_back(comm, monkeypatch, shape, axes, count, dtype):
    monkeypatch.setattr(pipeline, "_COUNT", count)
    check(FFTND(shape, axes, dtype=dtype, comm=comm, range_layout="domain"), comm, (comm.size > 1) * 2 * count)


def test_uneven_and_empty_parts(comm):
    """More pieces than elements, and ranks that have none before, between or after the moves."""
    last = [0] * (comm.size - 1) + [6]
    for shape in ((6, 2), (6, 9), (6, 1, 3)):
        layout = Layout.split(shape, comm.size, sizes=last)
        op = FFT(layout, 0, dtype="c16", comm=comm, range_layout="domain")
        x = values(shape, "c16", 1)
        expected = np.fft.fft(x, axis=0, norm="ortho")
        assert_close(op.forward(from_global(x, layout, comm=comm)).gather(), expected)
        assert op.dottest()


def test_every_layout(comm):
    """Grids too, copies, and other layouts for the data: with other blocks, split along another axis, or not split."""
    shape = (5, 4, 7)
    uneven = Layout.split(shape, comm.size, sizes=[*[0] * (comm.size - 1), 5])
    x = values(shape, "c16", 1)
    expected = np.fft.fftn(x, norm="ortho")
    for layout in layouts(shape, comm.size):
        for target in ("domain", uneven, Layout.split(shape, comm.size, 2), Layout.replicated(shape, comm.size)):
            op = FFTND(layout, comm=comm, range_layout=target)
            assert_close(op.forward(from_global(x, layout, comm=comm)).gather(), expected)
            assert_close(op.adjoint(from_global(expected, op.range, comm=comm)).gather(), x)
            assert op.dottest()


@pytest.mark.parametrize(
    ("options", "moves"),
    [
        ({"range_layout": None}, 1),
        ({"nffts": (10, None)}, 2),
        ({"fftshift_after": True}, 2),
        ({"ifftshift_before": (True, False)}, 2),
        ({"axes": (1, 0), "real": True, "dtype": "f8"}, 2),
        ({"nffts": (None, 50)}, 6),  # as it is longer before the first move
        ({"real": True, "dtype": "f8"}, 6),  # and complex
    ],
)
def test_what_is_cut(comm, monkeypatch, options, moves):
    """Nothing where there is one move, or a transform that is real, shifts, or changes an extent comes in between."""
    op, whole = (FFT2D((9, 43), **{"range_layout": "domain", **options}, comm=comm) for _ in range(2))
    x, y = values(op.dims, op.rdtype, 1), values(op.dimsd, op.cdtype, 2)
    for name, given, layout in (("forward", x, op.domain), ("adjoint", y, op.range)):
        source = from_global(given, layout, comm=comm)
        with profile.count_messages() as sent:
            result = getattr(op, name)(source)
        assert sent["alltoallv"] == (comm.size > 1) * moves
        with monkeypatch.context() as alone:
            alone.setattr(operator, "should_pipeline", lambda nbytes, workspace: False)
            assert_close(result.gather(), getattr(whole, name)(source).gather(), op.cdtype)
    assert op.dottest()


def test_nothing_is_allocated_again(comm):
    op = FFTND((6, 5, 4), comm=comm, range_layout="domain")
    x = from_global(values((6, 5, 4), "c16", 1), op.domain, comm=comm)
    assert (comm.size > 1) == any(slot == "pieces" for slot, *_ in views_of_repeated_calls(op, x))


def test_no_rank_runs_ahead(comm, monkeypatch):
    """A barrier before memory is written again, before a piece is transformed, and before others read it."""
    if comm.size == 1:
        pytest.skip("one rank moves nothing")
    steps, sent = [], Sent.start

    def noted(word, apply):
        return lambda *arguments: (steps.append(word), apply(*arguments))[1]

    def start(copy, workspace, array):
        begin, end = ("write", "written") if copy._writes else ("read", "arrived")
        return SimpleNamespace(wait=noted(end, noted(begin, sent)(copy, workspace, array).wait))

    monkeypatch.setattr(Sent, "start", start)
    monkeypatch.setattr(JointTransform, "forward", noted("transform", JointTransform.forward))
    op = FFT2D((6, 9), comm=comm, range_layout="domain")
    x = from_global(values((6, 9), "c16", 1), op.domain, comm=comm)
    op.forward(x)
    (workspace,) = op._workspaces.values()
    workspace.barrier = noted("barrier", workspace.barrier)
    steps.clear()
    op.forward(x)
    assert steps == [
        *("transform", "barrier", "write", "write", "write"),
        *("written", "barrier", "transform"),
        *("written", "barrier", "read", "transform"),
        *("written", "barrier", "read", "transform"),
        *("barrier", "read", "arrived", "arrived", "arrived"),
    ]


def test_within_a_solver(comm):
    op = FFT2D((12, 10), comm=comm, range_layout="domain")
    x = values((12, 10), "c16", 1)
    y = op.forward(from_global(x, op.domain, comm=comm))
    assert_close(cgls(op, y, niter=3, tol=0).x.gather(), x, factor=10)
