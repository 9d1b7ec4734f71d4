"""Marks around device work that takes a known time."""

from __future__ import annotations

import json
import time

import pytest

from collops import profile

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

SPIN = r"""
extern "C" __global__ void spin(long long nanoseconds) {
    long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begin < nanoseconds);
}
"""


@pytest.fixture
def spin():
    """Keep the current stream busy for a number of seconds."""
    if not cupy.cuda.is_available():
        pytest.skip("no device")
    kernel = cupy.RawKernel(SPIN, "spin")
    kernel((1,), (1,), (cupy.int64(1000),))  # compiled and loaded before anything is timed
    cupy.cuda.Device().synchronize()
    return lambda seconds: kernel((1,), (1,), (cupy.int64(1e9 * seconds),))


def test_device_work_is_timed_where_it_runs_and_nobody_waits(spin):
    with profile.record() as recording:
        with profile.mark("outer"):
            with profile.mark("long"):
                spin(0.2)
            with profile.mark("short"):
                spin(0.05)
        assert not cupy.cuda.get_current_stream().done
    report = recording.report()
    assert cupy.cuda.get_current_stream().done
    for path, seconds in ((("outer",), 0.25), (("outer", "long"), 0.2), (("outer", "short"), 0.05)):
        row = report.row(*path)
        assert row.timed_on_device == 1
        assert row.total[0] == pytest.approx(seconds, rel=0.1)
        assert row.host[0] < 0.04


def test_every_mark_uses_the_stream_that_is_current(spin):
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with profile.record() as recording:
        with first, profile.mark("first"):
            spin(0.2)
        with second, profile.mark("second"):
            spin(0.05)
    report = recording.report()
    assert report.row("first").total[0] == pytest.approx(0.2, rel=0.1)
    assert report.row("second").total[0] == pytest.approx(0.05, rel=0.1)
    assert {span.device_begin.stream for span in recording.spans} == {first.ptr, second.ptr}


def test_capture_survives_marks(spin):
    stream = cupy.cuda.Stream(non_blocking=True)
    with profile.record() as recording, stream:
        stream.begin_capture()
        with profile.mark("captured"):
            spin(0.02)
        graph = stream.end_capture()
        with profile.mark("replayed"):
            for _ in range(5):
                graph.launch(stream)
    report = recording.report()
    assert (report.row("captured").captured, report.row("captured").timed_on_device) == (1, 0)
    assert report.row("replayed").total[0] == pytest.approx(0.1, rel=0.1)


def test_a_capture_in_another_mode_survives_too(spin):
    stream = cupy.cuda.Stream(non_blocking=True)
    with profile.record() as recording, stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        with profile.mark("captured"):
            spin(0.001)
        stream.end_capture().launch(stream)
    stream.synchronize()
    assert recording.report().row("captured").captured == 1


def test_trace_places_device_work_on_the_hosts_clock(spin, tmp_path):
    before = time.perf_counter_ns()
    with profile.record() as recording:
        with profile.mark("a"):
            spin(0.05)
        cupy.cuda.get_current_stream().synchronize()
        after = time.perf_counter_ns()
        time.sleep(0.05)
        with profile.mark("b"):
            spin(0.01)
    recording.to_chrome_trace(tmp_path / "trace.json")
    begin, end = recording.spans[0].device_times
    slack = 1_000_000
    assert before - slack < begin < end < after + slack
    assert recording.spans[1].device_times[0] > after + 40_000_000
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["ph"] for event in events if event.get("cat") == "device"] == ["B", "E", "B", "E"]


def test_cost_of_a_mark_with_events_is_small(spin):
    with profile.record() as recording:
        start = time.perf_counter()
        for _ in range(1000):
            with profile.mark("empty"):
                pass
        seconds = time.perf_counter() - start
    assert recording.report().row("empty").timed_on_device == 1000
    assert seconds / 1000 < 100e-6
