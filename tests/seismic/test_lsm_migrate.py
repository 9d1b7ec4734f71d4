"""The migration against PyLops' serial operator and solver, on any number of ranks and both kinds of spread."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest

from collops import profile
from collops.seismic import Kirchhoff
from collops.seismic.kirchhoff import Weighting
from collops.seismic.lsm import Options
from collops.seismic.lsm.inversion import invert
from collops.seismic.lsm.migrate import kirchhoff, model_traces
from collops.seismic.lsm.problem import Problem
from collops.seismic.lsm.synthetic import reflectivity
from collops.seismic.signals import ricker
from collops.seismic.survey import Geometry, Grid, Survey
from collops.seismic.survey.traveltimes import seconds_from
from collops.seismic.survey.velocity import Gradient, on_grid
from tests.apps.jobs import job_of

# PyLops announces that its operator has changed inside.
pytestmark = pytest.mark.filterwarnings("ignore:A new implementation of Kirchhoff:FutureWarning")

SHOTS = 5


def small_problem(comm, *, towed: bool, start: float = 0.0, mode: str = "eikonal") -> Problem:
    grid = Grid(25, 17, 12.5, 10.0, 100.0)
    velocity = on_grid(Gradient(1500, 0.6 if mode == "eikonal" else 0.0), grid, None, [])
    sources = np.stack([np.linspace(103, 350, SHOTS), np.full(SHOTS, 3.0)])
    spread = np.stack([np.linspace(110, 300, 7), np.zeros(7)])
    groups = [spread] * SHOTS
    if towed:
        groups = [spread[:, : 4 + shot % 3] + np.array([[10.0 * shot], [0.0]]) for shot in range(SHOTS)]
    geometry = Geometry(sources, groups, 90, 0.004, start)
    truth = reflectivity(grid, velocity, 25.0)
    return Problem(Survey(geometry, comm), grid, velocity, None, mode, 25.0, truth)


def pylops_operator(problem: Problem):
    """The whole survey as one serial operator of PyLops, shot by shot; late recording by cutting whole samples."""
    import pylops

    geometry, grid = problem.survey.geometry, problem.grid
    late = round(geometry.start / geometry.interval)
    times = geometry.interval * np.arange(geometry.samples + late)
    wavelet, centre = ricker(problem.frequency, geometry.interval)

    def table(positions):
        return np.stack([seconds_from(p, problem.velocity, grid, "eikonal").ravel() for p in positions.T], axis=1)

    blocks = []
    for shot in range(geometry.shots):
        source, receivers = geometry.sources[:, shot : shot + 1], geometry.receivers[shot]
        block = pylops.waveeqprocessing.Kirchhoff(
            grid.z, grid.x, times, source, receivers, problem.velocity, wavelet, centre,
            mode="byot", trav=(table(source), table(receivers)), engine="numpy",
        )  # fmt: skip
        rows = (receivers.shape[1], len(times))
        blocks.append(pylops.Restriction(rows, np.arange(late, len(times)), axis=1) @ block)
    return pylops.VStack(blocks)


def modelled(comm, problem: Problem, compute: str = "numpy", dtype: str = "float64", **options):
    """Return a job, the operator, and this rank's traces of the true reflectivity."""
    job = job_of(Options(dtype=dtype, **options), comm, compute)
    operator = kirchhoff(job, problem)
    return job, operator, model_traces(job, problem, operator)


def gather_traces(comm, traces):
    flat = np.concatenate([np.empty(0), *(shot.ravel() for shot in traces)])
    return comm.allgatherv(flat)


@pytest.mark.parametrize("towed", [False, True])
def test_it_is_the_migration_of_pylops(comm, towed):
    from pylops.optimization.basic import cgls

    problem = small_problem(comm, towed=towed)
    job, operator, traces = modelled(comm, problem, iterations=8)
    assert [t.shape for t in traces] == [
        (problem.survey.geometry.receivers[s].shape[1], 90) for s in problem.survey.shots
    ]
    serial = pylops_operator(problem)
    data = serial @ problem.truth.ravel()
    np.testing.assert_allclose(gather_traces(comm, traces), data, rtol=0, atol=1e-8 * np.abs(data).max())

    found = invert(job, operator, traces)
    expected, *_, cost = cgls(serial, data, x0=np.zeros(serial.shape[1]), niter=8, tol=0)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found.image.ravel(), expected, rtol=0, atol=1e-6 * scale)
    np.testing.assert_allclose(found.solution.residuals, cost, rtol=1e-6)
    adjoint = (serial.H @ data).ravel()
    np.testing.assert_allclose(found.adjoint.ravel(), adjoint, rtol=0, atol=1e-8 * np.abs(adjoint).max())
    first, *_ = cgls(serial, data, x0=np.zeros(serial.shape[1]), niter=1, tol=0)
    np.testing.assert_allclose(
        found.adjoint_scale * found.adjoint.ravel(), first, rtol=0, atol=1e-6 * np.abs(first).max()
    )


