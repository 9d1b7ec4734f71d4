"""The benchmark of travel times, small."""

from __future__ import annotations

import pytest

from collops.backend import engine
from collops_bench.registry import BENCHMARKS, Context, Options


def test_times_are_right_and_better_than_those_of_the_peer(comm):
    pytest.importorskip("skfmm")
    *found, tables = list(BENCHMARKS["traveltimes"].measure(Context(comm, engine("numpy"), Options(quick=True))))
    assert [one.parameters["points"] for one in found] == [41 * 31, 21 * 19 * 17]
    for one in found:
        assert set(one.timings) == {"collops", "scikit-fmm"} and len(one.checks) == 2
        ours, theirs = (one.figures[name]["rms error"] for name in ("collops", "scikit-fmm"))
        assert 0 < ours < 0.02 and ours < 0.2 * theirs
    (one,) = tables.checks
    assert one.error < 0.05 and tables.parameters["stations"] == 24 and tables.parameters["swept every"] in (2, 4, 8)
