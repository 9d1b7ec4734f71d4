from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collops.errors import InputError
from collops.seismic.segy import SegyFile, fits_segy, scaled, whole_interval
from tests.seismic.files import REAL, set_binary, small_survey, write_traces

pytestmark = pytest.mark.serial


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 60), st.integers(1, 32767), st.data())
def test_written_files_are_read_back(tmp_path_factory, traces, samples, interval, data):
    path = tmp_path_factory.mktemp("segy") / "a.sgy"
    values = np.random.default_rng(traces).normal(size=(traces, samples)).astype(np.float32)
    numbers = np.array(data.draw(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=traces, max_size=traces)))
    write_traces(path, values, {"SourceX": numbers}, interval, "HELLO")
    file = SegyFile.inspect(path)
    assert (file.traces, file.samples, file.interval, file.revision) == (traces, samples, interval, 1)
    assert np.array_equal(file.headers("SourceX")["SourceX"], numbers)
    assert "HELLO" in file.text()
    wanted = np.array(data.draw(st.lists(st.integers(0, traces - 1), max_size=12)), dtype=int)
    assert np.array_equal(file.read(wanted), values[wanted])


def test_scalars_multiply_divide_or_do_nothing():
    assert scaled(np.array([7, 7, 7, 7]), np.array([10, -10, 0, 1])).tolist() == [70, 0.7, 7, 7]


@pytest.mark.parametrize(
    ("interval", "samples", "fits"),
    [
        (0.004, 65535, True),
        (1e-3 / 3, 499, True),  # the last sample is off by nearly half an interval
        (1e-3 / 3, 501, False),
        (12.3e-6, 41, False),  # rows 12.3 mm apart
        (1.2e-6, 4, False),
        (0.065536, 10, False),
    ],
)
def test_intervals_that_rounding_would_change_do_not_fit(interval, samples, fits):
    assert fits_segy(interval, samples) == fits
    if not fits:
        with pytest.raises(InputError, match="whole microseconds"):
            whole_interval(interval, samples)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:3000])


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _without_traces(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:3600])


def _text(path: Path) -> None:
    path.write_text("time,amplitude\n" * 1000)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (Path.unlink, "does not exist"),
        (_empty, "is empty"),
        (_short, "too short"),
        (_cut, "truncated"),
        (_without_traces, "truncated"),
        (_text, "cannot be read as SEG-Y"),
        (lambda path: set_binary(path, 3221, 0), "0 samples"),
        (lambda path: set_binary(path, 3221, 41), "truncated"),
        (lambda path: set_binary(path, 3225, 4), "format code is 4"),
        (lambda path: set_binary(path, 3505, 0xFFFF), "variable number"),
    ],
)
def test_a_damaged_file_is_named_with_its_damage(tmp_path, damage, complaint):
    path = small_survey(tmp_path / "a.sgy")
    damage(path)
    with pytest.raises(InputError, match=complaint) as caught:
        SegyFile.inspect(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(InputError, match="folder"):
        SegyFile.inspect(tmp_path)


def test_little_endian_files_are_recognised(tmp_path):
    import segyio

    path = tmp_path / "little.sgy"
    spec = segyio.spec()
    spec.format, spec.samples, spec.tracecount, spec.endian = 5, np.arange(8), 2, "little"
    values = np.arange(16, dtype=np.float32).reshape(2, 8)
    with segyio.create(str(path), spec) as file:
        for number in range(2):
            file.header[number] = {segyio.TraceField.SourceX: 300 + number}
        file.trace.raw[:] = values
    file = SegyFile.inspect(path)
    assert file.endian == "little"
    assert file.headers("SourceX")["SourceX"].tolist() == [300, 301]
    assert np.array_equal(file.read(np.arange(2)), values)


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the real data are not at {REAL}")
def test_ibm_floats_of_the_marine_shots():
    file = SegyFile.inspect(REAL / "viking_small.segy")
    assert (file.traces, file.samples, file.interval) == (480, 600, 4000)
    # The largest amplitudes, from an independent conversion of the IBM words in the file.
    raw = np.fromfile(file.path, dtype=">u4", offset=3600).reshape(480, 660)[:, 60:]
    sign = np.where(raw >> 31, -1.0, 1.0)
    expected = sign * (raw & 0xFFFFFF) / 2.0**24 * 16.0 ** (((raw >> 24) & 0x7F).astype(float) - 64)
    np.testing.assert_allclose(file.read(np.arange(480)), expected, rtol=1e-6)
