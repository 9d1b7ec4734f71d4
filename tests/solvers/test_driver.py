"""The driver: callbacks, progress, history, timing, and solutions that go wrong."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

from collops import profile
from collops.array import StackedArray, dots, from_global, zeros
from collops.operators import BlockDiag
from collops.solvers import Status, cg, cgls, lsqr
from collops.solvers.history import open_history
from collops.solvers.problem import agreed
from collops.solvers.progress import open_progress
from collops.solvers.state import array_fields, local_arrays, other_fields

from .problems import assert_close, problem

SOLVERS = [cgls, lsqr]


@pytest.mark.parametrize("solver", SOLVERS)
def test_callbacks_see_every_iteration(comm, solver):
    op, _, _, yd = problem("vstack", comm, "f8")
    seen = []
    result = solver(
        op, yd, niter=4, callback=lambda number, view: seen.append((number, view.x.copy(), view.residual_norm))
    )
    assert [number for number, _, _ in seen] == [1, 2, 3, 4]
    for number, x, norm in seen:
        assert_close(x.gather(), solver(op, yd, niter=number).x.gather())
        assert norm == result.residual_norms[number]
        assert_close(float((yd - op @ x).norm()), norm)


@pytest.mark.parametrize("solver", SOLVERS)
def test_callbacks_can_stop(comm, solver):
    op, _, _, yd = problem("vstack", comm, "f8")
    result = solver(op, yd, niter=10, callback=lambda number, view: np.True_ if number == 3 else None)
    assert result.status is Status.STOPPED and result.iterations == 3
    assert len(result.residual_norms) == 4
    ignored = solver(op, yd, niter=2, callback=lambda number, view: view)
    assert ignored.status is Status.ITERATION_LIMIT


@pytest.mark.parametrize(
    ("options", "ahead"),
    [({}, 0), ({"tol": 0}, None), ({"tol": 0, "rtol": 1e-3}, 0), ({"tol": 1e-3, "lag": 2}, 2)],
)
def test_no_iteration_follows_the_one_that_passed_the_test(comm, monkeypatch, options, ahead):
    """Devices may run ahead of the host only where no tolerance can end the run: later steps change the solution."""
    asked = []

    def opened(engine, width, capacity, lag, comm):
        asked.append(lag)
        return open_history(engine, width, capacity, lag, comm)

    monkeypatch.setattr("collops.solvers.driver.open_history", opened)
    op, _, _, yd = problem("vstack", comm, "f8")
    cgls(op, yd, niter=2, **options)
    assert asked == [ahead]


def test_no_iterations(comm):
    op, _, y, yd = problem("vstack", comm, "f8")
    result = cgls(op, yd, niter=0)
    assert result.iterations == 0 and result.status is Status.ITERATION_LIMIT
    assert_close(result.residual_norms, [np.linalg.norm(y)])
    assert_close(result.x.gather(), np.zeros(6))


def test_what_a_result_says(comm):
    op, _, _, yd = problem("vstack", comm, "f8")
    result = cgls(op, yd, niter=3, tol=0)
    assert 0 < result.seconds_per_iteration <= result.seconds < 60
    assert result.execution == "eager"
    assert "iteration_limit after 3 iterations" in repr(result)
    assert all(str(status).endswith(".") for status in Status)
    assert cgls(op, yd, niter=3, tol=0, graph=False).execution == "eager"


def test_the_data_are_not_touched(comm):
    op, _, y, yd = problem("vstack", comm, "f8")
    for solver in SOLVERS:
        solver(op, yd, niter=3)
        np.testing.assert_array_equal(yd.gather(), y)


def test_repeats_bit_by_bit(comm):
    op, _, _, yd = problem("vstack", comm, "f4")
    for solver in SOLVERS:
        first, second = solver(op, yd, niter=5), solver(op, yd, niter=5)
        np.testing.assert_array_equal(first.x.local_array, second.x.local_array)
        first.x.check_replicated()


def test_marks_name_method_and_iterations(comm):
    op, _, _, yd = problem("vstack", comm, "f8")
    with profile.record() as recording:
        cgls(op, yd, niter=3, tol=0)
    labels = [span.label for span in recording.spans]
    assert labels.count("CGLS") == 1 and labels.count("CGLS iteration") == 3


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_for_rank_0_of_a_terminal(comm, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert open_progress(None, "CGLS", 3, comm) is None
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert open_progress(False, "CGLS", 3, comm) is None
    assert (open_progress(None, "CGLS", 3, comm) is None) == (comm.rank != 0)
    op, _, _, yd = problem("vstack", comm, "f8")
    cgls(op, yd, niter=3, tol=0)
    assert ("3/3" in terminal.getvalue()) == (comm.rank == 0)
    assert ("CGLS" in terminal.getvalue()) == (comm.rank == 0)


def test_agreement(comm):
    """A copy's inner product comes with a message, so that it is the same on all ranks, even where copies differ."""
    op, _, _, yd = problem("vstack", comm, "f8")
    x = zeros(op.domain, comm=comm)
    x.fill(1.0 + comm.rank)  # as if every rank rounded in its own way
    together = agreed(x)
    assert isinstance(together, StackedArray) == (comm.size > 1)
    assert agreed(yd) is yd
    with profile.count_messages() as sent:
        square, other = dots((together, together), (yd, yd))
    assert sent.total == (1 if comm.size > 1 else 0)
    assert float(square) == op.domain.size
    assert_close(float(other), float((yd.norm()) ** 2))


def test_states_show_their_arrays(comm):
    from collops.solvers import CGLS

    op, _, _, yd = problem("block_diag", comm, "f8")
    state = CGLS().init(op, yd, None, True)
    arrays, others = dict(array_fields(state)), dict(other_fields(state))
    assert {"x", "residual", "gradient", "direction", "image", "gradient_square"} <= set(arrays)
    assert set(others) == {"operator", "damped", "late", "together"}
    assert local_arrays(arrays["x"]) == [state.x.local_array]
    assert len(local_arrays(StackedArray([yd, state.x]))) == 2
    assert local_arrays(arrays["gradient_square"]) == [state.gradient_square]


def test_a_singular_operator_does_not_break_down(comm):
    op = BlockDiag([np.diag([1.0, 0.0])], comm)
    y = from_global(np.ones(2 * comm.size), op.range, comm=comm)
    for result in (cgls(op, y, niter=5, tol=0), cg(op, op.H @ y, niter=5, tol=0), lsqr(op, y, niter=5)):
        assert_close(result.x.local_array, [1.0, 0.0])
        assert result.status.successful
