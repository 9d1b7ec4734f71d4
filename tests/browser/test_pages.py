"""The pages as a browser shows them: complete, readable on any screen, and without the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import collops
from collops.apps.recipe import run_job
from collops.seismic.lsm import Options, run
from collops_bench.page import report_page
from collops_bench.record import read_folder
from tests.apps.jobs import Listener

pytestmark = pytest.mark.serial

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "_build" / "html"
SCREENS = [pytest.param(1280, False, id="desk, light"), pytest.param(390, True, id="phone, dark")]
SMALL: dict[str, Any] = {"nx": 41, "nz": 31, "shots": 3, "receivers": 12, "samples": 151, "iterations": 5}
# The least ratio of luminances that WCAG's level AA asks of text.
CONTRAST = """() => {
  const light = color => {
    const parts = color.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255);
    const [r, g, b] = parts.map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    for (let one = element; one; one = one.parentElement) {
      const color = getComputedStyle(one).backgroundColor;
      if (!/, 0\\)$|transparent/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  return Math.min(...[...document.querySelectorAll("h1, p, a, td, th, dt, dd, small, summary, caption, text, label")]
    .filter(one => one.getClientRects().length)
    .map(one => {
      const style = getComputedStyle(one);
      const own = one.tagName === "text" ? style.fill : style.color;
      const [high, low] = [own, behind(one)].map(light).sort((a, b) => b - a);
      return (high + 0.05) / (low + 0.05);
    }));
}"""
# Whether no text runs out of its plot.
INSIDE = """svg => {
  const all = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].every(text => {
    const box = text.getBoundingClientRect();
    return box.left >= all.left - 1 && box.right <= all.right + 1;
  });
}"""
# Whether no text of a plot lies on another.
APART = """svg => {
  const boxes = [...svg.querySelectorAll("text")].map(text => text.getBoundingClientRect());
  const apart = (one, other) => one.right <= other.left + 1 || other.right <= one.left + 1
    || one.bottom <= other.top + 1 || other.bottom <= one.top + 1;
  return boxes.every((one, place) => boxes.slice(place + 1).every(other => apart(one, other)));
}"""
# How many colours a canvas has.
COLORS = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Set();
  for (let at = 0; at < data.length; at += 4) seen.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]);
  return seen.size;
}"""


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report_page(read_folder(ROOT / "benchmarks" / "results")), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def migrated(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lsm")
    run_job(run, Options(**SMALL, engine="numpy", out=str(folder)), collops.world(), Listener())
    return folder


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_the_report(visit, report, width: int, dark: bool) -> None:
    page = visit(report, width=width, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    charts = page.locator("svg.chart")
    assert charts.count() > 10
    for number in range(charts.count()):
        chart = charts.nth(number)
        box = chart.bounding_box()
        assert box["width"] > 250
        assert box["height"] > 150
        assert chart.locator("g.line path").count() > 0
        assert chart.evaluate(INSIDE)
        assert chart.evaluate(APART)
    assert page.locator("ul.bars li").count() > 20
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) >= 4.5


def test_a_pointer_over_a_plot_shows_the_value(visit, report) -> None:
    page = visit(report)
    chart = page.locator("svg.chart").first
    chart.scroll_into_view_if_needed()
    tip = page.locator("#tip")
    assert not tip.is_visible()
    mark = chart.locator("[data-t]").first
    box = mark.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert tip.is_visible()
    assert tip.text_content() in [one.get_attribute("data-t") for one in chart.locator("[data-t]").all()]
    page.mouse.move(2, 2)
    assert not tip.is_visible()


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_the_result_of_a_migration(visit, migrated, width: int, dark: bool) -> None:
    page = visit(migrated / "result.html", width=width, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    names = ["picture", "column", "gather-data", "gather-explained", "gather-data_residual"]
    assert sorted(one.get_attribute("id") for one in page.locator("canvas").all()) == sorted(names)
    page.wait_for_function("() => document.getElementById('gather-data_residual').picture")
    for name in names:
        assert page.locator(f"#{name}").evaluate(COLORS) > (3 if name == "column" else 30)
    assert page.locator("svg.chart g.line").count() == 1
    assert page.locator(".timeline .piece").count() == 1
    assert page.locator("#geometry svg.chart").count() == 5
    assert page.evaluate(CONTRAST) >= 4.5


def test_the_pointer_reads_the_values_of_the_result(visit, migrated) -> None:
    page = visit(migrated / "result.html")
    group = zarr.open_group(str(migrated / "result.zarr"), mode="r")
    picture, words = page.locator("#picture"), page.locator("#picture-words")
    for choice, name in ((0, "image"), (4, "velocity")):
        page.locator("input[name=shown]").nth(choice).check()
        values = np.asarray(group[name])
        for column, row in ((0, 0), (20, 12), (40, 30)):
            place = picture.evaluate("canvas => [canvas.picture.inner, canvas.picture.tall]")
            across, down = (column + 0.5) / values.shape[0] * place[0], (row + 0.5) / values.shape[1] * place[1]
            picture.hover(position={"x": 46 + across, "y": 6 + down})
            where, _, value = words.text_content().partition(": ")
            distance, depth = float(group["x"][column]), float(group["z"][row])
            assert where == f"{distance:g} m, depth {depth:g} m"
            wanted = values[column, row]
            assert float(value.removesuffix(" m/s")) == pytest.approx(wanted, abs=1e-3 * float(np.abs(values).max()))


def test_choices_change_the_pictures(visit, migrated) -> None:
    page = visit(migrated / "result.html")
    look = "id => document.getElementById(id).toDataURL()"
    seen = [page.evaluate(look, "picture")]
    for choice in (1, 2, 3, 4, 0):
        page.locator("input[name=shown]").nth(choice).check()
        seen.append(page.evaluate(look, "picture"))
    assert seen[-1] == seen[0]
    assert len(set(seen)) == 5
    page.locator("#balance").check()
    assert page.evaluate(look, "picture") not in seen
    before = page.evaluate("() => [picture.width, picture.height]")
    page.locator("#full").check()
    after = page.evaluate("() => [picture.width, picture.height]")
    assert all(one >= other for one, other in zip(after, before, strict=True))


def test_all_shots_are_shown_at_full_sampling(visit, migrated) -> None:
    page = visit(migrated / "result.html")
    group = zarr.open_group(str(migrated / "result.zarr"), mode="r")
    shots, data = np.asarray(group["shot"]), np.asarray(group["data"])
    look, seen = "id => document.getElementById(id).toDataURL()", set()
    page.locator("#shot").evaluate("one => { one.value = 0; one.dispatchEvent(new Event('input')); }")
    for number in range(SMALL["shots"]):
        page.wait_for_function(f"() => document.getElementById('gather-data').picture?.shot?.number === {number}")
        assert page.locator("#shot-words").text_content() == f"field record {number + 1}, {number + 1} of 3"
        shown = "({ shot }) => [shot.channel.length, shot.data.length, ...shot.data.filter((_, at) => at % 97 === 0)]"
        traces, samples, *values = page.evaluate(f"() => ({shown})(document.getElementById('gather-data').picture)")
        wanted = data[shots == number]
        assert (traces, samples) == (SMALL["receivers"], wanted.size)
        np.testing.assert_allclose(values, wanted.ravel()[::97], rtol=0, atol=0.008 * np.abs(wanted).max())
        seen.add(page.evaluate(look, "gather-data"))
        page.keyboard.press("ArrowRight")
    assert len(seen) == SMALL["shots"]
    page.locator("#loud").fill("3")
    assert page.evaluate(look, "gather-data") not in seen
    seen.add(page.evaluate(look, "gather-data"))
    page.locator("#clip").fill("90")
    assert page.evaluate(look, "gather-data") not in seen
    assert page.locator("#clip-words").text_content() == "90 %"


needs_site = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the site is not built: make docs")


@needs_site
@pytest.mark.parametrize(("width", "dark"), SCREENS)
@pytest.mark.parametrize("name", ["index", "lsm", "tutorial-pylops", "gallery/index", "search"])
def test_the_site(visit, name: str, width: int, dark: bool) -> None:
    page = visit(SITE / f"{name}.html", width=width, dark=dark)
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("img").count() == page.evaluate(
        "[...document.images].filter(one => one.loading === 'lazy' || one.complete && one.naturalWidth > 0).length"
    )
    api = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed: '.[browser]'")
    violations = api.Axe().run(page, options={"preload": False}).response["violations"]
    assert [(one["id"], [node["target"] for node in one["nodes"]]) for one in violations] == []


@needs_site
def test_search_finds_a_page_and_a_function(browser) -> None:
    """In a page without the checks of ``visit``: from files, a browser loads no excerpts of what it finds."""
    page = browser.new_page()
    for words, target in (("slurm", "cluster.html"), ("cgls", "collops.solvers.cgls.html")):
        page.goto(f"{(SITE / 'search.html').as_uri()}?q={words}")
        page.wait_for_selector(f"#search-results a[href*='{target}']")
    page.close()
