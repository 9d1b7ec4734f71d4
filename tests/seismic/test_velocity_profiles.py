"""Velocities in tables and in two-way time: Dix's equation and the conversion to depth against layered media."""

from __future__ import annotations

import re

import numpy as np
import pytest

from collops.comm import alone
from collops.errors import InputError
from collops.seismic.lsm import Options
from collops.seismic.lsm.setup import _smoothed, recorded, synthetic
from collops.seismic.survey.geometry import Grid
from collops.seismic.survey.velocity import VelocityFile, load_velocity, on_grid, parse_velocity, smoothed
from tests.seismic.files import small_survey, write_traces

pytestmark = pytest.mark.serial

SPEED, THICKNESS = np.array([1500.0, 1800.0, 2600.0, 2200.0]), np.array([300.0, 450.0, 650.0, 400.0])
BASES, TIMES = np.cumsum(THICKNESS), np.cumsum(2 * THICKNESS / SPEED)
RMS = np.sqrt(np.cumsum(SPEED * 2 * THICKNESS) / TIMES)  # sum of v^2 t, of layers with t = 2 h / v
GRID = Grid(5, 200, 100.0, 10.0)


def table(path, *columns) -> str:
    np.savetxt(path, np.column_stack(columns), header="a table", fmt="%.9g")
    return str(path)


def on(text: str, grid: Grid = GRID, notes: list[str] | None = None) -> np.ndarray:
    return on_grid(load_velocity(text, len(grid.shape), None), grid, None, [] if notes is None else notes)


def vertical_time(velocity: np.ndarray, step: float) -> float:
    """Return the two-way time through cells whose centres are the rows; the first and the last are halves."""
    slowness = 2 * step / velocity
    return float(slowness.sum() - slowness[0] / 2 - slowness[-1] / 2)


def test_rms_velocities_of_layers_give_the_layers(tmp_path):
    notes: list[str] = []
    found = on("rms:" + table(tmp_path / "v.txt", TIMES, RMS), notes=notes)
    inside = np.abs(GRID.z[:, None] - BASES).min(axis=1) > 2
    expected = SPEED[np.searchsorted(BASES, GRID.z).clip(0, 3)]
    np.testing.assert_allclose(found[:, inside], np.broadcast_to(expected[inside], found[:, inside].shape), rtol=1e-6)
    assert "Dix's equation" in notes[0] and f"{TIMES[-1]:g} s are 1800 m" in notes[0]


def test_falling_rms_velocities_are_one_error(tmp_path):
    name = table(tmp_path / "v.txt", [0.5, 1.0, 1.5], [1600.0, 2400.0, 1500.0])
    squared = (1.5 * 1500.0**2 - 2400.0**2) / 0.5
    with pytest.raises(InputError, match=re.escape(f"from 1 to 1.5 s: the squared interval velocity is {squared:.4g}")):
        load_velocity(f"rms:{name}", 2, None)


def test_interval_velocities_in_time_keep_the_vertical_time(tmp_path):
    # v = v0 + k z is v0 exp(k t / 2) in two-way time.
    t = np.linspace(0, 2, 401)
    found = on("time:" + table(tmp_path / "v.txt", t, 1500 * np.exp(0.3 * t)), Grid(2, 161, 10.0, 10.0))
    np.testing.assert_allclose(found[0], 1500 + 0.6 * 10 * np.arange(161), rtol=5e-4)
    # Linear between its times, and constant before the first.
    found = on("time:" + table(tmp_path / "w.txt", [0.4, 1.4], [2000.0, 3000.0]), Grid(2, 2001, 10.0, 1.0))
    assert found[0, 0] == pytest.approx(2000) and found[0, -1] == pytest.approx(3000, rel=1e-3)
    depth = 400 + 1250
    np.testing.assert_allclose(vertical_time(found[0, : depth + 1], 1.0), 1.4, rtol=1e-4)


def test_a_table_of_depths_varies_along_the_line(tmp_path):
    x, z, v = [0, 0, 400, 400], [0, 1000, 0, 500], [1500, 2500, 1700, 2700]
    notes: list[str] = []
    found = on("depth:" + table(tmp_path / "v.csv", x, z, v), notes=notes)
    left, right = np.minimum(1500 + GRID.z, 2500), np.minimum(1700 + 2 * GRID.z, 2700)
    for column, share in zip(found, np.linspace(0, 1, 5), strict=True):
        np.testing.assert_allclose(column, (1 - share) * left + share * right)
    assert "at 2 positions from 0 to 400 m, down to 1000 m" in notes[-1]
    volume = on("depth:" + table(tmp_path / "w.txt", [0, 1000], [1500, 2500]), Grid(2, 4, 10.0, 10.0, ny=3, dy=10.0))
    np.testing.assert_allclose(volume[2, 1], [1500, 1510, 1520, 1530])


