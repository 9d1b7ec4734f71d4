"""The page that shows a migration: what its script gets is what was found."""

from __future__ import annotations

import base64
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from collops.seismic.lsm import Options, page, results, run
from collops.seismic.lsm.page import _convergence, _packed, write_page
from collops.seismic.lsm.results import _MAX_SAMPLES, kept_shots, shot_fields
from collops.seismic.lsm.setup import synthetic
from tests.apps.jobs import group_of, job_numbers

pytestmark = pytest.mark.usefixtures("with_pictures")

SIZES: dict[str, Any] = {"nx": 31, "nz": 21, "shots": 5, "receivers": 9, "samples": 101, "dtype": "float64"}


def shot_of(folder: Path, number: int) -> dict[str, Any]:
    """Return what the script of a shot passes to the page."""
    begins, _, content = (folder / "shots" / f"{number}.js").read_text()[:-1].partition(",")
    assert begins == f"shot({number}"
    return json.loads(content)


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    kind = {1: "<i1", 2: "<i2"}[packed["bytes"]]
    return packed["middle"] + packed["scale"] * np.frombuffer(base64.b64decode(packed["values"]), kind)


def test_the_page_shows_the_contents_of_the_group(comm, folder, monkeypatch):
    rows, read = [], zarr.Array.__getitem__

    def recorded(array, selection):
        values = read(array, selection)
        rows.extend([len(values)] if np.shape(values)[1:] == (101,) else [])
        return values

    with monkeypatch.context() as patch:
        patch.setattr(page, "_MAX_BYTES", 1)
        patch.setattr(zarr.Array, "__getitem__", recorded)
        job_numbers(run, Options(**SIZES, iterations=3, engine="numpy", out=str(folder / "out")), comm)
    if comm.rank == 0:
        assert max(rows) == 9  # the traces of one shot at a time
    text = (folder / "out" / "result.html").read_text()
    assert "http" not in text.replace("http-equiv", "")
    assert len(text) < 200_000
    group = group_of(folder, "out")
    (payload,) = re.findall(r'<script type="application/json" id="fields">(.*?)</script>', text)
    content = json.loads(payload)
    for name, limit in (("image", 2e-5), ("truth", 2e-5), ("adjoint_image", 2e-5), ("velocity", 2e-5)):
        wanted = group[name][...].ravel()
        error = np.abs(unpacked(content["images"][name]) - wanted).max()
        assert error <= limit * np.abs(wanted).max()
    assert content["x"] == group["x"][...].tolist()
    difference = group["image"][...] - group.attrs["adjoint_scale"] * group["adjoint_image"][...]
    assert (
        np.abs(unpacked(content["images"]["difference"]) - difference.ravel()).max() <= 2e-5 * np.abs(difference).max()
    )
    data, residual = (group[name][...] for name in ("data", "data_residual"))
    assert data.shape == residual.shape == (45, 101)
    assert content["records"] == [1, 2, 3, 4, 5]
    assert sorted(each.name for each in (folder / "out" / "shots").iterdir()) == [f"{shot}.js" for shot in range(5)]
    for number in range(5):
        shot, rows = shot_of(folder / "out", number), slice(9 * number, 9 * number + 9)
        assert shot["channel"] == list(range(1, 10)) and shot["even"]
        np.testing.assert_allclose(shot["offset"], group["offset"][rows], rtol=1e-5)
        for name, values in (("data", data), ("data_residual", residual)):
            roots, wanted = unpacked(shot[name]), values[rows].ravel()
            size = np.abs(wanted).max()
            # Half a step of the roots: 0.8 % for the strongest sample, and less for weak ones.
            np.testing.assert_allclose(roots * np.abs(roots), wanted, rtol=0, atol=0.008 * size)
            weak = np.abs(wanted) < 0.01 * size
            assert np.abs((roots * np.abs(roots) - wanted)[weak]).max() < 1e-3 * size
    # The residual is smaller than the data, but not zero: there is noise.
    assert 0 < np.linalg.norm(residual) < 0.9 * np.linalg.norm(data)
    assert group["seconds"].shape == (comm.size, len(group.attrs["kinds"]))
    assert text.count('<li><span class="name">rank') == comm.size


