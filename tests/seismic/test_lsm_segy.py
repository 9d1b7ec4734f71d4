from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from collops.errors import InputError
from collops.seismic.survey.geometry import Geometry, Line, shots_of
from collops.seismic.survey.headers import read_traces
from collops.seismic.survey.segy import read_headers
from tests.seismic.files import REAL, random_traces, set_binary, set_header, small_geometry, small_survey, write_survey

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("towed", [False, True])
def test_a_survey_comes_back_as_it_was_written(tmp_path, towed):
    geometry = small_geometry(towed=towed)
    traces = random_traces(geometry)
    write_survey(tmp_path / "a.sgy", geometry, traces, {"velocity": "1500+0.6z", "nx": "41"})
    headers = read_headers(tmp_path / "a.sgy")
    assert len(headers.geometry.distinct_receivers()) == (3 if towed else 1)
    np.testing.assert_allclose(headers.geometry.sources, geometry.sources, rtol=1e-12)
    for read, written in zip(headers.geometry.receivers, geometry.receivers, strict=True):
        np.testing.assert_allclose(read, written, rtol=1e-12)
    assert headers.geometry.samples == geometry.samples
    assert headers.geometry.interval == geometry.interval
    assert headers.defaults == {"velocity": "1500+0.6z", "nx": "41"}
    for rank in range(2):
        shots = shots_of(rank, geometry.shots, 2)
        read = read_traces(headers, shots)
        assert all(np.array_equal(read[i], traces[shot]) for i, shot in enumerate(shots))
    assert read_traces(headers, range(3, 3)) == []


def test_long_lines_keep_whole_metres(tmp_path):
    sources = np.array([[0.0, 1e8], [0.0, 0.0]])
    groups = sources + np.array([[40.0], [0.0]])
    geometry = Geometry(sources, [groups[:, :1], groups[:, 1:]], 4, 0.002, 0.1)
    write_survey(tmp_path / "a.sgy", geometry, random_traces(geometry), {})
    headers = read_headers(tmp_path / "a.sgy")
    assert headers.geometry.sources[0].tolist() == [0, 1e8]
    assert headers.geometry.start == 0.1


@pytest.mark.parametrize("start", [-0.02, 0.0, 0.0005, 0.00125, -0.0375, 0.1])
def test_delays_are_read_as_they_were_written(tmp_path, start):
    geometry = replace(small_geometry(), start=start)
    write_survey(tmp_path / "a.sgy", geometry, random_traces(geometry), {})
    assert read_headers(tmp_path / "a.sgy").geometry.start == pytest.approx(start, rel=1e-12)


def test_interleaved_shots_are_identified_in_order_of_appearance(tmp_path):
    geometry = small_geometry(shots=2, receivers=3)
    path = tmp_path / "a.sgy"
    write_survey(path, geometry, random_traces(geometry), {})
    content = path.read_bytes()
    length = 240 + 4 * geometry.samples
    blocks = [content[3600 + i * length : 3600 + (i + 1) * length] for i in range(6)]
    path.write_bytes(content[:3600] + b"".join(blocks[i] for i in (3, 0, 4, 1, 5, 2)))
    headers = read_headers(path)
    assert [n.tolist() for n in headers.traces] == [[0, 2, 4], [1, 3, 5]]
    np.testing.assert_allclose(headers.geometry.sources[0], geometry.sources[0, ::-1])


def test_elevations_become_depths_below_the_highest_station(tmp_path):
    path = small_survey(tmp_path / "a.sgy")
    for trace in range(15):
        set_header(path, trace, 41, 300_000 if trace == 4 else 0, size=4)  # 30 m above sea level at one receiver
    headers = read_headers(path)
    assert headers.geometry.receivers[0][1].tolist() == [30, 30, 30, 30, 0]
    assert headers.geometry.sources[1].tolist() == [36, 36, 36]
    assert any("30 m above sea level" in note for note in headers.notes)


def test_feet_become_metres(tmp_path):
    path = small_survey(tmp_path / "a.sgy")
    before = read_headers(path).geometry
    set_binary(path, 3255, 2)
    after = read_headers(path).geometry
    np.testing.assert_allclose(after.sources, 0.3048 * before.sources)


def test_dead_traces_are_left_out(tmp_path):
    path = small_survey(tmp_path / "a.sgy")
    set_header(path, 7, 29, 2)
    headers = read_headers(path)
    assert headers.geometry.traces == 14
    assert 7 not in np.concatenate(headers.traces)
    assert any("1 of 15" in note for note in headers.notes)


def _all_headers(byte: int, values, size: int = 2):
    def damage(path):
        for trace in range(15):
            set_header(path, trace, byte, values(trace), size=size)

    return damage


def _no_coordinates(path):
    for byte in (73, 77, 81, 85):
        _all_headers(byte, lambda trace: 0, 4)(path)


def _no_interval(path):
    set_binary(path, 3217, 0)
    _all_headers(117, lambda trace: 0)(path)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (_no_coordinates, "lacks source and receiver coordinates"),
        (_no_interval, "lacks a sample interval"),
        (_all_headers(117, lambda trace: 2000 + trace % 2), "mixes sample intervals"),
        (_all_headers(109, lambda trace: 5000 * (trace % 2)), "begin at 0 to 5 s"),
        (_all_headers(29, lambda trace: 2), "no live seismic traces"),
        (_all_headers(89, lambda trace: 3), "coordinates in degrees"),
    ],
)
def test_headers_without_a_survey_raise(tmp_path, damage, complaint):
    path = small_survey(tmp_path / "a.sgy")
    damage(path)
    with pytest.raises(InputError, match=complaint):
        read_headers(path)


def test_a_line_on_the_map_keeps_distances():
    generator = np.random.default_rng(1)
    along = np.sort(generator.uniform(0, 5000, 50))
    east, north = 431000 + along * np.cos(0.7), 6.47e6 + along * np.sin(0.7)
    line = Line.through(east, north)
    np.testing.assert_allclose(line.distance(east, north), along - along[0], atol=1e-6)
    assert np.abs(line.across(east, north)).max() < 1e-6


@pytest.mark.parametrize("axis", [0, 1])
def test_a_line_along_one_coordinate_keeps_that_coordinate(axis):
    values = np.array([700.0, 100.0, 300.0])
    pair = [np.full(3, 9.0), np.full(3, 9.0)]
    pair[axis] = values
    assert Line.through(*pair).distance(*pair).tolist() == values.tolist()


@pytest.mark.parametrize(("shots", "ranks"), [(7, 3), (2, 5), (6, 3), (0, 2)])
def test_shots_are_dealt_evenly_and_in_order(shots, ranks):
    shares = [shots_of(rank, shots, ranks) for rank in range(ranks)]
    assert [shot for share in shares for shot in share] == list(range(shots))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the real data are not at {REAL}")
def test_the_marine_shots_tow_their_receivers():
    headers = read_headers(REAL / "viking_small.segy")
    geometry = headers.geometry
    assert (geometry.shots, geometry.traces, geometry.samples, geometry.interval) == (4, 480, 600, 0.004)
    assert len(geometry.distinct_receivers()) == 4
    offsets = [r[0] - s for r, s in zip(geometry.receivers, geometry.sources[0], strict=True)]
    assert all(np.array_equal(o, np.arange(-3237, -261, 25)) for o in offsets)
    assert geometry.sources[1].tolist() == [6] * 4
    assert geometry.receivers[0][1].tolist() == [10] * 120
