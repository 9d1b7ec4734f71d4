"""The history of solvers on devices, and replays of their steps, imitated on hosts.

The kernels of the history are compiled for the processor. Every launch runs at once, but the driver looks at its
numbers as late as on a device. A replay runs when the host waits for it.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import subprocess
import sys
import sysconfig
import weakref
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from collops import profile
from collops.array import ones
from collops.errors import NotFiniteError
from collops.solvers import CGLS, Status, cg, cgls, driver, execution, fista, gmres, history, lsqr
from collops.solvers.execution import Execution, GraphExecution
from collops.solvers.method import Method, not_finite
from collops.solvers.proximal import L1, L2, primal_dual
from collops.solvers.state import carried, with_carried

from .problems import problem

SHIM = """
#define __global__
#define __device__
struct dim { int x; };
static dim threadIdx = {0}, blockDim = {1}, blockIdx = {0}, gridDim = {1};
struct int4 { int x, y, z, w; };
static void __threadfence_system() {}
static void __syncthreads() {}
"""
IN_C = {
    np.ndarray: lambda array: ctypes.c_void_p(array.ctypes.data),
    np.float64: lambda scalar: ctypes.byref(ctypes.c_double(scalar)),  # an array without axes, on a device
    np.uint64: lambda address: ctypes.c_void_p(int(address)),
    np.int32: lambda number: ctypes.c_int(int(number)),
    np.int64: lambda number: ctypes.c_longlong(int(number)),
}


class Memory(bytearray):
    """Pinned memory: bytes with an address."""

    @property
    def ptr(self):
        return np.frombuffer(self, np.uint8).ctypes.data


class Event:
    """An event of a stream without delay."""

    def __init__(self, disable_timing): ...

    def record(self): ...


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    """``record.cu`` as functions of the host."""
    source = Path(history.__file__).parent.joinpath("kernels", "record.cu").read_text()
    library = tmp_path_factory.mktemp("record") / "record.so"
    compiler = sysconfig.get_config_var("CXX").split()[0]
    command = [compiler, "-shared", "-fPIC", "-x", "c++", "-", "-o", library]
    subprocess.run(command, input=SHIM + source, text=True, check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture
def opened(kernels, monkeypatch, comm):
    """The histories of all runs, whose steps get up to three iterations ahead, from now on."""

    def kernel(_, name):
        return lambda grid, block, arguments: getattr(kernels, name)(*[IN_C[type(a)](a) for a in arguments])

    cuda = SimpleNamespace(Event=Event, alloc_pinned_memory=Memory)
    library = SimpleNamespace(cuda=cuda, zeros=np.zeros, array=np.array, empty=np.empty)
    monkeypatch.setitem(sys.modules, "cupy", library)
    monkeypatch.setattr(history, "kernel", kernel)
    monkeypatch.setattr(type(comm), "wait", lambda *_: None)
    # In place of CUDA graphs.
    monkeypatch.setattr(driver, "_obstacle", lambda run, *_: None if run.graph else "")
    monkeypatch.setattr(driver, "GraphExecution", lambda *arguments, required: Execution(*arguments[:3]))
    original, found = history.open_history, []

    def open_history(engine, *arguments, **options):
        device = SimpleNamespace(memory="device", mutable=True)
        found.append(original(device, *arguments, **options))
        return found[-1]

    monkeypatch.setattr(driver, "open_history", open_history)
    return found


RUNS = {
    "cg": lambda op, y, **run: cg(op.H @ op, op.H @ y, niter=60, tol=1e-3, **run),
    "cgls": lambda op, y, **run: cgls(op, y, niter=60, tol=1e-3, **run),
    "cgls to rounding": lambda op, y, **run: cgls(op, y, niter=200, tol=0, **run),
    "lsqr": lambda op, y, **run: lsqr(op, y, niter=60, atol=1e-3, btol=1e-3, calc_var=True, **run),
    "fista": lambda op, y, **run: fista(op, y, niter=200, tol=1e-3, eps=0.1, **run),
    "primal-dual": lambda op, y, **run: primal_dual(
        L1(0.3), L2(), op, op.H @ y, tau=0.1, mu=0.1, niter=300, tol=1e-2, **run
    ),
    "gmres": lambda op, y, **run: gmres(op.H @ op, op.H @ y, niter=60, rtol=1e-3, **run),
}
RESULTS = {"lsqr": "var", "primal-dual": "y"}


def assert_same(name, result, expected):
    """Compare two results of a method, bit by bit."""
    assert result.iterations == expected.iterations and result.status is expected.status
    np.testing.assert_array_equal(result.x.gather(), expected.x.gather())
    np.testing.assert_array_equal(result.residual_norms, expected.residual_norms)
    if name in RESULTS:
        of = RESULTS[name]
        np.testing.assert_array_equal(result.details[of].gather(), expected.details[of].gather())


@pytest.mark.parametrize("name", RUNS)
def test_iterations_after_the_one_that_passed_a_test_do_not_change_the_result(comm, name, opened, monkeypatch):
    op, _, _, y = problem("vstack", comm, "f8")
    result = RUNS[name](op, y)
    # It did get ahead, unless the result has to be computed.
    assert opened[-1].count == result.iterations + (1 if name == "gmres" else 4)
    monkeypatch.undo()
    expected = RUNS[name](op, y)
    assert expected.status is not Status.ITERATION_LIMIT
    assert_same(name, result, expected)


def test_a_run_that_ends_at_the_limit_tests_its_last_iterations(comm, opened):
    op, _, _, y = problem("vstack", comm, "f8")
    enough = cgls(op, y, niter=60, tol=1e-3).iterations
    for niter in (enough, enough + 1, enough + 2):
        result = cgls(op, y, niter=niter, tol=1e-3)
        assert result.status is Status.CONVERGED and result.iterations == enough


def test_callbacks_see_every_iteration_and_none_after_it(comm, opened):
    op, _, _, y = problem("vstack", comm, "f8")
    seen = []
    result = cgls(op, y, niter=60, tol=1e-3, callback=lambda iteration, view: seen.append(iteration))
    assert result.status is Status.CONVERGED and seen == list(range(1, result.iterations + 1))


@pytest.mark.parametrize(
    ("options", "lag", "keeps"),
    [
        ({}, 3, True),
        ({"lag": 2}, 2, True),
        ({"lag": 0}, 0, False),
        ({"tol": 0, "precision": 0}, 3, False),
        ({"callback": lambda *_: None}, 0, False),
        ({"graph": False}, 0, False),
    ],
)
def test_when_the_host_gets_ahead(comm, opened, options, lag, keeps):
    op, _, _, y = problem("vstack", comm, "f8")
    tests = {name: value for name, value in options.items() if name in ("tol", "precision")}
    run = {name: value for name, value in options.items() if name not in tests}
    driver.solve(CGLS(**tests), op, y, niter=2, **run)
    assert (opened[-1].lag, bool(opened[-1]._copies)) == (lag, keeps)


def test_results_that_take_longer_to_copy_than_to_wait_for(comm, opened, monkeypatch):
    op, _, _, y = problem("vstack", comm, "f8")
    monkeypatch.setattr(history, "_MAX_COPIED", op.domain.size // comm.size - 1)
    cgls(op, y, niter=2)
    assert opened[-1].lag == 0


class Device:
    """A device and its only stream. Graphs that are launched run when the host waits for an event after them."""

    id = 0

    def __init__(self) -> None:
        self.recordings: list[int] = []  # how many steps each recorded graph has
        self.launches: list[int] = []  # how many steps each launch runs
        self.not_done: list[Any] = []

    def record(self):
        return LateEvent(self).record()

    def run(self, launches: int) -> None:
        """Run everything up to a number of launches."""
        while len(self.launches) - len(self.not_done) < launches:
            self.not_done.pop(0)()

    def wait_event(self, event): ...

    def __enter__(self):
        return self

    def __exit__(self, *error): ...


class LateEvent:
    """An event of such a device."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self):
        self.after = len(self.device.launches)
        return self


