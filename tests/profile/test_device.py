"""Marks around asynchronous work, on a simulated device; tests/gpu has a real one."""

from __future__ import annotations

import json
import sys
import types

import pytest

from collops import profile
from collops.profile.device import CudaClock, Stamp


def test_device_time_counts_and_nothing_waits_before_the_report(clock, device):
    with profile.record() as recording, profile.mark("solve"):
        with profile.mark("kernel"):
            clock.work(5)  # launching it
            device.enqueue(1000)
        with profile.mark("kernel"):
            clock.work(5)
            device.enqueue(3000)
        assert device.waits == 0
    assert clock.now == 1010
    report = recording.report()
    assert clock.now == 5005
    kernel = report.row("solve", "kernel")
    assert kernel.total[0] == pytest.approx(4005e-9)  # the device idles while the first launch is prepared
    assert kernel.host[0] == pytest.approx(10e-9)
    assert kernel.timed_on_device == 2
    assert report.row("solve").total[0] == pytest.approx(4005e-9)
    assert "on host" in str(report)
    waits = device.waits
    assert recording.report().row("solve", "kernel").total == kernel.total
    assert device.waits == waits  # resolved once


def test_device_times_are_placed_on_the_hosts_clock(clock, device, tmp_path):
    with profile.record() as recording:
        device.enqueue(500)  # what ran before
        with profile.mark("a"):
            device.enqueue(1000)
        clock.work(5000)
        with profile.mark("b"):
            device.enqueue(100)
    clock.work(50_000)
    recording.to_chrome_trace(tmp_path / "trace.json")
    assert [span.device_times for span in recording.spans] == [(1500, 2500), (6000, 6100)]
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    times = [(event["ph"], event["name"], event["ts"]) for event in events if event.get("cat") == "device"]
    assert times == [("B", "a", 0.5), ("E", "a", 1.5), ("B", "b", 5.0), ("E", "b", 5.1)]


def test_capture_is_left_alone_and_noted(clock, device):
    with profile.record() as recording, profile.mark("iteration"):
        device.capturing = True
        with profile.mark("step"):
            clock.work(7)
        device.capturing = False
    row = recording.report().row("iteration", "step")
    assert row.total[0] == pytest.approx(7e-9)
    assert (row.captured, row.timed_on_device) == (1, 0)
    assert "1 in a stream capture" in str(recording.report())
    assert recording.report().row("iteration").timed_on_device == 1


def test_a_report_inside_a_capture_leaves_the_events_for_the_next(clock, device):
    with profile.record() as recording, profile.mark("step"):
        clock.work(1)
        device.enqueue(100)
    device.capturing = True
    assert recording.report().row("step").timed_on_device == 0
    device.capturing = False
    assert recording.report().row("step").timed_on_device == 1


class FakeCuda:
    """As much of ``cupy.cuda`` as the clock touches."""

    def __init__(self, context=None, capturing=False):
        def current():
            if context is None:
                raise RuntimeError("not initialised")
            return context

        def is_capturing():
            if capturing == "refused":
                raise RuntimeError("the legacy stream")
            return capturing

        self.driver = types.SimpleNamespace(ctxGetCurrent=current)
        stream = types.SimpleNamespace(ptr=3, is_capturing=is_capturing, record=lambda: "event")
        self.get_current_stream = lambda: stream


@pytest.mark.parametrize(
    ("cuda", "stamp"),
    [
        (FakeCuda(None), None),
        (FakeCuda(0), None),
        (FakeCuda(1), Stamp(3, "event")),
        (FakeCuda(1, capturing=True), Stamp(3, None)),
        (FakeCuda(1, capturing="refused"), Stamp(3, None)),
    ],
)
def test_events_only_where_the_thread_uses_a_device(monkeypatch, cuda, stamp):
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))
    assert CudaClock().stamp() == stamp


def test_cupy_is_not_imported_for_a_profile(monkeypatch):
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert CudaClock().stamp() is None
    assert "cupy" not in sys.modules
