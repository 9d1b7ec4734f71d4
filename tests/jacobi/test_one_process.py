"""One process with several devices: on hosts against NumPy, bit for bit; on simulated GPUs, the order of their work."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pytest

from collops.backend import engine
from collops.comm import alone
from collops.errors import CommunicationTimeout, InputError, LayoutError
from collops.jacobi import MODELS, Problem, make, obstacle, run, threads
from collops.jacobi import one_process as module
from collops.jacobi.numpy_sweeps import Sweeps
from tests.jacobi.model import relaxed
from tests.jacobi.streams import Simulation

pytestmark = pytest.mark.serial

ONE_PROCESS = [name for name, model in MODELS.items() if issubclass(model.variant, module.OneProcess)]


def made(name, problem, devices):
    return make(name, problem, alone(), engine("numpy"), devices=devices)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ONE_PROCESS)
def test_equals_numpy_bit_for_bit(name, dtype):
    """Also with a row for each device, and with a single device, whose neighbour it is itself."""
    for nx, ny in [(37, 31), (300, 5)]:
        problem = Problem(nx=nx, ny=ny, iterations=7, dtype=dtype)
        want, norms = relaxed(problem, 7)
        for count in (1, 2, 3):
            variant = made(name, problem, range(count))
            result = run(variant)
            assert variant.device_count == count
            np.testing.assert_array_equal(variant.values, want)
            np.testing.assert_allclose(list(result.norms.values()), norms, rtol=1e-4 if dtype == "float32" else 1e-12)
            variant.free()


@pytest.mark.parametrize("name", ["copies", "threads_overlap"])
def test_several_stretches_without_numba(name):
    """Stretches of odd length, after which the other array is the newest, and few checks."""
    problem = Problem(nx=40, ny=33, iterations=125, check=4)
    want, norms = relaxed(problem, 125)
    variant = made(name, problem, range(3))
    for part in variant.parts:
        part.sweeps = Sweeps(part.grid, rows_at_once=2)
    sums = np.zeros(125)
    for begin, end in ((0, 33), (33, 34), (34, 125)):
        variant.advance(end - begin, sums[begin:end])
    np.testing.assert_array_equal(variant.values, want)
    np.testing.assert_allclose(np.sqrt(sums[::4]), norms[::4], rtol=1e-4)
    assert not sums[np.arange(125) % 4 > 0].any()


@pytest.mark.parametrize("name", ONE_PROCESS)
def test_streams_of_devices_are_ordered(name, monkeypatch):
    """Nothing runs on a simulated GPU unless an event or its stream orders it before what the caller reads."""
    problem = Problem(nx=12, ny=13, check=2)
    want, norms = relaxed(problem, 9)
    # The last list has a GPU twice.
    for seed, devices in enumerate([(0, 1, 2), (2, 0, 1), (1,), (0, 1), (1, 0, 1)]):
        simulation = Simulation(seed)
        monkeypatch.setitem(sys.modules, "cupy", simulation.cupy)
        for place in ("parts", "variant"):
            monkeypatch.setattr(f"collops.jacobi.{place}.sweeps_of", simulation.sweeps)
        monkeypatch.setattr(module, "prefer", lambda *_: None)
        monkeypatch.setattr(module, "managed", lambda engine, *of: engine.xp.empty(*of))
        variant = MODELS[name].variant(problem, alone(), simulation.engine(), devices=devices)
        sums = simulation.cupy.zeros(9)
        simulation.at_once = False
        for begin, end in ((0, 2), (2, 3), (3, 9)):
            variant.advance(end - begin, sums[begin:end])
        values = variant.values
        simulation.current.synchronize()
        np.testing.assert_array_equal(values, want)
        np.testing.assert_allclose(np.sqrt(sums[::2]), norms[::2], rtol=1e-4)
        assert variant.device_count == len(set(devices))
        assert simulation.enabled == {(a, b) for a in devices for b in devices if abs(a - b) == 1}


@pytest.mark.parametrize("seed", range(3))
def test_the_stream_of_messages_is_ordered(seed, monkeypatch):
    """A rank sweeps its boundary and sends it on a side stream: as above."""
    problem = Problem(nx=12, ny=13, check=2)
    want, norms = relaxed(problem, 5)
    simulation = Simulation(seed)
    monkeypatch.setitem(sys.modules, "cupy", simulation.cupy)
    monkeypatch.setattr("collops.jacobi.variant.sweeps_of", simulation.sweeps)
    variant = MODELS["nccl_overlap"].variant(problem, alone(), simulation.engine())
    sums = simulation.cupy.zeros(5)
    with simulation.cupy.cuda.Stream(non_blocking=True) as stream:
        variant.advance(5, sums)
        stream.synchronize()
    np.testing.assert_array_equal(variant.values, want)
    np.testing.assert_allclose(np.sqrt(sums[::2]), norms[::2], rtol=1e-4)


def test_devices_that_cannot_address_each_other():
    simulation = Simulation(0)
    assert "GPU 0 cannot address the memory of GPU 2" in obstacle("threads_peer", alone(), simulation.engine())
    assert obstacle("threads_peer", alone(), simulation.engine(), (0, 1)) is None
    assert obstacle("threads_copies", alone(), simulation.engine()) is None
    with pytest.raises(InputError, match="devices must be some of the 3"):
        obstacle("copies", alone(), simulation.engine(), (0, 3))


def test_wrong_devices():
    problem = Problem(nx=9, ny=5)
    with pytest.raises(InputError, match="devices must be"):
        made("copies", problem, ())
    with pytest.raises(InputError, match="leave out devices"):
        made("mpi", problem, (0,))
    with pytest.raises(LayoutError, match="3 rows"):
        made("copies", problem, range(4))
    with pytest.raises(InputError, match="process grid"):
        make("copies", problem, alone(), engine("numpy"), (1, 2))


def test_by_default_not_more_devices_than_rows(monkeypatch):
    monkeypatch.setattr("collops.jacobi.parts.available_cores", lambda: frozenset(range(64)))
    assert made("copies", Problem(nx=9, ny=4), None).device_count == 2


def test_error_of_a_thread_ends_all(monkeypatch):
    """At once, not at the deadline; the caller gets the error of the thread, which says where it was."""
    variant = made("threads_copies", Problem(nx=9, ny=20), range(3))

    def fail(*_):
        raise MemoryError("of a part")

    monkeypatch.setattr(variant.parts[1].sweeps, "full", fail)
    before, begin = set(threading.enumerate()), time.monotonic()
    with pytest.raises(MemoryError, match="of a part") as caught:
        variant.advance(50, np.zeros(50))
    assert caught.value.__notes__ == ["in the thread of device 1 of 3"]
    assert time.monotonic() - begin < 5
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive()


def test_no_thread_waits_for_ever(monkeypatch):
    """One never comes back: the deadline ends the others, and the call."""
    monkeypatch.setattr(threads, "default_timeout", lambda: 0.2)
    monkeypatch.setattr(threads, "_LAST_SECONDS", 0.2)
    release = threading.Event()

    def work(place, meet):
        for step in range(5):
            if (place, step) == (1, 3):
                release.wait()
            meet(step)

    with pytest.raises(CommunicationTimeout, match=r"devices 1 did not reach sweep 3 in 0\.2 s"):
        threads.together(3, work)
    release.set()
