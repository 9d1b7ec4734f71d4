"""The benchmark of start-up, small."""

from __future__ import annotations

import pytest

from collops.backend import engine
from collops.errors import CollopsError
from collops_bench.page import report_page
from collops_bench.registry import BENCHMARKS, Context, Options
from collops_bench.startup import HELP, IMPORTS, PROGRAMS
from tests.bench.records import record

REAL = dict(PROGRAMS)


def measurements(comm):
    return list(BENCHMARKS["startup"].measure(Context(comm, engine("numpy"), Options(quick=True, peer=False))))


@pytest.fixture
def idle(monkeypatch):
    """Replace all programs by one that loads nothing."""
    for name in PROGRAMS:
        monkeypatch.setitem(PROGRAMS, name, (["-SIc", "import os; print('COLLOPS_RANK' in os.environ)"], "False"))


@pytest.mark.serial
def test_commands_and_imports_are_timed_without_peers(comm, idle, monkeypatch):
    for name in (HELP, "import collops", "collops, first array"):
        monkeypatch.setitem(PROGRAMS, name, REAL[name])
    commands, imports, arrays = measurements(comm)
    assert list(commands.timings) == [IMPORTS, HELP] and list(commands.figures[HELP]) == [f"CPU over {IMPORTS}"]
    assert imports.missing["import pylops_mpi"] == imports.missing["import mpi4jax"] == "not asked for"
    assert list(arrays.timings) == ["import numpy", "collops, first array"] and arrays.peer in arrays.missing
    loaded, empty = (imports.timings[name].clocks["cpu"].median for name in ("import numpy", "import collops"))
    assert imports.figures["import collops"] == {"CPU over import numpy": empty / loaded}


def test_each_rank_starts_processes_that_are_no_ranks(comm, idle, monkeypatch):
    monkeypatch.setenv("COLLOPS_RANK", str(comm.rank))
    found = measurements(comm)
    clocks = [timing.clocks for one in found for timing in one.timings.values()]
    assert all(each["cpu"].median > 0 and each["wall"].rounds == 1 for each in clocks)
    assert [len(comm.allgather_metadata(one.figures)) for one in found] == [comm.size] * 3
    written = record("startup")
    written.measurements[:] = found
    assert "CPU</th>" in report_page({"one.json": written}) and "CPU</th>" not in report_page({"one.json": record()})


@pytest.mark.parametrize(
    ("program", "message"),
    [("raise SystemExit('broken')", "not exit code 1 and 'broken'"), ("print('usage')", "not exit code 0 and 'usage'")],
)
def test_a_program_that_fails_on_one_rank_is_an_error_on_all(comm, idle, monkeypatch, program, message):
    if comm.rank == comm.size - 1:
        monkeypatch.setitem(PROGRAMS, HELP, (["-SIc", program], "Usage:"))
    with pytest.raises(CollopsError, match=message):
        measurements(comm)


def test_a_program_that_hangs_is_an_error(comm, idle, monkeypatch):
    monkeypatch.setattr("collops_bench.startup._TIMEOUT", 0.2)
    monkeypatch.setitem(PROGRAMS, HELP, (["-SIc", "import time; time.sleep(30)"], ""))
    with pytest.raises(CollopsError, match=f"{HELP} did not end within 0.2 s"):
        measurements(comm)
