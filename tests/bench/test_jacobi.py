"""The benchmark of Jacobi's method, small; and the plot of its records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collops.backend import engine
from collops.jacobi import make
from collops_bench import jacobi
from collops_bench.jacobi import ALONE
from collops_bench.plots import write_plots
from collops_bench.record import Measurement, read_folder, write_record
from collops_bench.registry import BENCHMARKS, Context, Options
from tests.bench.records import record, timing


def test_every_variant_is_checked_and_timed(comm) -> None:
    found = list(BENCHMARKS["jacobi"].measure(Context(comm, engine("numpy"), Options(quick=True))))
    assert [one.case for one in found] == ["strong scaling", "weak scaling"]
    for one in found:
        *one_process, mpi, overlap, shared = list(one.timings)[1:]
        assert (mpi, overlap, shared) == ("mpi", "mpi_overlap", "shared")
        assert ("copies" in one_process) == (comm.size == 1)
        assert [check.error for check in one.checks] == [0.0] * (len(one.timings) - 1)
        assert ("threads_copies" in one.missing) == (comm.size > 1)
        assert one.parameters["memory_limit"] > 0
        assert set(one.figures["mpi"]) == {"speedup", "efficiency", "of_memory_limit"}
        assert one.figures[ALONE]["speedup"] == pytest.approx(1.0)
    assert found[1].parameters["ny"] == found[1].parameters["nx"] // 2 * comm.size


def test_the_time_of_a_program_of_the_user_is_in_the_measurement(comm, tmp_path) -> None:
    """It prints 1 ms and 3 us for each iteration: one more iteration takes 3 us."""
    program = tmp_path / "sample"
    program.write_text(
        '#!/bin/sh\necho "nccl, $2, $4, $6, $8, 3, 1, 0.00$((1000 + 3 * $6)), 0.5"\n',
        "utf-8",
    )
    program.chmod(0o755)
    options = Options(quick=True, programs=(f"theirs={program}",))
    for one in BENCHMARKS["jacobi"].measure(Context(comm, engine("numpy"), options)):
        assert one.timings["theirs (peer)"].wall.median == pytest.approx(3e-6, rel=1e-3)
        assert "theirs (peer)" not in one.figures
        assert one.ours != "theirs (peer)"


def test_what_fails_does_not_lose_the_times_of_the_others(comm, tmp_path, monkeypatch) -> None:
    """A program of the user that ends with an error, and a variant whose memory no rank gets."""
    program = tmp_path / "sample"
    program.write_text("#!/bin/sh\necho no device\nexit 3\n", "utf-8")
    program.chmod(0o755)

    def without_memory(name, *arguments):
        if name == "shared":
            comm.check(MemoryError("no 5 bytes"))
        return make(name, *arguments)

    monkeypatch.setattr(jacobi, "make", without_memory)
    options = Options(quick=True, programs=(f"theirs={program}",))
    found = list(BENCHMARKS["jacobi"].measure(Context(comm, engine("numpy"), options)))
    assert len(found) == 2
    for one in found:
        assert "mpi" in one.timings and "shared" not in one.timings and "theirs (peer)" not in one.timings
        assert "no 5 bytes" in one.missing["shared"]
        assert "exit code 3 (no device)" in one.missing["theirs (peer)"]


@pytest.mark.serial
def test_records_of_a_machine_become_one_plot(tmp_path) -> None:
    for ranks in (1, 2):
        one = Measurement(
            "weak scaling",
            {"nx": 16, "ny": 16 * ranks, "dtype": "float32", "memory_limit": 1e-6},
            {ALONE: timing(4e-6 * ranks), "mpi": timing(5e-6)},
            ours="mpi",
        )
        write_record(replace(record("jacobi"), ranks=ranks, measurements=[one]), tmp_path / f"{ranks}.json")
    paths = write_plots(list(read_folder(tmp_path).values()), tmp_path / "plots")
    assert [path.name for path in paths] == ["jacobi-cpu-2-cores.png"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
