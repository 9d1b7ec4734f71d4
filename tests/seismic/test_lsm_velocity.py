from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collops.errors import InputError
from collops.seismic.survey.geometry import Grid, Line
from collops.seismic.survey.velocity import Gradient, Section, on_grid, parse_velocity, read_npy, read_section
from tests.seismic.files import REAL

pytestmark = pytest.mark.serial

_SECTIONS = REAL / "volve_migration_velocity_depth.sgy"


@pytest.mark.parametrize(
    ("text", "surface", "gradient"),
    [
        ("1800", 1800, 0),
        ("1500+0.6z", 1500, 0.6),
        (" 1500 + 0.6*z ", 1500, 0.6),
        ("1.5e3+6e-1*z", 1500, 0.6),
        ("0.6z+1500", 1500, 0.6),
        ("3000-.5z", 3000, -0.5),
        ("+2000 + z", 2000, 1),
        ("2000.", 2000, 0),
    ],
)
def test_expressions(text, surface, gradient):
    assert parse_velocity(text) == Gradient(surface, gradient)


@pytest.mark.parametrize(
    "text",
    ["", " ", "abc", "1500+", "1500 0.6z", "1500+0.6x", "1500+0.6zz", "__import__('os')", "1e999", "-1500",
     "0", "z", "1500**2", "nan", "inf", "1500+0.6z;1", "1_000", "0x10", "1500+(1)"],
)  # fmt: skip
def test_other_texts_raise_with_an_example(text):
    with pytest.raises(InputError, match=r"1500\+0\.6z"):
        parse_velocity(text)


@given(st.floats(1, 1e5), st.floats(-10, 10))
def test_the_text_of_a_gradient_means_the_same_gradient(surface, gradient):
    model = Gradient(surface, gradient)
    assert parse_velocity(str(model)) == model


@given(st.text(max_size=12))
def test_no_text_does_anything_but_parse_or_complain(text):
    with contextlib.suppress(InputError):
        parse_velocity(text)


def test_a_gradient_on_the_grid():
    grid = Grid(3, 4, 10, 20)
    assert on_grid(Gradient(1500, 0.5), grid, None, []).tolist() == [[1500, 1510, 1520, 1530]] * 3


def test_a_gradient_that_falls_below_zero_within_the_model_raises():
    with pytest.raises(InputError, match="positive"):
        on_grid(Gradient(100, -1), Grid(3, 30, 10, 10), None, [])


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_bytes(b""), "damaged"),
        (lambda path: path.write_bytes(b"\x93NUMPY\x01\x00nonsense"), "damaged"),
        (lambda path: np.save(path, np.full((4, 4), 1500.0)) or path.write_bytes(path.read_bytes()[:-9]), "damaged"),
        (lambda path: np.save(path, np.array([{}], dtype=object), allow_pickle=True), "damaged"),
        (lambda path: np.save(path, np.ones(5)), "shape"),
        (lambda path: np.save(path, np.ones((5, 1))), "shape"),
        (lambda path: np.save(path, np.ones((4, 4), complex)), "complex"),
        (lambda path: np.save(path, np.array([[1500, np.nan], [1, 2]])), "nan at column 0, row 1"),
        (lambda path: np.save(path, np.array([[1500.0, 1.0], [np.inf, 2]])), "inf at column 1, row 0"),
        (lambda path: np.save(path, np.array([[1500.0, 1.0], [0, 2]])), "positive"),
    ],
)  # fmt: skip
def test_a_file_without_velocities_raises(tmp_path, make, complaint):
    path = tmp_path / "v.npy"
    make(path)
    with pytest.raises(InputError, match=complaint):
        read_npy(path)


def test_integers_are_velocities_too(tmp_path):
    np.save(tmp_path / "v.npy", np.full((3, 2), 1500, dtype=np.int16))
    assert read_npy(tmp_path / "v.npy").dtype == np.float64


@pytest.mark.skipif(not _SECTIONS.is_file(), reason=f"the real data are not at {REAL}")
class TestRealSection:
    def test_one_inline_is_a_section(self):
        section = read_section(_SECTIONS)
        assert section.velocity.shape == (52, 226)
        assert section.inline == 10123
        np.testing.assert_allclose(np.diff(section.distance), 50, atol=0.1)
        assert (section.depth[0], section.depth[-1]) == (0, 4500)

    def test_a_missing_inline_raises(self):
        with pytest.raises(InputError, match="choose one from 10087 to 10155"):
            read_section(_SECTIONS, 1)

    def test_elsewhere_it_starts_at_the_first_column_and_continues_beyond_its_end(self):
        section = read_section(_SECTIONS, 10087)
        grid = Grid(101, 100, 50, 20, 700.0)
        notes: list[str] = []
        velocity = on_grid(section, grid, Line(), notes)
        np.testing.assert_allclose(velocity[0], section.velocity[0, :100])
        assert np.array_equal(velocity[60], velocity[-1])
        assert len(notes) == 1

    @pytest.mark.parametrize("towards", [1, -1])
    def test_overlapping_coordinates_place_the_section(self, towards):
        section = read_section(_SECTIONS, 10087)
        across = (section.east[-1] - section.east[0], section.north[-1] - section.north[0])
        length = float(np.hypot(*across))
        unit = (towards * across[0] / length, towards * across[1] / length)
        first = 0 if towards > 0 else -1
        line = Line((float(section.east[first]) - 500 * unit[0], float(section.north[first]) - 500 * unit[1]), unit)
        grid = Grid(101, 100, 50, 20)
        velocity = on_grid(section, grid, line, [])
        expected = section.velocity[::towards, :100]
        np.testing.assert_allclose(velocity[10], expected[0], rtol=1e-3)
        np.testing.assert_allclose(velocity[60], expected[50], rtol=1e-3)


@pytest.mark.parametrize("angle", [0, 40, 180, 220])
def test_a_section_at_an_angle_is_projected_to_the_line(angle):
    distance, depth = 50.0 * np.arange(41), 20.0 * np.arange(11)
    east, north = np.cos(np.radians(angle)) * distance, 30 + np.sin(np.radians(angle)) * distance
    section = Section(1500 + 0.1 * distance[:, None] + 0 * depth, depth, east, north, distance, 7)
    notes: list[str] = []
    grid = Grid(31, 11, 40.0, 20.0, -600.0)
    found = on_grid(section, grid, Line(), notes)
    along = np.clip(grid.x / np.cos(np.radians(angle)), 0, 2000)
    np.testing.assert_allclose(found, np.broadcast_to((1500 + 0.1 * along)[:, None], grid.shape))
    assert f"up to {np.abs(north).max():.0f} m off the line" in notes[0]
    crossing = Section(section.velocity, depth, 30 + 0.1 * east, distance, distance, 7)
    with pytest.raises(InputError, match="inline 7 is at more than 60 degrees"):
        on_grid(crossing, grid, Line(), notes)