@pytest.mark.parametrize("kind", ["time", "rms"])
def test_segy_in_time_becomes_depth(tmp_path, kind):
    samples, interval = 300, 0.008
    t = interval * np.arange(samples)
    layer = np.searchsorted(TIMES, t, side="left").clip(0, 3)
    start = np.concatenate([[0], TIMES])[layer]
    energy = np.concatenate([[0], np.cumsum(SPEED * 2 * THICKNESS)])[layer] + (t - start) * SPEED[layer] ** 2
    values = SPEED[layer] if kind == "time" else np.sqrt(energy / np.maximum(t, 1e-9))
    values = np.where(t == 0, SPEED[0], values)
    headers = {"INLINE_3D": np.array([7, 7, 7]), "CDP_X": np.array([0, 200, 400])}
    path = write_traces(tmp_path / "v.sgy", np.tile(values, (3, 1)).astype(np.float32), headers, 8000, "VELOCITY")
    notes: list[str] = []
    found = on(f"{kind}:{path}", notes=notes)
    far = np.abs(GRID.z[:, None] - BASES).min(axis=1) > 25
    expected = SPEED[np.searchsorted(BASES, GRID.z).clip(0, 3)]
    np.testing.assert_allclose(found[1, far], expected[far], rtol=2e-3)
    assert vertical_time(found[1, :181], 10.0) == pytest.approx(TIMES[-1], rel=3e-3)
    assert any("converted" in note and ("Dix" in note) == (kind == "rms") for note in notes)


def test_smoothing_keeps_the_mean_slowness_and_spreads_a_step():
    grid = Grid(41, 61, 10.0, 5.0)
    velocity = np.full(grid.shape, 1500.0)
    velocity[:, 30:] = 3000.0
    from scipy.special import erf

    found = smoothed(velocity, grid, 20.0)
    inside = slice(8, -8)
    step = 0.5 * (1 + erf((grid.z - 29.5 * 5) / (20 * np.sqrt(2))))
    np.testing.assert_allclose(1 / found[20, inside], (1 / 1500 + step * (1 / 3000 - 1 / 1500))[inside], rtol=2e-3)
    assert (1 / found).mean() == pytest.approx((1 / velocity).mean(), rel=1e-3)


def test_options(tmp_path):
    survey, name = str(small_survey(tmp_path / "a.sgy")), table(tmp_path / "v.txt", TIMES, RMS)
    options = Options(survey=survey, velocity=f"rms:{name}", smooth_velocity=30.0, frequency=25.0, nx=21, nz=21)
    options.check()
    problem = recorded(options, alone())
    assert problem.mode == "eikonal" and problem.expression is None
    assert any("slowness smoothed by a Gaussian of 30 m" in note for note in problem.survey.notes)
    rough = recorded(Options(survey=survey, velocity=f"rms:{name}", frequency=25.0, nx=21, nz=21), alone())
    np.testing.assert_allclose(problem.velocity, smoothed(rough.velocity, rough.grid, 30.0))
    notes: list[str] = []
    thin_layer = np.where(np.arange(200) == 90, 1000.0, 4000.0) + np.zeros((5, 1))
    _smoothed(options, thin_layer, GRID, notes)
    assert re.search(r"velocities change by up to [12]\d\d %$", notes[0])  # not 1e+02 %
    made = Options(velocity=f"rms:{name}", nx=11, nz=11)
    np.testing.assert_allclose(synthetic(made, alone()).velocity[0, 0], 1500)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"velocity": "rms:absent.txt"}, "absent.txt does not exist"),
        ({"velocity": "depth:v.npy"}, "omit depth:"),
        ({"velocity": "speed.txt"}, "depth:FILE, time:FILE or rms:FILE"),
        ({"velocity": "1500+0.6z", "smooth_velocity": 50.0}, "is smooth: omit it"),
    ],
)
def test_bad_options_are_one_error(options, complaint):
    with pytest.raises(InputError, match=complaint):
        Options(**options).check()


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        (([0, 100, 100], [1500, 1600, 1700]), "each depth or time once"),
        (([0, 100], [1500, -1]), "positive velocities"),
        (([-5, 100], [1500, 1600]), "from 0"),
        (([1.0], [2.0], [3.0], [4.0]), "must hold depth"),
    ],
)
def test_bad_tables_are_one_error(tmp_path, columns, complaint):
    with pytest.raises(InputError, match=complaint):
        load_velocity("depth:" + table(tmp_path / "v.txt", *columns), 2, None)
    assert parse_velocity("rms:v.sgy").is_segy and isinstance(parse_velocity("time:a.txt"), VelocityFile)  # type: ignore[union-attr]
