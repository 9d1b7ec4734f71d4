"""Volumes from files of all kinds, whole and broken, their wavelets, and the modelling of traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from collops.apps.stages import local_stage
from collops.backend import engine
from collops.errors import InputError
from collops.seismic.segy import SegyFile
from collops.seismic.signals import power_spectrum, ricker
from collops.seismic.volume import modelling
from collops.seismic.volume.earth import impedance
from collops.seismic.volume.files import Axis, Cube, open_volume, read_values
from collops.seismic.volume.modelling import TraceMatrix, convolution, reflection, trace_operator
from collops.seismic.volume.problem import VolumeOptions, recorded
from collops.seismic.volume.wavelet import from_power, make_wavelet, parse_wavelet
from tests.apps.jobs import job_of, needs_real_data
from tests.seismic.files import REAL, set_samples, stacked_volume

HOST = engine("numpy")
VALUES = np.random.default_rng(1).normal(size=(5, 4, 40)).astype(np.float32)


def write(comm, path: Path, values: np.ndarray = VALUES, **options) -> Path:
    """Write a volume on the first rank."""
    with local_stage(comm):
        if comm.rank == 0:
            if path.suffix == ".sgy":
                stacked_volume(path, values, **options)
            elif path.suffix == ".npy":
                np.save(path, values)
            else:
                group = zarr.open_group(str(path), mode="w")
                group.create_array("data", data=values, dimension_names=("inline", "crossline", "time"))
                group.create_array("time", data=8.0 + 4.0 * np.arange(values.shape[-1]), dimension_names=("time",))
                group["time"].attrs["units"] = "ms"
                group.create_array("inline", data=100 + 2 * np.arange(len(values)), dimension_names=("inline",))
                group.create_array("other", data=values)
    return path


def read(comm, path: Path, **options):
    return recorded(job_of(VolumeOptions(volume=str(path), wavelet="ricker:60", **options), comm))


def whole(comm, own: np.ndarray) -> np.ndarray:
    return comm.allgatherv(np.ascontiguousarray(own))


@pytest.mark.parametrize("suffix", [".sgy", ".npy", ".zarr"])
def test_every_rank_reads_its_rows(comm, folder, suffix):
    path = write(comm, folder / f"a{suffix}")
    volume = read(comm, path, **({"interval": 4.0} if suffix == ".npy" else {}))
    assert np.array_equal(whole(comm, volume.traces), VALUES)
    assert volume.live.all()
    assert volume.cube.interval == 0.004
    assert volume.cube.start == (0.0 if suffix == ".npy" else 0.008)
    assert [axis.name for axis in volume.cube.lateral] == ["inline", "crossline"]
    first = np.arange(5) + 1 if suffix == ".npy" else 100 + 2 * np.arange(5)
    assert np.array_equal(volume.cube.lateral[0].values, first)


def test_an_option_overrides_the_interval_of_the_file(comm, folder):
    for suffix in (".sgy", ".zarr"):
        cube = read(comm, write(comm, folder / f"a{suffix}"), interval=2.0).cube
        assert (cube.interval, cube.start) == (0.002, 0.008)


def in_zarr(comm, path: Path, values: np.ndarray, times: np.ndarray, **attributes) -> Path:
    """Write a section and the times of its samples; `attributes` are those of the times."""
    with local_stage(comm):
        if comm.rank == 0:
            group = zarr.open_group(str(path), mode="w")
            packing = {} if values.dtype.kind == "f" else {"scale_factor": 0.5, "add_offset": 3.0, "_FillValue": -9}
            group.create_array("data", data=values, dimension_names=("trace", "time"), attributes=packing)
            group.create_array("time", data=times, dimension_names=("time",), attributes=attributes)
    return path


def test_numbers_that_xarray_packed_are_unpacked(comm, folder):
    packed, times = np.rint(20 * VALUES[0]).astype(np.int16), 0.004 * np.arange(40)
    packed[packed == -9] = -8
    volume = read(comm, in_zarr(comm, folder / "a.zarr", packed, times, units="s"))
    assert np.array_equal(whole(comm, volume.traces), 0.5 * packed.astype(np.float32) + 3)
    packed[2, 7] = -9
    with pytest.raises(InputError, match="is nan at trace 3, sample 8"):
        read(comm, in_zarr(comm, folder / "b.zarr", packed, times, units="s"))


def test_times_are_regular_and_have_a_unit(comm, folder):
    times = 4.0 * np.arange(40)
    for number, (values, attributes, complaint) in enumerate(
        [
            (np.where(times > 60, times + 4, times), {"units": "ms"}, "constant interval"),
            (times, {}, "no unit"),
            (times, {"units": "m"}, "the unit m"),
            (0 * times, {"units": "ms"}, "constant interval"),
        ]
    ):
        path = in_zarr(comm, folder / f"{number}.zarr", VALUES[0], values, **attributes)
        with pytest.raises(InputError, match=complaint):
            read(comm, path)
    for interval in (0.004, 0.001 / 3, 12.5e-9):
        path = in_zarr(comm, folder / "fine.zarr", VALUES[0], interval * (3 + np.arange(40)), units="s")
        cube = open_volume(path, None, ("data",)).cube
        assert (cube.interval, cube.start) == pytest.approx((interval, 3 * interval), rel=1e-6)
        comm.barrier()
    # An option says what the file does not.
    assert read(comm, folder / "1.zarr", interval=4.0).cube.interval == 0.004


def test_traces_that_are_missing_are_neither_modelled_nor_zero_by_measurement(comm, folder):
    keep = np.array([0, 2, 3, 4, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 18, 19])
    volume = read(comm, write(comm, folder / "a.sgy", keep=keep))
    live = np.zeros(20, bool)
    live[keep] = True
    assert np.array_equal(whole(comm, volume.live).ravel(), live)
    assert np.array_equal(whole(comm, volume.traces), VALUES * live.reshape(5, 4, 1))
    assert any("4 of 20 grid points" in note for note in volume.notes)


def test_one_inline_is_a_section(comm, folder):
    volume = read(comm, write(comm, folder / "a.sgy", VALUES[:1]))
    assert [axis.name for axis in volume.cube.lateral] == ["crossline"]
    assert np.array_equal(whole(comm, volume.traces), VALUES[0])


def test_other_bytes_for_inline_and_crossline(comm, folder):
    volume = read(comm, write(comm, folder / "a.sgy"), inline_byte=193, crossline_byte=189)
    assert volume.cube.shape == (4, 5, 40)
    assert np.array_equal(whole(comm, volume.traces), VALUES.transpose(1, 0, 2))


@needs_real_data
def test_the_real_section(comm):
    volume = recorded(job_of(VolumeOptions(volume=str(REAL / "volve_stack_twt.sgy")), comm))
    assert volume.cube.shape == (225, 850)
    assert (volume.cube.interval, volume.cube.start) == (0.004, 0.004)
    assert volume.wavelet.argmax() == len(volume.wavelet) // 2
    # The assumption behind its amplitude.
    energy = comm.allreduce(np.array(float((volume.traces.astype(float) ** 2).mean() * len(volume.traces))))
    assert 0.05 * np.linalg.norm(volume.wavelet) == pytest.approx(np.sqrt(energy / 225), rel=1e-5)


@needs_real_data
def test_a_real_grid_of_inlines_and_crosslines(comm):
    path = REAL / "volve_migration_velocity_depth.sgy"  # no stack, but a volume
    reader = open_volume(path, None, ())
    assert reader.cube.shape == (18, 52, 226)
    inline, crossline = (axis.values for axis in reader.cube.lateral)
    assert (inline[0], inline[-1], crossline[0], crossline[-1]) == (10087, 10155, 2148, 2352)
    values, live = read_values(reader, slice(0, 1), "velocities")
    assert live.all() and np.array_equal(values[0, 0], SegyFile.inspect(path).read(np.array([0]))[0])
    with pytest.raises(InputError, match="velocities or another model"):
        recorded(job_of(VolumeOptions(volume=str(path), wavelet="ricker:5"), comm))


@pytest.mark.parametrize("suffix", [".sgy", ".npy"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_sample_that_one_rank_cannot_use_stops_all(comm, folder, suffix, value):
    values = VALUES.copy()
    values[4, 3, 7] = value
    path = write(comm, folder / f"a{suffix}", values)
    where = "inline 108, crossline 23" if suffix == ".sgy" else "inline 5, crossline 4"
    with pytest.raises(InputError, match=f"{where}, sample 8") as caught:
        read(comm, path, interval=4.0)
    assert comm.size == 1 or caught.value.on_all_ranks


def test_zeros_are_nothing_to_invert(comm, folder):
    with pytest.raises(InputError, match=r"all samples of .* are zero"):
        read(comm, write(comm, folder / "a.npy", np.zeros_like(VALUES)), interval=4.0)


@pytest.mark.serial
class TestBrokenFiles:
    @pytest.mark.parametrize(
        ("values", "complaint"),
        [
            (np.zeros(7), "shape \\(7,\\)"),
            (np.zeros((0, 3, 9)), "shape \\(0, 3, 9\\)"),
            (np.zeros((2, 3, 1)), "at least 2 samples"),
            (np.zeros((2, 3, 9), complex), "complex"),
            (np.full((2, 3, 9), "a"), "<U1"),
        ],
    )
    def test_arrays_of_another_kind(self, comm, tmp_path, values, complaint):
        np.save(tmp_path / "a.npy", values)
        with pytest.raises(InputError, match=complaint):
            read(comm, tmp_path / "a.npy", interval=4.0)

    def test_an_array_without_interval(self, comm, tmp_path):
        np.save(tmp_path / "a.npy", VALUES)
        with pytest.raises(InputError, match="--interval"):
            read(comm, tmp_path / "a.npy")

    @pytest.mark.parametrize("damage", [lambda p: p.write_bytes(b""), lambda p: p.write_bytes(p.read_bytes()[:-50])])
    def test_damaged_arrays(self, comm, tmp_path, damage):
        np.save(tmp_path / "a.npy", VALUES)
        damage(tmp_path / "a.npy")
        with pytest.raises(InputError, match="damaged"):
            VolumeOptions(volume=str(tmp_path / "a.npy")).check()

    def test_an_invalid_store_raises(self, tmp_path):
        (tmp_path / "a.zarr").mkdir()
        with pytest.raises(InputError, match="cannot be read as Zarr"):
            VolumeOptions(volume=str(tmp_path / "a.zarr")).check()

    def test_a_store_with_several_arrays(self, tmp_path):
        group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
        for name in ("near", "far"):
            group.create_array(name, data=VALUES)
        with pytest.raises(InputError, match=r"far, near.*pass the path"):
            VolumeOptions(volume=str(tmp_path / "a.zarr")).check()
        VolumeOptions(volume=str(tmp_path / "a.zarr" / "near")).check()

    def test_several_traces_at_one_place(self, comm, tmp_path):
        stacked_volume(tmp_path / "a.sgy", VALUES, keep=np.array([0, 1, 2, 5, 5]))
        with pytest.raises(InputError, match="several traces"):
            read(comm, tmp_path / "a.sgy")

    def test_numbers_that_make_no_grid(self, comm, tmp_path):
        """Traces on a diagonal fill a grid of 20 to a twentieth."""
        for size in (20, 21):
            some = VALUES[0, :1].repeat(size * size, 0).reshape(size, size, 40)
            stacked_volume(tmp_path / f"{size}.sgy", some, keep=np.arange(0, size * size, size + 1))
        assert read(comm, tmp_path / "20.sgy").live.sum() == 20
        with pytest.raises(InputError, match="do not form a grid"):
            read(comm, tmp_path / "21.sgy")

    def test_bytes_where_no_number_begins(self, comm, tmp_path):
        stacked_volume(tmp_path / "a.sgy", VALUES)
        with pytest.raises(InputError, match=r"inline-byte must be .* not 190"):
            read(comm, tmp_path / "a.sgy", inline_byte=190)

    def test_a_last_trace_that_is_not_a_number_is_named(self, comm, tmp_path):
        set_samples(stacked_volume(tmp_path / "a.sgy", VALUES), 19, np.nan)
        with pytest.raises(InputError, match="inline 108, crossline 23, sample 1"):
            read(comm, tmp_path / "a.sgy")


@pytest.mark.serial
class TestWavelets:
    def test_a_ricker(self):
        wavelet = make_wavelet(parse_wavelet("ricker:25"), 200, 0.004)
        assert np.array_equal(wavelet, ricker(25, 0.004)[0])
        assert len(wavelet) % 2 == 1

    @pytest.mark.parametrize("text", ["ricker", "ricker:", "ricker:-3", "ricker:nan", "klauder:3", "", "gone.npy"])
    def test_other_words_raise(self, text):
        with pytest.raises(InputError):
            parse_wavelet(text)

    @pytest.mark.parametrize(
        ("values", "complaint"),
        [
            (np.ones(4), "odd"),
            (np.ones((3, 3)), "must be 1-D"),
            (np.zeros(5), "must not hold zeros only"),
            (np.array([1, np.nan, 1]), "contains NaN"),
            (np.array([1, 1j, 1]), "holds complex128"),
            (np.ones(43), "43 samples, but a trace only 41"),
        ],
    )
    def test_files_without_a_wavelet_raise(self, tmp_path, values, complaint):
        np.save(tmp_path / "w.npy", values)
        with pytest.raises(InputError, match=complaint):
            make_wavelet(tmp_path / "w.npy", 41, 0.004)

    def test_a_wavelet_of_a_file_is_taken_as_it_is(self, comm, tmp_path):
        np.save(tmp_path / "w.npy", [1.0, 5.0, 2.0])
        np.save(tmp_path / "a.npy", VALUES)
        options = VolumeOptions(volume=str(tmp_path / "a.npy"), interval=4.0, wavelet=str(tmp_path / "w.npy"))
        assert recorded(job_of(options, comm)).wavelet.tolist() == [1.0, 5.0, 2.0]
        assert make_wavelet(tmp_path / "w.npy", 3, 0.004).tolist() == [1.0, 5.0, 2.0]  # as long as a trace

    def test_frequencies_that_the_samples_do_not_have(self):
        with pytest.raises(InputError, match="less than 125 Hz"):
            make_wavelet(125.0, 200, 0.004)

    def test_the_wavelet_of_data_is_that_which_made_them(self):
        truth = ricker(30, 0.004)[0]
        spikes = np.random.default_rng(0).normal(size=(400, 500))
        traces = spikes @ convolution(truth, 500).T.toarray()
        found = from_power(power_spectrum([traces], 500), 500, 0.004)
        expected = np.zeros_like(found)
        middle = len(found) // 2
        expected[middle - len(truth) // 2 : middle + len(truth) // 2 + 1] = truth / np.linalg.norm(truth)
        # The rest is due to the smoothing of the spectrum, which lifts the lowest frequencies.
        assert np.linalg.norm(found - expected) < 0.15


@pytest.mark.serial
class TestModelling:
    def test_it_is_the_modelling_of_pylops(self):
        from pylops.avo.poststack import PoststackLinearModelling

        wavelet = np.random.default_rng(0).normal(size=7)
        expected = PoststackLinearModelling(wavelet, 12, kind="forward").todense()
        # PyLops leaves the half of the reflection coefficient to the wavelet.
        np.testing.assert_allclose((convolution(wavelet, 12) @ reflection(12)).toarray(), expected / 2, atol=1e-15)

    @pytest.mark.parametrize("piece", [5, 512])
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_a_matrix_in_pieces_is_the_same_matrix(self, piece, dtype, monkeypatch):
        monkeypatch.setattr(modelling, "_PIECE", piece)
        matrix = convolution(np.random.default_rng(0).normal(size=7), 23) @ reflection(23)
        live = np.array([True, False, True])
        operator = TraceMatrix(matrix, live, HOST, dtype)
        assert operator.capturable == (piece > 23)
        x = np.random.default_rng(1).normal(size=(3, 23)).astype(dtype)
        for apply, dense in ((operator.forward_local, matrix.T), (operator.adjoint_local, matrix)):
            found = apply(x.ravel(), np.full(69, np.nan, dtype)).reshape(3, 23)
            assert found.dtype == dtype
            np.testing.assert_allclose(found, (x @ dense.toarray()) * live[:, None], atol=1e-5)


def test_traces_are_modelled_without_a_message(comm):
    import collops
    from collops import profile

    cube = Cube((Axis("inline", np.arange(4)), Axis("crossline", np.arange(3))), 20, 0.004)
    rows = cube.layout(comm.size).slices(comm.rank)[0]
    live = np.ones((4, 3), bool)
    live[1, 2] = False
    matrix = convolution(np.array([1.0, 2.0, -1.0]), 20)
    operator = trace_operator(job_of(VolumeOptions(dtype="float64"), comm), matrix, live[rows])
    assert operator.dottest()
    x = collops.random(operator.domain, comm=comm, seed=3)
    with profile.count_messages() as messages:
        y = operator.forward(x)
    assert messages.total == 0
    expected = (x.gather().reshape(12, 20) @ matrix.T.toarray()) * live.reshape(12, 1)
    np.testing.assert_allclose(y.gather(), expected.ravel(), atol=1e-14)


@pytest.mark.serial
def test_the_synthetic_earth_can_be_computed_in_pieces():
    made = impedance((12, 9, 50))
    assert made.shape == (12, 9, 50) and made.min() > 1
    assert np.array_equal(
        np.concatenate([impedance((12, 9, 50), slice(0, 5)), impedance((12, 9, 50), slice(5, 12))]), made
    )
    assert impedance((12, 50)).shape == (12, 50)
    # Layers, not gradients: few different values, and few steps along a trace.
    assert len(np.unique(made)) < 30
    assert np.count_nonzero(np.diff(made, axis=-1)) < 0.5 * made.size