class Graph(NamedTuple):
    """Some steps of a method, which write their results to where the next replay reads them."""

    method: Method
    operator: Any
    history: Any
    state: Any
    steps: int

    def launch(self, device: Device) -> None:
        device.launches.append(self.steps)
        device.not_done.append(self.run)

    def run(self) -> None:
        for _ in range(self.steps):
            after = self.method.step(self.operator, with_carried(self.state, carried(self.state)))
            self.history.store(after)
            for field in fields(after):
                setattr(self.state, field.name, getattr(after, field.name))


class ReplayExecution(GraphExecution):
    """Records Python's calls instead of kernels. The rank `failing` cannot record groups."""

    failing = -1

    def _capture(self, state, steps):
        self._lane.stream.recordings.append(steps)
        graph = Graph(self._method, self._operator, self._history, state, steps)
        problem = "no memory" if steps > 1 and self._comm.rank == self.failing else None
        return graph, [("allreduce", 1, 8)] * steps, problem


@pytest.fixture
def device(opened, comm, monkeypatch):
    """A device that replays the steps of all runs from now on, in groups also in short runs."""
    found = Device()
    cuda = SimpleNamespace(
        Event=lambda disable_timing: LateEvent(found),
        Stream=lambda non_blocking: found,
        Device=lambda: found,
        get_current_stream=lambda: found,
        MemoryPool=lambda: SimpleNamespace(malloc=None),
        using_allocator=lambda malloc: nullcontext(),
        driver=SimpleNamespace(ctxGetCurrent=lambda: 0),  # for marks, which then do not look at the device
        # Rows that are read before they are written stop every solver.
        alloc_pinned_memory=lambda nbytes: Memory(b"\xff" * nbytes),
    )
    restore = history._Copies.restore

    def in_order(*arguments):
        found.run(len(found.launches))
        restore(*arguments)

    monkeypatch.setattr(sys.modules["cupy"], "cuda", cuda)
    monkeypatch.setattr(history._Copies, "restore", in_order)
    monkeypatch.setattr(type(comm), "wait", lambda _, event, what: found.run(event.after))
    monkeypatch.setattr(driver, "GraphExecution", ReplayExecution)
    monkeypatch.setattr(execution, "_idle_lanes", {})
    monkeypatch.setattr(execution, "_MIN_TO_GROUP", 0)
    return found


