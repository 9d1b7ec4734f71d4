"""The driver: callbacks, progress, history, timing, and solutions that go wrong."""

from __future__ import annotations

import dataclasses
import io
import sys

import numpy as np
import pytest

from collops import profile
from collops.array import StackedArray, dots, from_global, full, ones, zeros
from collops.errors import InputError
from collops.operators import BlockDiag, Diagonal, Identity
from collops.solvers import CG, CGLS, LSQR, Status, cg, cgls, lsqr, solve
from collops.solvers.components import numbers_of_option
from collops.solvers.driver import open_progress
from collops.solvers.iterative_thresholding import prepare
from collops.solvers.power import PowerIteration
from collops.solvers.problem import consistent
from collops.solvers.proximal import L1, L2
from collops.solvers.proximal.primal_dual import PrimalDual
from collops.solvers.proximal.splitting import StepSizes
from collops.solvers.state import carried, fixed, with_carried
from collops.solvers.variants.cgls import DampedCGLS, OneMessageCGLS
from collops.solvers.variants.single_reduction import SingleReductionCG, SingleReductionCGLS

from .problems import assert_close, problem, start

SOLVERS = [cgls, lsqr]
OPTIONS = {
    "eps": 0.3,
    "alpha": 1e-3,
    "eigsdict": None,
    "xtol": None,
    "tol": 0.0,
    "rtol": 1e-9,
    "rtol1": 0.0,
    "threshkind": "soft",
}
OPTIONS |= {"perc": None, "decay": None, "monitorres": False}
METHODS = {
    "cgls": lambda op, y: (CGLS(), op, y, None),
    "cgls, damped": lambda op, y: (DampedCGLS(damp=0.1), op, y, None),
    "cgls, one message": lambda op, y: (OneMessageCGLS(), op, y, None),
    "cgls, one reduction": lambda op, y: (SingleReductionCGLS(damp=0.1), op, y, None),
    "cg, one reduction": lambda op, y: (SingleReductionCG(), op.H @ op, op.H @ y, None),
    "lsqr": lambda op, y: (LSQR(damp=0.1), op, y, None),
    "lsqr, with variances": lambda op, y: (LSQR(calc_var=True).variant(y), op, y, None),
    "fista": lambda op, y: (prepare(op, y, None, 3, None, accelerated=True, **OPTIONS), op, y, None),
    "power iteration": lambda op, y: (PowerIteration(), op.H @ op, start(op, y.comm, y.dtype)[1], None),
    "primal-dual": lambda op, y: (
        PrimalDual(L2(), L1(0.3), None, None, True, StepSizes("tau", 0.1, 3), StepSizes("mu", 0.1, 3), 1.0, True, None),
        op,
        start(op, y.comm, y.dtype)[1],
        None,
    ),
}


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
        np.testing.assert_allclose(norm, result.residual_norms[number], rtol=1e-12)  # the last one is computed
        assert_close(float((yd - op @ x).norm()), norm)


@pytest.mark.parametrize("solver", SOLVERS)
def test_callbacks_can_stop(comm, solver):
    op, _, _, yd = problem("vstack", comm, "f8")
    result = solver(op, yd, niter=10, callback=lambda number, view: np.True_ if number == 3 else None)
    assert result.status is Status.STOPPED and result.iterations == 3
    assert len(result.residual_norms) == 4
    for value in (lambda number, view: view, lambda number, view: 1.0, lambda number, view: np.ones(1, bool)):
        assert solver(op, yd, niter=2, callback=value).status is Status.ITERATION_LIMIT


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_callbacks_stop_by_an_array_of_one_boolean(comm, engine):
    """A comparison of norms of JAX or CuPy is such an array."""
    pytest.importorskip(engine)
    y = full(4 * comm.size, 2.0, comm=comm, engine=engine)
    enough = (y * 0).norm() < y.norm()
    xp = y.engine.xp
    result = cgls(Identity(y.layout, comm=comm), y, niter=5, tol=0, callback=lambda *_: xp.asarray(enough))
    assert result.status is Status.STOPPED and result.iterations == 1


def test_long_double_needs_no_starting_point(comm):
    """The range of long double exceeds the range of the units, which are in double precision."""
    y = (ones(3 * comm.size, comm=comm) * 3).astype(np.longdouble)
    found = cg(2 * Identity(y.layout, comm=comm), y, niter=3).x
    assert found.dtype == np.longdouble
    assert np.array_equal(found.gather(), np.full(y.size, 1.5))
    for factor in ("1e-330", "1e310"):
        with pytest.raises(InputError, match="outside the range of norms"):
            cg(2 * Identity(y.layout, comm=comm), y * np.longdouble(factor), niter=3)


@pytest.mark.parametrize("value", [0.1j, np.complex64(0.1 + 0.5j), np.array(0.1 + 0j)])
def test_options_are_real(comm, value):
    """NumPy's complex numbers become real without an error."""
    op, _, _, yd = problem("vstack", comm, "c16")
    with pytest.raises(InputError, match="damp must be a finite number"):
        cgls(op, yd, damp=value)


def test_tests_of_options_that_are_off_are_skipped(comm):
    """A test costs a call in every iteration."""
    seen = []

    class Watched(CGLS):
        stops = (
            (lambda self, now, first: seen.append("always") or False, Status.CONVERGED),
            (lambda self, now, first: seen.append("rtol") or now.residual < self.rtol, Status.CONVERGED, "rtol"),
            (lambda self, now, first: now.residual == first.residual, None),  # continues before the first iteration
            (lambda self, now, first: True, Status.STOPPED, "atol"),
        )

    op, _, _, yd = problem("vstack", comm, "f8")
    assert solve(Watched(), op, yd, niter=2).iterations == 2
    assert set(seen) == {"always"}
    result = solve(Watched(rtol=1e-30, atol=1.0), op, yd, niter=2)
    assert result.iterations == 1 and result.status is Status.STOPPED
    assert set(seen) == {"always", "rtol"}


