from __future__ import annotations

import time

import pytest

from collops.backend import engine
from collops.bench.timing import Plan, Spread, interleave, interleave_iterations

HOST = engine("numpy")


def test_programs_take_turns_and_calls_agree_on_all_ranks(comm) -> None:
    turns: list[str] = []
    programs = {"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}
    timings = interleave(programs, comm, HOST, Plan(rounds=3, seconds=1e-5, most_calls=7))
    assert list(timings) == ["a", "b"]
    assert {timing.calls for timing in timings.values()} <= set(range(1, 8))
    counts = [timing.calls for timing in timings.values()]
    assert comm.allgather_metadata(counts) == [counts] * comm.size
    rounds = "".join(turns)[-3 * sum(counts) :]
    assert rounds == ("a" * counts[0] + "b" * counts[1]) * 3


def test_times_are_those_of_the_slowest_rank(comm) -> None:
    seconds = 2e-3 * (comm.rank + 1)
    timings = interleave({"sleep": lambda: time.sleep(seconds)}, comm, HOST, Plan(rounds=3, seconds=1e-3))
    wall = timings["sleep"].wall
    assert wall.minimum >= 2e-3 * comm.size
    assert wall.minimum <= wall.median <= wall.maximum
    assert wall.rounds == 3
    assert "device" not in timings["sleep"].clocks
    assert comm.allgather_metadata(wall.median) == [wall.median] * comm.size


def test_an_iteration_costs_the_slope_and_set_up_does_not_count(comm) -> None:
    def solve(iterations: int) -> None:
        time.sleep(0.02 + 2e-3 * iterations)

    timings = interleave_iterations({"s": solve}, comm, HOST, Plan(rounds=3), short=2, long=12)
    # Other programs may hold a sleeper back; nothing lets it wake up early.
    assert timings["s"].clocks["whole"].minimum >= (0.02 + 12 * 2e-3) / 12
    assert 0.5e-3 < timings["s"].wall.median < timings["s"].clocks["whole"].median
    assert timings["s"].calls == 12


@pytest.mark.serial
def test_spread_of_samples() -> None:
    assert Spread.of([3.0, 1.0, 2.0, 10.0]) == Spread(2.5, 1.0, 10.0, 4)


def test_a_slow_program_gets_fewer_turns(comm) -> None:
    called: list[str] = []

    def slow() -> None:
        called.append("slow")
        time.sleep(6e-3)

    plan = Plan(rounds=5, seconds=5e-3, most_calls=1, bound=4e-3)
    timings = interleave({"slow": slow, "quick": lambda: called.append("quick")}, comm, HOST, plan)
    assert timings["slow"].wall.rounds == 1 and called.count("slow") == 3
    assert timings["quick"].wall.rounds == 5
