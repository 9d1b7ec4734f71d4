"""The benchmark of waves, small: the same traces and gradients as those of deepwave."""

from __future__ import annotations

import pytest

from collops.backend import engine
from collops_bench.registry import BENCHMARKS, Context, Options


def test_answers_are_those_of_the_peer(comm):
    pytest.importorskip("deepwave")
    found = list(BENCHMARKS["waves"].measure(Context(comm, engine("numpy"), Options(quick=True))))
    whats = [one.case.partition(",")[0] for one in found]
    assert whats == ["modelling", "gradient"] * 2 + ["modelling"] * (0 if comm.size == 1 else 2)
    for one in found:
        assert ("deepwave" in one.timings) is (comm.size == 1)
        assert all(each.error <= each.tolerance for each in one.checks)
