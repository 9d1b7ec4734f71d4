from __future__ import annotations

from dataclasses import replace

import pytest

from collops.errors import InputError
from collops_bench.plots import write_plots
from collops_bench.record import Record, read_folder, write_record
from collops_bench.speed import (
    BEGIN,
    END,
    longest,
    seconds_in_words,
    speed_rows,
    speed_summary,
    speed_table,
    update_readme,
)
from tests.bench.records import record, timing

pytestmark = pytest.mark.serial


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (1.5e-3, "1.5 ms"), (123.4e-6, "123 µs"), (5e-8, "0.05 µs")],
)
def test_seconds_in_words(seconds: float, words: str) -> None:
    assert seconds_in_words(seconds) == words


def test_the_table_has_every_headline_that_both_programs_have_done() -> None:
    lines = speed_table([record(), record("cgls", ("NVIDIA H200",) * 4), record("collectives")]).splitlines()
    rows = [line for line in lines if line.startswith("| dot") or line.startswith("| x + 2 y")]
    assert rows == [
        "| dot of 1000 | 2 CPU cores, 1 rank | 2 µs | PyLops-MPI: 500 µs | 250x |",
        "| dot of 1000 | 4 x NVIDIA H200 | 2 µs | PyLops-MPI: 500 µs | 250x |",
    ]
    assert len(lines) == 2 + 2


def test_the_longest_of_each_benchmark_of_the_summary() -> None:
    def row(
        benchmark: str, seconds: float, headline: str, devices: tuple[str, ...] = (), started: str = "2026-01-02"
    ) -> Record:
        made = replace(record(benchmark, devices), started=started)
        timings = {"collops": timing(seconds), "PyLops-MPI": timing(1.0)}
        made.measurements[:] = [replace(made.measurements[0], timings=timings, headline=headline)]
        return made

    four = ("H200",) * 4
    records = [
        row("lsm", 2e-3, "forward"),
        row("lsm", 5e-3, "iteration"),
        row("lsm", 9e-3, "on one GPU", ("H200",)),
        row("lsm", 1e-3, "on four GPUs, small", four),
        row("lsm", 4e-3, "on four GPUs", four),
        row("lsm", 8e-3, "on four GPUs, older", ("H100",) * 4, "2026-01-01"),
        row("operators", 3e-3, "on hosts, which the summary leaves out"),
        row("operators", 2e-3, "Laplacian", four),
        row("arrays", 1e-3, "in no summary", four),
    ]
    shown = [one.work for one in longest(speed_rows(records))]
    assert shown == ["Laplacian", "on four GPUs", "iteration"]
    summary = speed_summary(records)
    assert summary.count("x |\n") == 3
    assert "Of 9 measurements" in summary


def test_only_the_text_between_the_markers_changes(tmp_path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nThe rest.\n")
    update_readme(readme, [record()])
    first = readme.read_text()
    assert first.startswith(f"# Title\n\n{BEGIN}\n| work |")
    assert first.endswith(f"{END}\n\nThe rest.\n")
    assert "old" not in first
    update_readme(readme, [record()])
    assert readme.read_text() == first


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}\n{BEGIN}\n", f"{BEGIN}{BEGIN}{END}"])
def test_a_readme_without_its_markers_is_left_alone(tmp_path, text: str) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(InputError, match="once and in this order"):
        update_readme(readme, [record()])
    assert readme.read_text() == text


def test_plots_come_from_files_alone(tmp_path) -> None:
    for number, one in enumerate(
        (record(), record("cgls"), record("collectives", ("NVIDIA H200",) * 4), record("collectives"))
    ):
        write_record(one, tmp_path / f"{number}.json")
    records = list(read_folder(tmp_path).values())
    assert len(records) == 4
    written = write_plots(records, tmp_path / "plots")
    assert {path.name for path in written} == {
        "bandwidth-nvidia-h200-4.png",
        "bandwidth-cpu-2-cores-1.png",
        "speed-cpu-2-cores-1.png",
    }
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_an_empty_folder_is_an_error_that_says_what_to_do(tmp_path) -> None:
    with pytest.raises(InputError, match="run a benchmark first"):
        list(read_folder(tmp_path).values())


def test_one_operator_in_two_shapes_is_two_lines() -> None:
    made = record()
    first = made.measurements[0]
    made.measurements[:] = [replace(first, parameters={"shape": [n, 7]}, headline="Laplacian") for n in (3, 5)]
    made.measurements.append(replace(first, parameters={"shape": [3, 7]}, headline="CGLS of 3 x 7"))
    table = speed_table([made])
    assert [label in table for label in ("| Laplacian, 3 x 7 |", "| Laplacian, 5 x 7 |", "| CGLS of 3 x 7 |")] == [
        True
    ] * 3
