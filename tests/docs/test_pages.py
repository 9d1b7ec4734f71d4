"""The pages hang together: links lead somewhere, tables are whole, and what writes parts of them is right."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys

import pytest

import collops
import collops.solvers.nonlinear
import collops.solvers.proximal
from collops_bench.record import read_folder, read_record
from tests.docs.pages import PAGES, ROOT, blocks

pytestmark = pytest.mark.serial

DOCS = ROOT / "docs"
sys.path.extend([str(DOCS / "_extensions"), str(DOCS / "drawings"), str(DOCS)])
check_site, layouts = importlib.import_module("check_site"), importlib.import_module("layouts")
links_to_source, measured = importlib.import_module("links_to_source"), importlib.import_module("measured")
notebooks, reference = importlib.import_module("notebooks"), importlib.import_module("reference")
mathml, messages = importlib.import_module("mathml"), importlib.import_module("messages")
LINK = re.compile(r"\]\(([^)\s]+)\)")
# Made when the site is built.
MADE = {"gallery", "reference", "_measured"}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_lead_to_files(path):
    text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    targets = {link.partition("#")[0] for link in LINK.findall(text) if "://" not in link} - {""}
    assert [t for t in targets if t.split("/")[0] not in MADE and not (path.parent / t).exists()] == []


def test_every_formula_can_be_drawn():
    texts = [re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text("utf-8"), flags=re.DOTALL) for path in PAGES]
    formulas = {formula for text in texts for formula in re.findall(r"\$\$?([^$]+)\$\$?", text)}
    for path in (ROOT / "src").rglob("*.py"):
        formulas |= set(re.findall(r":math:`([^`]+)`", path.read_text("utf-8")))
    assert len(formulas) > 200
    for formula in formulas:
        assert mathml._markup(formula, inline=True).startswith("<math"), formula


def test_every_picture_is_on_a_page():
    text = "".join(page.read_text("utf-8") for page in PAGES)
    assert [path.name for path in (DOCS / "images").iterdir() if path.name not in text] == []


def test_every_page_is_in_a_table_of_contents():
    text = (DOCS / "index.md").read_text("utf-8")
    listed = {name.rstrip("*") for table in re.findall(r"```\{toctree\}(.*?)```", text, re.S) for name in table.split()}
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    assert [page for page in sorted(pages) if not any(page.startswith(name) for name in listed if name)] == []


def test_every_error_is_explained():
    text = (DOCS / "errors.md").read_text("utf-8")
    errors = [name for name in collops.errors.__all__ if inspect.isclass(getattr(collops.errors, name))]
    assert [name for name in errors if f"| `{name}` |" not in text and name != "CollopsError"] == []


@pytest.fixture(scope="module")
def page_of_messages():
    return messages.page()


def test_every_message_is_on_the_page_of_messages(page_of_messages):
    text = page_of_messages
    for one in (
        "- `a layout for … ranks does not fit a communicator of …` (LayoutError)",
        "- `COLLOPS_NATIVE=… is not a file` (InputError)",
    ):
        assert one in text
    listed = {(message.text, message.error) for message in messages.messages()}
    assert len(listed) > 500
    assert [said for said, error in listed if f"- `{said}` ({error})\n" not in text] == []
    with pytest.raises(LookupError, match="new_room/a"):
        messages.subject(messages.Message("no", "InputError", "new_room/a.py"))


@pytest.mark.parametrize(
    ("title", "message"),
    [
        ("Too large", "an array of … with the layout … needs … GiB on one rank, which has … GiB of memory"),
        ("Shapes, sizes or layouts that do not fit", "the arrays have different layouts"),
        ("Numbers of the wrong kind", "complex values do not fit into an array of …"),
        ("A file that cannot be used", "… is empty: copy the SEG-Y file again"),
        ("Data that make no sense", "… contains NaN or infinite values"),
        ("A transport that is missing", "symmetric memory on GPUs needs a GPU on every rank"),
        ("A package that is not installed", "SEG-Y needs the package segyio: install collops[segy]"),
        ("Ranks that disagree", "… differs between ranks: …"),
    ],
)
def test_a_message_stands_below_what_to_do_about_it(page_of_messages, title, message):
    below = page_of_messages.partition(f"## {title}\n\n*What it means:* ")[2].partition("\n## ")[0]
    assert "\n\n*What to do:* " in below
    assert message in below


def test_every_remedy_is_for_some_messages():
    used = {messages.remedy(message) for message in messages.messages()}
    assert used == {one["title"] for one in messages.REMEDIES if "means" in one}
    assert all(one["do"].endswith(".") for one in messages.REMEDIES if "means" in one)


def test_every_error_of_communication_is_explained():
    text = (DOCS / "when-it-goes-wrong.md").read_text("utf-8")
    kinds = "CommunicationError", "CommunicationTimeout", "CallMismatch"
    explained = [row.split("…") for row in re.findall(rf"^\| `(?:{'|'.join(kinds)}): ([^`]*)`", text, re.M)]
    said = [message.text for message in messages.messages() if message.error in kinds]
    assert len(said) > 5
    assert [one for one in said if not any(all(part.strip() in one for part in row) for row in explained)] == []


def test_every_operator_is_in_the_table():
    text = (DOCS / "operators.md").read_text("utf-8")
    algebra = {"Buffers", "LinearOperator", "LocalOperator"}
    operators = {n for n in collops.operators.__all__ if inspect.isclass(getattr(collops.operators, n))} - algebra
    assert [name for name in sorted(operators) if not re.search(rf"`{name}\b", text)] == []


def test_every_solver_is_in_the_table():
    text = (DOCS / "solvers.md").read_text("utf-8")
    for package in (collops.solvers, collops.solvers.nonlinear, collops.solvers.proximal):
        functions = [name for name in package.__all__ if inspect.isfunction(getattr(package, name))]
        assert [n for n in functions if f"`{n}`" not in text and n not in ("solve", "lift_proximal")] == []


def test_tables_of_measurements_are_the_records():
    records = list(read_folder(measured.RESULTS).values())
    collectives = measured._largest(records, "collectives", devices=True)
    first = next(m for m in collectives.measurements if m.case == "allreduce" and m.parameters["size"] == 8)
    row = f"| `allreduce` of 8 B | {measured.time_in_words(first, 'collops nccl')} |"
    assert row in measured.transports(records)
    for text in (measured.transports(records), measured.models(records), measured.forests(records)):
        assert text.count("not measured") < text.count(" | ") / 8


def test_the_page_of_speed_begins_with_the_strongest_peers():
    page = (DOCS / "speed.md").read_text("utf-8")
    included = re.findall(r"_measured/(\w+)\.md", page)
    assert included == ["strongest", "floors", "speed"] and page.index("_measured/strongest.md") < 300
    tables = dict(measured._tables())
    records = {path.stem for path in measured.RESULTS.glob("*.json")}
    for name in ("strongest", "floors"):
        named = set(re.findall(r"`([^`]*-\d[^`]*)` \|", tables[name]))
        assert named and named <= records
    assert "PyLops, serial" in tables["strongest"] and "**" in tables["strongest"]


JACOBI = (16384, 32768), (4096, 8192), (2048, 8192)


@pytest.mark.parametrize(
    ("name", "complete", "sizes"),
    [
        ("jacobi-nvidia-h200-4", True, JACOBI),
        ("jacobi-nvidia-h100-4", False, JACOBI),
        ("jacobi-nvidia-h100-1-four-devices", False, ((16384, 16384), (16384, 8192), (4096, 2048))),
    ],
)
def test_the_tables_of_jacobi_are_the_records(name, complete, sizes):
    measurements = read_record(measured.RESULTS / f"{name}.json").measurements
    columns = [next(m for m in measurements if (m.parameters["nx"], m.parameters["ny"]) == size) for size in sizes]
    page = (DOCS / "jacobi-models.md").read_text("utf-8")
    table = page[page.index(f"results/{name}.json") :].split("\n\n")[1]
    rows = re.findall(r"^\| `(\w+)`(?:, on one)? \| (\d.*) \|$", table, re.M)
    ours = {name for name in columns[0].timings if not name.endswith("(peer)")}
    shown = {name for name, _ in rows} - {"single"}
    assert shown == ours - {"one rank"} if complete else shown and shown < ours
    for name, cells in rows:
        for column, cell in zip(columns, cells.split(" | "), strict=True):
            seconds = column.timings["one rank" if name == "single" else name].wall.median
            assert float(cell) == pytest.approx(1e6 * seconds, rel=5e-3, abs=0.05)


def test_the_tables_of_sharded_transforms_are_the_records():
    records = (measured.RESULTS / f"fft-nvidia-h200-1-{number}-devices.json" for number in ("two", "four"))
    measurements = [one for record in records for one in read_record(record).measurements]
    programs = ("collops", "jax.numpy", "collops, transposed", "jaxDecomp, transposed")
    page = (DOCS / "bridge-sharded.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) x [\dx ]*(?:, pencils)? \| (\d.*) \|$", page, re.M)
    assert [int(extent) for extent, _ in rows] == [one.parameters["shape"][0] for one in measurements]
    for one, (_, cells) in zip(measurements, rows, strict=True):
        medians = [1e3 * one.timings[program].wall.median for program in programs]
        assert [float(cell) for cell in cells.split(" | ")] == pytest.approx(medians, rel=5e-3)  # three digits


def test_the_table_of_registered_memory_is_the_record():
    found = {
        (one.case, one.parameters["size"]): one.timings
        for one in read_record(measured.RESULTS / "collectives-nvidia-h100-4.json").measurements
    }
    rows = re.findall(r"^\| (all\w+|reduce_scatter) \| (.*) \|$", (DOCS / "symmetric.md").read_text("utf-8"), re.M)
    assert len(rows) == 4
    for case, cells in rows:
        for size, cell in zip((64, 64 << 10, 16 << 20, 64 << 20), cells.split(" | "), strict=True):
            for kind, number in zip(("", ", registered"), cell.split(", "), strict=True):
                seconds = found[case, size][f"collops nccl{kind}, replayed"].wall.median
                assert float(number) == pytest.approx(1e6 * seconds, rel=5e-3, abs=0.05)


def records_of_jax():
    """Of one process with four GPUs, and of four with one each."""
    return [read_record(measured.RESULTS / f"jax-nvidia-h200-{ranks}.json").measurements for ranks in (1, 4)]


def seconds_in_jax(measurements, case: str, program: str, **parameters: int) -> float:
    chosen = [one for one in measurements if one.case == case and parameters.items() <= one.parameters.items()]
    (measurement,) = chosen
    return measurement.timings[program].wall.median


UNITS = {"µs": 1e-6, "ms": 1e-3}


def test_the_table_of_jax_is_the_records():
    one, each = records_of_jax()
    row = r"^\| (only|one|twenty)(.*?)((?: \| [\d.]+ [mµ]s){3}) \|$"
    rows = re.findall(row, (DOCS / "from-mpi4jax.md").read_text("utf-8"), re.M)
    assert len(rows) == 8
    sizes = {"64 MiB": 64 << 20, "1 GiB": 1 << 30}
    for what, rest, cells in rows:
        size = next((size for text, size in sizes.items() if text in rest), 8192)
        programs = ("elementwise",) * 3 if what == "only" else ("collops", "lax.psum", "collops")
        case = "20 allreduces in a call" if what == "twenty" else "one allreduce in a call"
        case += ", run ahead" * ("run ahead" in rest)
        for found, program, cell in zip((one, one, each), programs, cells.split(" | ")[1:], strict=True):
            value, unit = cell.split()
            assert float(value) * UNITS[unit] == pytest.approx(
                seconds_in_jax(found, case, program, bytes=size), rel=1e-2
            )


def test_the_table_of_mpi4jax_is_the_record():
    text = (DOCS / "from-mpi4jax.md").read_text("utf-8")
    rows = re.findall(r"^\| (8 bytes|1 MiB), (1|20) allreduces?((?: \| [\d.]+ [mµ]s){3}) \|$", text, re.M)
    assert len(rows) == 4
    found = read_record(measured.RESULTS / "jax-cpu-2-cores-2.json").measurements
    for size, many, cells in rows:
        case = "one allreduce in a call" if many == "1" else "20 allreduces in a call"
        programs = ("mpi4jax", "collops in jax.jit", "collops")
        for program, cell in zip(programs, cells.split(" | ")[1:], strict=True):
            value, unit = cell.split()
            seconds = seconds_in_jax(found, case, program, bytes={"8 bytes": 8, "1 MiB": 1 << 20}[size])
            assert float(value) * UNITS[unit] == pytest.approx(seconds, rel=1e-2)


def test_the_estimate_of_an_iteration_is_the_records():
    page = (DOCS / "tutorial-speed.md").read_text("utf-8")

    def median(record: str, case: str, **parameters: int) -> float:
        found = read_record(measured.RESULTS / f"{record}.json").measurements
        chosen = [one for one in found if one.case == case and parameters.items() <= one.parameters.items()]
        timings = chosen[0].timings
        return 1e6 * min(timings[kind].wall.median for kind in timings if kind in ("called", "collops, replayed"))

    copy = median("limits-nvidia-h200-1", "copy", size=1 << 30)
    sums = [median("limits-nvidia-h200-4", "allreduce", size=size) for size in (65536, 8, 8)]
    estimates = [1e6 * traffic / (2 * (1 << 30)) * copy for traffic in (1024, 256)]
    solved = [median(f"scaling-nvidia-h200-{n}", "CGLS", rows=16000, columns=8000) for n in (1, 4)]
    rows = dict(re.findall(r"^\| \**([^|*]+)\** \| (.*) \|$", page, re.M))
    cells = {name: [int(n) for n in re.findall(r"\d+", text)] for name, text in rows.items()}
    assert cells["the same at the speed of a copy of 1 GiB"] == [round(one) for one in estimates]
    assert cells["messages: allreduces of 64 KiB and of 8 B, the latter twice"] == [round(sum(sums))]
    assert cells["estimate"] == [round(estimates[0]), round(estimates[1] + sum(sums))]
    assert cells["measured"] == [round(one) for one in solved]
    assert f"The copy takes {copy:.0f} µs" in page


def test_what_an_allreduce_costs_is_what_the_page_of_jax_says():
    text = " ".join((DOCS / "from-mpi4jax.md").read_text("utf-8").split())
    one, each = records_of_jax()

    def microseconds(found, case: str, program: str, size: int = 8192) -> float:
        return 1e6 * seconds_in_jax(found, case, program, bytes=size)

    few, many = "one allreduce in a call", "20 allreduces in a call"
    ahead = f"{few}, run ahead", f"{many}, run ahead"
    more = [
        microseconds(found, ahead[0], "collops", size) - microseconds(found, ahead[0], "elementwise", size)
        for found in (one, each)
        for size in (8, 8192)
    ]
    said = re.search(r"costs (\d+) to (\d+) µs more than the elementwise", text).groups()
    assert [int(number) for number in said] == [round(min(more)), round(max(more))]

    said = re.search(
        r"costs (\d+) µs in one .* costs (\d+), and (\d+) µs .*; with waiting, (\d+), (\d+) and (\d+)", text
    )
    further = [
        (microseconds(found, last, program) - microseconds(found, first, program)) / 19
        for first, last in (ahead, (few, many))
        for found, program in ((one, "collops"), (one, "lax.psum"), (each, "collops"))
    ]
    assert [float(number) for number in said.groups()] == pytest.approx(further, abs=0.6)


def test_the_table_of_nccl4jax_is_the_record():
    one, _ = records_of_jax()
    rows = re.findall(r"^\| (\d+)((?: \| [\d.]+ [mµ]s){4}) \|$", (DOCS / "from-mpi4jax.md").read_text("utf-8"), re.M)
    assert [int(elements) for elements, _ in rows] == [10, 500, 2000]
    programs = ("collops alone", "collops under jit", "lax.psum under jit", "CuPy")
    for elements, cells in rows:
        for program, cell in zip(programs, cells.split(" | ")[1:], strict=True):
            value, unit = cell.split()
            seconds = seconds_in_jax(one, "the table of NCCL4JAX", program, elements=int(elements), parties=3)
            assert float(value) * UNITS[unit] == pytest.approx(seconds, rel=1e-2)


def test_the_drawing_has_every_element_once():
    for layout in layouts.LAYOUTS.values():
        blocks = layouts.holders(layout)
        assert sum(rows * columns for _, (rows, columns) in blocks) == layout.size
        assert sorted(rank for ranks in blocks.values() for rank in ranks) == [
            rank for rank in range(layout.ranks) if layout.local_size(rank)
        ]


def test_links_to_the_repository_hold_on_the_site():
    text = "[a](../src/collops) [b](../examples/sparse_reflectivity.py) [c](../README.md) [d](lsm.md) [e](../Makefile)"
    expected = "a [b](gallery/sparse_reflectivity.rst) [c](index.md) [d](lsm.md) [e](../Makefile)"
    assert links_to_source.rewritten(text, "arrays.md") == expected
    assert links_to_source.rewritten("[f](docs/lsm.md)", "contributing.md") == "[f](lsm.md)"


def test_the_check_of_a_site_finds_what_is_wrong(tmp_path):
    good = '<a id="here"></a><a href="other.html#there">x</a><img src="a.png"><a href="https://x.org">y</a>'
    (tmp_path / "page.html").write_text(good)
    (tmp_path / "other.html").write_text('<p id="there"></p>')
    (tmp_path / "a.png").touch()
    assert check_site.problems(tmp_path) == []
    check_site.page_of.cache_clear()
    bad = '<a href="none.html">x</a><a href="other.html#gone">y</a><script src="https://cdn.org/x.js"></script>'
    (tmp_path / "page.html").write_text(bad)
    (tmp_path / "style.css").write_text('@import "https://fonts.org/f.css"; p { background: url(local.png) }')
    assert [line.partition(": ")[2] for line in check_site.problems(tmp_path)] == [
        "none.html leads nowhere",
        "other.html#gone names no place on its page",
        "https://cdn.org/x.js is fetched from outside",
        "https://fonts.org/f.css is fetched from outside",
    ]


def test_the_check_of_a_site_follows_the_paths_of_questions(tmp_path):
    row = (
        '<tr><td>How?</td><td><a href="index.html">first</a> <a href="a.html">a</a> <a href="b.html#c">b</a></td></tr>'
    )
    (tmp_path / "questions.html").write_text(f"<table><tr><th>question</th></tr>{row}</table>")
    (tmp_path / "index.html").write_text('<nav><a href="b.html">b</a></nav><article><a href="a.html">a</a></article>')
    (tmp_path / "a.html").write_text('<article><a href="b.html#d">b</a></article>')
    assert check_site.broken_paths(tmp_path) == []
    (tmp_path / "a.html").write_text('<nav><a href="b.html">b</a></nav><article></article>')
    assert check_site.broken_paths(tmp_path) == ["questions.html: a.html has no link to b.html#c"]
    (tmp_path / "questions.html").write_text(f"<table>{row.replace('index.html', 'a.html')}</table>")
    assert "is not one or two clicks" in check_site.broken_paths(tmp_path)[0]


def test_there_are_ten_questions():
    assert len(re.findall(r"^\| [^|]+\? \| \[first page\]", (DOCS / "questions.md").read_text("utf-8"), re.M)) == 10


def test_the_check_of_a_site_reads_notebooks(tmp_path):
    path = tmp_path / "one.ipynb"
    for name in notebooks.TUTORIALS:
        made = notebooks.notebook((DOCS / f"{name}.md").read_text("utf-8"))
        path.write_text(json.dumps(made))
        assert check_site.broken_notebooks(tmp_path) == []
        cells = [cell["source"][0] for cell in made["cells"] if cell["cell_type"] == "code"]
        assert [cell + "\n" for cell in cells] == blocks(DOCS / f"{name}.md", "python")
    path.write_text(json.dumps(made).replace("import numpy", "import import numpy"))
    assert "SyntaxError" in check_site.broken_notebooks(tmp_path)[0]
    path.write_text("{}")
    assert "KeyError" in check_site.broken_notebooks(tmp_path)[0]


def test_the_check_of_a_site_misses_titles(tmp_path):
    names, titles = ["arrays", "jax", "gallery/index"], ["Arrays", "Arrays", "<no title>"]
    (tmp_path / "searchindex.js").write_text(f"Search.setIndex({json.dumps({'docnames': names, 'titles': titles})})")
    wrong = ["gallery/index: has no title", "several pages have the title Arrays"]
    assert check_site.missing_in_search(tmp_path) == wrong


def test_every_tutorial_is_a_notebook_or_fails_on_purpose():
    tutorials = (DOCS / "index.md").read_text("utf-8").partition(":caption: Tutorials")[2].partition("```")[0].split()
    assert set(tutorials) - set(notebooks.TUTORIALS) == {
        ":maxdepth:",
        "1",
        ":hidden:",
        "tutorials",
        "tutorial-failures",
        "gallery/index",
    }


def test_back_links_have_the_anchors_of_their_pages():
    context = {"body": '<a href="../reference/a.extend/a.extend.B.html#a.inner.B.c">[docs]</a>'}
    reference._mend_back_links(None, "_modules/a/inner", "", context, None)
    assert context["body"] == '<a href="../reference/a.extend/a.extend.B.html#a.extend.B.c">[docs]</a>'
