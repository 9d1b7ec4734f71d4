"""Where an iteration's time goes, against known spans, other clocks and artificial delays."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from collops import profile
from collops.backend import engine
from collops.jacobi import Problem, make
from collops.jacobi.timeline import HOST, Shares, Span, _held, record_spans, shares_of, spans_of
from collops.profile import marks
from tests.profile.simulated import Clock, Device

COUNT, DELAY = 4, 4e-3
FLIGHT = 0.05  # seconds of a message that is compared with others, far more than the system holds a rank back


@pytest.mark.serial
def test_shares_of_known_spans():
    """Two sweeps of 10 s: the messages of the first are hidden for 4 of 6 s, then nothing runs for 3 s."""
    spans = [
        Span("boundary", 1, 1.0, 2.0),
        Span("inner", 0, 1.5, 6.0),
        Span("halo", 1, 2.0, 5.0),
        Span("halo", 1, 5.0, 8.0),
        Span("12 sweeps", 0, 11.0, 16.0),
        Span("sweep", HOST, 0.0, 100.0),  # a launch is no work
    ]
    assert shares_of(spans, 2) == Shares(sweeps=5.0, exposed=1.0, gaps=1.5, hidden=2.0)
    assert shares_of(spans, 2).idle == 2.5
    # As run, an iteration took 9 s and not 7.5: what is missing are gaps.
    assert shares_of(spans, 2, 9.0) == Shares(sweeps=5.0, exposed=1.0, gaps=3.0, hidden=2.0)
    assert shares_of(spans, 2, 1.0) == shares_of(spans, 2)


def delayed(function, seconds=DELAY):
    def call(*arguments, **keywords):
        time.sleep(seconds)
        return function(*arguments, **keywords)

    return call


@pytest.mark.parametrize("late", ["messages", "sweeps", "host"])
def test_a_delay_is_found_where_it_is(comm, late):
    variant = make("mpi", Problem(nx=60, ny=8 * comm.size + 2), comm, engine("numpy"))
    if late == "messages":
        variant.halo = delayed(variant.halo)
    elif late == "sweeps":
        variant.sweeps.full = delayed(variant.sweeps.full)
    else:
        variant.turns = delayed(variant.turns)  # outside of all marks
    walls, advance = [], variant.advance

    def timed(count, norms):
        begin = time.perf_counter()
        advance(count, norms)
        walls.append(time.perf_counter() - begin)

    variant.advance = timed
    shares = shares_of(record_spans(variant, COUNT), COUNT)
    times = dict(zip(("sweeps", "messages", "host"), shares, strict=False))
    # The first delay of the host is before the first mark.
    least = DELAY * (COUNT - (late == "host")) / COUNT
    assert times[late] >= 0.99 * least
    # No time is counted twice.
    assert COUNT * sum(times.values()) <= walls[-1] - DELAY * (late == "host")


def test_overlap_hides_what_the_plain_program_exposes(comm):
    """Messages that need a time from their start on: the sweep of the inner points takes as long."""
    if comm.size == 1:
        pytest.skip("one rank sends nothing")
    exposed = {}
    for name in ("mpi", "mpi_overlap"):
        variant = make(name, Problem(nx=60, ny=8 * comm.size + 2), comm, engine("numpy"))
        start = variant.halo.start

        def begin(*arguments, _start=start):
            arrival, flight = time.perf_counter() + FLIGHT, _start(*arguments)

            def finish():
                time.sleep(max(0.0, arrival - time.perf_counter()))
                return flight.finish()

            return SimpleNamespace(finish=finish)

        variant.halo = Slow(begin)
        variant.sweeps.inner = delayed(variant.sweeps.inner, FLIGHT)
        variant.sweeps.full = delayed(variant.sweeps.full, FLIGHT)
        # Other programs may delay a rank: the best of several turns, the same on all ranks.
        turns = [shares_of(record_spans(variant, 2), 2).exposed for _ in range(3)]
        exposed[name] = min(map(max, zip(*comm.allgather_metadata(turns), strict=True)))
    assert exposed["mpi"] >= 0.99 * FLIGHT
    assert exposed["mpi_overlap"] < 0.5 * exposed["mpi"]


class Slow:
    """An exchange by what begins it."""

    def __init__(self, start) -> None:
        self.start = start

    def __call__(self, source, target):
        return self.start(source, target).finish()


@pytest.mark.serial
def test_spans_of_a_device_and_of_its_launches(monkeypatch):
    """Three launches of 1 us each; the device works on two of them for 10 us, and idles before the third."""
    clock = Clock()
    device = Device(clock)
    monkeypatch.setattr(marks, "clock", clock)
    monkeypatch.setattr(marks, "device", device)
    stream = SimpleNamespace(ptr=7)
    compute = SimpleNamespace(
        memory="device", xp=SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: stream))
    )
    with profile.record() as recording:
        for label, pause in (("sweep", 0), ("halo", 0), ("sweep", 24_000)):
            clock.work(pause)
            with profile.mark(label):
                clock.work(1000)
                device.enqueue(10_000)
    spans = spans_of(recording, compute)
    launches = [span.end - span.begin for span in spans if span.lane == HOST]
    assert launches == pytest.approx([1e-6] * 3)
    # The first and the last begin with their launch, on an idle device.
    shares = shares_of(spans, 1)
    assert shares == pytest.approx((22e-6, 10e-6, 5e-6, 0.0))


@pytest.mark.serial
def test_a_device_is_held_until_the_host_has_launched_everything():
    order, threads = [], []

    class Stream:
        def launch_host_func(self, function, argument):
            def work():
                function(argument)
                order.append("device")

            threads.append(threading.Thread(target=work))
            threads[-1].start()

    compute = SimpleNamespace(memory="device", xp=SimpleNamespace(cuda=SimpleNamespace(get_current_stream=Stream)))
    comm = SimpleNamespace(barrier=lambda: order.append("all ranks"))
    with _held(compute, comm, True):
        order.append("launched")
    threads[0].join(5)
    assert order == ["launched", "all ranks", "device"]
    with _held(compute, comm, True):
        threads[1].join(5)  # a host that waits for its device gets it after a while
        assert not threads[1].is_alive()
