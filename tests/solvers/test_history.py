"""The history of solvers on devices, imitated on hosts: its kernels are compiled for the processor.

Every launch runs at once, but the driver looks at its numbers as late as on a device.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from collops.solvers import CGLS, Status, cg, cgls, driver, fista, gmres, history, lsqr
from collops.solvers.execution import Execution
from collops.solvers.proximal import L1, L2, primal_dual

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


@pytest.mark.parametrize("name", RUNS)
def test_iterations_after_the_one_that_passed_a_test_do_not_change_the_result(comm, name, opened, monkeypatch):
    op, _, _, y = problem("vstack", comm, "f8")
    result = RUNS[name](op, y)
    # It did get ahead, unless the result has to be computed.
    assert opened[-1].count == result.iterations + (1 if name == "gmres" else 4)
    monkeypatch.undo()
    expected = RUNS[name](op, y)
    assert expected.status is not Status.ITERATION_LIMIT
    assert result.iterations == expected.iterations and result.status is expected.status
    np.testing.assert_array_equal(result.x.gather(), expected.x.gather())
    np.testing.assert_array_equal(result.residual_norms, expected.residual_norms)
    if name in RESULTS:
        of = RESULTS[name]
        np.testing.assert_array_equal(result.details[of].gather(), expected.details[of].gather())


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
    monkeypatch.setattr(history, "_LARGEST_KEPT", op.domain.size // comm.size - 1)
    cgls(op, y, niter=2)
    assert opened[-1].lag == 0
