"""Parts of the problem of stacked data whose faults leave whole jobs looking right."""

from __future__ import annotations

import numpy as np
import pytest

from collops.apps.stages import local_stage
from collops.apps.volume.files import Axis, Cube
from collops.apps.volume.modelling import convolution, trace_operator
from collops.apps.volume.problem import Image, Inversion, Problem, Volume, VolumeOptions, draw_images, recorded
from tests.apps.files import stacked_volume
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


def test_a_section_without_coordinates_is_not_taken_for_shots(comm, folder):
    values = np.random.default_rng(0).normal(size=(1, 12, 30)).astype(np.float32)
    with local_stage(comm):
        if comm.rank == 0:
            stacked_volume(folder / "a.sgy", values)
    volume = recorded(job_of(VolumeOptions(volume=str(folder / "a.sgy"), wavelet="ricker:30"), comm))
    np.testing.assert_array_equal(comm.allgatherv(np.ascontiguousarray(volume.traces)), values[0])


def test_room_is_asked_for_all_arrays_of_the_result(comm, folder):
    for dtype, count in (("float32", 4), ("float64", 8)):
        options = VolumeOptions(dtype=dtype, wavelet="ricker:30")
        cube = Cube((Axis("trace", np.arange(6)),), 20, 0.004)
        values = np.zeros((0, 20), dtype)
        made, read = (Volume(cube, values, values[:, 0] > 0, values[:0], truth) for truth in (values, None))
        for volume, arrays in ((made, 5), (read, 4)):
            assert Problem(job_of(options, comm), volume, None).result_bytes == arrays * count * 6 * 20


@pytest.mark.serial
@pytest.mark.parametrize(("numbers", "ends"), [([4, 6, 8, 10], (4, 10)), ([4, 6, 7, 10], (1, 4))])
def test_axes_of_pictures_count_traces_whose_numbers_are_not_even(tmp_path, monkeypatch, numbers, ends):
    drawn: list = []
    monkeypatch.setattr("collops.apps.volume.problem.draw_panels", lambda path, panels, size: drawn.extend(panels))
    cube = Cube((Axis("trace", np.array(numbers)),), 5, 0.1, 0.2)
    draw_images(tmp_path / "a.png", cube, [Image(np.ones((4, 5)), "", 1.0)])
    np.testing.assert_allclose(drawn[0].extent, (*ends, 0.2, 0.6))
