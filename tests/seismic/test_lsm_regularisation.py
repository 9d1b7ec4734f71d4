"""Penalties and preconditioners of the migration: against serial solutions, and against the truth."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collops.apps.recipe import Gradient as AdjointImage
from collops.array import Layout, from_global
from collops.errors import InputError
from collops.operators import Identity
from collops.seismic.conditioning import Conditioned
from collops.seismic.kirchhoff.fixed_point import FixedTables
from collops.seismic.kirchhoff.illumination import normal_diagonal
from collops.seismic.lsm import Options, inversion
from collops.seismic.lsm.inversion import Migration, invert
from collops.seismic.lsm.migrate import illumination, kirchhoff, model_traces
from collops.seismic.lsm.problem import Problem
from collops.seismic.lsm.regularisation import Penalty, inverse_root, local_inverse_root, probed_diagonal
from collops.seismic.lsm.resident import ResidentSurvey
from collops.seismic.lsm.synthetic import reflectivity
from collops.seismic.signals import ricker_shape, with_noise
from collops.seismic.survey import Geometry, Grid, Survey
from collops.seismic.survey.geometry import shots_of
from collops.seismic.survey.velocity import Gradient, on_grid
from tests.apps.jobs import job_of
from tests.seismic.test_lsm_migrate import modelled, pylops_operator, small_problem

# PyLops announces that its operator has changed inside.
pytestmark = pytest.mark.filterwarnings("ignore:A new implementation of Kirchhoff:FutureWarning")


def error_of(image: np.ndarray, truth: np.ndarray) -> float:
    return float(np.linalg.norm(image - truth) / np.linalg.norm(truth))


def test_the_laplacian_is_that_of_pylops(comm):
    import pylops
    from pylops.optimization.basic import cgls

    problem = small_problem(comm, towed=True)
    job, operator, traces = modelled(comm, problem, iterations=4, regularise="laplacian", weight=0.2, damp=0.1)
    found = invert(job, operator, traces)
    serial = pylops_operator(problem)
    data = serial @ problem.truth.ravel()
    adjoint = serial.H @ data
    norm = np.linalg.norm(serial @ adjoint) / np.linalg.norm(adjoint)
    rough = pylops.Laplacian(problem.grid.shape, edge=False)
    stack, stacked = pylops.VStack([serial, 0.2 * norm * rough]), np.concatenate([data, np.zeros(adjoint.size)])
    expected, *_, cost = cgls(stack, stacked, x0=np.zeros(adjoint.size), niter=4, damp=0.1 * norm, tol=0)
    np.testing.assert_allclose(found.image.ravel(), expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    np.testing.assert_allclose(found.solution.residuals, cost, rtol=1e-6)


def test_the_laplacian_in_3d_takes_all_axes(comm):
    import pylops

    shape = (4, 5, 6)
    operator: Any = SimpleNamespace(domain=Layout.replicated(shape, comm.size), comm=comm, dtype=np.dtype("float64"))
    image = np.random.default_rng(1).normal(size=shape)
    rough = Penalty("laplacian", None, operator, None)._roughness  # type: ignore[arg-type]
    found = (rough @ from_global(image, operator.domain, comm=comm)).gather()
    serial = pylops.Laplacian(shape, axes=(0, 1, 2), weights=(1, 1, 1), sampling=(1, 1, 1))
    np.testing.assert_allclose(found.ravel(), serial @ image.ravel(), atol=1e-12)
    with pytest.raises(InputError, match="--regularise dip needs a 2-D image"):
        Penalty("dip", None, operator, None)._roughness  # type: ignore[arg-type]  # noqa: B018


@pytest.mark.parametrize("axis", [0, 2])
def test_total_variation_in_3d_takes_all_axes(comm, axis):
    """A step along one axis: the values of its sides approach each other by the penalty over their lengths."""
    image, shape = np.where(np.arange(5) < 2, 1.0, 3.0), [3, 4, 3]
    shape[axis] = 5
    data = np.broadcast_to(np.expand_dims(image, [a for a in range(3) if a != axis]), shape)
    operator = Identity(tuple(shape), comm=comm)
    y = from_global(np.ascontiguousarray(data), operator.range, comm=comm)
    penalty = Penalty("tv", None, operator, AdjointImage.from_data(operator, y))  # type: ignore[arg-type]
    found = penalty.method(0.1, 0.0, None)(operator, y, niter=30)
    expected = np.where(data == 1, 1 + 0.3 / 2, 3 - 0.3 / 3)
    np.testing.assert_allclose(found.x.gather(), expected, atol=1e-4)


def differences(image: np.ndarray) -> np.ndarray:
    return np.stack([np.diff(image, axis=axis, append=image.take([-1], axis)) for axis in (0, 1)])


@pytest.mark.serial
def test_total_variation_and_sparsity_reach_the_smallest_objective(comm):
    """The smallest objective is bounded from below by the dual problem, at the residual of the solution, scaled."""
    problem = small_problem(comm, towed=False)
    for kind, iterations in (("tv", 40), ("l1", 80)):
        job, operator, traces = modelled(comm, problem, iterations=iterations, regularise=kind, weight=0.1)
        found = invert(job, operator, traces)
        serial = pylops_operator(problem)
        data = serial @ problem.truth.ravel()
        limit = 0.1 * np.abs(serial.H @ data).max()
        residual = data - serial @ found.image.ravel()
        penalty = (
            np.sqrt((differences(found.image) ** 2).sum(axis=0)).sum() if kind == "tv" else np.abs(found.image).sum()
        )
        objective = 0.5 * residual @ residual + limit * penalty
        expected = np.sqrt(2 * objective) if kind == "tv" else np.linalg.norm(residual)
        assert found.solution.residuals[-1] == pytest.approx(expected, rel=1e-4)
        assert found.solution.residuals[0] == pytest.approx(np.linalg.norm(data))
        gradient = (serial.H @ residual).reshape(problem.grid.shape)
        if kind == "l1":  # max over dual points r with |A^T r| <= limit of r.d - |r|^2 / 2
            dual = residual * min(1, limit / np.abs(gradient).max())
            assert objective - (dual @ data - 0.5 * dual @ dual) < 0.01 * objective
        else:  # at the minimum r A m equals the penalty, and no direction decreases the objective
            assert residual @ (data - residual) == pytest.approx(limit * penalty, rel=0.02)
            rng = np.random.default_rng(0)
            for direction in (found.image, problem.truth, rng.normal(size=found.image.shape)):
                for step in (-1e-2, 1e-2):
                    moved = found.image + step * np.linalg.norm(found.image) / np.linalg.norm(direction) * direction
                    rest = data - serial @ moved.ravel()
                    other = 0.5 * rest @ rest + limit * np.sqrt((differences(moved) ** 2).sum(axis=0)).sum()
                    assert other > objective * (1 - 1e-4)


def test_the_penalty_of_dips_is_small_for_dipping_layers_only(comm):
    problem = small_problem(comm, towed=False)
    job, operator, _ = modelled(comm, problem)
    x, z = np.indices(problem.grid.shape)
    for slope in (-0.3, 0.0, 0.4):
        layers = np.sin(2 * np.pi * (z - slope * x) / 8)
        image = job.array(operator.domain, layers)
        along = Penalty("dip", job, operator, AdjointImage(image, 1.0, 1.0))._roughness
        inside = job.on_host(along.forward(image))[4:-4, 4:-4]
        assert np.abs(inside).max() < 0.05
        crossing = job.array(operator.domain, np.sin(2 * np.pi * (z - (slope + 0.5) * x) / 8))
        assert np.abs(job.on_host(along.forward(crossing))[4:-4, 4:-4]).max() > 0.3
        assert along.dottest()


def noisy_problem(
    comm, noise: float, truth: np.ndarray | None = None, wavelet: np.ndarray | None = None, **options: Any
):
    """Return a job, the operator and noisy traces of a survey on 41 x 31 points."""
    grid = Grid(41, 31, 12.5, 12.5)
    velocity = on_grid(Gradient(1500, 0.6), grid, None, [])
    sources = np.stack([np.linspace(0, 500, 8), np.zeros(8)])
    stations = np.stack([np.linspace(0, 500, 21), np.zeros(21)])
    geometry = Geometry(sources, [stations] * 8, 150, 0.004)
    truth = reflectivity(grid, velocity, 20.0) if truth is None else truth
    problem = Problem(Survey(geometry, comm), grid, velocity, None, "analytic", 20.0, truth)
    problem = dataclasses.replace(problem, custom_wavelet=wavelet)
    job, operator, traces = modelled(comm, problem, **options)
    return job, operator, with_noise(traces, problem.survey.shots, noise, 0, comm)[0], truth


def smallest_error(comm, noise: float, options: dict[str, Any], weights, name: str, **problem: Any) -> float:
    errors = []
    for weight in weights:
        job, operator, traces, truth = noisy_problem(comm, noise, **problem, **options, **{name: weight})
        errors.append(error_of(invert(job, operator, traces).image, truth))
    return min(errors)


@pytest.mark.serial
def test_layers_are_found_better_along_their_dips_than_by_damping(comm):
    x, z = np.indices((41, 31))
    layers = [
        height * ricker_shape((z - depth - 0.3 * (x - 20)) / 8) for depth, height in ((8, 1.0), (14, -0.8), (22, 0.9))
    ]
    survey = {"truth": np.sum(layers, axis=0) * np.clip(np.minimum(x, 40 - x) / 4, 0, 1)}
    damped = smallest_error(comm, 2.0, {"iterations": 15}, (0.15, 0.2), "damp", **survey)
    along = {"iterations": 15, "regularise": "dip", "damp": 0.1}
    assert smallest_error(comm, 2.0, along, (0.4,), "weight", **survey) < 0.92 * damped


@pytest.mark.serial
def test_blocks_are_found_better_by_total_variation_than_by_damping(comm):
    blocks = np.zeros((41, 31))
    blocks[8:20, 6:18], blocks[24:36, 14:26] = 1.0, -0.7
    survey = {"truth": blocks, "wavelet": np.ones(1)}
    damped = smallest_error(comm, 0.5, {"iterations": 12}, (0.1, 0.2), "damp", **survey)
    varying = smallest_error(comm, 0.5, {"iterations": 8, "regularise": "tv"}, (0.03,), "weight", **survey)
    assert varying < 0.7 * damped


def chosen(ranks, kind: str | None, **options: Any) -> Migration:
    """Migrate noisy traces, with every other shot held out for the choice of what `options` do not name."""
    job, operator, traces, _ = noisy_problem(ranks, 1.0, regularise=kind, **options)
    held = [np.full(21, shot % 2 == 1) for shot in shots_of(ranks.rank, 8, ranks.size)]
    return invert(job, operator, traces, None if "iterations" in options else held)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(None, {}), ("dip", {}), ("tv", {"weight": 0.1, "iterations": 2}), ("l1", {"weight": 0.1, "iterations": 3})],
)
@pytest.mark.needs_ranks(2)
def test_image_and_choice_are_those_of_one_rank(comm, kind, options, monkeypatch):
    monkeypatch.setattr(inversion, "TRIED", (0.1, 0.03))
    found, own = chosen(comm, kind, **options), comm.subgroup(tuple(range(comm.size)))
    # One of them alone, while the others leave it their cores.
    alone = chosen(own, kind, **options) if comm.rank == 0 else None
    choice = None if alone is None else [alone.weight, len(alone.solution.residuals)]
    image = comm.bcast(np.zeros_like(found.image) if alone is None else np.ascontiguousarray(alone.image))
    assert [found.weight, len(found.solution.residuals)] == comm.allgather_metadata(choice)[0]
    np.testing.assert_allclose(found.image, image, rtol=0, atol=1e-5 * np.abs(image).max())


@pytest.mark.serial
def test_the_weight_predicts_the_held_out_shots_best(comm, monkeypatch):
    monkeypatch.setattr(inversion, "TRIED", (1.0, 0.1, 0.003))
    found = chosen(comm, "dip")
    shares = {weight: chosen(comm, "dip", weight=weight).shares for weight in (1.0, 0.1)}
    assert found.weight == 0.1 and found.shares.min() == shares[0.1].min() < shares[1.0].min()
    assert len(found.solution.residuals) - 1 == shares[0.1].argmin()


@pytest.mark.serial
@pytest.mark.parametrize(("iterations", "weight"), [(2, 0.03), (None, 0.1)])
def test_the_image_after_the_last_iteration_counts_where_their_number_is_given(comm, monkeypatch, iterations, weight):
    monkeypatch.setattr(inversion, "TRIED", (0.1, 0.03))
    shares = iter([np.array([1.0, 0.2, 0.9]), np.array([1.0, 0.5, 0.6])])
    monkeypatch.setattr("collops.extend.solvers.cross_validate", lambda *_, **__: next(shares))
    problem = small_problem(comm, towed=False)
    job, operator, traces = modelled(comm, problem, iterations=iterations, regularise="laplacian")
    found = invert(job, operator, traces, [np.zeros(len(each), bool) for each in traces])
    assert (found.weight, len(found.solution.residuals) - 1) == (weight, iterations or 1)


def test_the_illumination_is_the_diagonal_of_the_normal_operator(comm):
    rng = np.random.default_rng(2)
    problem = small_problem(comm, towed=True, start=0.02)
    tables: list[FixedTables] = []
    job = job_of(Options(dtype="float64", precondition="illumination"), comm)
    operator = kirchhoff(job, problem, tables)
    weights = [
        np.random.default_rng(shot).uniform(size=(problem.survey.geometry.receivers[shot].shape[1], 90))
        for shot in problem.survey.shots
    ]
    conditioned = [Conditioned(each, each, np.ones((1, 1)), np.ones(len(each))) for each in weights]
    problem = dataclasses.replace(problem, conditioned=conditioned)
    reduced = ResidentSurvey(job, problem, operator).operator
    M = inverse_root(job, reduced, illumination(problem, operator, tables))
    ones = job.array(operator.domain, np.ones(problem.grid.shape))
    found = job.on_host(M.forward(ones)).ravel() ** -2
    points = [0, *rng.integers(0, found.size, 12), found.size - 1]
    for point in points:
        unit = np.zeros(found.size)
        unit[point] = 1
        square = float(reduced.forward(job.array(operator.domain, unit.reshape(problem.grid.shape))).norm()) ** 2
        assert found[point] == pytest.approx(max(square, 1e-3 * found.max()), rel=1e-9)
    # Without weights, the same as with ones.
    for table, each in zip(tables, weights, strict=True):
        expected = normal_diagonal(table, *problem.wavelet, np.ones_like(each))
        np.testing.assert_allclose(normal_diagonal(table, *problem.wavelet), expected, rtol=1e-12)


def test_points_that_hardly_anything_illuminates_are_not_amplified_further(comm):
    job, diagonal = job_of(Options(dtype="float64"), comm), np.array([[0.0, 1e-6, 3.9e-3], [4.1e-3, 0.25, 4.0]])
    operator = SimpleNamespace(domain=Layout.replicated((2, 3), comm.size))
    ones = job.array(operator.domain, np.ones((2, 3)))
    found = job.on_host(inverse_root(job, operator, diagonal).forward(ones))
    np.testing.assert_allclose(found.ravel() ** -2, [0.004, 0.004, 0.004, 0.0041, 0.25, 4.0])
    nothing = job.on_host(inverse_root(job, operator, 0 * diagonal).forward(ones))
    np.testing.assert_array_equal(nothing, 1)


@pytest.mark.serial
def test_windows_of_local_spectra_are_as_long_along_all_axes(comm, monkeypatch):
    found: list[Any] = []
    monkeypatch.setattr("collops.extend.solvers.local_spectra", lambda normal, windows, **_: found.append(windows))
    grid = Grid(200, 300, 10.0, 5.0, ny=10, dy=25.0)
    for size in (80, 10):  # points along y
        local_inverse_root(job_of(Options(), comm), None, 100.0, dataclasses.replace(grid, ny=size))
    (y, x, z), clipped = found
    assert 25 * y == 10 * x == 5 * z > 100 and clipped == [10, x, z]


@pytest.mark.serial
def test_preconditioners_halve_the_iterations_where_the_illumination_is_uneven(comm):
    """Points at the reach of a short record are illuminated by few traces only."""
    grid = Grid(61, 41, 12.5, 12.5)
    velocity = on_grid(Gradient(1500, 0.6), grid, None, [])
    sources, stations = (np.stack([np.linspace(0, 750, count), np.zeros(count)]) for count in (8, 21))
    geometry = Geometry(sources, [stations] * 8, 120, 0.004)
    truth = reflectivity(grid, velocity, 20.0)
    problem = Problem(Survey(geometry, comm), grid, velocity, None, "analytic", 20.0, truth)
    errors = {}
    for name, iterations in ((None, 30), ("illumination", 15), ("diagonal", 15)):
        job = job_of(Options(iterations=iterations, precondition=name), comm)
        tables: list[Any] = []
        operator = kirchhoff(job, problem, tables)
        traces, _ = with_noise(model_traces(job, problem, operator), problem.survey.shots, 0.1, 0, comm)
        conditioned = [Conditioned(shot, np.ones((1, 1)), np.ones((1, 1)), np.ones(21)) for shot in traces]
        M = None
        if name is not None:
            exact = name == "illumination"
            diagonal = (
                illumination(dataclasses.replace(problem, conditioned=conditioned), operator, tables)
                if exact
                else probed_diagonal(job, operator.H @ operator)
            )
            M = inverse_root(job, operator, diagonal)
        errors[name] = error_of(invert(job, operator, traces, preconditioner=M).image, truth)
    assert errors["illumination"] <= errors[None] and errors["diagonal"] <= errors[None]


@pytest.mark.serial
def test_local_spectra_sharpen_in_half_of_the_iterations(comm):
    """The unknowns are of one scale, so that a diagonal could not do it."""
    problem = small_problem(comm, towed=False, mode="analytic")
    errors = {}
    for name, iterations in ((None, 12), ("diagonal", 6), ("spectra", 6)):
        job, operator, traces = modelled(comm, problem, iterations=iterations, precondition=name)
        M = None
        if name == "diagonal":
            M = inverse_root(job, operator, probed_diagonal(job, operator.H @ operator))
        elif name == "spectra":
            wavelength = float(problem.velocity.mean()) / problem.frequency
            M = local_inverse_root(job, operator.H @ operator, wavelength, problem.grid)
        errors[name] = error_of(invert(job, operator, traces, preconditioner=M).image, problem.truth)
    assert errors["spectra"] < errors[None] < errors["diagonal"]
