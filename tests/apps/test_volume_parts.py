"""Parts of the problem of stacked data whose faults leave whole jobs looking right."""

from __future__ import annotations

import numpy as np
import pytest

from collops.apps.stages import local_stage
from collops.apps.volume.modelling import convolution, trace_operator
from collops.apps.volume.problem import Inversion, Problem, VolumeOptions, recorded
from tests.apps.jobs import job_of


@pytest.mark.parametrize("strongest", [2.0, 0.2])
def test_plausible_coefficients_keep_the_modelled_data_and_the_adjoint_of_the_operator(comm, folder, strongest):
    with local_stage(comm):
        if comm.rank == 0:
            np.save(folder / "a.npy", np.random.default_rng(0).normal(size=(5, 4, 30)))
    job = job_of(VolumeOptions(volume=str(folder / "a.npy"), interval=4.0, wavelet="ricker:30", dtype="float64"), comm)
    volume = recorded(job)

    def problem_of(wavelet: np.ndarray) -> Problem:
        return Problem(job, volume, trace_operator(job, convolution(wavelet, 30), volume.live))

    problem = problem_of(volume.wavelet)
    data = problem.vector(volume.traces)
    model = np.random.default_rng(comm.rank).normal(size=volume.traces.shape)
    adjoint = problem.values(problem.operator.adjoint(data))
    found = Inversion(model, adjoint, volume.traces, 1.0, None, None)  # pyright: ignore[reportArgumentType]
    coefficients = np.full(volume.traces.shape, 0.1)
    if comm.rank == 0:  # one rank alone has the strongest one
        coefficients[0, 0, 7] = -strongest
    after, scaled = problem.plausible(found, coefficients)
    scale = min(1.0, 0.25 / strongest)
    np.testing.assert_allclose(scaled.model, scale * model, rtol=1e-12)
    again = problem_of(after.volume.wavelet)
    modelled = [p.values(p.operator.forward(p.vector(m))) for p, m in ((problem, model), (again, scaled.model))]
    np.testing.assert_allclose(modelled[1], modelled[0], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(scaled.adjoint, again.values(again.operator.adjoint(data)), rtol=1e-10, atol=1e-12)
