"""Published figures beside those of records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from collops_bench.published import CLAIMS, sections, text_of
from collops_bench.record import Measurement, Record, write_record
from collops_bench.registry import BENCHMARKS
from tests.bench.records import record, timing

pytestmark = pytest.mark.serial


def made(benchmark: str, *measurements: tuple[str, Mapping[str, Any], Mapping[str, float]]) -> Record:
    """A record with these cases, parameters, and seconds by program."""
    found = [
        Measurement(
            case,
            parameters,
            {name: timing(value) for name, value in times.items()},
            ours=next(iter(times)),
            peer="PyLops-MPI",
            figures={name: {"efficiency": 1.0, "bandwidth": 1.0} for name in times if "(peer)" not in name},
            headline=case,
        )
        for case, parameters, times in measurements
    ]
    return replace(record(benchmark), measurements=found)


RECORDS = [
    made(
        "collectives",
        ("allreduce", {"size": 8}, {"collops nccl": 1e-5, "collops staged": 2e-5, "PyLops-MPI": 3e-5}),
        ("allreduce", {"size": 1 << 20}, {"collops nccl": 1e-4, "PyLops-MPI": 2e-4, "PyLops-MPI, MPI": 0.08}),
        ("bcast", {"size": 8}, {"collops nccl": 1e-6, "collops staged": 1.0}),
    ),
    made("lsm", ("iteration", {}, {"collops": 1e-3, "PyLops-MPI": 5e-3})),
    made("jacobi", ("strong scaling", {"nx": 8, "ny": 9}, {"one rank": 2e-3, "mpi": 1e-3, "nccl (peer)": 5e-4})),
    made(
        "jax",
        ("the table of NCCL4JAX", {"elements": 10, "parties": 3}, {"collops under jit": 1e-4, "CuPy": 5.9e-4}),
        ("a CGLS over VStack", {}, {"collops on jax": 1.0}),
    ),
    made(
        "starforest",
        *(
            (
                "scatter parallel to parallel",
                {"bytes_per_rank": size},
                {"collops": 1e-5, "MPI point-to-point": direct, "MPI neighbourhood": 2e-5, "collops staged": 4e-5},
            )
            for size, direct in ((1024, 1e-5), (4096, 2.2e-5), (16384, 3e-5))
        ),
    ),
    made(
        "pairwise",
        *(("latency", {"size": size}, {"collops mpi": 1.5e-6}) for size in (8, 32)),
        *(("bandwidth", {"size": size}, {"collops mpi": 1e-3}) for size in (8, 1 << 20)),
    ),
]
TABLES = {section.name.split("-cpu")[0]: section for section in sections(RECORDS)}


def test_claims_are_ratios_of_times() -> None:
    rows = {(row[0].split()[0], row[0].split()[-1], row[2].split(",")[0]): row[3:] for row in TABLES["claims"].rows}
    assert rows["bandwidth", "NVLink", "PyLops-MPI"] == ["400x", "0.5"]
    assert rows["bandwidth", "NVLink", "collops"] == ["2x", "0.0025"]
    assert rows["speed", "CuPy's", "collops"] == ["5.9x", "1"]
    # A gain is the median over the sizes, of which the first is a loss.
    assert rows["gain", "messages", "MPI neighbourhood"] == ["+10 %", "1.2"]
    assert rows["gain", "host", "MPI neighbourhood"] == ["+100 %", "3.2"]


def test_gpus_that_may_not_access_each_other_are_compared_with_those_of_then() -> None:
    alone = {"machine": {**RECORDS[0].machine, "devices": ["A40"] * 2, "p2p": False}}
    claims, table = sections([replace(RECORDS[0], **alone)])
    assert "2 x A40, NCCL without P2P" in table.title
    assert "without-p2p" in table.name
    measured = [row for row in claims.rows if row[2]]
    assert [row[0] for row in measured] == ["the same without NVLink"] * 2
    assert [row[3:] for row in measured] == [["400x", "40"], ["2x", "0.2"]]


def test_what_was_not_measured_is_said() -> None:
    [claims] = sections([record()])
    assert [row[2:] for row in claims.rows] == [["", "not measured", ""]] * len(CLAIMS)
    assert {claim.benchmark for claim in CLAIMS} <= BENCHMARKS.keys()


def test_tables() -> None:
    assert TABLES["bandwidth"].rows[0] == ["8 B", "0.0008", "0.0004", "0.000267", "", "3x"]
    assert TABLES["migration-numpy"].rows == [["iteration", "1 ms", "5 ms", "5x"]]
    assert TABLES["jacobi-0"].rows[1:] == [["mpi", "1 ms", "2", "100 %"], ["nccl (peer)", "500 µs", "4", ""]]
    assert TABLES["nccl4jax"].rows == [["10", "100 µs", "590 µs"]]
    assert TABLES["scatters"].rows[0][-3:] == ["+300 %", "+0 %", "-50 %"]
    assert TABLES["osu-latency"].rows == [["8", "1.50"], ["32", "1.50"]]
    assert TABLES["osu-bandwidth"].rows == [["8", "0.01"], ["1048576", "1048.58"]]
    assert text_of(TABLES["osu-latency"]).splitlines()[2:] == [
        "| # Size | collops mpi, Latency (us) |",
        "| --- | ---: |",
        "| 8 | 1.50 |",
        "| 32 | 1.50 |",
    ]


def test_tables_and_pictures_of_a_folder(tmp_path, here) -> None:
    shown = [one for one in RECORDS if one.benchmark in ("lsm", "pairwise")]  # with bars, and with lines
    for one in shown:
        write_record(one, tmp_path / "records" / f"{one.benchmark}.json")
    done = here("bench", "published", "--results", "records", "--out", "made")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "made" / "published.md").read_text()
    found = sections(shown)
    assert len(found) == 4
    for section in found:
        assert section.title in done.stdout
        assert text_of(section) in text
    # Without a measured claim there is nothing to draw.
    drawn = {path.stem for path in (tmp_path / "made").glob("*.png")}
    assert drawn == {section.name for section in found} - {"claims"}


def test_wrong_options(tmp_path, here) -> None:
    for arguments in (("--ranks", 0), ("--limit", 0), ("--engine", "numpi"), ("--results", "nowhere")):
        done = here("bench", "published", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
