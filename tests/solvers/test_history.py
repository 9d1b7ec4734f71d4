"""The history of solvers on devices, imitated on hosts: its kernels and tests are compiled for the processor.

Every launch runs at once, but the driver may look at its numbers as late as on a device.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from collops.array import ones
from collops.solvers import CGLS, LSQR, Status, cg, cgls, driver, fista, history, lsqr
from collops.solvers.cg import CG
from collops.solvers.history import device_tests
from collops.solvers.power import PowerIteration
from collops.solvers.proximal import L1, L2, primal_dual
from collops.solvers.proximal.primal_dual import PrimalDual
from collops.solvers.proximal.splitting import StepSizes

from .problems import problem

STEPS = StepSizes("tau", 0.1, 3)
TESTED = {
    "cg": CG(tol=0.3, rtol=0.5, atol=0.2),
    "cgls": CGLS(tol=0.3, rtol=0.5, atol=0.2),
    "cgls to rounding": CGLS(tol=0, precision=0.1),
    "lsqr": LSQR(atol=0.2, btol=0.3, conlim=3.0),
    "lsqr without a limit": LSQR(atol=0, btol=0, conlim=0),
    "power iteration": PowerIteration(tol=0.5),
    "primal-dual": PrimalDual(L2(), L1(0.3), 0.8, 0.5, True, STEPS, STEPS, 1.0, True, None),
    "primal-dual, no change": PrimalDual(L2(), L1(0.3), 0.0, None, True, STEPS, STEPS, 1.0, True, None),
}


def in_c(method, folder):
    """Return the tests of a method, compiled from their text, as a function of two rows."""
    tests = device_tests(method)
    assert tests is not None
    text, options = tests
    library = folder / "tests.so"
    subprocess.run(
        [*sysconfig.get_config_var("CC").split(), "-shared", "-fPIC", "-x", "c", "-", "-o", library, "-lm"],
        input=f"#include <math.h>\nint passed(const double *now, const double *given) {{ return {text}; }}",
        text=True,
        check=True,
    )
    passed, numbers = ctypes.CDLL(str(library)).passed, ctypes.c_double * 32

    def first_passed(now, first):
        return passed(numbers(*now), numbers(*options, *first))

    return first_passed


@pytest.mark.serial
@pytest.mark.parametrize("name", TESTED)
def test_the_text_of_tests_means_what_the_tests_say(name, tmp_path):
    method = TESTED[name]
    first_passed = in_c(method, tmp_path)
    random = np.random.default_rng(3)
    values = [0.0, -1.0, 1e-30, 0.1, 0.2, 0.3, 0.5, 1.0, 1.0 + 1e-16, 2.0, 3.0, 1e30, np.inf, -np.inf, np.nan]
    found = set()
    for _ in range(3000):
        now, first = random.choice(values, (2, len(method.numbers._fields))).tolist()
        if name.startswith("cgls"):  # divides by the gradient before, which was not 0, or the run had ended
            now[3] = abs(now[3]) or 1.0
        expected = method.status(method.numbers(*now), method.numbers(*first))
        number = first_passed(now, first)
        assert (method.stops[number][1] if number >= 0 else None) is expected, (now, first)
        found.add(expected)
    assert len(found) >= 3  # otherwise these rows show nothing


@pytest.mark.serial
def test_a_test_that_decides_on_the_host_has_no_text():
    class Decides(CGLS):
        stops = ((lambda self, now, first: now.residual < 1 and now.gradient < 1, Status.CONVERGED),)

    assert device_tests(Decides()) is None


SHIM = """
#include <math.h>
#include <string.h>
#define __global__
#define __device__
struct { int x; } threadIdx = {0}, blockDim = {1};
struct int4 { int x, y, z, w; };
static void __threadfence_system() {}
static double __longlong_as_double(long long bits) { double value; memcpy(&value, &bits, 8); return value; }
#undef INFINITY
#undef NAN
"""


class Memory(bytearray):
    """Pinned memory: bytes with an address."""

    @property
    def ptr(self):
        return np.frombuffer(self, np.uint8).ctypes.data


class Event:
    """An event of a stream without delay."""

    def __init__(self, disable_timing): ...

    def record(self): ...


@pytest.fixture
def device(monkeypatch, tmp_path, comm):
    """CuPy and the kernels of ``record.cu`` as programs of the host, where each launch has one thread."""
    source = Path(history.__file__).parent.joinpath("kernels", "record.cu").read_text()
    built = {}
    in_c_for = {
        np.ndarray: lambda array: ctypes.c_void_p(array.ctypes.data),
        np.float64: lambda scalar: ctypes.byref(ctypes.c_double(scalar)),  # an array without axes, on a device
        np.uint64: lambda address: ctypes.c_void_p(int(address)),
        np.int32: lambda number: ctypes.c_int(int(number)),
        np.int64: lambda number: ctypes.c_longlong(int(number)),
    }

    def kernel(_, name, *definitions):
        if definitions not in built:
            library = tmp_path / f"record-{len(built)}.so"
            compiler = sysconfig.get_config_var("CXX").split()[0]
            command = [compiler, "-shared", "-fPIC", *definitions, "-x", "c++", "-", "-o", library]
            subprocess.run(command, input=SHIM + source, text=True, check=True)
            built[definitions] = ctypes.CDLL(str(library))
        function = getattr(built[definitions], name)

        def launch(grid, block, arguments):
            function(*[in_c_for[type(a)](a) for a in arguments])

        return launch

    cuda = SimpleNamespace(Event=Event, alloc_pinned_memory=Memory)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda, zeros=np.zeros, array=np.array))
    monkeypatch.setattr(history, "kernel", kernel)
    monkeypatch.setattr(type(comm), "wait", lambda *_: None)
    return lambda method, capacity, lag: history.DeviceHistory(method, capacity, lag, comm)


RUNS = {
    "cg": lambda op, y: cg(op.H @ op, op.H @ y, niter=60, tol=1e-3),
    "cgls": lambda op, y: cgls(op, y, niter=60, tol=1e-3),
    "cgls to rounding": lambda op, y: cgls(op, y, niter=200, tol=0),
    "lsqr": lambda op, y: lsqr(op, y, niter=60, atol=1e-3, btol=1e-3, calc_var=True),
    "fista": lambda op, y: fista(op, y, niter=200, tol=1e-3, eps=0.1),
    "primal-dual": lambda op, y: primal_dual(L1(0.3), L2(), op, op.H @ y, tau=0.1, mu=0.1, niter=300, tol=1e-2),
}


@pytest.fixture
def ahead(device, monkeypatch):
    """The histories of all runs, whose steps get three iterations ahead."""
    opened = []

    def open_history(engine, method, capacity, lag, comm, *, ahead):
        opened.append(device(method, capacity, 3 if lag is None and ahead else 0))
        return opened[-1]

    def start():
        monkeypatch.setattr(driver, "open_history", open_history)
        monkeypatch.setattr(driver, "DeviceHistory", ())  # for which there would be CUDA graphs
        return opened

    return start


@pytest.mark.parametrize("name", RUNS)
def test_iterations_after_the_one_that_passed_a_test_do_not_change_the_result(comm, name, ahead):
    op, _, _, y = problem("vstack", comm, "f8")
    expected = RUNS[name](op, y)
    assert expected.status is not Status.ITERATION_LIMIT
    opened = ahead()
    result = RUNS[name](op, y)
    assert opened[-1].count == expected.iterations + 4  # it did get ahead
    assert result.iterations == expected.iterations and result.status is expected.status
    np.testing.assert_array_equal(result.x.gather(), expected.x.gather())
    np.testing.assert_array_equal(result.residual_norms, expected.residual_norms)
    if name == "lsqr":
        np.testing.assert_array_equal(result.details["var"].gather(), expected.details["var"].gather())


def test_a_run_that_ends_at_the_limit_tests_its_last_iterations(comm, ahead):
    op, _, _, y = problem("vstack", comm, "f8")
    enough = cgls(op, y, niter=60, tol=1e-3).iterations
    ahead()
    for niter in (enough, enough + 1, enough + 2):
        result = cgls(op, y, niter=niter, tol=1e-3)
        assert result.status is Status.CONVERGED and result.iterations == enough


def test_callbacks_see_every_iteration_and_none_after_it(comm, ahead):
    op, _, _, y = problem("vstack", comm, "f8")
    enough = cgls(op, y, niter=60, tol=1e-3).iterations
    ahead()
    seen = []
    cgls(op, y, niter=60, tol=1e-3, callback=lambda iteration, view: seen.append(iteration))
    assert seen == list(range(1, enough + 1))


def test_numbers_of_single_precision_and_unused_places(comm, device):
    class Numbers(NamedTuple):
        a: float
        b: float
        c: float

    class Three(CG):
        numbers = Numbers
        stops = ((lambda self, now, first: now.c >= first.c + 2, Status.CONVERGED),)

        def report(self, state):
            return tuple(np.array(value, kind) for value, kind in zip(state.values, "fdf", strict=True))

    rows = device(Three(), 5, 3)
    arrays = ones(3, comm=comm)
    for number in range(4):
        rows.record(SimpleNamespace(values=(0.1, -1e300, number), x=arrays))
        arrays.local_array[...] += 1
    np.testing.assert_array_equal(rows.rows(), [[np.float32(0.1), -1e300, n] for n in range(4)])
    assert [rows.status(n) for n in range(4)] == [None, None, Status.CONVERGED, None]
    rows.return_to(2, SimpleNamespace(x=arrays))
    np.testing.assert_array_equal(arrays.gather(), np.full(3, 3.0))
