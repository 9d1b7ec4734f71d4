"""``collops bench all``: what fits is run, what fails is said, and nothing else is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from collops.errors import InputError
from collops_bench.everything import Outcome, Plan, _too_large, comparison, limits_in_words, run_all
from collops_bench.model import parameters_of, sparse
from collops_bench.prediction import machine_of
from collops_bench.record import Measurement, Record, read_record, write_record
from collops_bench.registry import BENCHMARKS, Benchmark
from tests.bench.records import record, timing

pytestmark = pytest.mark.serial


def limits(ranks: int = 1, memory: int = 1 << 33) -> Record:
    made = record("limits")
    machine = {**made.machine, "memory": memory}
    made = replace(made, ranks=ranks, machine=machine)
    copies = [
        Measurement(
            "copy", {"size": size}, {"called": timing(seconds)}, ours="called", figures=_bandwidth(2 * size, seconds)
        )
        for size, seconds in ((1 << 20, 1e-4), (1 << 30, 0.2))
    ]
    sent = [
        Measurement(kind, {"size": size}, {"called": timing(seconds)}, ours="called", figures=_bandwidth(size, seconds))
        for kind in ("allreduce", "exchange")
        for size, seconds in ((8, 2e-6), (1 << 20, 1e-3))
    ]
    product = Measurement(
        "matrix product", {"side": 256}, {"called": timing(1e-3)}, ours="called", figures={"called": {"rate": 3e10}}
    )
    made.measurements[:] = [*copies, product, *(sent if ranks > 1 else [])]
    return made


def _bandwidth(nbytes: int, seconds: float) -> dict[str, dict[str, float]]:
    return {"called": {"bandwidth": nbytes / seconds}}


def test_all_that_is_asked_for_and_one_page(tmp_path, monkeypatch, here) -> None:
    pytest.importorskip("mpi4py")
    # One that fails loses no other.
    monkeypatch.setitem(BENCHMARKS, "absent", Benchmark("absent", "There is no command of this name."))
    arguments = ("--quick", "--ranks", 2, "--engine", "numpy", "--no-peer", "--only", "absent,arrays", "--out", "made")
    done = here("bench", "all", *arguments)
    assert done.returncode == 1, done
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["limits", "absent", "arrays"]
    assert "0 measurements, FAILED (exit code 2: " in lines[1] and "No such command" in lines[1]
    assert "No such command" in (tmp_path / "made" / "absent-2.log").read_text("utf-8")
    for words in (
        "Limits of this machine",
        "Speed relative to the limits",
        "of a copy of the vectors",
        "exchange with a neighbour",
    ):
        assert words in done.stdout
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [
        "absent-2.log",
        "arrays-2.json",
        "limits-2.json",
        "report.html",
    ]
    made = read_record(tmp_path / "made" / "limits-2.json")
    assert made.machine["memory"] > 0
    assert lines[0].split()[1] == str(len(made.measurements))


def plan(folder: Path, *names: str, most_seconds: float = 100.0) -> Plan:
    return Plan(names, folder, 1, ["--engine", "numpy", "--no-peer"], True, most_seconds)


def test_one_that_does_not_end_is_ended(tmp_path, monkeypatch) -> None:
    real = subprocess.Popen
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: real(sleeps, **options))
    (outcome,) = run_all(plan(tmp_path, most_seconds=0.3), lambda name, what: None)
    assert outcome == Outcome("limits", None, "ended after 0.3 s")


def test_one_that_has_nothing_to_measure_has_not_failed(tmp_path, monkeypatch) -> None:
    real = subprocess.Popen
    nothing = [sys.executable, "-c", "print('nothing to measure on one rank')"]
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: real(nothing, **options))
    (outcome,) = run_all(plan(tmp_path), lambda name, what: None)
    assert outcome == Outcome("limits", None, None, "nothing to measure on one rank")


def test_an_interrupt_leaves_a_page_of_what_there_is(tmp_path, monkeypatch, here) -> None:
    made = limits()

    def interrupted(plan: Plan, report: object) -> Iterator[Outcome]:
        write_record(made, plan.folder / "limits-1.json")
        yield Outcome("limits", made)
        raise KeyboardInterrupt

    monkeypatch.setattr("collops_bench.everything.run_all", interrupted)
    done = here("bench", "all", "--ranks", 1, "--out", "made")
    assert done.returncode == 130
    assert "Limits of this machine" in done.stdout
    assert "limits-1.json" in (tmp_path / "made" / "report.html").read_text("utf-8")


def test_a_record_that_the_page_cannot_show_is_refused_beforehand(tmp_path, monkeypatch, here) -> None:
    monkeypatch.setattr("collops_bench.everything.run_all", lambda *_: pytest.fail("the benchmarks were run"))
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old.json").write_text("{")
    done = here("bench", "all", "--ranks", 1, "--out", "made")
    assert done.returncode == 2
    assert "old.json is not a JSON file" in done.stderr


def test_a_record_that_cannot_be_read_loses_no_other(tmp_path, monkeypatch) -> None:
    real = subprocess.Popen
    half = [sys.executable, "-c", f"open({str(tmp_path / 'limits-1.json')!r}, 'w').write('{{')"]
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: real(half, **options))
    (outcome,) = run_all(plan(tmp_path), lambda name, what: None)
    assert outcome.record is None and "is not a JSON file" in str(outcome.problem)


def test_what_does_not_fit_is_run_small() -> None:
    large = Benchmark("large", "", device_bytes=1 << 34, host_bytes=1 << 32)
    assert _too_large(large, limits(memory=1 << 33)) is None
    assert _too_large(large, limits(memory=1 << 32)) == "small sizes: 4 GiB per rank needed, 4 free"
    assert (
        _too_large(large, replace(limits(memory=1 << 33), engine="cupy"))
        == "small sizes: 16 GiB per rank needed, 8 free"
    )
    assert _too_large(large, None) is not None
    assert _too_large(Benchmark("fits", ""), limits(memory=0)) is None


def test_what_the_machine_can_do_in_words() -> None:
    assert limits_in_words(limits(2)) == [
        ("memory of a rank, copy of 1 GiB", "10.7 GB/s"),
        ("the fastest copy, of 1 MiB", "21 GB/s"),
        ("arithmetic of a rank, matrices of 256", "30 GFLOP/s"),
        ("allreduce over 2 ranks, 8 B", "2 µs"),
        ("allreduce over 2 ranks, 1 MiB", "1.05 GB/s"),
        ("exchange with a neighbour, 8 B", "2 µs"),
        ("exchange with a neighbour, 1 MiB", "1.05 GB/s"),
    ]


def test_the_time_of_copies_and_messages_within_an_iteration() -> None:
    made = record("scaling")
    work = parameters_of(sparse(64, 64, 2))
    seconds = 4 * machine_of([limits(2)]).copy_seconds(work["bytes"])
    made.measurements[:] = [Measurement("sparse product", {"scaling": "weak", **work}, {"collops": timing(seconds)})]
    ((what, share),) = comparison([limits(2), replace(made, ranks=2)])
    assert what == "sparse product (weak)"
    assert share.startswith("25 % of its time would copy its bytes, ")
    with pytest.raises(InputError, match="run collops bench limits"):
        machine_of([made])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--only", "nonsense"), "unknown benchmark 'nonsense'"),
        (("--ranks", "0"), "--ranks must be at least 1"),
        (("--limit", "0"), "--limit must be a positive number"),
        (("--limit", "nan"), "--limit must be a positive number"),
        (("--only", ","), "--only names no benchmark"),
        (("--engine", "jax"), "--engine must be one of"),
    ],
)
def test_bad_input_is_one_line(tmp_path, here, arguments: tuple[str, ...], words: str) -> None:
    done = here("bench", "all", "--out", "made", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "made").exists()