class LeftNumbers(NamedTuple):
    """The only number of an iteration."""

    left: Any


@dataclass
class Countdown:
    """A solution whose elements are the number of iterations done, and how many are left."""

    x: Any
    left: Any


@dataclass(frozen=True)
class CountdownMethod(Method):
    """Passes its test, or gets a number that is not finite, after a number of iterations; 0 stands for never."""

    converges: int = 0
    breaks: int = 0
    name = "Countdown"
    numbers = LeftNumbers
    tolerances = frozenset({"converges"})
    stops = (
        (lambda self, now, first: not_finite(now.left), Status.NOT_FINITE),
        (lambda self, now, first: now.left <= 0, Status.CONVERGED, "converges"),
    )

    def init(self, A, y, x0):
        return Countdown(0.0 * y, np.float64(self.converges))

    def step(self, A, state):
        state.x += 1.0
        done = state.x.local_array[0]
        state.left = np.float64(np.nan if done == self.breaks else self.converges - done)
        return state

    def report(self, state):
        return (state.left,)

    def residual_norm(self, now):
        return now.left


def solved(comm, device, niter, lag, **method):
    """Run a countdown; return its result or its error."""
    device.launches.clear()
    device.recordings.clear()
    try:
        return driver.solve(CountdownMethod(**method), None, ones(comm.size, comm=comm), niter=niter, lag=lag)
    except NotFiniteError as error:
        return error


@pytest.mark.parametrize("lag", [None, 0, 1, 2, 3, 4, 7])
@pytest.mark.parametrize("niter", range(1, 21))
def test_a_test_that_passes_at_any_iteration_gives_its_iterate(comm, opened, device, niter, lag):
    ahead, group = (3, 3) if lag is None else (lag, 3 if lag >= 3 else 1)
    for converges in range(1, 13):
        result = solved(comm, device, niter, lag, converges=converges)
        last = min(converges, niter)
        assert result.iterations == last
        assert result.status is (Status.CONVERGED if converges <= niter else Status.ITERATION_LIMIT)
        np.testing.assert_array_equal(result.x.local_array, last)
        np.testing.assert_array_equal(result.residual_norms, converges - np.arange(last + 1))
        done = opened[-1].count - 1
        assert done == 1 + sum(device.launches) == opened[-1]._next[0] - 1 or niter == 1
        assert done <= min(niter, converges + ahead + group - 1) and not device.not_done
        assert max(device.launches, default=1) == (group if done > 4 else 1)


