"""Post-stack inversion: against PyLops' serial solver, and as a whole job on any number of ranks."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from collops import profile
from collops.apps.recipe import Job, run_job
from collops.apps.stages import local_stage
from collops.errors import InputError
from collops.seismic.poststack import Options, invert, regularised, run
from collops.seismic.signals import ricker
from collops.seismic.volume.files import Axis, Cube
from collops.seismic.volume.modelling import convolution, reflection, trace_operator
from collops.seismic.volume.problem import Problem, Volume
from collops.solvers import cgls
from tests.apps.jobs import Listener, group_of, job_numbers, job_of, needs_real_data
from tests.seismic.files import REAL, stacked_volume

SMALL: dict[str, Any] = {
    "inlines": 5,
    "crosslines": 4,
    "samples": 60,
    "iterations": 8,
    "dtype": "float64",
    "engine": "numpy",
}


def inverted(comm, folder, name: str, **changes: Any) -> dict[str, Any]:
    return job_numbers(run, Options(**(SMALL | {"out": str(folder / name)} | changes)), comm)


def array_of(folder, name: str, array: str = "impedance") -> np.ndarray:
    return group_of(folder, name)[array][...]


def small_problem(job: Job, shape: tuple[int, ...]) -> tuple[Problem, np.ndarray, Any]:
    """Return a problem, its data on all ranks, and the matrix that models a trace."""
    lateral = tuple(Axis(name, np.arange(n)) for name, n in zip(("inline", "crossline"), shape[:-1], strict=False))
    cube = Cube(lateral, shape[-1], 0.004)
    rows = job.share(shape[0])
    live = np.ones(shape[:-1], bool)
    live[-1] = False
    wavelet = ricker(60, 0.004)[0]
    matrix = convolution(wavelet, shape[-1]) @ reflection(shape[-1])
    data = np.random.default_rng(5).normal(size=shape).astype(job.options.dtype) * live[..., None]
    operator = trace_operator(job, matrix, live[rows])
    return Problem(job, Volume(cube, data[rows], live[rows], wavelet), operator), data, matrix


@pytest.mark.parametrize("shape", [(5, 4, 30), (7, 30), (2, 5, 30)])
@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_it_is_the_inversion_of_pylops(comm, shape, weight):
    import pylops
    from pylops.optimization.basic import cgls

    job = job_of(Options(dtype="float64", iterations=6, weight=weight, damp=0.1), comm)
    problem, data, matrix = small_problem(job, shape)
    found = invert(job, problem, problem.volume.traces)
    live = np.ones(shape[:-1])
    live[-1] = 0
    modelling = np.kron(np.diag(live.ravel()), matrix.toarray())
    gradient = modelling.T @ data.ravel()
    norm = np.linalg.norm(modelling @ gradient) / np.linalg.norm(gradient)
    axes = [axis for axis, extent in enumerate(shape[:-1]) if extent > 2]
    laplacian = sum(pylops.SecondDerivative(shape, axis=axis, dtype="float64").todense() for axis in axes)
    stacked = np.vstack([modelling, weight * norm * laplacian])
    right = np.concatenate([data.ravel(), np.zeros(data.size)])
    expected, *_, cost = cgls(
        pylops.MatrixMult(stacked), right, x0=np.zeros(data.size), niter=6, damp=0.1 * norm, tol=0
    )
    update = comm.allgatherv(np.ascontiguousarray(found.model)).ravel()
    np.testing.assert_allclose(update, expected, rtol=0, atol=1e-8 * np.abs(expected).max())
    np.testing.assert_allclose(found.solution.residuals, cost, rtol=1e-8)
    misfit = np.linalg.norm(data.ravel() - modelling @ expected) / np.linalg.norm(data)
    assert found.misfit == pytest.approx(misfit, rel=1e-8)
    adjoint = comm.allgatherv(np.ascontiguousarray(found.adjoint)).ravel()
    np.testing.assert_allclose(adjoint, gradient, atol=1e-10 * np.abs(gradient).max())


def test_an_iteration_sends_two_halos_and_two_scalars(comm):
    problem, *_ = small_problem(job_of(Options(), comm), (7, 4, 30))
    data = problem.vector(problem.volume.traces)
    stack, stacked = regularised(problem, problem.operator, data, 0.3)
    counts = []
    for iterations in (1, 2):
        with profile.count_messages() as messages:
            cgls(stack, stacked, niter=iterations, damp=0.1, tol=0, progress=False)
        counts.append(messages.counts())
    sent = {name: count - counts[0][name] for name, count in counts[1].items() if count != counts[0][name]}
    assert sent == ({} if comm.size == 1 else {"exchange": 2, "allreduce": 2})


def test_the_group_agrees_with_the_numbers(comm, folder, with_pictures):
    numbers = inverted(comm, folder, "out", profile=True)
    assert sorted(os.listdir(folder / "out")) == ["convergence.png", "image.png", "map.png", "result.zarr"]
    group = group_of(folder, "out")
    impedance, truth, background = (group[name][...] for name in ("impedance", "truth", "background"))
    assert impedance.shape == (5, 4, 60) and impedance.dtype == np.float64
    # The error counts what the background does not know already.
    error = np.linalg.norm(np.log(impedance / truth)) / np.linalg.norm(np.log(background / truth))
    assert numbers["relative_error"] == pytest.approx(error)
    norms = group["residual_norms"][...]
    assert numbers["residual_reduction"] == pytest.approx(norms[-1] / norms[0])
    assert len(norms) == 9 and (np.diff(norms) < 0).all()
    matrix = convolution(group["wavelet"][...], 60) @ reflection(60)
    residual = group["data"][...] - np.log(impedance) @ matrix.T.toarray()
    np.testing.assert_allclose(group["residual"][...], residual, atol=1e-12)
    unexplained = group["data"][...] - np.log(background) @ matrix.T.toarray()
    assert numbers["misfit"] == pytest.approx(np.linalg.norm(residual) / np.linalg.norm(unexplained))
    assert group["impedance"].metadata.dimension_names == ("inline", "crossline", "time")
    assert group["time"][...].tolist() == (0.004 * np.arange(60)).tolist()
    assert numbers["ranks"] == comm.size and numbers["shape"] == [5, 4, 60]
    assert numbers["messages_per_iteration"] == (0 if comm.size == 1 else 4)


def test_smoothing_from_trace_to_trace_finds_more_than_each_trace_alone(comm, folder):
    sizes = {"inlines": 20, "crosslines": 16, "samples": 120, "iterations": 40, "noise": 0.2, "dtype": "float32"}
    alone = inverted(comm, folder, "alone", weight=0.0, **sizes)
    together = inverted(comm, folder, "together", **sizes)
    assert together["relative_error"] < 0.85 * alone["relative_error"]
    assert together["relative_error"] < 0.8 * together["adjoint_relative_error"]


@pytest.mark.serial
@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_the_default_regularisation_is_as_good_as_the_best_by_hand(comm, folder, noise):
    sizes = {"inlines": 16, "crosslines": 12, "samples": 120, "iterations": 40, "noise": noise, "dtype": "float32"}
    chosen = inverted(comm, folder, "out", **sizes)
    grid = [(0.02, 0.01), (0.05, 0.01), (0.2, 0.01), (0.2, 0.1), (0.5, 0.1)]
    by_hand = [inverted(comm, folder, "out", **sizes, weight=one, damp=other) for one, other in grid]
    assert chosen["relative_error"] <= 1.1 * min(each["relative_error"] for each in by_hand)
    assert chosen["misfit"] == pytest.approx(noise / np.sqrt(1 + noise**2), rel=0.15)


def test_the_data_do_not_depend_on_the_number_of_ranks(comm, folder):
    inverted(comm, folder, "out", noise=0.5)
    inverted(comm, folder, "clean", noise=0.0)
    clean, noisy = (array_of(folder, name, "data") for name in ("clean", "out"))
    expected = np.array([np.random.default_rng([0, row]).standard_normal((4, 60)) for row in range(5)])
    deviation = 0.5 * np.sqrt(np.mean(clean**2))
    np.testing.assert_allclose(noisy - clean, deviation * expected, atol=1e-10)


@pytest.mark.parametrize("suffix", [".npy", ".zarr", ".sgy"])
def test_data_that_were_written_give_the_same_impedance_when_they_are_read(comm, folder, suffix):
    inverted(comm, folder, "made", dtype="float32", wavelet="ricker:60")
    made = group_of(folder, "made")
    volume, background = folder / f"volume{suffix}", folder / f"background{suffix}"
    with local_stage(comm):
        if comm.rank == 0:
            np.save(folder / "wavelet.npy", made["wavelet"][...])
            for path, name in ((volume, "data"), (background, "background")):
                if suffix == ".npy":
                    np.save(path, made[name][...])
                elif suffix == ".sgy":
                    stacked_volume(path, made[name][...])
    plain = {"inlines": None, "crosslines": None, "samples": None, "dtype": "float32"}
    files = {"volume": str(volume), "background": str(background)}
    if suffix == ".zarr":
        # The result of a run can be inverted again as it is.
        files = dict.fromkeys(files, str(folder / "made" / "result.zarr"))
    interval = {"interval": 4.0} if suffix == ".npy" else {}
    numbers = inverted(comm, folder, "read", **plain, **files, **interval, wavelet=str(folder / "wavelet.npy"))
    assert numbers["relative_error"] is None
    expected = array_of(folder, "made")
    np.testing.assert_allclose(array_of(folder, "read"), expected, rtol=2e-4)


def test_without_a_background_impedances_are_relative(comm, folder):
    path = folder / "a.sgy"
    with local_stage(comm):
        if comm.rank == 0:
            stacked_volume(path, np.random.default_rng(0).normal(size=(3, 4, 60)))
    plain = {"inlines": None, "crosslines": None, "samples": None, "volume": str(path)}
    numbers = inverted(comm, folder, "one", **plain)
    assert any("relative" in note for note in numbers["notes"])
    inverted(comm, folder, "seven", **plain, background="7")
    np.testing.assert_allclose(array_of(folder, "seven"), 7 * array_of(folder, "one"))
    # Coefficients that are assumed to be half as strong change the impedance half as much.
    inverted(comm, folder, "weak", **plain, strength=0.025)
    np.testing.assert_allclose(2 * np.log(array_of(folder, "weak")), np.log(array_of(folder, "one")), atol=1e-9)


def test_a_section_of_one_trace_has_nothing_to_be_smooth_along(comm, folder, with_pictures):
    numbers = inverted(comm, folder, "out", inlines=1, crosslines=1)
    assert len(numbers["warnings"]) == (comm.size > 1)
    assert numbers["residual_reduction"] < 1
    assert array_of(folder, "out").shape == (1, 60)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (np.ones((5, 4, 59)), "shape"),
        (np.zeros((5, 4, 60)), "must be positive"),
        (np.full((5, 4, 60), np.nan), "nan at inline 1"),
    ],
)
def test_an_unusable_background_raises(comm, folder, values, complaint):
    with local_stage(comm):
        if comm.rank == 0:
            np.save(folder / "b.npy", values)
    with pytest.raises(InputError, match=complaint) as caught:
        run_job(run, Options(**SMALL, background=str(folder / "b.npy"), out=str(folder / "out")), comm, Listener())
    assert comm.size == 1 or caught.value.on_all_ranks
    assert os.listdir(folder / "out") == []


def test_an_impedance_that_overflows_is_an_error(comm, folder):
    with local_stage(comm):
        if comm.rank == 0:
            np.save(folder / "w.npy", 1e-6 * ricker(60, 0.004)[0])
            np.save(folder / "a.npy", np.random.default_rng(0).normal(size=(3, 4, 60)))
    options = SMALL | {"inlines": None, "crosslines": None, "samples": None, "volume": str(folder / "a.npy")}
    with pytest.raises(InputError, match="overflows"):
        run_job(
            run,
            Options(**options, interval=4.0, wavelet=str(folder / "w.npy"), out=str(folder / "out")),
            comm,
            Listener(),
        )


@needs_real_data
def test_the_real_section(comm, folder):
    plain = {"inlines": None, "crosslines": None, "samples": None, "dtype": "float32", "iterations": 60}
    numbers = inverted(comm, folder, "out", **plain, volume=str(REAL / "volve_stack_twt.sgy"))
    assert numbers["relative_error"] is None and numbers["traces"] == 225
    impedance, data = array_of(folder, "out"), group_of(folder, "out")["data"][...]
    assert numbers["misfit"] < 1.05 * numbers["noise_estimate"] / np.linalg.norm(data) < 0.03
    assert np.abs(np.diff(np.log(impedance))).max() / 2 < 0.3
    assert 0.1 < np.percentile(impedance, 1) < 1 < np.percentile(impedance, 99) < 10
