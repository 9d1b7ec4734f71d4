"""An image that is a part of the model, against the same part of the whole image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import collops
from collops.errors import InputError
from collops.seismic.kirchhoff import Weighting
from collops.seismic.lsm import Options, run
from collops.seismic.survey import Geometry, Grid, Survey
from tests.apps.jobs import group_of, job_numbers
from tests.seismic.files import FREQUENCY, INTERVAL, small_survey
from tests.seismic.test_survey import area_survey

LINE = {"x": (95.0, 150.0), "z": (62.0, 133.0)}


def line_survey(comm: Any) -> tuple[Survey, Grid]:
    towed = [np.stack([10.0 + 20 * shot + 12.0 * np.arange(5), np.full(5, 3.0)]) for shot in range(4)]
    sources = np.stack([np.linspace(5, 190, 4), np.full(4, 2.0)])
    return Survey(Geometry(sources, towed, 60, INTERVAL, start=0.01), comm), Grid(21, 19, 10.0, 10.0)


@pytest.mark.parametrize(
    ("make", "ranges", "options"),
    [
        (line_survey, LINE, {"antialias": True}),
        (line_survey, LINE, {"velocity": "1500+0.8z", "weighting": Weighting("2.5d", 150.0, 60.0)}),
        (line_survey, LINE, {"mode": "eikonal", "weighting": Weighting("2d"), "split": True}),
        # The nodes of the part are nodes of the whole.
        (line_survey, {"z": (40.0, np.inf)}, {"velocity": "1500+3z", "coarsen": 2, "streamed": True}),
        (line_survey, {"z": (40.0, np.inf)}, {"velocity": "1500+3z", "coarsen": 2, "split": True}),
        (area_survey, {"y": (60.0, 180.0), "z": (80.0, 200.0)}, {"weighting": Weighting("3d", 250.0)}),
    ],
)
def test_the_image_of_a_part_is_that_part_of_the_image(comm, make, ranges, options):
    survey, grid = make(comm)
    target, velocity = grid.part(**ranges), options.get("velocity", 1500.0)
    options = {"frequency": FREQUENCY, "dtype": "float64"} | {k: v for k, v in options.items() if k != "velocity"}
    tables: list[list[Any]] = [[], []]
    whole = survey.operator(velocity, grid, kept=tables[0], **options)
    part = survey.operator(velocity, grid, target=target, kept=tables[1], **options)
    assert part.domain.shape == target.shape
    assert part.dottest()
    box = grid.box(target)
    survey.traces = [np.random.default_rng(shot).normal(size=survey.trace_shape(shot)) for shot in survey.shots]
    data = survey.data(dtype="float64")
    expected, found = ((A.H @ data).gather() for A in (whole, part))
    limit = 1e-6 if "coarsen" in options else 1e-13
    assert np.abs(found - expected[box]).max() <= limit * np.abs(expected).max() > 0
    if not options.get("split"):
        for small, large in zip(*tables[::-1], strict=True):
            assert small.nodes.shape == target.shape and large.nodes.shape == grid.shape
            assert small.times.size * large.nodes.size == large.times.size * small.nodes.size
    image = np.zeros(grid.shape)
    image[box] = np.random.default_rng(1).normal(size=target.shape)
    expected, found = (
        (A @ collops.from_global(values, A.domain, comm=comm)).gather()
        for A, values in ((whole, image), (part, np.ascontiguousarray(image[box])))
    )
    assert np.abs(found - expected).max() <= limit * np.abs(expected).max() > 0


@pytest.mark.serial
def test_a_part_of_a_grid():
    grid = Grid(21, 19, 10.0, 5.0, x0=100.0)
    part = grid.part(x=(-np.inf, 131.0), z=(12.0, 30.0))
    assert part == Grid(4, 4, 10.0, 5.0, x0=100.0, z0=15.0)
    assert grid.box(part) == (slice(0, 4), slice(3, 7)) and grid.box(grid) == (slice(0, 21), slice(0, 19))
    for wrong, text in (({"x": (131.0, 142.0)}, "holds 1 of the points"), ({"y": (0.0, 9.0)}, "needs a 3-D image")):
        with pytest.raises(InputError, match=text):
            grid.part(**wrong)
    others = (
        Grid(4, 4, 10.0, 5.0, x0=105.0),
        Grid(4, 4, 11.0, 5.0, x0=100.0),
        Grid(4, 20, 10.0, 5.0, x0=100.0),
        Grid(4, 4, 10.0, 5.0, x0=100.0, ny=2, dy=1.0),
    )
    for other in others:
        with pytest.raises(InputError, match="must be a part of the model"):
            grid.box(other)


def test_the_command_images_a_part(comm, folder):
    sizes: dict[str, Any] = {
        "nx": 31,
        "nz": 21,
        "shots": 3,
        "receivers": 9,
        "samples": 101,
        "iterations": 1,
        "dtype": "float64",
    }
    ranges = {"image_x": "100,200", "image_z": "100,"}
    groups, numbers = [], {}
    for name, limits in (("whole", {}), ("part", ranges)):
        numbers = job_numbers(run, Options(engine="numpy", out=str(folder / name), **sizes, **limits), comm)
        groups.append(group_of(folder, name))
    whole, part = groups
    assert [numbers[name] for name in ("nx", "nz", "x0", "z0")] == [9, 13, 100.0, 100.0]
    for name in ("adjoint_image", "truth", "velocity"):
        np.testing.assert_allclose(part[name][...], whole[name][8:17, 8:], rtol=0, atol=1e-12 * whole[name][...].max())


def test_segy_has_the_first_depth(comm, folder):
    import segyio

    path = folder / "a.sgy"
    if comm.rank == 0:
        small_survey(path)
    comm.barrier()
    sizes: dict[str, Any] = {"nx": 11, "nz": 31, "dx": 45.0, "x0": -20.0, "dz": 2.5, "iterations": 1, "frequency": 40.0}
    ranges = {"image_x": "-5,300", "image_z": "12,30"}
    options = Options(survey=str(path), velocity="1500", out=str(folder / "out"), engine="numpy", **sizes, **ranges)
    numbers = job_numbers(run, options, comm)
    assert any("echoes from other points" in note for note in numbers["notes"])
    with segyio.open(str(folder / "out" / "image.sgy"), ignore_geometry=True) as file:
        header = file.header[0]
        assert (file.tracecount, len(file.samples)) == (7, 8)
        depth, scalar = (header[segyio.TraceField(byte)] for byte in (109, 215))
        assert (depth / -scalar, header[segyio.TraceField.CDP_X]) == (12.5, 25 * -header[71])


@pytest.mark.serial
def test_ranges_are_checked():
    for text in ("5", "9,5", ",", "a,b"):
        with pytest.raises(InputError, match="--image-z must be LOW,HIGH in m"):
            Options(image_z=text).check()
