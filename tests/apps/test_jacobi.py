"""The job around the programming models: the samples' lines, the comparison with one rank, the files."""

from __future__ import annotations

import re

import numpy as np
import pytest

from collops.apps.jacobi import Problem, make, run
from collops.apps.jacobi.job import Measured, Options, Outcome, csv_line, heading, norm_line, run_job, summary
from collops.apps.jacobi.measure import STRETCH, Difference, Reference
from collops.backend import engine
from collops.errors import InputError
from collops.profile import count_messages
from tests.apps.jacobi.model import relaxed
from tests.apps.jacobi.test_variants import process_grids
from tests.apps.jobs import Listener

SMALL = {"nx": 40, "ny": 33, "niter": 120, "engine": "numpy"}


def job(comm, **options):
    lines: list[str] = []
    return run_job(Options(**{**SMALL, **options}), comm, Listener(), lines.append), lines


@pytest.mark.serial
def test_lines_are_those_of_the_samples():
    problem = Problem(nx=16384, ny=32768)
    assert summary(problem, 4, 0.7539, 2.9257) == [
        "Num GPUs: 4.",
        "16384x32768: 1 GPU:   2.9257 s, 4 GPUs:   0.7539 s, speedup:     3.88, efficiency:    97.02 ",
    ]
    assert summary(problem, 4, 0.7539, None) == ["Num GPUs: 4.", "16384x32768: 4 GPUs:   0.7539 s "]
    assert csv_line("nccl", problem, 4, 0.75, 2.5) == "nccl, 16384, 32768, 1000, 1, 4, 1, 0.750000, 2.500000"
    assert norm_line(100, 0.8979832) == "  100, 0.897983"
    assert heading(problem, "Single GPU ").startswith("Single GPU jacobi relaxation: 1000 iterations on 32768 x 16384")


def test_one_variant(comm):
    outcome, lines = job(comm, variant="mpi")
    assert outcome.ranks == comm.size
    if comm.rank > 0:
        assert not lines
        return
    _, norms = relaxed(Problem(nx=40, ny=33), 101)
    assert lines[1:3] == [norm_line(0, norms[0]), norm_line(100, norms[100])]
    assert lines[-2] == f"Num CPUs: {comm.size}."
    assert re.fullmatch(rf"40x33: 1 CPU: .* s, {comm.size} CPUs: .* s, speedup: .*, efficiency: .* ", lines[-1])
    (measured,) = outcome.variants
    assert measured.difference.points == 0
    assert measured.iterations == outcome.single.iterations == 120
    assert outcome.numbers["variants"][0]["efficiency"] == pytest.approx(
        outcome.single.seconds / measured.seconds / comm.size
    )


def test_without_the_run_on_one_rank(comm):
    outcome, lines = job(comm, variant="mpi_overlap", skip_single_gpu=True, csv=True)
    assert outcome.single is None
    if comm.rank == 0:
        assert len(lines) == 1
        assert lines[0].startswith(f"mpi_overlap, 40, 33, 120, 1, {comm.size}, 1, ")
        assert lines[0].endswith(", 0.000000")


def test_compare_runs_all_and_draws(comm, folder, one_host):
    outcome, lines = job(comm, compare=True, timeline=True, niter=5, out=str(folder / "out"))
    assert not lines
    if comm.rank > 0:
        return
    assert [measured.name for measured in outcome.variants] == ["mpi", "mpi_overlap", "shared"]
    assert outcome.limit > 0
    assert not outcome.missing
    names = {path.name for path in outcome.files}
    assert names == {"jacobi.png", "timeline-mpi.png", "timeline-mpi_overlap.png", "timeline-shared.png"}
    for path in outcome.files:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_compare_omits_variants_that_need_a_larger_grid(comm, folder, monkeypatch, one_host):
    monkeypatch.setattr("collops.apps.jacobi.job.bar_chart", lambda outcome, path: path)
    outcome, _ = job(comm, compare=True, ny=3, niter=5, out=str(folder / "out"))
    assert list(outcome.missing) == ([] if comm.size == 1 else ["shared"])
    if comm.rank == 0:
        assert [measured.name for measured in outcome.variants][:2] == ["mpi", "mpi_overlap"]


def test_differences_are_found(comm):
    """All ranks find a single wrong bit on a single rank."""
    problem = Problem(nx=24, ny=4 * comm.size + 2, iterations=3)
    reference = Reference(problem, comm, engine("numpy"))
    for process_grid in process_grids(comm.size):
        variant = make("mpi", problem, comm, engine("numpy"), process_grid)
        run(variant)
        assert reference.difference(variant) == (0, 0.0)
        if comm.rank == comm.size - 1:
            variant.values[-1, 1] = np.nextafter(variant.values[-1, 1], np.float32(9))
        found = reference.difference(variant)
        assert found.points == 1
        assert found.largest > 0


@pytest.mark.serial
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"nx": 2}, "--nx"),
        ({"nccheck": 0}, "--nccheck"),
        ({"tolerance": -1.0}, "--tolerance"),
        ({"variant": "fast"}, "--variant"),
        ({"process_grid": "2by2"}, "--process-grid"),
        ({"compare": True, "csv": True}, "-csv"),
        ({"out": ""}, "--out"),
        ({"compare": True, "variant": "mpi"}, "--variant"),
    ],
)
def test_invalid_options_raise(wrong, said):
    with pytest.raises(InputError, match=said):
        Options(**wrong).check()


def test_impossible_requests_raise_before_anything_runs(comm):
    wrong = ({"process_grid": f"{comm.size + 1}x1"}, {"variant": "peer"}, {"nx": 10**7, "ny": 10**7})
    for options, said in zip(wrong, ("process grid", "cupy", "iB"), strict=True):
        with pytest.raises(InputError, match=said) as caught:
            job(comm, **options)
        assert caught.value.on_all_ranks


def test_first_rank_sends_messages_during_its_run(comm, monkeypatch):
    """The run may take longer than the deadline of the waits of the other ranks."""
    monkeypatch.setattr("collops.apps.jacobi.measure._PULSE_SECONDS", 0.0)
    with count_messages() as messages:
        Reference(Problem(nx=8, ny=8, iterations=3 * STRETCH - 1, tolerance=0.0), comm, engine("numpy"))
    assert messages["bcast"] == 4


@pytest.mark.serial
def test_the_table_compares_variants_with_one_rank_and_the_memory():
    from collops.cli.jacobi import _table

    def measured(name: str, seconds: float, difference: Difference | None = None) -> Measured:
        return Measured(iterations=10, seconds=seconds, norms={0: 1.0}, reached=None, name=name, difference=difference)

    variants = [measured("mpi", 8e-4, Difference(3, 0.5)), measured("shared", 5e-4)]
    outcome = Outcome(Problem(), 2, "CPU", measured("single", 1e-3), variants, limit=2e-5)
    rows = list(zip(*(column.cells for column in _table(outcome).columns), strict=True))
    assert rows == [
        ("one CPU", "100", "", "", "40 %", ""),
        ("mpi", "80", "1.25", "62.5 %", "25 %", "3"),
        ("shared", "50", "2.00", "100.0 %", "40 %", ""),
    ]
