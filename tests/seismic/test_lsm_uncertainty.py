"""The standard deviation of a migrated image against the closed form of a Gaussian posterior."""

from __future__ import annotations

from functools import partialmethod

import numpy as np
import pytest
import zarr

from collops.errors import InputError
from collops.extend.solvers import GaussianPosterior
from collops.seismic import lsm
from collops.seismic.lsm import Options
from collops.seismic.lsm.migrate import kirchhoff
from collops.seismic.lsm.regularisation import local_inverse_root
from collops.seismic.lsm.uncertainty import uncertainty
from tests.apps.jobs import job_numbers, job_of
from tests.seismic.test_lsm_migrate import small_problem


def test_the_deviation_of_the_closed_form(comm, monkeypatch):
    job = job_of(Options(uncertainty=24), comm)
    problem = small_problem(comm, towed=False)
    operator = kirchhoff(job, problem)
    shape, samples = problem.grid.shape, operator.range.size
    unit = np.eye(shape[0] * shape[1])
    own = np.stack([operator.forward(job.array(operator.domain, each.reshape(shape))).local_array for each in unit])
    gram = comm.allreduce(own @ own.T)
    strength = float(np.sqrt(gram.diagonal().mean()))
    noise, image, mine = 2 * strength, np.full(shape, 0.5), len(own[0])
    for damp, prior in ((0.0, 0.5), (3 * strength, noise / (3 * strength))):
        found = uncertainty(job, 24, operator, image, noise * np.sqrt(samples), mine, damp)
        np.testing.assert_allclose([found.noise, found.prior], [noise, prior])
        expected = np.sqrt(np.linalg.inv(gram / noise**2 + unit / prior**2).diagonal()).reshape(shape)
        # Each is known to one in the root of 48.
        ratio = found.deviation / expected
        assert abs(np.sqrt(np.mean(ratio**2)) - 1) < 0.06 and 0.1 < ratio.std() < 0.2
    # The preconditioner of the migration changes the number of iterations only. Two samples may vanish at a point.
    wavelength = float(problem.velocity.mean()) / problem.frequency
    root = local_inverse_root(job, operator.H @ operator, wavelength, problem.grid)
    weak = strength / 5  # noise for which the data determine many directions
    # Deviations differ by 20 times the tolerance of the solutions, by default 1e-3.
    monkeypatch.setattr(GaussianPosterior, "samples", partialmethod(GaussianPosterior.samples, rtol=1e-4))
    plain, quick = (uncertainty(job, 2, operator, image, weak * np.sqrt(samples), mine, 0.0, M) for M in (None, root))
    assert quick.iterations <= 0.75 * plain.iterations
    np.testing.assert_allclose(quick.deviation, plain.deviation, rtol=0, atol=0.005 * plain.prior)
    with pytest.raises(InputError, match="--uncertainty needs an image and a residual"):
        uncertainty(job, 24, operator, 0 * image, noise, mine, 0.0)


@pytest.mark.serial
def test_it_is_written_beside_the_image(comm, tmp_path):
    small = {"nx": 21, "nz": 15, "iterations": 6}
    survey, out = str(tmp_path / "survey.zarr"), str(tmp_path / "out")
    job_numbers(lsm.run, Options(**small, shots=3, receivers=9, samples=120, write_survey=survey, out=out), comm)
    options = Options(**small, dx=12.5, dz=12.5, x0=0.0, survey=survey, velocity="1500+0.6z", out=out, uncertainty=4)
    numbers = job_numbers(lsm.run, options, comm)
    group = zarr.open_group(f"{out}/result.zarr", mode="r")
    deviation = np.asarray(group["standard_deviation"])
    assert deviation.shape == np.asarray(group["image"]).shape
    assert deviation.min() > 0 and deviation.mean() < 1.3 * numbers["prior_deviation"]
    assert "standard deviation of the image" in (tmp_path / "out" / "result.html").read_text()
    import segyio

    with segyio.open(f"{out}/deviation.sgy", ignore_geometry=True) as file:
        np.testing.assert_allclose(file.trace.raw[:], deviation, rtol=1e-6)
    assert tmp_path / "out" / "deviation.sgy" in options.results()


@pytest.mark.serial
def test_refused_with_another_prior():
    with pytest.raises(InputError, match="--uncertainty assumes white reflectivity, unlike --regularise"):
        Options(uncertainty=4, regularise="tv").check()
