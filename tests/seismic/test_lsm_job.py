"""The whole job on any number of ranks, from options to files."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import numpy as np
import pytest

from collops.apps.recipe import run_job
from collops.errors import InputError
from collops.seismic.lsm import Options, run
from tests.apps.jobs import Listener, group_of, job_numbers, needs_real_data
from tests.seismic.files import REAL, set_samples, small_survey

SMALL: dict[str, Any] = {
    "nx": 31,
    "nz": 21,
    "shots": 5,
    "receivers": 9,
    "samples": 101,
    "iterations": 5,
    "dtype": "float64",
    "engine": "numpy",
}


def migrate(comm, folder, name: str, **changes: Any) -> dict[str, Any]:
    return job_numbers(run, Options(**(SMALL | {"out": str(folder / name)} | changes)), comm)


def image_of(folder, name: str) -> np.ndarray:
    return group_of(folder, name)["image"][...]


def assert_same_image(folder, one: str, other: str, tolerance: float = 1e-8) -> None:
    image = image_of(folder, one)
    np.testing.assert_allclose(image_of(folder, other), image, rtol=0, atol=tolerance * np.abs(image).max())


def test_the_group_agrees_with_the_numbers(comm, folder, with_pictures):
    numbers = migrate(comm, folder, "out", profile=True)
    assert sorted(os.listdir(folder / "out")) == ["convergence.png", "image.png", "result.html", "result.zarr", "shots"]
    for picture in ("image.png", "convergence.png"):
        assert (folder / "out" / picture).read_bytes().startswith(b"\x89PNG")
    group = group_of(folder, "out")
    image, truth = group["image"][...], group["truth"][...]
    assert image.shape == (31, 21) and image.dtype == np.float64
    assert numbers["relative_error"] == pytest.approx(np.linalg.norm(image - truth) / np.linalg.norm(truth))
    norms = group["residual_norms"][...]
    assert len(norms) == 6 and (np.diff(norms) < 0).all()
    assert numbers["residual_reduction"] == pytest.approx(norms[-1] / norms[0])
    assert group["x"][...].tolist() == (12.5 * np.arange(31)).tolist()
    assert group["image"].metadata.dimension_names == ("x", "z")
    assert group["velocity"].attrs["units"] == "m/s"
    assert group.attrs["iterations"] == 5
    assert numbers["ranks"] == comm.size and numbers["transport"] == comm.host_transport
    assert numbers["messages_per_iteration"] in ((0,) if comm.size == 1 else (2, 3))


def test_least_squares_is_better_than_the_best_multiple_of_the_adjoint(comm, folder):
    numbers = migrate(
        comm, folder, "out", nx=61, nz=41, shots=11, receivers=31, samples=None, iterations=20, dtype="float32"
    )
    assert numbers["relative_error"] < 0.6 * numbers["adjoint_relative_error"]
    assert numbers["residual_reduction"] < 0.3


@pytest.mark.parametrize("more", [{}, {"antialias": True, "amplitude": "2.5d", "gathers": 2, "uncertainty": 2}])
def test_ranks_without_shots_idle_with_a_warning(comm, folder, more):
    numbers = migrate(comm, folder, "out", shots=1, **more)
    assert len(numbers["warnings"]) == (comm.size > 1)
    assert numbers["residual_reduction"] < 1


def test_the_survey_does_not_depend_on_the_number_of_ranks(comm, folder):
    from collops.seismic.survey.headers import read_traces
    from collops.seismic.survey.segy import read_headers

    migrate(comm, folder, "out", write_survey=str(folder / "a.sgy"), noise=0.0)
    clean = read_traces(read_headers(folder / "a.sgy"), range(5))
    comm.barrier()
    migrate(comm, folder, "out", write_survey=str(folder / "a.sgy"), noise=0.5)
    noisy = read_traces(read_headers(folder / "a.sgy"), range(5))
    noise = [a - b for a, b in zip(noisy, clean, strict=True)]
    expected = [np.random.default_rng([0, shot]).standard_normal(noise[0].shape) for shot in range(5)]
    deviation = 0.5 * np.sqrt(np.mean(np.square(clean)))
    np.testing.assert_allclose(noise, deviation * np.array(expected), atol=1e-4 * deviation)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_survey_that_was_written_gives_the_same_image_when_it_is_read(comm, folder, dtype):
    made = migrate(comm, folder, "made", dtype=dtype, write_survey=str(folder / "a.sgy"))
    own = {"shots": None, "receivers": None, "samples": None}
    plain = own | {"nx": None, "nz": None, "dtype": dtype, "survey": str(folder / "a.sgy")}
    read = migrate(comm, folder, "read", **plain)
    assert read["relative_error"] is None and made["relative_error"] is not None
    tolerance = 1e-4 if dtype == "float32" else 1e-9
    assert_same_image(folder, "made", "read", tolerance)
    # The same once more, with options in place of what the header says.
    said = {"nx": 31, "nz": 21, "dx": 12.5, "dz": 12.5, "x0": 0.0, "velocity": "1500+0.6z"}
    migrate(comm, folder, "told", **(plain | said), frequency=made["frequency"])
    assert_same_image(folder, "made", "told", tolerance)


def test_a_velocity_from_a_file(comm, folder):
    if comm.rank == 0:
        np.save(folder / "v.npy", np.broadcast_to(1500 + 0.6 * 12.5 * np.arange(21.0), (31, 21)))
    comm.barrier()
    migrate(comm, folder, "file", nx=None, nz=None, velocity=str(folder / "v.npy"))
    migrate(comm, folder, "text", velocity="1500+0.6z", mode="eikonal")
    assert_same_image(folder, "file", "text")


@pytest.mark.parametrize("velocity", ["1800", "1500+0.6z"])
def test_the_formula_and_the_eikonal_equation_agree(comm, folder, velocity):
    formula = migrate(comm, folder, "formula", velocity=velocity)
    eikonal = migrate(comm, folder, "eikonal", velocity=velocity, mode="eikonal")
    assert (formula["mode"], eikonal["mode"]) == ("analytic", "eikonal")
    assert formula["relative_error"] == pytest.approx(eikonal["relative_error"], abs=0.1)


def test_a_survey_says_how_its_own_velocity_was_used(comm, folder):
    path = str(folder / "a.sgy")
    assert migrate(comm, folder, "made", write_survey=path)["mode"] == "analytic"
    own = dict.fromkeys(("shots", "receivers", "samples", "nx", "nz"))
    assert migrate(comm, folder, "read", **own, survey=path)["mode"] == "analytic"
    # That is no request for another velocity.
    assert migrate(comm, folder, "other", **own, survey=path, velocity="2500-0.1z")["mode"] == "eikonal"


def test_damping_makes_the_image_smaller(comm, folder):
    migrate(comm, folder, "free")
    migrate(comm, folder, "damped", damp=1.0)
    assert np.linalg.norm(image_of(folder, "damped")) < 0.9 * np.linalg.norm(image_of(folder, "free"))


def test_the_choice_is_reported_and_drawn(comm, folder):
    numbers = migrate(comm, folder, "chosen", iterations=None, noise=1.0)
    curve = group_of(folder, "chosen")["held_out_residuals"][...]
    assert numbers["iterations"] == max(1, int(curve.argmin())) < 30
    assert numbers["held_out_residual"] == pytest.approx(curve[numbers["iterations"]])
    assert "held-out traces" in (folder / "chosen" / "result.html").read_text()
    told = migrate(comm, folder, "told", iterations=numbers["iterations"], noise=1.0)
    assert told["held_out_residual"] is None
    assert_same_image(folder, "chosen", "told")
    # Options are obeyed.
    assert migrate(comm, folder, "damped", iterations=None, damp=0.3)["iterations"] == 30


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_sample_that_one_rank_cannot_use_stops_all(comm, folder, value):
    path = folder / "a.sgy"
    if comm.rank == 0:
        small_survey(path)
        set_samples(path, 14, value)  # the last trace belongs to the last rank that has a shot
    comm.barrier()
    with pytest.raises(InputError, match="shot 3, trace 5, sample 1") as caught:
        run_job(run, Options(survey=str(path), velocity="1500", out=str(folder / "out")), comm, Listener())
    assert comm.size == 1 or caught.value.on_all_ranks
    comm.barrier()
    assert os.listdir(folder / "out") == []


def test_a_survey_of_zeros_has_nothing_to_migrate(comm, folder):
    path = folder / "a.sgy"
    if comm.rank == 0:
        small_survey(path)
        for trace in range(15):
            set_samples(path, trace, 0.0)
    comm.barrier()
    with pytest.raises(InputError, match=r"all samples of .* are zero"):
        run_job(run, Options(survey=str(path), velocity="1500", out=str(folder / "out")), comm, Listener())


def test_amplitudes_beyond_the_precision_raise(comm, folder):
    path = folder / "a.sgy"
    if comm.rank == 0:
        small_survey(path)
        set_samples(path, 3, 1e38)
    comm.barrier()
    with pytest.raises(InputError, match="too large"):
        run_job(
            run,
            Options(survey=str(path), velocity="1500", out=str(folder / "out"), nz=20, outliers=0),
            comm,
            Listener(),
        )


@needs_real_data
class TestRealSurvey:
    SURVEY: ClassVar[dict[str, Any]] = {
        "survey": str(REAL / "viking_small.segy"),
        "shots": None,
        "receivers": None,
        "samples": None,
        "nx": 80,
        "nz": 60,
        "iterations": 3,
        "dtype": "float32",
    }

    def test_marine_shots_over_a_gradient(self, comm, folder):
        numbers = migrate(comm, folder, "out", **self.SURVEY | {"iterations": None}, velocity="1500+0.6z")
        assert numbers["relative_error"] is None and numbers["conditioning"] == "mute 1500"
        # Multiples are most of what is not explained, and far above the noise: no image of other channels predicts it.
        assert 0.02 < numbers["noise_estimate"] / numbers["residual_initial"] < 0.04 < numbers["residual_reduction"] < 1
        assert numbers["iterations"] == 1 and any("no image of some traces" in each for each in numbers["warnings"])
        assert (numbers["shots"], numbers["traces"]) == (4, 480)
        assert 20 < numbers["frequency"] < 45

    def test_marine_shots_over_a_section(self, comm, folder):
        velocity = str(REAL / "volve_migration_velocity_depth.sgy")
        numbers = migrate(comm, folder, "out", **self.SURVEY, velocity=velocity, inline=10087)
        assert numbers["residual_reduction"] < 1
        assert any("inline 10087" in note for note in numbers["notes"])
        found = group_of(folder, "out")["velocity"][...]
        assert 1400 < found.min() < found.max() < 5000
