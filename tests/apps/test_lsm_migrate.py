"""The migration against PyLops' serial operator and solver, on any number of ranks and both kinds of spread."""

from __future__ import annotations

import numpy as np
import pytest

from collops.apps.lsm.grid import Grid
from collops.apps.lsm.migrate import kirchhoff, least_squares, model_traces
from collops.apps.lsm.problem import Problem
from collops.apps.lsm.survey import Geometry, shots_of
from collops.apps.lsm.synthetic import reflectivity
from collops.apps.lsm.traveltimes import travel_time
from collops.apps.lsm.velocity import Gradient, on_grid
from collops.apps.wavelet import ricker
from collops.backend import engine

# PyLops announces that its operator has changed inside.
pytestmark = pytest.mark.filterwarnings("ignore:A new implementation of Kirchhoff:FutureWarning")

SHOTS = 5


def small_problem(comm, *, towed: bool, start: float = 0.0) -> Problem:
    grid = Grid(25, 17, 12.5, 10.0, 100.0)
    velocity = on_grid(Gradient(1500, 0.6), grid, None, [])
    sources = np.stack([np.linspace(103, 350, SHOTS), np.full(SHOTS, 3.0)])
    spread = np.stack([np.linspace(110, 300, 7), np.zeros(7)])
    groups = [spread] * SHOTS
    if towed:
        groups = [spread[:, : 4 + shot % 3] + np.array([[10.0 * shot], [0.0]]) for shot in range(SHOTS)]
    geometry = Geometry(sources, groups, 90, 0.004, start)
    truth = reflectivity(grid, velocity, 25.0)
    return Problem(geometry, shots_of(comm.rank, SHOTS, comm.size), grid, velocity, None, "eikonal", 25.0, truth)


def pylops_operator(problem: Problem):
    """The whole survey as one serial operator of PyLops, shot by shot; late recording by cutting whole samples."""
    import pylops

    geometry, grid = problem.geometry, problem.grid
    late = round(geometry.start / geometry.interval)
    times = geometry.interval * np.arange(geometry.samples + late)
    wavelet, centre = ricker(problem.frequency, geometry.interval)

    def table(positions):
        return np.stack([travel_time(p, problem.velocity, grid).ravel() for p in positions.T], axis=1)

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


def gather_traces(comm, traces):
    flat = np.concatenate([np.empty(0), *(shot.ravel() for shot in traces)])
    return comm.allgatherv(flat)


@pytest.mark.parametrize("towed", [False, True])
def test_it_is_the_migration_of_pylops(comm, towed):
    from pylops.optimization.basic import cgls

    problem = small_problem(comm, towed=towed)
    host = engine("numpy")
    operator = kirchhoff(problem, comm, host, "float64")
    traces = model_traces(operator, problem, comm, host, "float64")
    assert [t.shape for t in traces] == [(problem.geometry.receivers[s].shape[1], 90) for s in problem.shots]
    serial = pylops_operator(problem)
    data = serial @ problem.truth.ravel()
    np.testing.assert_allclose(gather_traces(comm, traces), data, rtol=0, atol=1e-8 * np.abs(data).max())

    found = least_squares(operator, traces, comm, host, dtype="float64", iterations=8, damp=0.0, progress=False)
    expected, *_, cost = cgls(serial, data, x0=np.zeros(serial.shape[1]), niter=8, tol=0)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found.image.ravel(), expected, rtol=0, atol=1e-6 * scale)
    np.testing.assert_allclose(found.residuals, cost, rtol=1e-6)
    adjoint = (serial.H @ data).ravel()
    np.testing.assert_allclose(found.adjoint.ravel(), adjoint, rtol=0, atol=1e-8 * np.abs(adjoint).max())
    first, *_ = cgls(serial, data, x0=np.zeros(serial.shape[1]), niter=1, tol=0)
    np.testing.assert_allclose(found.scaled_adjoint.ravel(), first, rtol=0, atol=1e-6 * np.abs(first).max())


def test_damping_is_relative_to_the_norm(comm):
    from pylops.optimization.basic import cgls

    problem = small_problem(comm, towed=False)
    host = engine("numpy")
    operator = kirchhoff(problem, comm, host, "float64")
    traces = model_traces(operator, problem, comm, host, "float64")
    found = least_squares(operator, traces, comm, host, dtype="float64", iterations=5, damp=0.3, progress=False)
    serial = pylops_operator(problem)
    data = serial @ problem.truth.ravel()
    adjoint = (serial.H @ data).ravel()
    damp = 0.3 * np.linalg.norm(serial @ adjoint) / np.linalg.norm(adjoint)
    expected, *_ = cgls(serial, data, x0=np.zeros(serial.shape[1]), niter=5, damp=damp, tol=0)
    np.testing.assert_allclose(found.image.ravel(), expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_late_recording_is_an_earlier_arrival(comm):
    # The wavelets agree away from the first samples, into which the cut record of PyLops lets earlier arrivals ring.
    problem = small_problem(comm, towed=False, start=0.04)
    host = engine("numpy")
    operator = kirchhoff(problem, comm, host, "float64")
    traces = gather_traces(comm, model_traces(operator, problem, comm, host, "float64")).reshape(-1, 90)
    expected = (pylops_operator(problem) @ problem.truth.ravel()).reshape(-1, 90)
    half = ricker(25.0, 0.004)[1]
    np.testing.assert_allclose(
        traces[:, 2 * half :], expected[:, 2 * half :], rtol=0, atol=1e-8 * np.abs(expected).max()
    )


@pytest.mark.parametrize("towed", [False, True])
def test_the_operator_passes_the_dot_test(comm, towed):
    operator = kirchhoff(small_problem(comm, towed=towed), comm, engine("numpy"), "float64")
    assert operator.dottest()
    assert operator.domain.shape == (25, 17)


def test_an_iteration_sends_one_image_and_at_most_two_scalars(comm):
    problem = small_problem(comm, towed=True)
    host = engine("numpy")
    operator = kirchhoff(problem, comm, host, "float64")
    traces = model_traces(operator, problem, comm, host, "float64")
    found = least_squares(operator, traces, comm, host, dtype="float64", iterations=3, damp=0.0, progress=False)
    if comm.size == 1:
        assert found.costs.messages_per_iteration == 0
    else:
        assert 2 <= found.costs.messages_per_iteration <= 3


def test_the_split_adds_up(comm):
    problem = small_problem(comm, towed=False)
    host = engine("numpy")
    operator = kirchhoff(problem, comm, host, "float32")
    traces = model_traces(operator, problem, comm, host, "float32")
    found = least_squares(operator, traces, comm, host, dtype="float32", iterations=5, damp=0.0, progress=False)
    assert found.costs.split.kinds == ("modelling", "communication", "rest")
    assert found.costs.split.seconds.shape == (comm.size, 3)
    assert (found.costs.split.seconds >= 0).all()
    assert (found.costs.split.seconds.sum(axis=1) >= 0.999 * found.costs.seconds_per_iteration).all()
    assert found.image.dtype == np.float32
