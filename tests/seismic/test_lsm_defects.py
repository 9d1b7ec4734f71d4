"""The default command on synthetic surveys with defects: as good as the best damping by hand, and as the adjoint."""

from __future__ import annotations

import numpy as np
import pytest

from collops.seismic.lsm import Options, run
from collops.seismic.lsm.inversion import invert
from collops.seismic.lsm.migrate import kirchhoff, model_traces
from collops.seismic.lsm.problem import Problem
from collops.seismic.lsm.synthetic import reflectivity
from collops.seismic.segy import write_together
from collops.seismic.signals import ricker_shape
from collops.seismic.survey import Geometry, Grid, Survey
from collops.seismic.survey.segy import survey_traces
from collops.seismic.survey.velocity import Gradient, on_grid
from tests.apps.jobs import group_of, job_numbers, job_of

GRID, FREQUENCY, SHOTS, RECEIVERS, SAMPLES = Grid(61, 41, 12.5, 12.5), 20.0, 8, 31, 190
DAMPINGS = (0.0, 0.1, 0.3, 1.0)
SEED = 7
DEFECTS = (
    *("white noise", "ground roll", "fast linear noise", "dead traces", "bad samples", "bad traces"),
    *("irregular shots", "velocity 10 % too high"),
)
pytestmark = pytest.mark.serial


def problem_of(comm, velocity: str = "1500+0.6z", *, irregular: bool = False) -> Problem:
    model = Gradient(*map(float, velocity[:-1].split("+")))
    sources = np.linspace(0, GRID.x[-1], SHOTS)
    if irregular:
        sources = np.sort(np.random.default_rng(SEED).triangular(0, 100, GRID.x[-1], SHOTS)).round(1)
    stations = np.stack([np.linspace(0, GRID.x[-1], RECEIVERS), np.zeros(RECEIVERS)])
    geometry = Geometry(np.stack([sources, np.zeros(SHOTS)]), [stations] * SHOTS, SAMPLES, 0.004)
    values = on_grid(model, GRID, None, [])
    truth = reflectivity(GRID, on_grid(Gradient(1500, 0.6), GRID, None, []), FREQUENCY)
    return Problem(Survey(geometry, comm), GRID, values, velocity, "analytic", FREQUENCY, truth)


def linear_events(geometry: Geometry, speed: float, frequency: float) -> np.ndarray:
    offsets = np.abs(geometry.receivers[0][0] - geometry.sources[0][:, None])
    return ricker_shape(frequency * (geometry.times - offsets[..., None] / speed - 0.05))


def with_defect(defect: str, clean: np.ndarray, geometry: Geometry) -> np.ndarray:
    rng = np.random.default_rng(SEED)
    rms = np.sqrt((clean**2).mean())
    traces = clean + (1.0 if defect == "white noise" else 0.1) * rms * rng.normal(size=clean.shape)
    if defect in ("ground roll", "fast linear noise"):
        speeds, frequency = ((500, 700, 900), 9) if defect == "ground roll" else ((1600, 2200, 3000), 16)
        events = np.sum([rng.normal() * linear_events(geometry, speed, frequency) for speed in speeds], axis=0)
        traces += rms / np.sqrt((events**2).mean()) * events
    elif defect == "dead traces":
        traces *= rng.uniform(size=(SHOTS, RECEIVERS, 1)) > 0.15
    elif defect in ("bad samples", "bad traces"):
        for shot, trace, sample in ((1, 5, 60), (4, 17, 90), (6, 25, 40)):
            traces[(shot, trace, sample) if defect == "bad samples" else (shot, trace)] *= 300
    return traces.astype(np.float32)


def error_of(image: np.ndarray, truth: np.ndarray) -> float:
    """Return the error at the scale that is best for the truth, which for the adjoint is the only one that counts."""
    scaled = image * float(np.vdot(image, truth) / np.vdot(image, image))
    return float(np.linalg.norm(scaled - truth) / np.linalg.norm(truth))


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_default_is_as_good_as_the_best_damping_by_hand(comm, folder, defect):
    true = problem_of(comm, irregular=defect == "irregular shots")
    job = job_of(Options(engine="numpy"), comm)
    clean = np.array(model_traces(job, true, kirchhoff(job, true)), dtype=np.float64)
    traces = list(with_defect(defect, clean, true.survey.geometry))
    believed, truth = true, np.asarray(true.truth)
    if defect.startswith("velocity"):
        # At vertical incidence, reflectors are imaged where the wrong velocity puts their time.
        believed = problem_of(comm, "1650+0.6z")
        times = [np.log(1 + 0.6 * GRID.z / surface) for surface in (1500, 1650)]
        depths = np.interp(times[1], times[0], GRID.z)
        truth = np.stack([np.interp(depths, GRID.z, column) for column in truth])
    path = folder / "a.sgy"
    write_together(
        path, comm, *survey_traces(true.survey.geometry, true.survey.shots, traces, {"frequency": str(FREQUENCY)})
    )
    grid = {"nx": GRID.nx, "nz": GRID.nz, "dx": GRID.dx, "dz": GRID.dz, "x0": GRID.x0}
    files = {"survey": str(path), "velocity": believed.expression, "out": str(folder / "out")}
    numbers = job_numbers(run, Options(engine="numpy", **files, **grid), comm)
    error = error_of(group_of(folder, "out")["image"][...], truth)

    operator = kirchhoff(job, believed)
    found = [invert(job_of(Options(engine="numpy", damp=damp), comm), operator, traces) for damp in DAMPINGS]
    by_hand = [error_of(each.image, truth) for each in found]
    adjoint = error_of(found[0].adjoint, truth)
    assert error <= 1.1 * min(by_hand)
    assert error <= adjoint * (1 + 1e-5)  # after one iteration, the same image
    if defect in ("bad samples", "bad traces"):
        assert numbers["traces_left_out"] == 3
        assert error < 0.5 * min(by_hand)  # no damping mends what three traces spoil
