"""``collops bench`` as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from collops_bench.record import read_record, write_record
from collops_bench.registry import BENCHMARKS
from tests.bench.records import record
from tests.bench.test_prediction import made
from tests.cli.commands import collops, environment

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
    write_record(record("lsm"), tmp_path / "benchmarks" / "results" / "one.json")
    readme = tmp_path / "README.md"
    readme.write_text("<!-- speed table: begin -->\n<!-- speed table: end -->\n")
    done = here("bench", "plot", "--readme", "README.md")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "benchmarks" / "plots" / "speed-cpu-2-cores-1.png").exists()
    assert "| dot of 1000 |" in readme.read_text()


NETWORK = ["--ranks-per-host", "4", "--adapters", "2", "--adapter-latency", "3"]


def test_predictions_for_hosts_and_their_adapters(tmp_path, here) -> None:
    for each in [one for ranks in (1, 2, 4) for one in made(ranks)]:
        write_record(each, tmp_path / "benchmarks" / "results" / f"{each.benchmark}-{each.ranks}.json")
    tables = []
    for bandwidth in ("50", "0.005"):
        done = here("bench", "predict", "--hosts", "1", "--hosts", "3", *NETWORK, "--adapter-bandwidth", bandwidth)
        assert done.returncode == 0, done.stderr
        tables.append([[cell.strip() for cell in line.split("|")] for line in done.stdout.splitlines()])
    head, _, *fast = tables[0]
    slow = tables[1][2:]
    assert [name for name in head if "GPU" in name] == ["1 GPU", "4 GPUs", "12 GPUs"]
    column = head.index("12 GPUs")
    # Only messages between hosts depend on the adapters.
    assert [row[:column] for row in fast] == [row[:column] for row in slow]
    assert all(one[column] != other[column] for one, other in zip(fast, slow, strict=True))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plot",), "run a benchmark first"),
        (("predict", "--hosts", "2", *NETWORK, "--adapter-bandwidth", "0"), "bandwidth of a network must be positive"),
        (("predict", "--hosts", "2", *NETWORK, "--adapter-bandwidth", "50"), "run a benchmark first"),
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


def test_the_commands_are_entry_points(monkeypatch, capsys) -> None:
    commands = entry_points(group="collops.commands")
    assert {"bench", "report", "soak"} <= commands.names
    monkeypatch.setattr("sys.argv", ["collops-bench", "plot", "--help"])
    with pytest.raises(SystemExit) as left:
        entry_points(group="console_scripts")["collops-bench"].load()()
    assert not left.value.code
    assert "collops bench plot" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["bench", "arrays", "--quick"], ["report", "--help"], ["soak"]])
def test_without_the_distribution_a_sentence_says_how_to_install_it(tmp_path, arguments: list[str]) -> None:
    program = (
        "from importlib import metadata\n"
        "metadata.entry_points = lambda **_: metadata.EntryPoints(())\n"
        f"from collops.cli import main\nmain({arguments})"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"collops {arguments[0]}: this command is part of collops_bench, which is not installed: "
        "run pip install ./benchmarks in a checkout of collops\n"
    )
