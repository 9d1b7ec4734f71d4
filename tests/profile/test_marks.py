"""Marks and the tree that they make, in simulated time."""

from __future__ import annotations

import threading

import pytest

from collops import profile
from collops.errors import CollopsError, InputError, UnsupportedTypeError
from collops.profile import marks


def numbers(report):
    """Path, calls, total and own time in nanoseconds of every row."""
    return [
        ("/".join(row.path), row.calls[0], round(1e9 * row.total[0]), round(1e9 * row.own[0])) for row in report.rows
    ]


def test_tree(clock):
    with profile.record() as recording:
        clock.work(5)
        for _ in range(3):
            with profile.mark("outer"):
                clock.work(10)
                with profile.mark("first"):
                    clock.work(20)
                with profile.mark("second"), profile.mark("inside"):
                    clock.work(30)
        with profile.mark("second"):
            clock.work(15)
    clock.work(1000)
    report = recording.report()
    assert numbers(report) == [
        ("outer", 3, 180, 30),
        ("outer/first", 3, 60, 60),
        ("outer/second", 3, 90, 0),
        ("outer/second/inside", 3, 90, 90),
        ("second", 1, 15, 15),
    ]
    assert report.elapsed == pytest.approx([200e-9])
    assert report.row("outer").share == pytest.approx(180 / 200)
    assert report.row("outer", "first").share == pytest.approx(60 / 180)
    assert report.row("outer", "first").mean == pytest.approx(20e-9)
    with pytest.raises(KeyError):
        report.row("first")


def test_off_leaves_nothing(clock, monkeypatch):
    monkeypatch.setattr(marks, "Span", None)  # would fail if anything made one
    assert not profile.enabled()
    assert profile.mark("a") is profile.mark("a")
    with profile.mark("a"):
        clock.work(1)

    @profile.benchmark
    def twice(value):
        """Double it."""
        return 2 * value

    assert twice(4) == 8
    assert twice.__doc__ == "Double it."
    assert twice.__name__ == "twice"


def test_enable_and_disable(clock):
    recording = profile.enable()
    assert profile.enable() is recording
    with profile.mark("seen"):
        clock.work(2)
    assert profile.disable() is recording
    assert profile.disable() is None
    with profile.mark("unseen"):
        clock.work(2)
    assert numbers(profile.report()) == [("seen", 1, 2, 2)]


def test_recording_inside_another_and_marks_that_reach_over_its_ends(clock):
    with profile.record() as outer, profile.mark("a"):
        clock.work(1)
        with profile.record() as inner:
            crossing = profile.mark("b")
            crossing.__enter__()
            with profile.mark("c"):
                clock.work(2)
        clock.work(4)
        crossing.__exit__(None, None, None)
    assert numbers(outer.report()) == [("a", 1, 7, 1), ("a/b", 1, 6, 4), ("a/b/c", 1, 2, 2)]
    assert numbers(inner.report()) == [("b", 1, 6, 4), ("b/c", 1, 2, 2)]


def test_report_while_marks_are_open(clock):
    with profile.record() as recording, profile.mark("solve"):
        clock.work(10)
        assert numbers(recording.report()) == [("solve", 1, 10, 10)]
        clock.work(10)
    assert numbers(recording.report()) == [("solve", 1, 20, 20)]


def test_decorators(clock):
    @profile.benchmark
    def bare():
        clock.work(1)

    @profile.benchmark(label="named")
    def called(first, *, second):
        clock.work(2)
        return first + second

    @profile.mark("marked")  # while nothing records
    def marked():
        clock.work(3)

    with profile.record() as recording:
        bare()
        assert called(1, second=2) == 3
        marked()
    name = "test_decorators.<locals>.bare"
    assert numbers(recording.report()) == [(name, 1, 1, 1), ("named", 1, 2, 2), ("marked", 1, 3, 3)]


def test_exceptions_keep_the_tree(clock):
    with profile.record() as recording:
        with pytest.raises(ZeroDivisionError), profile.mark("outer"), profile.mark("inner"):
            clock.work(3)
            raise ZeroDivisionError
        with profile.mark("after"):
            clock.work(4)
    assert numbers(recording.report()) == [("outer", 1, 3, 0), ("outer/inner", 1, 3, 3), ("after", 1, 4, 4)]


