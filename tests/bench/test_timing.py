from __future__ import annotations

import types

import pytest

from collops.backend import engine
from collops_bench.timing import Plan, Spread, interleave, interleave_iterations

HOST = engine("numpy")


class Clock:
    """A clock that only those move on who say so: real ones show what else the machine does."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    simulated = Clock()
    monkeypatch.setattr("collops_bench.timing.time", types.SimpleNamespace(perf_counter=lambda: simulated.now))
    return simulated


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


def test_times_are_those_of_the_slowest_rank(comm, clock) -> None:
    seconds = 2e-3 * (comm.rank + 1)
    timings = interleave({"sleep": lambda: clock.sleep(seconds)}, comm, HOST, Plan(rounds=3, seconds=1e-3))
    assert timings["sleep"].calls == 1
    assert set(timings["sleep"].clocks) == {"wall", "host"}
    for spread in timings["sleep"].clocks.values():
        assert spread.rounds == 3
        assert [spread.minimum, spread.median, spread.maximum] == pytest.approx([2e-3 * comm.size] * 3)


def test_an_iteration_costs_the_slope_and_set_up_does_not_count(comm, clock) -> None:
    def solve(iterations: int) -> None:
        clock.sleep(0.02 + 2e-3 * iterations)

    timings = interleave_iterations({"s": solve}, comm, HOST, Plan(rounds=3), short=2, long=12)
    assert timings["s"].clocks["whole"].median == pytest.approx((0.02 + 12 * 2e-3) / 12)
    assert timings["s"].wall.median == pytest.approx(2e-3)
    assert timings["s"].calls == 12


@pytest.mark.parametrize(("spent", "rounds", "seconds"), [([5, 3, 1, 3, 1, 5], 2, 1.5), ([5, 3, 9, 3, 7, 3], 3, 0.75)])
def test_rounds_in_which_other_programs_were_in_the_way(comm, clock, spent, rounds, seconds) -> None:
    """A long run that took no longer than a short one tells nothing of iterations."""
    lengths = iter([1, *spent])
    timings = interleave_iterations(
        {"s": lambda _: clock.sleep(next(lengths))}, comm, HOST, Plan(rounds=3), short=2, long=4
    )
    assert (timings["s"].wall.rounds, timings["s"].wall.median) == (rounds, seconds)


@pytest.mark.serial
def test_spread_of_samples() -> None:
    assert Spread.from_samples([3.0, 1.0, 2.0, 10.0]) == Spread(2.5, 1.0, 10.0, 4)


def test_a_slow_program_gets_fewer_turns(comm, clock) -> None:
    called: list[str] = []

    def slow() -> None:
        called.append("slow")
        clock.sleep(6e-3)

    def quick() -> None:
        called.append("quick")
        clock.sleep(1e-5)

    plan = Plan(rounds=5, seconds=5e-3, most_calls=1, bound=4e-3)
    timings = interleave({"slow": slow, "quick": quick}, comm, HOST, plan)
    assert timings["slow"].wall.rounds == 1 and called.count("slow") == 3
    assert timings["quick"].wall.rounds == 5
