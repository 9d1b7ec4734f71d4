"""The benchmark of waves, small: the same traces and gradients as those of deepwave."""

from __future__ import annotations

from functools import partial
from itertools import islice

import pytest

from collops.backend import engine
from collops.seismic.waves import Propagator
from collops_bench.registry import BENCHMARKS, Context, Options


def test_answers_are_those_of_the_peer(comm):
    pytest.importorskip("deepwave")
    found = list(BENCHMARKS["waves"].measure(Context(comm, engine("numpy"), Options(quick=True))))
    whats = [one.case.partition(",")[0] for one in found]
    assert whats == ["modelling", "gradient"] * 2 + ["modelling"] * (0 if comm.size == 1 else 2)
    for one in found:
        assert ("deepwave" in one.timings) is (comm.size == 1)
        assert all(each.error <= each.tolerance for each in one.checks)


def test_a_shot_and_its_gradient_in_each_medium(comm, monkeypatch):
    monkeypatch.setattr("collops_bench.waves.Propagator", partial(Propagator, kernels="numpy"))
    found = list(islice(BENCHMARKS["media"].measure(Context(comm, engine("numpy"), Options(quick=True))), 10))
    whats = [one.case.split(", ")[:2] for one in found]
    assert [what for _, what in whats] == ["modelling", "gradient"] * 5 and len({name for name, _ in whats}) == 5
    for one in found:
        assert one.figures["collops"]["points per second"] > 0
        assert all(each.error <= each.tolerance for each in one.checks)
        assert ("deepwave" in one.timings) is (one.missing == {})
