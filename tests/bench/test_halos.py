"""The benchmark of halos, small."""

from __future__ import annotations

from collops.backend import engine
from collops.exchange import possible_transports
from collops_bench.halos import GHEX, MESSAGES
from collops_bench.registry import BENCHMARKS, Context, Options


def test_every_way_is_checked_and_timed(comm) -> None:
    found = list(BENCHMARKS["halos"].measure(Context(comm, engine("numpy"), Options(quick=True))))
    assert len(found) == (comm.size > 1)
    for one in found:
        ways = {MESSAGES, *possible_transports(comm, engine("numpy"))}
        assert set(one.timings) - {GHEX} == ways and (GHEX in one.timings) != (GHEX in one.missing)
        assert [each.error for each in one.checks] == [0.0] * len(one.timings)
        assert one.ours == min(ways, key=lambda name: one.timings[name].wall.median)
        assert one.messages == {"exchange": 1}