@pytest.mark.parametrize(("niter", "expected"), [(3, 0), (4, 1)])
def test_a_method_restarts_only_if_iterations_are_left(comm, niter, expected):
    """Three eigenvalues take three iterations, after which the computed residual is not small."""
    restarts = []

    class Doubtful(CG):
        def recomputed(self, A, y, x, x0, state, now):
            return now._replace(residual=0 * now.residual + 1.0)

        def at_rounding(self, A, y, x, now, history):
            return False, False

        def restarted(self, A, y, x, state):
            restarts.append(x)
            return super().restarted(A, y, x, state)

    diagonal = np.resize([1.0, 2.0, 4.0], 3 * comm.size)
    A = Diagonal(from_global(diagonal, comm=comm))
    y = from_global(np.ones(3 * comm.size), A.range, comm=comm)
    result = solve(Doubtful(rtol=1e-6), A, y, niter=niter)
    assert result.status is Status.ITERATION_LIMIT and result.iterations == niter
    assert len(restarts) == expected


def test_no_iterations(comm):
    op, _, y, yd = problem("vstack", comm, "f8")
    result = cgls(op, yd, niter=0)
    assert result.iterations == 0 and result.status is Status.ITERATION_LIMIT
    assert_close(result.residual_norms, [np.linalg.norm(y)])
    assert_close(result.x.gather(), np.zeros(6))


def test_a_start_of_some_ranks_only(comm):
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    y = from_global(np.arange(5.0), comm=comm)
    op = Diagonal(np.linspace(1, 2, 5), y.layout, comm=comm)
    with pytest.raises(InputError, match="a solver's start differs between ranks"):
        cg(op, y, y if comm.rank == 0 else None)


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
    consistent((zeros(op.domain, comm=comm),) * 2)  # what it keeps is not of this array
    (left, right), others = consistent((x, x), (yd, yd))
    assert left is right
    assert isinstance(left, StackedArray) == (comm.size > 1)
    assert others == (yd, yd)
    with profile.count_messages() as sent:
        square, other = dots((left, right), others)
    assert sent.total == (1 if comm.size > 1 else 0)
    assert float(square) == op.domain.size
    assert_close(float(other), float((yd.norm()) ** 2))


def test_states_say_what_passes_between_iterations(comm):
    op, _, _, yd = problem("block_diag", comm, "f8")
    state = CGLS().init(op, yd, None)
    assert list(carried(state)) == ["x", "r", "p", "gamma"]
    assert "one_message" in fixed(OneMessageCGLS().init(op, yd, None))
    assert not {"q", "s", "numbers"} & {*carried(state), *fixed(state)}
    state = prepare(op, yd, None, 3, None, accelerated=True, **OPTIONS).init(op, yd, None)
    numbers = {name: value for name, value in carried(state).items() if not hasattr(value, "leaves")}
    assert list(numbers) == ["sums", "momenta"]
    assert numbers["sums"] is state.sums.values and state.momenta.table is fixed(state)["momenta.table"]


@pytest.mark.parametrize("name", METHODS)
def test_a_state_is_what_passes_between_iterations(comm, name):
    """A step from the carried values alone, with all other memory overwritten, is the step from the state itself."""
    op, _, _, yd = problem("vstack", comm, "f8")
    method, operator, data, x0 = METHODS[name](op, yd)
    expected = method.step(operator, method.step(operator, method.init(operator, data.copy(), x0)))
    state = method.step(operator, method.init(operator, data.copy(), x0))
    values = {key: value.copy() if hasattr(value, "copy") else value for key, value in carried(state).items()}
    other = method.init(operator, data.copy(), x0)
    for field in dataclasses.fields(other):
        if field.metadata.get("role") == "scratch" and hasattr(getattr(other, field.name), "fill"):
            getattr(other, field.name).fill(np.nan)
    state = method.step(operator, with_carried(other, values))
    for key, value in carried(expected).items():
        actual = carried(state)[key]
        if hasattr(value, "leaves"):
            actual, value = actual.local_array, value.local_array
        np.testing.assert_array_equal(actual, value)


def test_a_singular_operator_does_not_break_down(comm):
    op = BlockDiag([np.diag([1.0, 0.0])], comm)
    y = from_global(np.ones(2 * comm.size), op.range, comm=comm)
    for result in (cgls(op, y, niter=5, tol=0), cg(op, op.H @ y, niter=5, tol=0), lsqr(op, y, niter=5)):
        assert_close(result.x.local_array, [1.0, 0.0])
        assert result.status.successful


@pytest.mark.serial
def test_numbers_of_options_are_those_of_this_package():
    @dataclasses.dataclass
    class Foreign:
        rank: int = 3

    one = full((3,), 1.0)
    for option, numbers in [
        (np.array([0.5, 0.25]), [0.5, 0.25]),
        ((1, "a"), [1, "a"]),
        (L1(0.5), {"type": "L1", "_sigma": 0.5}),
        (StepSizes("tau", 0.5, 3), {"type": "StepSizes", "varies": False, "_sizes": [0.5]}),
        (one, None),
        (abs, None),
        (Foreign(), None),  # its numbers may differ between ranks
        (Foreign, None),
        (CG, None),
    ]:
        assert numbers_of_option(option) == numbers
    assert numbers_of_option(CG(damp=0.5))["damp"] == 0.5
    assert {"_sigma": 1.0, "_niter": None}.items() <= numbers_of_option(L2(b=one, niter=abs)).items()
