"""``collops bench`` as a user calls it."""

from __future__ import annotations

import json

import pytest
from collops_bench.record import read_record, write_record
from collops_bench.registry import BENCHMARKS

from tests.bench.records import record
from tests.cli.commands import collops

pytestmark = pytest.mark.serial


def test_two_ranks_leave_a_record_and_say_what_is_missing(tmp_path) -> None:
    pytest.importorskip("mpi4py")
    done = collops("bench", "arrays", "--ranks", 2, "--engine", "numpy", "--quick", "--no-peer", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [path] = (tmp_path / "benchmarks" / "results").glob("arrays-cpu-*-cores-2.json")
    made = read_record(path)
    assert made.ranks == 2
    assert [one.case for one in made.measurements] == ["copy", "dot", "axpby"] * 2
    assert made.measurements[1].missing == {"PyLops-MPI": "not asked for"}
    assert "not measured: not asked for" in done.stdout
    json.loads(path.read_text())


def test_plots_and_the_table(tmp_path, here) -> None:
    write_record(record(), tmp_path / "benchmarks" / "results" / "one.json")
    readme = tmp_path / "README.md"
    readme.write_text("<!-- speed table: begin -->\n<!-- speed table: end -->\n")
    done = here("bench", "plot", "--readme", "README.md")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "benchmarks" / "plots" / "speed-cpu-2-cores-1.png").exists()
    assert "| dot of 1000 |" in readme.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plot",), "run a benchmark first"),
        (("arrays", "--engine", "nonsense"), "--engine must be one of"),
        (("arrays", "--json", "/dev/null/x.json"), "cannot write /dev/null/x.json"),
        (("arrays", "--ranks", "0"), "--ranks must be at least 1"),
        (("nonsense",), "No such command"),
    ],
)
def test_bad_input_is_one_line(here, arguments: tuple[str, ...], words: str) -> None:
    done = here("bench", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_what_cannot_be_measured_leaves_no_record(tmp_path, here) -> None:
    done = here("bench", "halos", "--engine", "numpy", "--quick")
    assert (done.returncode, done.stdout) == (0, "nothing to measure on one rank\n"), done
    assert not list(tmp_path.iterdir())


def test_help_names_every_benchmark(here) -> None:
    for arguments in (("bench", "--help"), ("bench",)):
        done = here(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert all(name in done.stdout for name in (*BENCHMARKS, "plot"))
