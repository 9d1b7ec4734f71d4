"""What headers hold that is not used, and scalars of coordinates that cannot be meant, are not passed over silently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collops.seismic import lsm, poststack
from collops.seismic.survey import read
from tests.apps.jobs import job_numbers
from tests.seismic.files import small_geometry, small_survey, stacked_volume, write_traces

# The byte of each of these fields, as the standard names them.
TIMES = {
    99: "source static",
    101: "group static",
    103: "total static",
    105: "lag times A",
    107: "lag times B",
    111: "mute start",
    113: "mute end",
}


def set_times(path: Any, byte: int, values: dict[int, int], samples: int = 40, scalar: int = 0) -> None:
    content = bytearray(path.read_bytes())
    for trace, value in values.items():
        for place, number in ((byte, value), (215, scalar)):
            start = 3600 + trace * (240 + 4 * samples) + place - 1
            content[start : start + 2] = number.to_bytes(2, "big", signed=True)
    path.write_bytes(content)


@pytest.mark.serial
@pytest.mark.parametrize("byte", TIMES)
def test_times_that_are_not_applied_are_named(tmp_path, byte):
    path = small_survey(tmp_path / "a.sgy")
    assert not any("not applied" in note for note in read(path).notes)
    set_times(path, byte, {3: -8, 7: 12, 14: 12})
    (note,) = [note for note in read(path).notes if "not applied" in note]
    assert TIMES[byte] in note and f"bytes {byte} to" in note and "in 3 of 15 traces, -8 to 12 ms" in note
    set_times(path, byte, {trace: 50 for trace in range(15)}, scalar=-10)
    (note,) = [note for note in read(path).notes if "not applied" in note]
    assert "in 15 of 15 traces, 5 ms" in note
    set_times(path, 29, {trace: 2 for trace in range(14)})  # dead traces do not count
    (note,) = [note for note in read(path).notes if "not applied" in note]
    assert "in 1 of 1 traces" in note


def test_commands_print_them(comm, folder):
    if comm.rank == 0:
        path = small_survey(folder / "a.sgy")
        set_times(path, 101, {2: 24})
        stack = stacked_volume(folder / "b.sgy", np.random.default_rng(0).normal(size=(3, 4, 40)).astype("f4"))
        set_times(stack, 111, {5: 100})
    comm.barrier()
    options = {"iterations": 1, "engine": "numpy", "mute": "none", "velocity": "1500"}
    said = job_numbers(lsm.run, lsm.Options(survey=str(folder / "a.sgy"), out=str(folder / "lsm"), **options), comm)
    assert any("group static corrections (bytes 101 to 102) are nonzero in 1 of 15" in note for note in said["notes"])
    stacked = poststack.Options(volume=str(folder / "b.sgy"), out=str(folder / "stack"), iterations=1, engine="numpy")
    said = job_numbers(poststack.run, stacked, comm)
    assert any("mute start times (bytes 111 to 112) are nonzero in 1 of 12" in note for note in said["notes"])


@pytest.mark.serial
@pytest.mark.parametrize(
    ("scalar", "frequency", "dx", "doubt"),
    [
        (1, 25.0, None, False),
        (-10, 25.0, None, False),  # 200 m: 3 wavelengths
        (-100, 25.0, None, True),  # 20 m: a third of a wavelength
        (-100, 124.0, None, True),
        (-10, 124.0, 12.5, False),
        (-10, 124.0, 100.0, True),  # 200 m are two columns
    ],
)
def test_stations_within_a_few_columns_or_wavelengths_are_doubted_without_offsets(
    tmp_path, scalar, frequency, dx, doubt
):
    geometry = small_geometry(shots=3, receivers=5, samples=200)
    shot = geometry.shot_of_trace
    headers = {
        "FieldRecord": shot,
        "SourceX": 5 * geometry.sources[0][shot],
        "GroupX": 5 * np.concatenate([each[0] for each in geometry.receivers]),
        "SourceGroupScalar": np.full(15, scalar),
    }
    values = np.random.default_rng(0).normal(size=(15, 200)).astype("f4")
    survey = read(write_traces(tmp_path / "a.sgy", values, headers, 4000, "SHOTS"))
    grid = survey.grid("1500", dx=dx)
    survey.check(survey.velocity("1500", grid), grid, frequency)
    found = [warning for warning in survey.warnings if "all stations lie within" in warning]
    assert len(found) == doubt
    assert not doubt or "scalar (in SEG-Y bytes 71 to 72)" in found[0]
