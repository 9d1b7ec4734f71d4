"""Parts of the problem of stacked data whose faults leave whole jobs looking right."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import zarr

from collops.apps.stages import local_stage
from collops.errors import InputError
from collops.seismic import poststack
from collops.seismic.signals import noise_from_power, power_spectrum, ricker
from collops.seismic.volume.earth import impedance
from collops.seismic.volume.files import Axis, Cube, open_volume
from collops.seismic.volume.modelling import convolution, trace_operator
from collops.seismic.volume.problem import (
    Image,
    Inversion,
    Problem,
    Volume,
    VolumeOptions,
    draw_images,
    prepare,
    recorded,
    section_of,
)
from collops.seismic.volume.wavelet import from_power
from tests.apps.jobs import job_of
from tests.seismic.files import set_binary, stacked_volume, write_alone, write_traces


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


@pytest.mark.parametrize(("strongest", "warnings"), [(0.51, 1), (0.49, 0)])
def test_reflection_coefficients_above_a_half_are_a_warning_where_their_scale_is_known(comm, strongest, warnings):
    job = job_of(VolumeOptions(wavelet="ricker:30"), comm)
    problem: Any = Problem(job, None, None)  # pyright: ignore[reportArgumentType]
    coefficients = np.zeros((2, 3))
    if comm.rank == comm.size - 1:
        coefficients[1, 1] = -strongest
    assert problem.plausible(None, coefficients) == (problem, None)
    listener: Any = job.listener
    assert len(listener.warnings) == warnings


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
@pytest.mark.parametrize(("share", "fits"), [(1.01, True), (0.99, False)])
def test_data_need_memory_for_twelve_arrays_of_their_size(comm, tmp_path, monkeypatch, share, fits):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(5, 4, 40)))
    monkeypatch.setattr("collops.apps.stages.available_memory", lambda _: share * 12 * 5 * 4 * 40 * 4 / 0.8)
    job = job_of(VolumeOptions(volume=str(tmp_path / "a.npy"), interval=4.0, wavelet="ricker:30"), comm)
    with nullcontext() if fits else pytest.raises(InputError, match=r"the arrays of .* on 1 ranks need"):
        recorded(job)


def test_a_synthetic_volume_has_the_interval_and_the_noise_of_the_options(comm):
    sizes: dict[str, Any] = {"inlines": 5, "crosslines": 3, "samples": 120, "dtype": "float64"}
    problem = prepare(job_of(poststack.Options(**sizes, interval=2.0, noise=0.0), comm), poststack._KIND)
    cube, wavelet = problem.volume.cube, ricker(25.0, 0.002)[0]
    assert (cube.shape, cube.interval, cube.dimensions) == ((5, 3, 120), 0.002, ("inline", "crossline", "time"))
    np.testing.assert_array_equal(problem.volume.wavelet, wavelet)
    logarithms = np.log(impedance((5, 3, 120)))[cube.layout(comm.size).slices(comm.rank)]
    coefficients = np.diff(logarithms, axis=-1, append=logarithms[..., -1:]) / 2
    expected = [np.convolve(trace, wavelet, "same") for trace in coefficients.reshape(-1, 120)]
    np.testing.assert_allclose(problem.volume.traces.reshape(-1, 120), np.reshape(expected, (-1, 120)), atol=1e-12)


@pytest.mark.serial
def test_results_of_a_volume_with_missing_traces_have_the_others_in_their_places(comm, tmp_path):
    headers = {
        "INLINE_3D": np.array([3, 1, 1]),
        "CROSSLINE_3D": np.array([6, 5, 6]),
        "CDP_X": np.array([300, 100, 200]),
    }
    values = np.random.default_rng(0).normal(size=(3, 9)).astype(np.float32)
    reader = open_volume(write_traces(tmp_path / "a.sgy", values, headers, 4000, "STACK"), None, ())
    stack = reader.stack
    assert stack is not None and stack.metres is not None
    np.testing.assert_array_equal(stack.metres[0], [[100, 200], [np.nan, 300]])
    on_grid, live = reader.read(slice(0, 2))
    assert live.tolist() == [[True, True], [False, True]]
    write_alone(tmp_path / "b.sgy", stack.traces("RESULT", 2 * on_grid, slice(0, 2), 0.004))
    assert (tmp_path / "b.sgy").stat().st_size == stack.size
    np.testing.assert_array_equal(open_volume(tmp_path / "b.sgy", None, ()).read(slice(0, 2))[0], 2 * on_grid)
    problem = Problem(
        job_of(poststack.Options(dtype="float64"), comm), Volume(reader.cube, on_grid, live, values, stack=stack), None
    )
    positions = sum(field.values.nbytes for field in stack.coordinates(reader.cube.lateral).values())
    assert problem.result_bytes == 4 * 8 * 4 * 9 + positions + 3 * stack.size


@pytest.mark.serial
@pytest.mark.parametrize(("numbers", "ends"), [([4, 6, 8, 10], (4, 10)), ([4, 6, 7, 10], (1, 4))])
def test_axes_of_pictures_count_traces_whose_numbers_are_not_even(tmp_path, monkeypatch, numbers, ends):
    drawn: list = []
    monkeypatch.setattr("collops.seismic.volume.problem.draw_panels", lambda path, panels, size: drawn.extend(panels))
    cube = Cube((Axis("inline", np.array(numbers)), Axis("crossline", np.array([20, 23, 26]))), 5, 0.1, 0.2)
    for maps, down, label in ((False, (0.2, 0.6), "time (s)"), (True, (20, 26), "crossline")):
        draw_images(tmp_path / "a.png", cube, [Image(np.ones((4, 5)), "", 1.0)], maps=maps)
        panel = drawn.pop()
        np.testing.assert_allclose(panel.extent, (*ends, *down))
        assert panel.labels == ("inline", label)


@pytest.mark.serial
@pytest.mark.parametrize(("code", "metres"), [(1, 1.0), (2, 0.3048)])
def test_positions_of_stacked_traces_in_feet_become_metres(tmp_path, code, metres):
    headers = {
        "INLINE_3D": np.array([1, 1, 2, 2]),
        "CROSSLINE_3D": np.array([5, 6, 5, 6]),
        "CDP_X": np.array([1000, 2000, 1000, 2000]),
        "CDP_Y": np.array([500, 500, 700, 700]),
        "SourceGroupScalar": np.full(4, -10),
        "CoordinateUnits": np.ones(4, int),
    }
    values = np.random.default_rng(0).normal(size=(4, 9)).astype(np.float32)
    path = write_traces(tmp_path / "a.sgy", values, headers, 4000, "STACK")
    set_binary(path, 3255, code)
    stack = open_volume(path, None, ()).stack
    assert stack is not None and stack.metres is not None
    np.testing.assert_allclose(stack.metres[0] / metres, [[100, 200], [100, 200]])
    np.testing.assert_allclose(stack.metres[1] / metres, [[50, 50], [70, 70]])


@pytest.mark.serial
def test_the_wavelet_of_data_is_tapered_beyond_its_ends_and_not_at_them():
    """The formulas of its docstring as sums of cosines, for 9 samples; half a wavelet has 3."""
    power = np.array([0.0, 9.0, 4.0, 1.0, 0.0])
    angles, both = 2 * np.pi * np.arange(9) / 9, np.concatenate([power, power[:0:-1]])
    lags = np.arange(-3, 4)
    taper = np.cos(np.pi * lags / 8) ** 2
    autocorrelation = np.cos(np.outer(lags, angles)) @ both / 9 * taper
    amplitudes = np.sqrt(np.maximum(np.cos(np.outer(angles, lags)) @ autocorrelation, 0))
    expected = np.cos(np.outer(lags, angles)) @ amplitudes * taper
    assert abs(expected[0]) > 1e-3 * abs(expected).max()
    np.testing.assert_allclose(from_power(power, 9, 0.04), expected / np.linalg.norm(expected), rtol=1e-12)


@pytest.mark.serial
@pytest.mark.parametrize(("samples", "length"), [(8, 7), (9, 9), (100, 61)])
def test_the_wavelet_of_data_is_of_odd_length_and_no_longer_than_a_trace(samples, length):
    assert len(from_power(np.ones(samples // 2 + 1), samples, 0.004)) == length


def test_the_scale_of_the_wavelet_does_not_count_missing_traces(comm, folder):
    values = np.random.default_rng(0).normal(size=(5, 4, 40)).astype(np.float32)
    keep = np.array([0, 1, 2, 3, 5, 6, 8, 13, 18])
    with local_stage(comm):
        if comm.rank == 0:
            stacked_volume(folder / "a.sgy", values, keep=keep)
    for strength, used in ((0.1, 0.1), (None, 0.05)):
        options = VolumeOptions(volume=str(folder / "a.sgy"), wavelet="ricker:30", strength=strength)
        wavelet = recorded(job_of(options, comm)).wavelet
        expected = np.sqrt(np.mean(values.reshape(20, 40)[keep].astype(float) ** 2)) / used
        assert np.linalg.norm(wavelet) == pytest.approx(expected, rel=1e-6)


def test_the_wavelet_has_the_spectrum_of_the_traces_of_all_ranks(comm, folder):
    """Traces differ in frequency from inline to inline."""
    phases = np.random.default_rng(0).uniform(0, 2 * np.pi, (5, 4, 1))
    values = np.cos(phases + 2 * np.pi * np.array([5, 9, 14, 20, 27]).reshape(5, 1, 1) * np.arange(80) / 80)
    with local_stage(comm):
        if comm.rank == 0:
            np.save(folder / "a.npy", values)
    found = recorded(job_of(VolumeOptions(volume=str(folder / "a.npy"), interval=4.0), comm)).wavelet
    expected = from_power(power_spectrum([values.reshape(20, 80)], 80), 80, 0.004)
    np.testing.assert_allclose(found / np.linalg.norm(found), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("floor", "reached"), [(0.0, True), (1.5, False)])
def test_a_regularisation_is_chosen_by_the_noise_of_all_ranks(comm, folder, floor, reached):
    values = np.random.default_rng(0).normal(size=(7, 4, 60))
    with local_stage(comm):
        if comm.rank == 0:
            np.save(folder / "a.npy", values)
            np.save(folder / "w.npy", np.ones(1))
    files: dict[str, Any] = {"volume": str(folder / "a.npy"), "wavelet": str(folder / "w.npy")}
    job = job_of(VolumeOptions(**files, interval=4.0, dtype="float64"), comm)
    volume = recorded(job)
    problem = Problem(job, volume, trace_operator(job, convolution(np.ones(1), 60), volume.live))
    data = problem.vector(volume.traces)

    def solve(weight: float, _: object) -> object:
        """The residual is as many times the data as the weight, or the floor."""
        return (1 - max(weight, floor)) * data

    choice = problem.choose(data, solve, 8.0, 0.01)
    noise = noise_from_power(power_spectrum([values.reshape(28, 60)], 60))
    assert choice.noise == pytest.approx(noise, rel=1e-12)
    share = noise / np.linalg.norm(values)  # of white data nearly 1
    assert choice.share == pytest.approx(100 * share) and 0.8 < share < 1
    assert choice.reached == reached and ("exceeds" in choice.why) != reached
    assert choice.weight == pytest.approx(share if reached else 0.01)


@pytest.mark.serial
def test_positions_with_one_coordinate_of_zero_and_codes_of_revision_0_are_kept_in_results(tmp_path):
    headers = {
        "INLINE_3D": np.arange(4),
        "CDP_X": np.array([0, 25, 50, 75]),  # and no CDP_Y
        "SourceX": np.full(4, 9),
        "CoordinateUnits": np.full(4, 3),  # degrees, but from revision 1 on only
    }
    values = np.random.default_rng(0).normal(size=(4, 9)).astype(np.float32)
    path = write_traces(tmp_path / "a.sgy", values, headers, 4000, "STACK")
    set_binary(path, 3501, 0)
    stack = open_volume(path, None, ()).stack
    assert stack is not None and stack.metres is not None
    np.testing.assert_array_equal(stack.metres, [[0, 25, 50, 75], [0, 0, 0, 0]])
    write_alone(tmp_path / "b.sgy", stack.traces("RESULT", values, slice(0, 4), 0.004))
    content = (tmp_path / "b.sgy").read_bytes()
    assert len(content) == stack.size
    units = np.frombuffer(content[3600:], np.uint8).reshape(4, 240 + 36)[:, 88:90]
    assert units.tolist() == [[0, 1]] * 4  # metres


@pytest.mark.serial
def test_numbers_of_axes_in_zarr_are_integers_if_the_file_has_integers(tmp_path):
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    group.create_array("data", data=np.ones((2, 3, 4)), dimension_names=("inline", "x", "time"))
    group.create_array("inline", data=np.array([100, 102], np.int16), dimension_names=("inline",))
    group.create_array("x", data=np.array([0.0, 25.0, 50.0]), dimension_names=("x",))
    cube = open_volume(tmp_path / "a.zarr", 0.004, ("data",)).cube
    assert [(axis.name, axis.values.dtype.kind) for axis in cube.lateral] == [("inline", "i"), ("x", "f")]
    assert [axis.values.tolist() for axis in cube.lateral] == [[100, 102], [0, 25, 50]]


def test_pictures_show_the_section_through_the_middle(comm):
    values = np.random.default_rng(0).normal(size=(7, 5, 6))
    rows = Cube((Axis("inline", np.arange(7)), Axis("crossline", np.arange(5))), 6, 0.004).layout(comm.size)
    found = section_of(values[rows.slices(comm.rank)[0]], comm)
    np.testing.assert_array_equal(found, values[:, 2] if comm.rank == 0 else values[:0, 2])


@pytest.mark.serial
def test_results_keep_the_order_of_the_traces_in_the_file(tmp_path):
    inline, values = np.array([6, 2, 8, 4]), np.random.default_rng(0).normal(size=(4, 9)).astype(np.float32)
    path = write_traces(tmp_path / "a.sgy", values, {"INLINE_3D": inline}, 4000, "STACK")
    reader = open_volume(path, None, ())
    on_grid, _ = reader.read(slice(0, 4))
    np.testing.assert_array_equal(on_grid, values[[1, 3, 0, 2]])
    assert reader.stack is not None
    write_alone(tmp_path / "b.sgy", reader.stack.traces("RESULT", on_grid, slice(0, 4), 0.004))
    again = open_volume(tmp_path / "b.sgy", None, ())
    assert again.stack is not None and again.stack.trace_at.tolist() == [1, 3, 0, 2]
    np.testing.assert_array_equal(again.read(slice(0, 4))[0], on_grid)


def test_biased_traces_of_one_rank_are_counted_with_those_of_all(comm, folder):
    values = np.random.default_rng(0).normal(size=(5, 4, 40))
    values[3:] += 10
    with local_stage(comm):
        if comm.rank == 0:
            np.save(folder / "a.npy", values)
    volume = recorded(job_of(VolumeOptions(volume=str(folder / "a.npy"), interval=4.0, wavelet="ricker:30"), comm))
    assert volume.live.all()