@pytest.mark.parametrize("towed", [False, True])
def test_amplitudes_apertures_and_filters_are_those_of_the_operator(comm, towed):
    problem = small_problem(comm, towed=towed, mode="analytic")
    chosen = {"amplitude": "2.5d", "aperture": 180.0, "max_dip": 50.0, "antialias": True}
    problem = dataclasses.replace(problem, weighting=Weighting("2.5d", 180.0, 50.0))
    _, _, traces = modelled(comm, problem, antialias=True)
    geometry, grid, own = problem.survey.geometry, problem.grid, comm.split(comm.rank)
    wavelet = ricker(problem.frequency, geometry.interval)
    for shot, found in zip(problem.survey.shots, traces, strict=True):
        source, receivers = geometry.sources[:, shot : shot + 1], geometry.receivers[shot]
        one = Kirchhoff(
            *(grid.z, grid.x, geometry.times, source, receivers, 1500.0, *wavelet),
            **{"mode": "analytic", "comm": own, "kernels": "numpy"} | chosen,
        )
        expected = one.local.forward_local(problem.truth.ravel()).reshape(found.shape)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


def test_damping_is_relative_to_the_norm(comm):
    from pylops.optimization.basic import cgls

    problem = small_problem(comm, towed=False)
    job, operator, traces = modelled(comm, problem, iterations=5, damp=0.3)
    found = invert(job, operator, traces)
    serial = pylops_operator(problem)
    data = serial @ problem.truth.ravel()
    adjoint = (serial.H @ data).ravel()
    damp = 0.3 * np.linalg.norm(serial @ adjoint) / np.linalg.norm(adjoint)
    expected, *_ = cgls(serial, data, x0=np.zeros(serial.shape[1]), niter=5, damp=damp, tol=0)
    np.testing.assert_allclose(found.image.ravel(), expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_the_number_of_iterations_is_that_which_predicts_the_held_out_shots_best(comm):
    import pylops
    from pylops.optimization.basic import cgls

    problem = small_problem(comm, towed=True)
    job, operator, traces = modelled(comm, problem)
    noisy = []
    for shot, clean in zip(problem.survey.shots, traces, strict=True):
        noise = np.random.default_rng([1, shot]).normal(size=clean.shape)
        noisy.append(clean + 2 * np.abs(clean).max() * noise)
    held = [np.full(len(noisy[place]), shot % 2 == 1) for place, shot in enumerate(problem.survey.shots)]
    found = invert(job, operator, noisy, held)
    data, rows = gather_traces(comm, noisy), gather_traces(comm, [np.repeat(each, 90) for each in held]) == 1
    serial, expected = pylops_operator(problem), [1.0]

    def compare(x):
        expected.append(np.linalg.norm((data - serial @ x)[rows]) / np.linalg.norm(data[rows]))

    assert found.shares is not None
    used = pylops.Diagonal((~rows).astype(float)) @ serial
    niter = len(found.shares) - 1
    cgls(used, data * ~rows, x0=np.zeros(serial.shape[1]), niter=niter, tol=0, callback=compare)
    np.testing.assert_allclose(found.shares, expected, rtol=1e-6)
    assert len(found.solution.residuals) - 1 == max(1, int(np.argmin(expected)))
    assert len(expected) < 20  # it stops soon after the smallest one


def test_late_recording_is_an_earlier_arrival(comm):
    # The wavelets agree away from the first samples, into which the cut record of PyLops lets earlier arrivals ring.
    problem = small_problem(comm, towed=False, start=0.04)
    traces = gather_traces(comm, modelled(comm, problem)[-1]).reshape(-1, 90)
    expected = (pylops_operator(problem) @ problem.truth.ravel()).reshape(-1, 90)
    half = ricker(25.0, 0.004)[1]
    np.testing.assert_allclose(
        traces[:, 2 * half :], expected[:, 2 * half :], rtol=0, atol=1e-8 * np.abs(expected).max()
    )


@pytest.mark.parametrize("towed", [False, True])
def test_the_operator_passes_the_dot_test(comm, towed):
    operator = kirchhoff(job_of(Options(dtype="float64"), comm), small_problem(comm, towed=towed))
    assert operator.dottest()
    assert operator.domain.shape == (25, 17)


def test_an_iteration_sends_one_image_and_at_most_two_scalars(comm):
    problem = small_problem(comm, towed=True)
    counts = []
    for iterations in (1, 2):
        job, operator, traces = modelled(comm, problem, iterations=iterations)
        with profile.count_messages() as messages:
            invert(job, operator, traces)
        counts.append(messages.total)
    sent = counts[1] - counts[0]
    assert sent in ((0,) if comm.size == 1 else (2, 3))
    job, operator, traces = modelled(comm, problem, iterations=4, profile=True)
    assert invert(job, operator, traces).solution.messages == sent


def test_a_profile_divides_the_time_of_an_iteration(comm):
    problem = small_problem(comm, towed=False)
    job, operator, traces = modelled(comm, problem, dtype="float32", iterations=5, profile=True)
    begin = time.perf_counter()
    found = invert(job, operator, traces)
    elapsed = time.perf_counter() - begin
    seconds = found.solution.seconds
    assert list(seconds) == ["modelling", "communication", "rest"]
    assert all(each.shape == (comm.size,) and (each >= 0).all() for each in seconds.values())
    assert (seconds["rest"] > 0).all()
    assert (seconds["modelling"] > 0).sum() == min(comm.size, SHOTS)
    assert (seconds["communication"] > 0).all() == (comm.size > 1)
    assert 5 * sum(each[comm.rank] for each in seconds.values()) < elapsed
    assert found.image.dtype == np.float32


def test_without_a_profile_nothing_is_recorded(comm):
    job, operator, traces = modelled(comm, small_problem(comm, towed=False), iterations=3)
    found = invert(job, operator, traces)
    assert found.solution.messages is None
    assert list(found.solution.seconds) == ["iteration"]
    assert found.solution.seconds["iteration"].shape == (comm.size,)
    assert not profile.enabled()