def test_recursion_is_one_row(clock):
    @profile.benchmark(label="walk")
    def walk(depth):
        clock.work(1)
        if depth:
            with profile.mark("leaf"):
                clock.work(10)
            walk(depth - 1)

    with profile.record() as recording:
        walk(4)
    assert numbers(recording.report()) == [("walk", 5, 45, 5), ("walk/leaf", 4, 40, 40)]


def test_deep_nesting_needs_no_deep_stack(clock):
    with profile.record() as recording:
        opened = [profile.mark(f"{level}") for level in range(3000)]
        for level in opened:
            level.__enter__()
        for level in reversed(opened):
            level.__exit__(None, None, None)
    assert len(recording.report().rows) == 3000


def test_generator_functions_count_their_steps_only(clock):
    @profile.benchmark(label="steps")
    def steps():
        received = []
        for value in (1, 2, 3):
            clock.work(10)
            try:
                received.append((yield value))
            except KeyError:
                received.append("thrown")
        return received

    with profile.record() as recording:
        generator = steps()
        assert next(generator) == 1
        with profile.mark("consumer"):
            clock.work(100)
        assert generator.send("sent") == 2
        assert generator.throw(KeyError()) == 3
        with pytest.raises(StopIteration) as stop:
            next(generator)
        assert stop.value.value == ["sent", "thrown", None]
        abandoned = steps()
        next(abandoned)
        abandoned.close()
        with pytest.raises(StopIteration):
            next(abandoned)
    assert numbers(recording.report()) == [("steps", 5, 40, 40), ("consumer", 1, 100, 100)]


def test_suspended_generators_do_not_capture_later_marks(clock):
    def producer():
        with profile.mark("producer"):
            yield 1
            yield 2

    with profile.record() as recording:
        with profile.mark("outer"):
            generator = producer()
            next(generator)
            clock.work(1)
        with profile.mark("later"):
            clock.work(2)
            generator.close()  # ends its mark out of order
            with profile.mark("inside"):
                clock.work(4)
    assert numbers(recording.report()) == [
        ("outer", 1, 1, 0),
        ("outer/producer", 1, 3, 3),
        ("later", 1, 6, 2),
        ("later/inside", 1, 4, 4),
    ]


def test_threads_have_trees_of_their_own(clock):
    inside, done = threading.Event(), threading.Event()

    def work():
        with profile.mark("worker"):
            inside.set()
            done.wait(10)

    with profile.record() as recording, profile.mark("main"):
        thread = threading.Thread(target=work, name="second")
        thread.start()
        assert inside.wait(10)
        with profile.mark("child"):
            clock.work(5)
        done.set()
        thread.join()
    assert numbers(recording.report()) == [("main", 1, 5, 0), ("main/child", 1, 5, 5), ("worker", 1, 5, 5)]


def test_misuse():
    with profile.record():
        once = profile.mark("once")
        with once, pytest.raises(CollopsError, match="twice"), once:
            pass
    with pytest.raises(UnsupportedTypeError, match="asynchronous"):

        @profile.benchmark
        async def later():
            pass


def test_report_without_a_recording(monkeypatch, comm):
    monkeypatch.setattr("collops.profile.recording._latest", [])
    with pytest.raises(InputError, match="COLLOPS_PROFILE=1"):
        profile.report()
    with pytest.raises(InputError, match="COLLOPS_PROFILE=1"):
        profile.report(comm)


def test_nvtx_ranges():
    nvtx = pytest.importorskip("nvtx")
    with profile.record(nvtx=True) as recording, profile.mark("a"), profile.mark("b"):
        pass
    assert recording.ranges is not None
    assert recording.ranges.domain is nvtx.get_domain("collops")
    calls = []

    class Ranges:
        def push(self, label):
            calls.append(label)

        def pop(self):
            calls.append("end")

    with profile.record() as recording:
        recording.ranges = Ranges()
        with profile.mark("a"), profile.mark("b"):
            pass
    assert calls == ["a", "b", "end", "end"]
