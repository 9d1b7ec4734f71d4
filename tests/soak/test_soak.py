"""The soak itself: its cases pass, a wrong answer is found and named, growth is seen, and the command tells it all."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from collops.backend import engine
from collops.errors import CollopsError
from collops_bench.soak.cases import CASES
from collops_bench.soak.cli import _run as run_soak
from collops_bench.soak.draw import Draw, WrongAnswer
from collops_bench.soak.memory import Sample, Watch
from collops_bench.soak.run import _RARE, Failure, Tally, soak


@pytest.mark.parametrize("name", [name for name in CASES if name != "killed"])  # which starts programs: below
def test_cases_pass(comm, name):
    CASES[name](Draw(11, 0, comm, engine("numpy")))


def test_a_wrong_answer_is_a_failure_that_can_be_run_again(comm, monkeypatch):
    def wrong(draw):
        draw.close("sum", draw.comm.allreduce(draw.local(np.ones(3))), np.full(3, draw.comm.size + 1.0))

    monkeypatch.setitem(CASES, "reductions", wrong)
    tally = soak(comm, engine("numpy"), minutes=0.01, seed=3, names=("reductions",))
    assert not tally.passed
    first = tally.failures[0]
    assert first.case == "reductions" and "WrongAnswer: sum: the error is" in first.message
    again = soak(comm, engine("numpy"), minutes=0.01, seed=3, names=("reductions",), only=first.number)
    assert again.count == 1 and again.failures[0].message == first.message


def test_programs_are_killed_after_the_warm_up_only(comm, monkeypatch):
    seen = []
    monkeypatch.setitem(CASES, "killed", lambda draw: seen.append(time.monotonic()))
    monkeypatch.setitem(_RARE, "killed", 1.0)
    begin = time.monotonic()
    tally = soak(comm, engine("numpy"), minutes=0.04, names=("halo", "killed"))
    assert tally.passed and tally.cases["halo"] and len(seen) == tally.cases["killed"] > 0
    assert min(seen) - begin >= 0.04 * 60 / 3
    assert soak(comm, engine("numpy"), minutes=0.001, names=("killed",)).cases == {
        "killed": len(seen) - tally.cases["killed"]
    }


def test_a_mistake_on_one_rank_is_one_of_all(comm, monkeypatch):
    def wrong(draw):
        if draw.comm.rank == draw.comm.size - 1 and draw.comm.size == comm.size:
            raise WrongAnswer("only here")

    monkeypatch.setitem(CASES, "halo", wrong)
    tally = soak(comm, engine("numpy"), minutes=0.005, names=("halo",))
    assert tally.failures and all("only here" in failure.message for failure in tally.failures)


@pytest.mark.serial
def test_growth_after_the_warm_up_is_a_leak():
    def watched(step):
        watch = Watch(warm_up=10.0)
        for number in range(13):
            objects = {"Communicator": 4, "StarForest": 1 + (number if step else 0)}
            watch.samples.append(Sample(5.0 * number, 10**8 + step * number, 0, objects))
        return watch

    assert watched(0).leaks() == []
    grown = watched(200_000).leaks()
    assert [leak.split(" grew")[0] for leak in grown] == ["host", "StarForest"]
    early = Watch(warm_up=1000.0, samples=watched(10**7).samples)
    assert early.leaks() == []  # before the warm-up nothing is a leak


@pytest.mark.serial
def test_the_command_prints_its_tally(here):
    done = here("soak", "--minutes", "0.005", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    tally = json.loads(done.stdout)
    assert tally["passed"] and sum(tally["cases"].values()) > 0
    for wrong, said in (
        (("--minutes", "-1"), "--minutes must be a positive number"),
        (("--engine", "jax"), "--engine must be one of"),
        (("--record", "/dev/null/x.json"), "cannot write /dev/null/x.json"),
    ):
        refused = here("soak", *wrong)
        assert refused.returncode == 2 and said in refused.stderr


def test_failures_are_named_also_when_it_is_quiet(comm, monkeypatch):
    tally = Tally(5, failures=[Failure("halo", "all ranks", 7, "wrong")], leaks=["rank 0: host grew by 2.00 %"])
    monkeypatch.setattr("collops_bench.soak.run.soak", lambda *_, **__: tally)
    with pytest.raises(CollopsError, match=r"with --seed 5: case 7 \(halo\), rank 0: host grew"):
        run_soak(comm, "numpy", 0.01, 5, None, None, False, True)


@pytest.mark.serial
def test_a_program_that_is_killed_goes_on(comm):
    CASES["killed"](Draw(1, 0, comm, engine("numpy")))
