"""Latency and bandwidth between two ranks."""

from __future__ import annotations

import pytest

from collops.backend import engine
from collops_bench import pairwise
from collops_bench.pairwise import BANDWIDTH, LATENCY
from collops_bench.registry import BENCHMARKS, Context, Options


def test_every_way_is_checked_and_timed(comm) -> None:
    found = list(BENCHMARKS["pairwise"].measure(Context(comm, engine("numpy"), Options(quick=True))))
    if comm.size == 1:
        assert not found
        return
    assert [one.case for one in found] == [LATENCY] * 6 + [BANDWIDTH] * 6
    for one in found:
        assert set(one.timings) == {f"collops {comm.transport}", "MPI", "collops symmetric"}
        assert len(one.checks) == 3
        assert one.timings["MPI"].calls % (2 if one.case == LATENCY else 64) == 0
    last = found[-1]
    assert last.parameters["size"] == 8192
    assert last.figures["MPI"]["bandwidth"] == pytest.approx(8192 / last.timings["MPI"].wall.median)


def test_a_message_that_does_not_arrive_is_seen(comm, monkeypatch) -> None:
    if comm.size == 1:
        pytest.skip("a message needs two ranks")
    monkeypatch.setattr(pairwise, "_by_puts", lambda *arguments: lambda: None)
    context = Context(comm, engine("numpy"), Options(quick=True))
    with pytest.raises(Exception, match="wrong bytes of a message of 8 by collops symmetric: the error is 8"):
        next(BENCHMARKS["pairwise"].measure(context))
