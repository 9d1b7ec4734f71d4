"""``collops report`` as a user calls it."""

from __future__ import annotations

import pytest

from collops.cli import main
from collops_bench.record import write_record
from tests.bench.records import record

pytestmark = pytest.mark.serial


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["report", *map(str, arguments)])
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


def test_the_page_is_written_where_it_is_asked_for(tmp_path, capsys) -> None:
    write_record(record("arrays", ("NVIDIA H200",) * 4), tmp_path / "results" / "one.json")
    page = tmp_path / "page.html"
    assert run(capsys, tmp_path / "results", "-o", page) == (0, f"wrote {page}\n", "")
    assert "dot of 1000" in page.read_text()


def test_what_is_wrong_is_one_line_and_leaves_the_old_page(tmp_path, capfd) -> None:
    page, results = tmp_path / "page.html", tmp_path / "results"
    page.write_text("old")
    assert run(capfd, results, "-o", page)[0] == 2
    results.mkdir()
    (results / "foreign.json").write_text("{}")
    code, out, error = run(capfd, results, "-o", page)
    assert (code, out) == (2, "")
    assert error.startswith(f"collops report: {results / 'foreign.json'} must be a benchmark record")
    assert error.count("\n") == 1
    assert page.read_text() == "old"
    code, _, error = run(capfd, results, "-o", tmp_path / "absent" / "page.html")
    assert (code, error.count("\n")) == (2, 1)
    assert "does not exist" in error
