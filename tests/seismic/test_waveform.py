"""The commands that propagate waves, on any number of ranks: inversion, migration, checkpoints, files and the page."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import collops
from collops.errors import CheckpointError, InputError, Interrupted
from collops.seismic.lsm import Problem
from collops.seismic.segy import SegyFile
from collops.seismic.survey import Geometry as SurveyGeometry
from collops.seismic.survey import Grid, Survey
from collops.seismic.waveform import fwi, lsrtm, rtm
from collops.seismic.waveform.encoding import Stage, check_encoded, encoded, stages
from collops.seismic.waveform.imaging import born, illumination, reflections
from collops.seismic.waveform.inversion import Changes, Objective, Smoothing
from collops.seismic.waveform.misfits import MISFITS
from collops.seismic.waveform.problem import _set_up, prepare
from collops.seismic.waveform.recording import line_source
from collops.seismic.waveform.results import Picture, draw
from collops.seismic.waves import Propagator, SourceEncoding
from collops.solvers.nonlinear import lbfgs
from tests.apps.jobs import group_of, job_numbers, job_of

SMALL: dict[str, Any] = {"nx": 18, "nz": 14, "shots": 3, "receivers": 7, "samples": 24, "layers": 0, "order": 2}
SMALL |= {"smooth": 60.0, "dtype": "float64", "engine": "numpy", "frequency": 22.0}


@pytest.fixture(autouse=True)
def without_compilation(monkeypatch):
    """Propagate small waves in plain NumPy."""
    plain = functools.partial(Propagator, kernels="numpy")
    monkeypatch.setattr("collops.seismic.waveform.problem.Propagator", plain)
    monkeypatch.setattr("collops.seismic.lsm.regularisation._PROBES", 2)


@pytest.mark.parametrize(("misfit", "smooth"), [(name, None) for name in MISFITS] + [("waveform", 30.0)])
def test_gradients_are_those_of_the_misfit(comm, misfit, smooth):
    job = job_of(fwi.Options(**SMALL), comm)
    waves = prepare(job)
    velocity, rng = waves.problem.velocity, np.random.default_rng(0)
    recording = waves.recording.up_to(15.0, 0.004).whitened(waves.problem.wavelet[0], 4.0)
    changes = Changes(job, waves, velocity, np.where(waves.water, 0.0, 0.5), (1400.0, 5000.0), smooth)
    objective = Objective(waves.propagator, recording, recording.band_of(waves.observed), MISFITS[misfit], changes)
    x, step = (waves.model(job, size * rng.standard_normal(velocity.shape)) for size in (20.0, 1e-2))

    def value(x):
        return 0.5 * float(objective.residual(x).norm()) ** 2

    gradient = objective.jacobian(x).adjoint(objective.residual(x))
    assert float(gradient.dot(step)) == pytest.approx((value(x + step) - value(x - step)) / 2, rel=1e-4)
    assert objective.jacobian(x).dottest(rtol=1e-9)
    assert (gradient.gather()[waves.water] == 0).all() == (smooth is None)  # smooth updates end at the seabed
    assert (changes.velocity(x).gather()[waves.water] == velocity[waves.water]).all()


def test_velocities_stay_within_their_bounds(comm):
    job = job_of(fwi.Options(**SMALL), comm)
    waves = prepare(job)
    velocity = waves.problem.velocity
    bounds = float(velocity.min()), float(velocity.max())
    for smooth in (None, 30.0):
        changes = Changes(job, waves, velocity, 1.0 * ~waves.water, bounds, smooth)
        x = waves.model(job, np.full(velocity.shape, 900.0))
        if changes.upper is not None:
            np.testing.assert_allclose((velocity + changes.upper.gather())[~waves.water], bounds[1])
            np.testing.assert_allclose((velocity + changes.lower.gather())[~waves.water], bounds[0])
            continue
        reached = changes.velocity(x).gather()
        assert reached.max() == bounds[1] and (reached[waves.water] == velocity[waves.water]).all()
        clipped = changes.derivative(x).forward(changes.start + 1.0).gather() == 0
        np.testing.assert_array_equal(clipped[~waves.water], (reached == bounds[1])[~waves.water])


def test_it_is_the_inversion_of_the_propagator(comm, folder):
    options = fwi.Options(**SMALL, bands="all", iterations=3, depth_power=0.0, whiten=1.0, out=str(folder / "out"))
    numbers = job_numbers(fwi.run, options, comm)
    group, waves = group_of(folder, "out"), prepare(job_of(options, comm), None, 1.25)
    assert numbers["iterations"] == 3 and numbers["bands"] == ["all"]
    # The same by the interface of the propagator.
    F, start, water = waves.propagator, waves.problem.velocity, waves.water
    ends = np.where(water, start, 0.9 * start.min()), np.where(water, start, 1.25 * start.max())
    lower, upper, x0 = (collops.from_global(values, layout=F.domain, comm=comm) for values in (*ends, start))

    below = collops.Diagonal(collops.from_global(1.0 * ~water, layout=F.domain, comm=comm))

    class Sampled:
        def residual(self, x):
            return waves.recording.forward(F(x)) - waves.observed

        def jacobian(self, x):
            return waves.recording @ F.jacobian(x) @ below

    result = lbfgs(Sampled(), x0, niter=3, lower=lower, upper=upper, tol=0.0)
    np.testing.assert_allclose(group["model"][...], result.x.gather(), rtol=1e-7)
    assert numbers["model_error_reduction"] < 1 and numbers["residual_reduction"] < 0.9
    truth, model = group["truth"][...], group["model"][...]
    assert numbers["relative_error"] == pytest.approx(np.linalg.norm(model - truth) / np.linalg.norm(truth), rel=1e-6)
    residual = np.linalg.norm(group["data_residual"][...]) / np.linalg.norm(group["data"][...])
    assert numbers["data_misfit"] == pytest.approx(residual, rel=1e-4)


def interrupted_in_the_second_band():
    """Return a solver of which the second run is stopped by a signal after one iteration."""
    runs = []

    def solver(problem, x0, **options):
        runs.append(options.pop("checkpoint"))
        if len(runs) == 2:
            raise Interrupted(runs[1], 1, 15)
        return lbfgs(problem, x0, **options)

    return solver


def test_a_killed_inversion_resumes_bit_by_bit(comm, folder, monkeypatch):
    options, completed = fwi.Options(**SMALL, bands="10,all", iterations=2), []
    with monkeypatch.context() as patch:
        patch.setattr("collops.apps.interruption.complete", lambda: completed.append(True))
        job_numbers(fwi.run, replace(options, out=str(folder / "whole")), comm)
    assert completed == [True]  # between the bands, a signal ends the job
    safe = replace(options, out=str(folder / "out"), checkpoint=str(folder / "saved"), every="1", resume=True)
    jacobian = Objective.jacobian

    def killed(self, x):
        if any(folder.glob("saved/band-2/iteration-*")):  # in the second iteration of the second band
            raise RuntimeError("killed")
        return jacobian(self, x)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(Objective, "jacobian", killed)
        job_numbers(fwi.run, safe, comm)
    assert safe.resumes()
    numbers = job_numbers(fwi.run, safe, comm)
    assert numbers["resumed_from"] == 3 and numbers["iterations"] == 4
    for name in ("model", "residual_norms", "data_residual"):
        expected, found = (group_of(folder, out)[name][...] for out in ("whole", "out"))
        np.testing.assert_array_equal(found, expected)
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="after iteration 3; resume from saved"):
        patch.setattr(fwi, "lbfgs", interrupted_in_the_second_band())
        fwi.invert(job_of(replace(options, checkpoint="saved"), comm), prepare(job_of(options, comm)), (1400.0, 5000.0))
    for other in ({"noise": 0.5}, {"misfit": "envelope"}):
        with pytest.raises(CheckpointError, match="cannot be resumed"):
            job_numbers(fwi.run, replace(safe, **other), comm)


def test_encoded_shots_resume_bit_by_bit(comm, folder, monkeypatch):
    assert stages([4.0, None], 5, 3)[1:3] == [Stage(4.0, 1, 2, 2, 3), Stage(None, 2, 3, 1, 3)]
    options, signs = fwi.Options(**SMALL, bands="all", iterations=4, encode=2, redraw=2), []
    waves, bounds, random = prepare(job_of(options, comm)), (1300.0, 5000.0), SourceEncoding.random

    def inverted(chosen):
        velocity, solution, norms = fwi.invert(job_of(chosen, comm), waves, bounds)
        return velocity, np.concatenate(norms), solution.resumed_from

    def drawn(*arguments, **seed):
        signs.append(random(*arguments, **seed))
        return signs[-1]

    # Each shot by itself, times a sign, is the inversion without encoding.
    single, every = (inverted(replace(options, encode=n, redraw=None, iterations=1))[0] for n in (None, 3))
    np.testing.assert_allclose(every, single, rtol=1e-9)
    with monkeypatch.context() as patch:
        patch.setattr(SourceEncoding, "random", drawn)
        *whole, _ = inverted(options)
    assert len(signs) == 2 and (signs[0].weights != signs[1].weights).any() and len(whole[1]) == 5
    safe = replace(options, checkpoint=str(folder / "saved"), every="1", resume=True)
    jacobian = Objective.jacobian

    def killed(self, x):
        if any(folder.glob("saved/band-1-draw-2-*/iteration-*")):
            raise RuntimeError("killed")
        return jacobian(self, x)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(Objective, "jacobian", killed)
        inverted(safe)
    assert safe.resumes()
    *again, resumed = inverted(safe)
    assert resumed == 3
    for found, expected in zip(again, whole, strict=True):
        np.testing.assert_array_equal(found, expected)
    safe.check()
    for other in ({"redraw": 3}, {"encode": None, "redraw": None}):
        with pytest.raises(InputError, match="of another --encode or --redraw, such as band-1-draw-"):
            replace(safe, **other).check()
    check_encoded(waves, 3)
    with pytest.raises(InputError, match=r"--encode 4: .* from 1 to 3"):
        check_encoded(waves, 4)
    weights = waves.recording._weights * collops.random(waves.recording.traces, seed=1, comm=comm)
    muted = replace(waves, recording=waves.recording._with(_weights=weights))
    with pytest.raises(InputError, match="weighted alike"):
        encoded(job_of(options, comm), muted, 2, (0,))


def test_encoded_shots_are_attenuated_as_the_shots_are(comm):
    job = job_of(fwi.Options(**SMALL, encode=2, quality_factor=30.0), comm)
    waves = prepare(job)
    combined = encoded(job, waves, 2, (0,))
    model = waves.model(job, waves.problem.velocity)
    expected = SourceEncoding.random(3, 2, seed=(0,)).data(waves.propagator(model)).gather()
    found = combined.propagator(combined.model(job, waves.problem.velocity)).gather()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_images_are_gradients_and_least_squares_explain_more(comm, folder):
    job = job_of(rtm.Options(**SMALL), comm)
    waves = prepare(job)
    operator, data = born(job, waves), reflections(job, waves)
    assert operator.dottest(rtol=1e-10)
    change = waves.model(job, np.where(waves.water, 0.0, np.random.default_rng(0).standard_normal(waves.grid.shape)))
    smooth = waves.problem.velocity
    up, down = (waves.modelled(job, smooth + sign * change.gather()) for sign in (0.01, -0.01))
    expected = float(((up - down) / 0.02).dot(data))
    assert float(operator.adjoint(data).dot(change)) == pytest.approx(expected, rel=1e-5)

    numbers = job_numbers(rtm.run, rtm.Options(**SMALL, laplacian=True, out=str(folder / "rtm")), comm)
    shown = group_of(folder, "rtm")
    assert (illumination(job, operator) >= 0).all() and shown["illumination"][...].max() == 1
    np.testing.assert_allclose(shown["adjoint_image"][...], operator.adjoint(data).gather(), rtol=1e-9, atol=1e-12)
    least = job_numbers(lsrtm.run, lsrtm.Options(**SMALL, iterations=5, out=str(folder / "out")), comm)
    found = group_of(folder, "out")
    assert (found["image"][...][waves.water] == 0).all()
    predicted = operator.forward(waves.model(job, found["image"][...]))
    misfit = float((data - predicted).norm()) / float(data.norm())
    assert least["misfit"] == pytest.approx(misfit, rel=1e-6)
    assert misfit == pytest.approx(least["residual_reduction"], rel=1e-6)
    assert misfit < 0.8 * numbers["residual_reduction"] < 0.8
    # Without damping, a solution of least squares is orthogonal to the adjoint of the residual.
    assert float(operator.adjoint(data - predicted).norm()) < 0.3 * float(operator.adjoint(data).norm())


def test_apertures_and_compression_reach_the_propagator(comm):
    options = rtm.Options(**(SMALL | {"layers": 2}), aperture=30.0, memory=0.1, wavefield_bits=8)
    waves, whole = (prepare(job_of(chosen, comm)) for chosen in (options, replace(options, aperture=None)))
    assert waves.propagator.storage.bits == 8 and any("of 8 bits" in note for note in waves.survey.notes)
    # Receivers are on the whole line, so that windows are the whole model.
    np.testing.assert_array_equal(*(part.observed.gather() for part in (waves, whole)))
    assert waves.propagator._windows is not None and whole.propagator._windows is None


def test_a_quality_factor_attenuates_below_the_water(comm):
    waves, lossless = (prepare(job_of(rtm.Options(**SMALL, quality_factor=q), comm)) for q in (8.0, None))
    values = waves.propagator._modelling.parameters["quality_factor"]
    assert waves.water.any() and (values[waves.water] == 1e5).all() and (values[~waves.water] == 8).all()
    assert float(waves.observed.norm()) < float(lossless.observed.norm())


@pytest.mark.usefixtures("with_pictures")
def test_a_survey_from_a_file_gives_the_same(comm, folder):
    survey, sizes = folder / "survey.sgy", {"iterations": 1, "bands": "all"}
    written = fwi.Options(**SMALL, **sizes, noise=0.1, write_survey=str(survey), out=str(folder / "made"))
    job_numbers(fwi.run, written, comm)
    shared = {name: SMALL[name] for name in ("layers", "order", "dtype", "engine")}
    shared |= {"survey": str(survey), "velocity": str(survey.with_suffix(".npy")), "water_depth": 33.0, "outliers": 0.0}
    # The time step is that of the largest velocity, which only the synthetic survey knows.
    fastest = float(group_of(folder, "made").attrs["time_step"])
    numbers = job_numbers(fwi.run, fwi.Options(**shared, **sizes, out=str(folder / "out")), comm)
    assert numbers["frequency"] == 22.0 and numbers["relative_error"] is None and numbers["time_step"] == fastest
    made, read = group_of(folder, "made"), group_of(folder, "out")
    np.testing.assert_allclose(read["start"][...], made["start"][...], rtol=1e-6)
    np.testing.assert_array_equal(read["data"][...], made["data"][...])
    np.testing.assert_allclose(read["model"][...], made["model"][...], rtol=1e-4)
    model = SegyFile.inspect(folder / "out" / "model.sgy")
    np.testing.assert_allclose(model.read(np.arange(18)), read["model"][...], rtol=1e-6)
    text = (folder / "out" / "result.html").read_text()
    (payload,) = re.findall(r'<script type="application/json" id="fields">(.*?)</script>', text)
    content = json.loads(payload)
    assert content["speeds"] == ["start", "model"] and content["images"].keys() == {"start", "model", "update"}
    assert "<title>Full-waveform inversion" in text and "explained by the velocity" in text
    assert sorted(path.name for path in (folder / "out" / "shots").iterdir()) == ["0.js", "1.js", "2.js"]

    # The wavelet of data from elsewhere is unknown: sources are points, the direct wave is muted or scaled.
    elsewhere = fwi.Options(**shared, **sizes, misfit="correlation", out=str(folder / "other"), frequency=22.0)
    foreign = replace(prepare(job_of(elsewhere, comm)), own=False)
    scaled = fwi.calibrate(job_of(elsewhere, comm), replace(foreign, recording=foreign.recording.scaled(1 / 3)))
    best = fwi.calibrate(job_of(elsewhere, comm), foreign)
    both = [w.modelled(job_of(elsewhere, comm), foreign.problem.velocity).gather() for w in (scaled, best)]
    np.testing.assert_allclose(*both, rtol=1e-9, atol=1e-12)
    assert reflections(job_of(elsewhere, comm), foreign) is foreign.observed
    with pytest.raises(InputError, match="do not correlate"):
        fwi.calibrate(job_of(elsewhere, comm), replace(foreign, observed=-1.0 * foreign.observed))


def area(comm, folder):
    """Write a survey on an area over a diffractor, and its smooth velocity; return their options and the diffractor."""
    grid, place = Grid(13, 9, 20.0, 20.0, x0=-20.0, ny=12, dy=20.0, y0=-40.0), (5, 8, 5)
    y, x = (part.ravel() for part in np.meshgrid([0.0, 60.0, 120.0, 180.0], np.linspace(0.0, 220.0, 5), indexing="ij"))
    sources = np.array([[50.0, 50.0, 130.0, 130.0], [50.0, 170.0, 50.0, 170.0], [10.0] * 4])
    geometry = SurveyGeometry(sources, [np.stack([y, x, np.full(20, 5.0)])] * 4, 38, 0.004)
    survey, velocity = Survey(geometry, comm), np.full(grid.shape, 2000.0)
    truth = velocity.copy()
    truth[place] = 2200.0
    none = [np.zeros(survey.trace_shape(shot)) for shot in survey.shots]
    shared: dict[str, Any] = {name: SMALL[name] for name in ("dtype", "engine")} | {"layers": 3, "order": 4}
    job = job_of(rtm.Options(**shared), comm)
    problem = Problem(survey, grid, velocity, None, "eikonal", 22.0)
    waves = _set_up(job, problem, 2200.0, none, [part + 1 for part in none], True)
    survey.traces = [shot.astype(np.float32) for shot in waves.by_shot(job, waves.modelled(job, truth))]
    survey.save(folder / "area.sgy", grid, frequency=22.0)
    if comm.rank == 0:
        np.save(folder / "velocity.npy", velocity)
    comm.barrier()
    files = {"survey": str(folder / "area.sgy"), "velocity": str(folder / "velocity.npy"), "outliers": 0.0}
    return shared | files, place


def test_waves_of_surveys_on_an_area_are_in_three_dimensions(comm, folder):
    shared, place = area(comm, folder)
    numbers = job_numbers(
        rtm.run, rtm.Options(**shared, water_depth=35.0, compensate=False, out=str(folder / "rtm")), comm
    )
    assert (numbers["ny"], numbers["dy"], numbers["shots"]) == (12, 20.0, 4)
    group = group_of(folder, "rtm")
    image = group["image"][...]
    assert group["image"].metadata.dimension_names == ("y", "x", "z")
    *found, depth = np.unravel_index(np.argmax(np.abs(image)), image.shape)
    assert tuple(found) == place[:2] and abs(depth - place[2]) < 2 and image[place] > 0
    file = SegyFile.inspect(folder / "rtm" / "image.sgy")
    np.testing.assert_allclose(file.read(np.arange(156)).reshape(image.shape), image, rtol=1e-6)
    text = (folder / "rtm" / "result.html").read_text()
    assert "section shown" in text and "y = 80 m" in text
    # The derivative of the inversion, which smooths along all axes.
    job = job_of(fwi.Options(**shared), comm)
    waves = prepare(job, None, 1.25)
    velocity = waves.problem.velocity
    np.testing.assert_allclose(np.asarray(waves.propagator.geometry.sources)[0], [90.0, 70.0, 10.0])  # in the grid
    changes = Changes(job, waves, velocity, np.where(waves.water, 0.0, 0.5), (1400.0, 5000.0), 30.0)
    objective = Objective(waves.propagator, waves.recording, waves.observed, MISFITS["waveform"], changes)
    assert objective.jacobian(changes.start).dottest(rtol=1e-9)
    smoothing = Smoothing(waves.propagator, 30.0, job.engine)
    np.testing.assert_allclose(smoothing.forward(changes.start + 1.0).gather(), 1.0)
    if comm.rank == 0:
        assert draw(folder, waves, {"model": Picture(velocity, "velocity", "m/s")}).exists()
    line = job_of(rtm.Options(**shared, dims=2, nx=13, nz=9), comm)
    assert prepare(replace(line, options=replace(line.options, velocity="2000"))).grid.ny is None
    with pytest.raises(InputError, match="for surveys along a line"):
        prepare(job_of(rtm.Options(**shared, source="line"), comm))


def test_the_mute_follows_the_conversion_to_lines(comm, folder, monkeypatch):
    survey = folder / "survey.sgy"
    prepare(job_of(rtm.Options(**SMALL, write_survey=str(survey)), comm))

    monkeypatch.setattr(Survey, "defaults", {})  # as in files of other programs
    shared = {name: SMALL[name] for name in ("layers", "order", "dtype", "engine", "frequency")}
    shared |= {"survey": str(survey), "velocity": str(survey.with_suffix(".npy")), "outliers": 0.0}
    (folder / "edits").write_text("2 3 -1\n")  # shot, channel, reverse
    waves = prepare(job_of(rtm.Options(**shared, mute="3000,0.02", edit=str(folder / "edits")), comm))
    problem = waves.problem
    speed = problem.velocity[:, 0].mean()
    for number, raw, found, ready in zip(
        problem.survey.shots, problem.survey.traces, waves.observed.local_array, problem.conditioned, strict=True
    ):
        sign = np.where(number == 1, [[-1.0 if row == 2 else 1.0] for row in range(7)], 1.0)
        mute = ready.mute
        assert ((mute > 0) & (mute < 1)).any()
        np.testing.assert_allclose(found, mute * line_source(sign * raw, problem.survey.geometry.times, speed))


@pytest.mark.serial
@pytest.mark.parametrize(
    ("command", "options", "reason"),
    [
        (fwi, {"bands": "8,4"}, "--bands must be increasing"),
        (fwi, {"bands": "low"}, "--bands must be increasing"),
        (fwi, {"misfit": "magic"}, "--misfit must be one of waveform, envelope, correlation, transport"),
        (fwi, {"depth_power": 5.0}, "--depth-power must be zero or positive, and at most 4"),
        (fwi, {"whiten": 1.5}, "--whiten must be 1, or from 2 to 1000"),
        (fwi, {"redraw": 3}, "--redraw is for encoded shots"),
        (fwi, {"encode": 3, "misfit": "envelope"}, "--encode needs --misfit waveform"),
        (fwi, {"encode": 13}, "--encode must be at most 12, the number of shots, not 13"),
        (fwi, {"order": 3}, "--order must be 2, 4"),
        (rtm, {"wavefield_bits": 12}, "--wavefield-bits must be 8 or 16"),
        (rtm, {"quality_factor": 2.0}, "--quality-factor must be at least 5"),
        (fwi, {"profile": True}, "--profile divides"),
        (fwi, {"velocity": "1500"}, "--velocity is for recorded data"),
        (fwi, {"survey": "line.sgy"}, "needs a velocity"),
        (fwi, {"survey": "line.sgy", "velocity": "1500"}, "line.sgy does not exist"),
        (fwi, {"survey": "line.sgy", "shots": 3, "velocity": "1500"}, "--shots is for synthetic data"),
        (rtm, {"iterations": 3}, "--iterations must be 1: migration"),
        (rtm, {"checkpoint": "saved"}, "--checkpoint is for solvers"),
        (lsrtm, {"precondition": "hope"}, "--precondition must be one of none, illumination"),
    ],
)
def test_options_that_make_no_sense(command, options, reason):
    with pytest.raises(InputError, match=re.escape(reason)):
        command.Options(**options).check()


def test_models_that_make_no_sense(comm):
    with pytest.raises(InputError, match="the initial velocity is 1500 to"):
        options = fwi.Options(**SMALL, min_velocity=1600.0)
        fwi.bounds_of(options, prepare(job_of(options, comm)))
    with pytest.raises(InputError, match="less than the depth of the grid, 260 m, not 5000 m"):
        prepare(job_of(rtm.Options(**SMALL, water_depth=5000.0), comm))
    high: dict[str, Any] = SMALL | {"frequency": 24.0}
    job = job_of(rtm.Options(**high), comm)
    prepare(job)
    listener: Any = job.listener
    assert any("waves are dispersed" in warning for warning in listener.warnings)


@pytest.mark.parametrize("start", [0.0, 0.02, -0.2])
def test_shots_have_their_own_receivers_and_records_any_start(comm, start):
    grid, options = Grid(16, 12, 20.0, 20.0, x0=500.0), rtm.Options(**SMALL)
    sources = np.array([[540.0, 700.0], [40.0, 60.0]])
    groups = [np.array([[600.0, 650.0, 720.0], [20.0, 40.0, 20.0]]), np.array([[560.0, 640.0], [20.0, 20.0]])]
    velocity = np.full(grid.shape, 2000.0)
    parts = []
    for begin, chosen in ((start, [0, 1]), (0.0, [0]), (0.0, [1])):
        shots = SurveyGeometry(sources[:, chosen], [groups[shot] for shot in chosen], 30, 0.004, begin)
        problem = Problem(Survey(shots, comm), grid, velocity, None, "eikonal", 18.0)
        none = [np.zeros(shots.trace_shape(shot)) for shot in problem.survey.shots]
        waves = _set_up(job_of(options, comm), problem, 2000.0, none, [part + 1 for part in none], True)
        own = waves.by_shot(job_of(options, comm), waves.modelled(job_of(options, comm), velocity))
        parts.append([shot for shots in comm.allgather_metadata([shot.tolist() for shot in own]) for shot in shots])
    together, *alone = parts
    shift = round(start / 0.004)
    for found, (expected,) in zip(together, alone, strict=True):
        found, expected = np.array(found), np.array(expected)
        assert found.shape == expected.shape
        late = found[:, : 30 - shift] if shift > 0 else found[:, -shift:]
        np.testing.assert_allclose(late, expected[:, max(shift, 0) :][:, : late.shape[1]], rtol=1e-9, atol=1e-12)


def test_traces_of_windows_are_recorded_on_the_ranks_of_their_shots(comm):
    """Shots are modelled where their windows cost least, and compared with the data where these were read."""
    grid, options = Grid(16, 12, 20.0, 20.0), rtm.Options(**(SMALL | {"layers": 2}), aperture=30.0)
    sources = np.array([[20.0, 80.0, 200.0], [40.0] * 3])
    groups = [np.array([[x, x + 20.0], [20.0] * 2]) for x in (280.0, 90.0, 210.0)]  # the first window is the line
    survey = Survey(SurveyGeometry(sources, groups, 30, 0.004), comm)
    problem = Problem(survey, grid, np.full(grid.shape, 2000.0), None, "eikonal", 18.0)
    none, job = [np.zeros(survey.trace_shape(shot)) for shot in survey.shots], job_of(options, comm)
    waves = _set_up(job, problem, 2000.0, none, [part + 1 for part in none], True)
    F, recording = waves.propagator, waves.recording
    assert F.range.sizes[0] == {1: (3,), 2: (1, 2)}.get(comm.size, (1, 1, 1) + (0,) * (comm.size - 3))
    traces = F.linearise(waves.model(job, problem.velocity))[0]
    steps = (survey.geometry.samples - 1) * recording._steps.step + 1
    expected = traces.gather()[..., -steps :: recording._steps.step]
    np.testing.assert_array_equal(recording.forward(traces).gather(), expected)
    assert recording.range is collops.Layout.split((3, 2, 30), comm.size)
    assert recording.dottest(rtol=1e-12)