@pytest.mark.parametrize(
    ("samples", "kept"), [(_MAX_SAMPLES, range(5)), (5 * 9 * 101, range(5)), (2 * 9 * 101, [0, 3])]
)
def test_traces_are_those_of_their_shots(comm, monkeypatch, samples, kept):
    monkeypatch.setattr(results, "_MAX_SAMPLES", samples)
    survey = synthetic(Options(**SIZES), comm).survey
    assert list(kept_shots(survey.geometry)) == list(kept)
    # Every trace is told from others by its number; what the image leaves unexplained is the number of the shot.
    survey.traces = [np.full((9, 101), shot) + np.arange(9)[:, None] / 10 for shot in survey.shots]
    explained = [each - shot for each, shot in zip(survey.traces, survey.shots, strict=True)]
    fields = shot_fields(survey, zip(survey.shots, survey.traces, explained, strict=True))
    shots, channels = fields["shot"].values, fields["channel"].values
    assert np.array_equal(np.unique(shots), kept_shots(survey.geometry)) and np.array_equal(
        shots + 1, fields["field_record"].values
    )
    data, residual = (fields[name].values.gather() for name in ("data", "data_residual"))
    np.testing.assert_allclose(data, np.broadcast_to((shots + (channels - 1) / 10)[:, None], data.shape), rtol=1e-6)
    np.testing.assert_allclose(residual, np.broadcast_to(shots[:, None], data.shape), atol=1e-6)


@pytest.mark.serial
@pytest.mark.parametrize(
    "values", [np.array([-3.0, 0.0, 2.0]), np.array([1500.0, 1600.0]), np.zeros(4), np.empty(0), np.array([7.0])]
)
def test_packing(values: np.ndarray) -> None:
    packed = _packed(values)
    json.dumps(packed, allow_nan=False)
    span = np.ptp(values) if values.size else 0.0
    np.testing.assert_allclose(unpacked(packed), values, atol=span / 30_000 + 1e-12)
    if 0.0 in values:
        assert unpacked(packed)[list(values).index(0.0)] == 0.0


@pytest.mark.serial
def test_large_images_are_thinned_along_both_axes(monkeypatch) -> None:
    monkeypatch.setattr(page, "_MAX_POINTS", 100)
    x, z, image = 12.5 * np.arange(31), 10.0 * np.arange(21), np.random.default_rng(0).normal(size=(31, 21))
    content = page._payload({"x": x, "z": z, "time": z, "image": image})
    assert (content["x"], content["z"]) == (x[::3].tolist(), z[::3].tolist())
    np.testing.assert_allclose(unpacked(content["images"]["image"]), image[::3, ::3].ravel(), atol=2e-4)


class Traces:
    """An array in a file: it notes which rows are read."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.dtype, self.shape = values, values.dtype, values.shape
        self.read: list[tuple[int, int]] = []

    def __getitem__(self, rows: slice) -> np.ndarray:
        self.read.append((rows.start, rows.stop))
        return self.values[rows]


@pytest.mark.serial
def test_traces_are_read_a_few_shots_at_a_time(monkeypatch) -> None:
    """Three shots of two traces fit, and one of nine does not."""
    monkeypatch.setattr(page, "_MAX_BYTES", 6 * 11 * 4 * 2)
    ends, values = [0, 2, 4, 6, 8, 17, 18], np.random.default_rng(0).normal(size=(18, 11)).astype("f4")
    nodes = {name: Traces(values * factor) for name, factor in (("data", 1), ("data_residual", 2))}
    fields = {"channel": np.arange(18), "offset": np.arange(18.0)}
    shots = list(page._shots(nodes, fields, ends))
    assert nodes["data"].read == nodes["data_residual"].read == [(0, 6), (6, 8), (8, 17), (17, 18)]
    assert [shot["channel"] for shot in shots] == [list(range(*pair)) for pair in pairwise(ends)]
    for shot, (first, last) in zip(shots, pairwise(ends), strict=True):
        roots = unpacked(shot["data_residual"])
        expected = 2 * values[first:last].ravel()
        np.testing.assert_allclose(roots * np.abs(roots), expected, rtol=0, atol=0.008 * np.abs(expected).max())


@pytest.mark.serial
def test_the_script_does_not_pass_images_as_arguments() -> None:
    """Browsers accept about 100 000 arguments of a function, and an image has up to 4 million points."""
    script = Path(page.__file__).with_name("page.js").read_text()
    assert re.findall(r"Math\.\w+\(\.\.\.", script) == []


@pytest.mark.serial
@pytest.mark.parametrize(("iterations", "shown"), [(0, 1), (1, 2), (499, 500), (100_000, 499)])
def test_however_many_iterations_the_page_stays_small(iterations: int, shown: int) -> None:
    line = _convergence(np.geomspace(1.0, 0.5, iterations + 1))
    assert len(set(re.findall(r"iteration \d+, ", line))) == shown
    assert f"iteration {iterations}, " in line


@pytest.mark.serial
@pytest.mark.parametrize("norms", [[1.0, 0.9, 0.85], [1.0, 0.3, 0.005]])
def test_norms_have_an_axis_with_ticks(norms: list[float]) -> None:
    texts = re.findall(r"<text[^>]*>([^<]*)<", _convergence(np.array(norms)))
    assert len(texts[texts.index("iteration") : texts.index("share of the first")]) > 3


@pytest.mark.serial
def test_a_folder_without_results_is_left_alone(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        write_page(tmp_path)
    assert list(tmp_path.iterdir()) == []
