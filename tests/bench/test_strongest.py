"""The tables of the strongest peers and of the times that are aimed at, from records with made-up numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from collops_bench.floors import FLOORS, floors_table, measured_by
from collops_bench.record import Measurement, read_folder
from collops_bench.registry import BENCHMARKS
from collops_bench.strongest import PEERS, standings, strongest_table
from tests.bench.records import record, timing

pytestmark = pytest.mark.serial
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
FOUR = ("NVIDIA H200",) * 4


def test_where_peers_win_comes_first():
    records = {"arrays.json": record(), "collectives.json": record("collectives", FOUR)}
    records = {name: replace(one, options={}) for name, one in records.items()}
    collectives, arrays = standings(records)
    assert (collectives.wins, len(collectives.ratios), collectives.peers) == (4, 4, ("NCCL",))
    assert (arrays.wins, arrays.ratios) == (0, pytest.approx((250.0,)))
    first, second = strongest_table(records).splitlines()[2:]
    assert "| 0.9 (0.9 to 0.9) | **4 of 4**: " in first and first.endswith("| `collectives` |")
    assert "| 250 (250 to 250) | none of 1 |" in second


def test_the_fastest_of_several_peers_counts_and_the_newest_record():
    both = Measurement("FFT of slabs", {}, {"collops": timing(2.0), "jax.numpy": timing(3.0)}, peer="jax.numpy")
    times = dict(both.timings) | {"collops, transposed": timing(1.0), "jaxDecomp, transposed": timing(1.25)}
    old, new = (replace(record("fft"), options={}, measurements=[one]) for one in (both, replace(both, timings=times)))
    new = replace(new, started="2026-02-01T00:00:00+00:00")
    (found,) = standings({"old.json": old, "new.json": new})
    assert (found.record, found.peers, found.ratios) == ("new.json", ("jaxDecomp, transposed",), (1.25,))
    assert standings({"quick.json": replace(new, options={"quick": True})}) == []


def test_floors_are_compared_with_the_newest_record_of_as_many_gpus():
    floor = next(one for one in FLOORS if one.work == "allreduce of 8 bytes, eager")
    slow, fast = record("collectives", FOUR), record("collectives", FOUR)
    fast.measurements[0] = replace(fast.measurements[0], timings={"collops nccl": timing(7e-6)})
    fast = replace(fast, options={}, started="2026-02-01T00:00:00+00:00")
    one_gpu = replace(fast, machine=fast.machine | {"devices": ["NVIDIA H200"]}, started="2026-03-01T00:00:00+00:00")
    records = {"slow.json": replace(slow, options={}), "fast.json": fast, "one.json": one_gpu}
    assert measured_by(floor, records, 4) == (7e-6, "fast.json")
    line = "| allreduce of 8 bytes, eager | at most 8 µs |"
    assert f"{line} 7 µs | yes | `fast` |  |" in floors_table(records)
    del records["fast.json"]
    assert f"{line} 8 µs | yes | `slow` |  |" in floors_table(records)
    assert f"{line} not measured |  |  |  |" in floors_table({})
    records["two.json"] = replace(fast, machine=fast.machine | {"devices": ["NVIDIA H200"] * 2})
    assert f"{line} 8 µs | yes | `slow` | 7 µs, `two` |" in floors_table(records)


def test_no_peer_of_the_records_is_left_out():
    found = {one.peer for each in read_folder(RESULTS).values() for one in each.measurements if one.peer in one.timings}
    assert {name for name in found if not name.startswith("collops")} <= set(PEERS)


def test_floors_name_benchmarks():
    assert {one.benchmark for one in FLOORS} <= {None, *BENCHMARKS}
    assert len({one.work for one in FLOORS}) == len(FLOORS)
