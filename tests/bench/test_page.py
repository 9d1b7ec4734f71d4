"""The report: what is in the records is on the page, in whatever browser, and nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from collops.errors import InputError
from collops_bench.page import _bars, report_page
from collops_bench.record import Measurement, Record, read_folder, read_record, write_record
from collops_bench.speed import BEGIN, END, speed_rows, speed_summary
from tests.bench.records import record, timing

pytestmark = pytest.mark.serial

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


class Page(HTMLParser):
    """Checks that elements are closed in order, and collects what a test asks about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.elements: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        for name, value in attrs:
            assert name not in ("src", "srcset", "onclick")
            if name == "id":
                self.ids.append(str(value))
            if name == "href":
                self.links.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data.strip())


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return read_folder(RESULTS)


@pytest.fixture(scope="module")
def recorded(records) -> str:
    return report_page(records)


def test_the_page_of_all_records_is_whole_and_asks_for_nothing(recorded, records) -> None:
    page = Page(recorded)
    assert len(set(page.ids)) == len(page.ids)
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert "link" not in page.elements
    assert "http://" not in recorded
    assert "https://" not in recorded
    assert "url(" not in recorded
    assert "@import" not in recorded
    assert page.elements.count("svg") > 10
    assert len(recorded) < 20_000 * len(records)


def test_every_record_and_every_time_of_it_is_on_the_page(recorded, records) -> None:
    words = set(Page(recorded).words)
    together = " ".join(words)
    for path in RESULTS.glob("*.json"):
        assert path.name in words
        assert str(records[path.name].commit)[:9] in together
    for row in speed_rows(list(records.values())):
        assert {row.work, row.collops_time} <= words


def test_the_same_records_give_the_same_bytes() -> None:
    made = {"a.json": record(), "b.json": record("collectives", ("NVIDIA H200",) * 4)}
    assert report_page(made) == report_page(dict(made))


def test_the_table_of_the_readme_is_that_of_the_records(records) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    written = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert written == speed_summary(list(records.values())), "run: collops bench plot --readme README.md"


def test_the_readme_has_five_rows() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = text.partition(BEGIN)[2].partition(END)[0].count("x |\n")
    assert rows == 5


def test_what_a_record_says_is_text_and_not_markup() -> None:
    made = record("<script>alert(1)</script>")
    made.measurements[0] = replace(made.measurements[0], headline="a < b & c", case='"quoted" <b>')
    text = report_page({"<i>.json": made})
    assert Page(text).elements.count("script") == 1
    assert "<script>alert" not in text
    assert "a &lt; b &amp; c" in text
    assert "<b>" not in text


def test_bars_are_logarithms_on_one_scale() -> None:
    def bars(*places: tuple[str, float]) -> list[tuple[str, list[str]]]:
        (row, *_) = speed_rows([record()])
        return [
            (where, [bar["length"] for bar in lines])
            for where, lines in _bars([row._replace(place=place, ratio=ratio) for place, ratio in places])
        ]

    here = [("here", 0.5), ("here", 1.0), ("here", 10.0)]
    assert bars(*here) == [("here", ["0.0", "0.0", "100.0"])]
    assert bars(*here, ("there", 100.0)) == [("here", ["0.0", "0.0", "50.0"]), ("there", ["100.0"])]
    assert bars(*here[:2]) == [("here", ["0.0", "0.0"])]


def test_lines_over_sizes_and_over_ranks() -> None:
    def sized(ranks: int, scale: float):
        made = record("jacobi", ("NVIDIA H200",) * ranks)
        parameters = {"nx": 64, "ny": 64 * ranks, "memory_limit": 1e-4 * scale}
        timings = {"peer": timing(2e-4 * scale), "slow": timing(9e-4 * scale)}
        made.measurements[:] = [Measurement("weak scaling", parameters, timings, ours="peer")]
        return replace(made, ranks=ranks)

    page = report_page({f"{ranks}.json": sized(ranks, 1 / ranks) for ranks in (1, 2, 4)})
    (chart,) = re.findall(r"<svg.*?class=\"chart\">.*?</svg>", page, re.DOTALL)
    lines = re.findall(r'<g class="line".*?<path d="([^"]*)" style="([^"]*)"', chart)
    assert [re.findall(r"var\(--(\w+)\)", style) for _, style in lines] == [["c0"], ["c1"], ["text"]]
    assert ["dash" in style for _, style in lines] == [False, False, True]
    for path, _ in lines:
        xs, ys = zip(*(map(float, point.split()) for point in re.split("[ML]", path)[1:]), strict=True)
        # Twice the ranks, and half the time, are equal steps in logarithms.
        assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
        assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1], abs=0.2)
        assert ys[0] < ys[1]
    assert 'data-t="peer: 2 ranks, 100 µs (90 µs to 120 µs)"' in chart


def damaged(kind: str) -> str:
    path = RESULTS / "arrays-nvidia-h200-4.json"
    content = json.loads(path.read_text())
    first = content["measurements"][0]
    clocks = first["timings"]["copy"]["clocks"]
    if kind == "cut":
        return path.read_text()[:5000]
    if kind == "no machine":
        del content["machine"]
    elif kind == "another field":
        first["colour"] = "red"
    elif kind == "text for a time":
        clocks["wall"]["median"] = "soon"
    elif kind == "time not positive":
        clocks["wall"]["minimum"] = 0.0
    elif kind == "no wall":
        del clocks["wall"]
    elif kind == "not a number":
        clocks["wall"]["median"] = float("nan")
    elif kind == "measurements in an object":
        content["measurements"] = {"first": first}
    elif kind == "no cores":
        del content["machine"]["cores"]
    elif kind == "a measurement of null":
        content["measurements"][2] = None
    return json.dumps(content)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("cut", "is not a JSON file"),
        ("no machine", "has no field 'machine'"),
        ("another field", "measurements[0] has a field 'colour'"),
        ("text for a time", 'clocks.wall.median is "soon", not a number'),
        ("time not positive", "a time that is not positive"),
        ("no wall", "has no clock 'wall'"),
        ("not a number", "NaN is not a number"),
        ("measurements in an object", "measurements is {"),
        ("no cores", "machine.cores is null, not a whole number"),
        ("a measurement of null", "measurements[2] is null, not an object"),
    ],
)
def test_a_damaged_record_is_one_error_that_names_the_file(tmp_path, kind: str, words: str) -> None:
    write_record(record(), tmp_path / "a.json")
    path = tmp_path / "damaged.json"
    path.write_text(damaged(kind))
    with pytest.raises(InputError) as caught:
        read_folder(tmp_path)
    assert str(caught.value).startswith(str(path))
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300


def test_foreign_files_are_errors(tmp_path) -> None:
    path = tmp_path / "foreign.json"
    for content in (b"\xff\xfe\x00", b'{"name": "package"}', b"[" * 100_000, b"null"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"foreign\.json (is not a JSON file|must be a benchmark record)"):
            read_record(path)
