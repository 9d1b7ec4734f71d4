"""Reflectivity inversion: against PyLops' serial FISTA, and as a whole job on any number of ranks."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from scipy.linalg import svd
from scipy.optimize import brentq

from collops.seismic.reflectivity import Options, invert, match, run
from collops.seismic.signals import ricker
from collops.seismic.volume.files import Axis, Cube
from collops.seismic.volume.modelling import convolution, trace_operator
from collops.seismic.volume.problem import Problem, Volume
from tests.apps.jobs import group_of, job_numbers, job_of, needs_real_data
from tests.seismic.files import REAL, stacked_volume

SMALL: dict[str, Any] = {"inlines": 7, "samples": 120, "iterations": 30, "dtype": "float64", "engine": "numpy"}


def inverted(comm, folder, name: str, **changes: Any) -> dict[str, Any]:
    return job_numbers(run, Options(**(SMALL | {"out": str(folder / name)} | changes)), comm)


def test_it_is_the_fista_of_pylops(comm):
    from pylops import MatrixMult
    from pylops.optimization.sparsity import fista

    cube = Cube((Axis("trace", np.arange(5)),), 50, 0.004)
    rows = cube.layout(comm.size).slices(comm.rank)[0]
    wavelet = ricker(40, 0.004)[0]
    data = np.random.default_rng(2).normal(size=(5, 50))
    live = np.ones(5, bool)
    job = job_of(Options(dtype="float64", iterations=12, sparsity=0.2, profile=True), comm)
    operator = trace_operator(job, convolution(wavelet, 50), live[rows])
    problem = Problem(job, Volume(cube, data[rows], live[rows], wavelet), operator)
    found = invert(job, problem)
    matrix = np.kron(np.eye(5), convolution(wavelet, 50).toarray())
    gradient = matrix.T @ data.ravel()
    largest = np.linalg.norm(convolution(wavelet, 50).toarray(), 2) ** 2
    spectrum = np.abs(np.fft.rfft(wavelet, 8 * len(wavelet))) ** 2
    step = 1 / (1.01 * spectrum.max())
    assert 0.9 < step * largest < 1
    eps = 2 * 0.2 * np.abs(gradient).max()
    expected, *_ = fista(MatrixMult(matrix), data.ravel(), niter=12, eps=eps, alpha=step, tol=0)
    spikes = comm.allgatherv(np.ascontiguousarray(found.model)).ravel()
    np.testing.assert_allclose(spikes, expected, atol=1e-10 * np.abs(expected).max())
    assert 0 < np.count_nonzero(spikes) < 0.7 * spikes.size
    assert found.solution.messages == (0 if comm.size == 1 else 1)
    residual = np.linalg.norm(data.ravel() - matrix @ expected)
    assert found.solution.residuals[-1] == pytest.approx(residual)
    unexplained = comm.allgatherv(np.ascontiguousarray(found.unexplained)).ravel()
    assert np.linalg.norm(unexplained) == pytest.approx(residual)


def test_the_true_spikes_are_found(comm, folder, with_pictures):
    numbers = inverted(comm, folder, "out", iterations=100)
    assert sorted(os.listdir(folder / "out")) == ["convergence.png", "image.png", "result.zarr"]
    group = group_of(folder, "out")
    spikes, truth = group["reflectivity"][...], group["truth"][...]
    assert numbers["relative_error"] == pytest.approx(np.linalg.norm(spikes - truth) / np.linalg.norm(truth))
    assert numbers["relative_error"] < 0.5 * numbers["adjoint_relative_error"]
    assert numbers["spikes_matched"] > 0.8 * numbers["spikes_true"]
    assert numbers["nonzero_fraction"] == pytest.approx(np.count_nonzero(spikes) / spikes.size)
    assert numbers["nonzero_fraction"] < 0.4
    assert group["reflectivity"].metadata.dimension_names == ("trace", "time")
    residual = group["data"][...] - spikes @ convolution(group["wavelet"][...], 120).T.toarray()
    np.testing.assert_allclose(group["residual"][...], residual, atol=1e-12)
    assert numbers["residual_final"] == pytest.approx(np.linalg.norm(residual))


def test_a_volume_is_inverted_as_well(comm, folder):
    numbers = inverted(comm, folder, "out", crosslines=3)
    assert numbers["shape"] == [7, 3, 120]
    assert group_of(folder, "out")["reflectivity"].shape == (7, 3, 120)


def test_more_sparsity_leaves_fewer_spikes_and_all_of_it_none(comm, folder):
    some = inverted(comm, folder, "some", sparsity=0.02)
    fewer = inverted(comm, folder, "fewer", sparsity=0.5)
    none = inverted(comm, folder, "none", sparsity=1.0)
    assert some["nonzero_fraction"] > fewer["nonzero_fraction"] > none["nonzero_fraction"] == 0
    assert none["residual_reduction"] == pytest.approx(1)


@pytest.mark.parametrize("threshold", ["half", "hard"])
def test_other_thresholds(comm, folder, threshold):
    numbers = inverted(comm, folder, "out", threshold=threshold)
    assert numbers["residual_reduction"] < 0.5 and numbers["threshold"] == threshold


@pytest.mark.serial
@pytest.mark.parametrize("noise", [0.05, 0.5])
def test_the_default_sparsity_is_as_good_as_the_best_by_hand(comm, folder, noise):
    sizes = {"inlines": 20, "iterations": 100, "noise": noise}
    chosen = inverted(comm, folder, "out", **sizes)
    by_hand = [inverted(comm, folder, "out", **sizes, sparsity=one) for one in (0.005, 0.02, 0.05)]
    assert chosen["relative_error"] <= 1.1 * min(each["relative_error"] for each in by_hand)
    level, data = noise / np.sqrt(1 + noise**2), group_of(folder, "out")["data"][...]
    assert chosen["noise_estimate"] == pytest.approx(level * np.linalg.norm(data), rel=0.1)
    assert chosen["misfit"] == pytest.approx(level, rel=0.15)


def test_coefficients_of_recorded_data_are_plausible(comm, folder):
    data = np.random.default_rng(1).normal(size=(6, 1, 120))
    data[2, 0, 60] = 200.0  # one reflector, much stronger than all others
    if comm.rank == 0:
        stacked_volume(folder / "a.sgy", data)
    comm.barrier()
    plain = {"inlines": None, "samples": None, "volume": str(folder / "a.sgy")}
    numbers = inverted(comm, folder, "out", **plain)
    group = group_of(folder, "out")
    spikes = group["reflectivity"][...]
    assert np.abs(spikes).max() == pytest.approx(0.25) and numbers["warnings"] == []
    assert any("0.25" in note for note in numbers["notes"])
    modelled = spikes @ convolution(group["wavelet"][...], 120).T.toarray()
    np.testing.assert_allclose(group["data"][...] - modelled, group["residual"][...], atol=1e-9 * 200)
    told = inverted(comm, folder, "told", **plain, strength=0.05)
    assert np.abs(group_of(folder, "told")["reflectivity"][...]).max() > 0.5
    assert any("few in the earth" in warning for warning in told["warnings"])


def test_ranks_without_traces_idle_with_a_warning(comm, folder):
    numbers = inverted(comm, folder, "out", inlines=1)
    assert len(numbers["warnings"]) == (comm.size > 1)
    assert numbers["residual_reduction"] < 1


def test_spikes_are_matched_within_one_sample(comm):
    truth = np.zeros((2, 9))
    truth[0, [0, 4, 8]] = 1.0, -0.5, 0.05  # the last one is too weak to count
    truth[1, [3, 6]] = 0.7, 0.7
    found = np.zeros((2, 9))
    found[0, [1, 5]] = 0.9, 0.5  # the second has the wrong sign
    found[1, [1, 7]] = 0.6, 0.6  # the first is two samples off
    mine = slice(0, 2) if comm.rank == 0 else slice(0, 0)
    matches = match(found[mine], truth[mine], comm)
    assert (matches.true, matches.detected, matches.matched) == (4, 4, 2)


def ridge(traces: np.ndarray, wavelet: np.ndarray, residual: float) -> np.ndarray:
    """Deconvolve by damped least squares of SciPy, such that the residual has the norm that is given."""
    left, values, right = svd(convolution(wavelet, traces.shape[1]).toarray())
    seen = traces @ left

    def kept(damping: float) -> np.ndarray:
        return values**2 / (values**2 + damping)

    damping = np.exp(brentq(lambda log: np.linalg.norm(seen * (1 - kept(np.exp(log)))) - residual, -30, 30))
    return (seen * kept(damping) / values) @ right


@pytest.mark.serial
def test_events_much_weaker_than_the_strongest_are_explained(comm, folder):
    generator = np.random.default_rng(4)
    truth = generator.normal(size=(8, 200)) * (generator.random((8, 200)) < 0.2)
    truth[:, 100:] *= 0.05
    truth[:, 60] = 8.0
    truth[:, :20] = truth[:, 180:] = 0.0  # a wavelet that is cut off has all frequencies
    wavelet = ricker(30, 0.004)[0]
    clean = truth @ convolution(wavelet, 200).T.toarray()
    noise = generator.normal(size=clean.shape)
    noise *= 0.01 * np.linalg.norm(clean) / np.linalg.norm(noise)
    np.save(folder / "data.npy", clean + noise)
    np.save(folder / "wavelet.npy", wavelet)
    files = {"wavelet": str(folder / "wavelet.npy"), "volume": str(folder / "data.npy"), "interval": 4.0}
    plain = {"inlines": None, "samples": None, "iterations": 300, **files}
    numbers = inverted(comm, folder, "out", **plain)
    assert numbers["noise_estimate"] == pytest.approx(np.linalg.norm(noise), rel=0.15)
    assert numbers["residual_final"] == pytest.approx(numbers["noise_estimate"], rel=0.1)
    found = group_of(folder, "out")["reflectivity"][...]
    plainly = ridge(clean + noise, wavelet, numbers["residual_final"])
    for part in (slice(20, 90), slice(110, 180)):  # the weak part by itself
        errors = [np.linalg.norm((each - truth)[:, part]) for each in (found, plainly)]
        assert errors[0] < 0.8 * min(errors[1], np.linalg.norm(truth[:, part]))


@needs_real_data
def test_the_real_section(comm, folder):
    plain = {"inlines": None, "samples": None, "dtype": "float32", "volume": str(REAL / "volve_stack_twt.sgy")}
    numbers = inverted(comm, folder, "out", **plain, iterations=10, sparsity=0.01)
    assert numbers["relative_error"] is None and "spikes_true" not in numbers
    assert numbers["residual_reduction"] < 0.6
    assert numbers["nonzero_fraction"] < 0.6


@pytest.mark.serial
@needs_real_data
def test_the_default_explains_the_real_section_to_the_noise_without_spikes(comm, folder):
    import segyio

    with segyio.open(str(REAL / "volve_stack_twt.sgy"), ignore_geometry=True) as file:
        np.save(folder / "part.npy", file.trace.raw[:][::15])
    plain = {"inlines": None, "samples": None, "dtype": "float32", "volume": str(folder / "part.npy"), "interval": 4.0}
    numbers = inverted(comm, folder, "out", **plain, iterations=100)
    group = group_of(folder, "out")
    found, traces = group["reflectivity"][...].astype(float), group["data"][...].astype(float)
    residual = np.linalg.norm(group["residual"][...])
    assert numbers["noise_estimate"] < 0.03 * np.linalg.norm(traces)
    assert residual == pytest.approx(numbers["noise_estimate"], rel=0.1)
    plainly = ridge(traces, group["wavelet"][...], residual)
    assert np.vdot(found, plainly) > 0.9 * np.linalg.norm(found) * np.linalg.norm(plainly)
    # Neither has spikes that the other one lacks.
    largest = [np.abs(each).max() for each in (found, plainly)]
    assert largest[0] < 1.3 * largest[1] and largest[0] < 0.3