@pytest.mark.parametrize("niter", [1, 2, 3, 5, 8, 9, 10, 20])
def test_the_iteration_that_is_not_finite_is_named(comm, device, niter):
    for breaks, converges in itertools.product(range(1, 13), (0, 30)):
        found = solved(comm, device, niter, None, breaks=breaks, converges=converges)
        if breaks > niter:
            assert found.iterations == niter
        else:
            assert found.iteration == breaks
            if converges:  # then results are kept
                np.testing.assert_array_equal(found.x.local_array, breaks)


@pytest.mark.parametrize(
    ("niter", "launches"), [(2, [1]), (4, [1, 1, 1]), (5, [1, 3]), (6, [1, 3, 1]), (12, [1, 3, 3, 3, 1])]
)
def test_replays_in_groups_end_at_the_last_iteration(comm, device, niter, launches):
    assert solved(comm, device, niter, None).iterations == niter
    assert device.launches == launches


@pytest.mark.parametrize(
    ("niter", "converges", "first"),
    [(29, 0, None), (30, 0, 2), (55, 50, None), (56, 50, 28), (100, 24, None), (100, 90, 28)],
)
def test_groups_are_recorded_in_long_runs(comm, device, monkeypatch, niter, converges, first):
    """A run that may end earlier has to have lasted so long before; `first` is the row before the first group."""
    monkeypatch.setattr(execution, "_MIN_TO_GROUP", 29)
    assert solved(comm, device, niter, None, converges=converges).iterations == converges or niter
    assert device.recordings == ([1] if first is None else [1, 3])
    if first is not None:
        assert device.launches.index(3) == first - 1


def test_a_group_that_one_rank_cannot_record_is_replayed_step_by_step(comm, device, monkeypatch):
    monkeypatch.setattr(ReplayExecution, "failing", comm.size - 1)
    result = solved(comm, device, 20, None)
    assert result.iterations == 20 and result.execution == "replayed CUDA graph"
    assert device.launches == [1] * 19 and device.recordings == [1, 3]


def test_a_run_leaves_no_cycle_that_keeps_its_operators(comm, opened, device):
    method = CountdownMethod()
    found = weakref.ref(method)
    gc.disable()
    try:
        result = driver.solve(method, None, ones(comm.size, comm=comm), niter=6)
        del method
        opened.clear()
        assert result.execution == "replayed CUDA graph" and found() is None
    finally:
        gc.enable()


def test_large_results_are_not_kept_in_groups(comm, device, monkeypatch):
    monkeypatch.setattr(history, "_MAX_COPIED", 0)
    assert solved(comm, device, 20, 3, converges=30).iterations == 20
    assert device.launches == [1] * 19


def test_marks_and_messages_of_groups(comm, device):
    with profile.record() as recording, profile.count_messages() as messages:
        solved(comm, device, 12, None)
    labels = [span.label for span in recording.spans]
    assert labels.count("Countdown iteration") == 3 and labels.count("3 Countdown iterations") == 3
    assert messages["allreduce"] == 11


@pytest.mark.parametrize("name", RUNS)
def test_groups_of_replays_do_not_change_the_result(comm, name, opened, device, monkeypatch):
    op, _, _, y = problem("vstack", comm, "f8")
    result = RUNS[name](op, y)
    assert result.execution == "replayed CUDA graph" and (3 in device.launches) == (name != "gmres")
    monkeypatch.undo()
    assert_same(name, result, RUNS[name](op, y))


@pytest.mark.parametrize("tests", [{}, {"tol": 0, "precision": 0}])
def test_single_replays_for_those_who_look_after_each_iteration(comm, device, tmp_path, tests):
    op, _, _, y = problem("vstack", comm, "f8")
    seen = []
    for options in (
        {"callback": lambda iteration, view: seen.append((iteration, view.iteration, view.residual_norm))},
        {"checkpoint": comm.allgather_metadata(str(tmp_path / "checkpoint"))[0]},
        {"lag": 0},
    ):
        device.launches.clear()
        result = driver.solve(CGLS(**tests), op, y, niter=12, **options)
        assert device.launches == [1] * (result.iterations - 1)
        assert [norm for *_, norm in seen] == result.residual_norms[1:].tolist()
    assert [number for number, *_ in seen] == [number for _, number, _ in seen] == list(range(1, len(seen) + 1))
