"""Reports and traces, alone and over all ranks."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from collops import profile
from collops.errors import InputError


@pytest.fixture
def shared(comm, tmp_path):
    """A folder that all ranks see."""
    return type(tmp_path)(comm.allgather_metadata(str(tmp_path))[0])


@pytest.fixture
def recording(comm, clock):
    """On every rank another time, another number of calls and, on odd ranks, another label."""
    with profile.record() as recording:
        for _ in range(comm.rank + 1):
            with profile.mark("solve"):
                with profile.mark("odd" if comm.rank % 2 else "even"):
                    clock.work(1000)
                with profile.mark("both"):
                    clock.work(100 * (comm.rank + 1))
    return recording


def test_over_ranks(comm, recording):
    report = recording.report(comm)
    ranks = range(comm.size)
    paths = [row.path for row in report.rows]
    expected = [("solve",), ("solve", "even"), ("solve", "both"), ("solve", "odd")]
    assert paths == expected[: 4 if comm.size > 1 else 3]
    solve = report.row("solve")
    assert solve.ranks == tuple(ranks)
    assert solve.calls == tuple(rank + 1 for rank in ranks)
    assert solve.total == pytest.approx([1e-9 * (rank + 1) * (1000 + 100 * (rank + 1)) for rank in ranks])
    assert solve.own == pytest.approx([0] * comm.size)
    assert solve.share == pytest.approx(1)
    even = report.row("solve", "even")
    assert even.ranks == tuple(rank for rank in ranks if rank % 2 == 0)
    assert even.share == pytest.approx(sum(even.total) / sum(solve.total))
    assert report.size == comm.size
    assert len({str(report)} | set(comm.allgather_metadata(str(report)))) == 1


def test_alone(comm, recording):
    report = recording.report()
    assert report.size == 1
    assert report.row("solve").calls == (comm.rank + 1,)


def test_no_rank_recorded_anything(comm):
    with profile.record() as recording:
        pass
    assert recording.report(comm).rows == []
    assert "recorded" in str(recording.report(comm))


def test_text(comm, clock):
    with profile.record() as recording, profile.mark("outer [bold]"):
        clock.work(1500)
        with profile.mark("inner"):
            clock.work(500 * (comm.rank + 1))
    text = str(recording.report(comm)).splitlines()
    largest = 0.5 * comm.size
    if comm.size == 1:
        assert text[0].split() == ["recorded", "2", "us"]
        assert text[1].split() == ["mark", "calls", "total", "per", "call", "of", "parent", "own"]
        assert text[2].split() == ["outer", "[bold]", "1", "2", "us", "2", "us", "100.0%", "1.5", "us"]
        assert text[3].split() == ["inner", "1", "0.5", "us", "0.5", "us", "25.0%", "0.5", "us"]
    else:
        assert text[0].startswith(f"ranks: {comm.size}, recorded")
        assert f"{largest:.4g} us" in text[3]
    assert text[3].startswith("  inner")


def test_only_rank_0_shows(comm, recording):
    report = recording.report(comm)
    plain, terminal = io.StringIO(), io.StringIO()
    report.show(plain)
    assert bool(plain.getvalue()) == (comm.rank == 0)
    assert "\x1b" not in plain.getvalue()
    Console(file=terminal, force_terminal=True).print(report)
    assert "\x1b" in terminal.getvalue()


def test_json(comm, recording, shared):
    recording.to_json(shared / "profile.json", comm)
    found = json.loads((shared / "profile.json").read_text())
    assert found["ranks"] == comm.size
    assert found["marks"][0]["path"] == ["solve"]
    assert found["marks"][0]["calls"] == [rank + 1 for rank in range(comm.size)]
    assert found["marks"][0]["total_seconds"][0] == pytest.approx(1100e-9)


def check_nesting(events):
    """Every begin has its end on the same track, in the right order and not before it."""
    open_marks = {}
    asynchronous = {}
    for event in events:
        stack = open_marks.setdefault((event["pid"], event["tid"]), [])
        if event["ph"] == "B":
            stack.append(event)
        elif event["ph"] == "E":
            begun = stack.pop()
            assert begun["name"] == event["name"]
            assert begun["ts"] <= event["ts"]
        elif event["ph"] == "b":
            asynchronous[event["pid"], event["id"]] = event
        elif event["ph"] == "e":
            begun = asynchronous.pop((event["pid"], event["id"]))
            assert begun["name"] == event["name"]
            assert begun["ts"] <= event["ts"]
        else:
            assert event["ph"] == "M"
    assert not any(open_marks.values())
    assert not asynchronous


def test_trace_has_a_process_per_rank(comm, recording, shared):
    recording.to_chrome_trace(shared / "trace.json", comm)
    events = json.loads((shared / "trace.json").read_text())["traceEvents"]
    check_nesting(events)
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == [f"rank {rank}" for rank in range(comm.size)]
    for rank in range(comm.size):
        begun = [event["name"] for event in events if event["pid"] == rank and event["ph"] == "B"]
        inner = "odd" if rank % 2 else "even"
        assert begun == ["solve", inner, "both"] * (rank + 1)
    times = [event["ts"] for event in events if "ts" in event]
    assert min(times) == 0


def test_trace_of_marks_that_end_out_of_order(clock, tmp_path):
    with profile.record() as recording:
        first, second, third = (profile.mark(name) for name in ("first", "second", "third"))
        first.__enter__()
        clock.work(10)
        second.__enter__()
        clock.work(10)
        first.__exit__(None, None, None)
        clock.work(10)
        third.__enter__()  # and stays open beyond the recording
        clock.work(10)
        second.__exit__(None, None, None)
    recording.to_chrome_trace(tmp_path / "trace.json")
    third.__exit__(None, None, None)  # else it would be the parent of all later marks
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    check_nesting(events)
    assert [event["name"] for event in events if event["ph"] == "b"] == ["second"]
    assert [event["ts"] for event in events if event["name"] == "third"] == [0.03, 0.04]


@pytest.mark.parametrize("write", ["to_json", "to_chrome_trace"])
def test_a_file_that_cannot_be_written_fails_everywhere(comm, recording, shared, write):
    with pytest.raises(InputError, match="cannot write the profile"):
        getattr(recording, write)(shared / "missing" / "file.json", comm)
    with pytest.raises(InputError, match="cannot write the profile"):
        getattr(profile, write)(shared / "missing" / "file.json")
