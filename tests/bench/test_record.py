from __future__ import annotations

import json
import math

import pytest

from collops.backend import engine
from collops.errors import CollopsError, InputError
from collops_bench.record import check, default_path, new_record, read_record, write_record
from tests.bench.records import record


@pytest.mark.parametrize("benchmark", ["arrays", "collectives"])
@pytest.mark.serial
def test_what_is_written_is_read_back(tmp_path, benchmark: str) -> None:
    given = record(benchmark, ("NVIDIA H200",) * 4)
    path = tmp_path / "made" / "on the way.json"
    write_record(given, path)
    assert read_record(path) == given
    content = json.loads(path.read_text())
    assert content["schema"] == 1
    assert set(content["clocks"]) == {"wall", "host", "device", "cpu", "first", "whole", "difference"}


@pytest.mark.serial
def test_names_of_files_say_machine_and_ranks() -> None:
    assert str(default_path(record("cgls"))) == "benchmarks/results/cgls-cpu-2-cores-1.json"
    assert str(default_path(record("cgls", ("NVIDIA H200",) * 4))) == "benchmarks/results/cgls-nvidia-h200-4.json"


@pytest.mark.serial
@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2}', "\x00"])
def test_other_files_are_refused(tmp_path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"other\.json (is not a JSON file|must be a benchmark record)"):
        read_record(path)
    with pytest.raises(InputError, match="cannot read"):
        read_record(tmp_path / "absent.json")
    with pytest.raises(InputError, match="is a folder"):
        write_record(record(), tmp_path)
    with pytest.raises(InputError, match="cannot write"):
        write_record(record(), path / "inside.json")


@pytest.mark.serial
def test_speedup_needs_both_programs() -> None:
    dot, axpby = record().measurements
    assert dot.speedup == pytest.approx(250.0)
    assert axpby.speedup is None


def test_a_wrong_answer_on_one_rank_stops_all(comm) -> None:
    last = comm.rank == comm.size - 1
    passed = check(comm, "sum", 1e-7 if last else 0.0, 1e-6)
    assert (passed.error, passed.tolerance) == (1e-7, 1e-6)
    for wrong in (1.0, math.nan, math.inf):
        with pytest.raises(CollopsError, match="sum: the error is"):
            check(comm, "sum", wrong if last else 0.0, 1e-6)


def test_a_record_says_where_and_with_what_it_was_made(comm, monkeypatch) -> None:
    monkeypatch.setenv("COLLOPS_COMMIT", "0123abc")
    made = new_record("arrays", comm, engine("numpy"), {"quick": True})
    assert made.ranks == comm.size
    assert made.commit == "0123abc"
    assert made.machine["devices"] == []
    assert made.machine["p2p"] is None and made.p2p
    assert made.machine["cores"] >= 1
    assert made.versions["numpy"] is not None
    json.dumps(made.machine)
