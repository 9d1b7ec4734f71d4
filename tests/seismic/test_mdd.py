"""Multi-dimensional deconvolution: against PyLops' serial operator, and as a whole job on any number of ranks."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import zarr

from collops.apps.recipe import run_job
from collops.apps.stages import local_stage
from collops.errors import InputError
from collops.seismic.mdd import Options, run
from collops.seismic.mdd.deconvolve import prepare
from collops.seismic.mdd.fields import Acquisition, SyntheticSea, frequencies_within, synthetic_response
from tests.apps.jobs import Listener, group_of, job_numbers, job_of

SMALL: dict[str, Any] = {
    "sources": 7,
    "receivers": 5,
    "samples": 60,
    "iterations": 5,
    "dtype": "float64",
    "engine": "numpy",
}
PLAIN = {"sources": None, "receivers": None, "samples": None}


def deconvolved(comm, folder, name: str, **changes: Any) -> dict[str, Any]:
    return job_numbers(run, Options(**(SMALL | {"out": str(folder / name)} | changes)), comm)


def fields(seed: int = 0, *, sources=6, receivers=4, virtual=3, samples=30) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    decay = np.exp(-0.2 * np.arange(samples))
    down = generator.normal(size=(sources, receivers, samples)) * decay
    up = generator.normal(size=(sources, virtual, samples)) * decay
    return down, up


def saved(comm, folder, down: np.ndarray, up: np.ndarray) -> dict[str, Any]:
    with local_stage(comm):
        if comm.rank == 0:
            np.save(folder / "down.npy", down)
            np.save(folder / "up.npy", up)
    return PLAIN | {"down": str(folder / "down.npy"), "up": str(folder / "up.npy"), "interval": 4.0, "spacing": 10.0}


def test_it_is_the_deconvolution_of_pylops(comm, folder):
    from pylops.optimization.basic import cgls
    from pylops.waveeqprocessing import MDC

    down, up = fields()
    numbers = deconvolved(comm, folder, "out", **saved(comm, folder, down, up), fmax=100.0, damp=0.05)
    total = 59
    spectra = np.fft.rfft(down, total, axis=-1, norm="ortho").transpose(2, 0, 1)
    count = int(np.flatnonzero(np.fft.rfftfreq(total, 0.004) <= 100)[-1]) + 1
    assert numbers["frequencies"] == count < total // 2 + 1
    serial = MDC(spectra[:count], nt=total, nv=3, dt=0.004, dr=10.0, twosided=True)
    data = np.zeros((total, 6, 3))
    data[:30] = up.transpose(2, 0, 1)
    gradient = serial.H @ data.ravel()
    norm = np.linalg.norm(serial @ gradient) / np.linalg.norm(gradient)
    expected, *_, cost = cgls(serial, data.ravel(), x0=np.zeros(serial.shape[1]), niter=5, damp=0.05 * norm, tol=0)
    group = group_of(folder, "out")
    response = group["response"][...]
    assert response.shape == (total, 4, 3)
    np.testing.assert_allclose(response.ravel(), expected.real, atol=1e-8 * np.abs(expected).max())
    np.testing.assert_allclose(group["residual_norms"][...], cost, rtol=1e-8)
    np.testing.assert_allclose(group["correlation"][...].ravel(), gradient.real, atol=1e-8 * np.abs(gradient).max())
    assert group["time"][29] == 0 and group["time"][0] == pytest.approx(-29 * 0.004)
    assert group["receiver"][...].tolist() == [0.0, 10.0, 20.0, 30.0]


def test_a_field_convolved_by_hand_is_deconvolved(comm, folder):
    down, _ = fields(3, sources=8, receivers=4, samples=40)
    truth = np.zeros((4, 2, 40))
    for receiver in range(4):
        for virtual in range(2):
            truth[receiver, virtual, 5 + 3 * receiver + 2 * virtual] = 1 + receiver - virtual
    up = np.zeros((8, 2, 40))
    for source in range(8):
        for virtual in range(2):
            up[source, virtual] = sum(
                np.convolve(down[source, receiver], truth[receiver, virtual])[:40] for receiver in range(4)
            )
    given = saved(comm, folder, down, 0.004 * 10.0 * up)
    numbers = deconvolved(comm, folder, "out", **given, damp=0.0, iterations=60)
    # Records that end before their echoes do leave a rest that no response explains.
    response = group_of(folder, "out")["response"][...]
    found = response[39:].transpose(1, 2, 0)
    assert np.linalg.norm(found - truth) < 0.05 * np.linalg.norm(truth)
    assert numbers["residual_reduction"] < 0.05


def test_the_group_agrees_with_the_numbers(comm, folder, with_pictures):
    numbers = deconvolved(comm, folder, "out", profile=True)
    assert sorted(os.listdir(folder / "out")) == ["convergence.png", "image.png", "result.zarr"]
    group = group_of(folder, "out")
    response, truth = group["response"][...], group["truth"][...]
    assert numbers["relative_error"] == pytest.approx(np.linalg.norm(response - truth) / np.linalg.norm(truth))
    norms = group["residual_norms"][...]
    assert numbers["residual_reduction"] == pytest.approx(norms[-1] / norms[0])
    assert group["response"].metadata.dimension_names == ("time", "receiver", "virtual_source")
    assert group["response"].attrs["units"] == "1/(m s)"
    assert numbers["messages_per_iteration"] == (0 if comm.size == 1 else 6)
    assert group.attrs["iterations"] == 5


def test_deconvolution_is_better_than_the_best_multiple_of_the_correlation(comm, folder):
    sizes = {"sources": 31, "receivers": 21, "samples": 150, "iterations": 20, "dtype": "float32"}
    numbers = deconvolved(comm, folder, "out", **sizes)
    assert numbers["relative_error"] < 0.3
    assert numbers["adjoint_relative_error"] > 0.5
    assert numbers["residual_reduction"] < 0.1


def test_the_data_do_not_depend_on_the_number_of_ranks(comm):
    noisy, clean = (prepare(job_of(Options(**SMALL, noise=noise), comm)).data for noise in (0.5, 0.0))
    clean, noise = clean.gather(), (noisy - clean).gather()
    expected = [np.random.default_rng([0, source]).standard_normal((119, 5)) for source in range(7)]
    deviation = 0.5 * np.sqrt(np.mean(clean**2))
    np.testing.assert_allclose(noise, deviation * np.stack(expected, axis=1), atol=1e-9 * deviation)


def test_the_operator_passes_the_dot_test_with_ranks_that_have_no_frequency(comm):
    problem = prepare(job_of(Options(**SMALL, fmax=3.0), comm))
    assert problem.frequencies == 2
    assert problem.operator.dottest()


def test_ranks_without_frequencies_idle_with_a_warning(comm, folder):
    numbers = deconvolved(comm, folder, "out", fmax=1.0)
    assert numbers["frequencies"] == 1
    assert len(numbers["warnings"]) == (comm.size > 1)


def test_stores_and_arrays_hold_the_same_fields(comm, folder):
    down, up = fields()
    given = saved(comm, folder, down, up)
    with local_stage(comm):
        if comm.rank == 0:
            group = zarr.open_group(str(folder / "fields.zarr"), mode="w")
            group.create_array("down", data=down)
            group.create_array("up", data=up)
    deconvolved(comm, folder, "arrays", **given)
    deconvolved(comm, folder, "store", **(given | dict.fromkeys(("down", "up"), str(folder / "fields.zarr"))))
    first, second = (group_of(folder, name)["response"][...] for name in ("arrays", "store"))
    np.testing.assert_allclose(second, first, rtol=1e-12)


@pytest.mark.parametrize("name", ["down", "up"])
def test_a_sample_that_one_rank_cannot_use_stops_all(comm, folder, name):
    broken = dict(zip(("down", "up"), fields(), strict=True))
    broken[name][5, 2, 7] = np.nan
    options = SMALL | saved(comm, folder, **broken) | {"out": str(folder / "out")}
    with pytest.raises(InputError, match=rf"{name}.npy is nan at source 6, receiver 3, sample 8") as caught:
        run_job(run, Options(**options), comm, Listener())
    assert comm.size == 1 or caught.value.on_all_ranks
    assert os.listdir(folder / "out") == []


@pytest.mark.parametrize(
    ("down", "up", "complaint"),
    [
        (np.ones((4, 5)), np.ones((4, 5, 6)), "not \\(4, 5\\)"),
        (np.ones((4, 5, 6)), np.ones((3, 5, 6)), "same sources"),
        (np.ones((4, 5, 6)), np.ones((4, 5, 7)), "same sources"),
        (np.ones((4, 5, 1)), np.ones((4, 5, 1)), "at least 2"),
        (np.zeros((4, 5, 6)), np.ones((4, 5, 6)), "all samples of .* are zero"),
        (np.ones((0, 5, 6)), np.ones((0, 5, 6)), "not \\(0, 5, 6\\)"),
    ],
)
def test_fields_that_do_not_fit(comm, folder, down, up, complaint):
    options = SMALL | saved(comm, folder, down, up) | {"out": str(folder / "out")}
    with pytest.raises(InputError, match=complaint):
        run_job(run, Options(**options), comm, Listener())


def test_a_frequency_that_the_samples_do_not_have(comm, folder):
    with pytest.raises(InputError, match="must be at most 12"):
        run_job(run, Options(**SMALL, fmax=200.0, out=str(folder / "out")), comm, Listener())


@pytest.mark.serial
class TestSyntheticSea:
    def test_the_direct_wave_arrives_first_and_its_echoes_after_it(self):
        sea = SyntheticSea(Options(sources=1, receivers=1, samples=300))
        spectra = sea.spectra(slice(0, 300))[:, 0, 0]
        trace = np.fft.irfft(spectra, sea.acquisition.total, norm="ortho")
        for number in range(4):
            arrival = (2 * number + 1) * 0.1 / 0.004  # 150 m of water at 1500 m/s
            assert trace[round(arrival)] == pytest.approx((-0.95 * 0.5) ** number / np.sqrt(2 * number + 1), abs=0.01)
        quiet = trace[: round(0.05 / 0.004)]
        assert np.abs(quiet).max() < 1e-3

    def test_its_spectra_can_be_made_in_pieces(self):
        sea = SyntheticSea(Options(**SMALL))
        whole = sea.spectra(slice(0, 60))
        assert whole.shape == (60, 7, 5)
        np.testing.assert_array_equal(np.concatenate([sea.spectra(slice(0, 7)), sea.spectra(slice(7, 60))]), whole)

    def test_frequencies_end_where_the_field_does(self):
        assert frequencies_within(np.array([0.0, 1.0, 0.5, 2e-4, 0.5e-4, 0.0])) == 4

    def test_the_response_is_causal_and_symmetric(self):
        acquisition = Acquisition(3, 4, 4, 120, 0.004, 15.0)
        response = synthetic_response(acquisition, slice(0, 4))
        np.testing.assert_array_equal(response, response.transpose(0, 2, 1))
        assert np.abs(response[:119]).max() < 1e-3 * np.abs(response).max()
        np.testing.assert_array_equal(synthetic_response(acquisition, slice(2, 4)), response[:, 2:])
