"""The survey as an object: what `collops lsm` is made of, along a line and on an area."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.interpolate import CubicSpline

import collops
from collops.errors import InputError
from collops.seismic import lsm
from collops.seismic.signals import ricker
from collops.seismic.survey import Geometry, Grid, Survey, read
from collops.seismic.survey.geometry import Bins, Line
from collops.seismic.survey.velocity import Gradient, on_grid, read_volume
from tests.apps.jobs import group_of, job_numbers
from tests.seismic.files import (
    CORNER,
    CROSSLINES,
    FREQUENCY,
    INLINES,
    INTERVAL,
    SPEED,
    diffractor_file,
    irregular_area,
    on_map,
    random_traces,
    small_geometry,
    velocity_volume,
    write_survey,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "recorded_shots.py"


@pytest.mark.parametrize("unit", [1.0, 1e-22, 1e15])
def test_a_script_does_what_the_command_does(comm, folder, monkeypatch, unit):
    """With all its defaults, in any unit of the samples: also where the command needs float64."""
    geometry = small_geometry(shots=4, samples=60, towed=True)
    if comm.rank == 0:
        write_survey(folder / "a.sgy", geometry, [unit * each for each in random_traces(geometry)], {})
    comm.barrier()
    path, velocity = str(folder / "a.sgy"), "1500+0.6z"
    options = {"survey": path, "velocity": velocity, "iterations": 10, "out": str(folder / "out"), "engine": "numpy"}
    job_numbers(lsm.run, lsm.Options(**options, dtype="float32" if unit == 1 else "float64"), comm)
    monkeypatch.setattr(sys, "argv", ["recorded_shots.py", path, velocity])
    names = runpy.run_path(str(EXAMPLE), run_name="__main__")
    image, expected = names["plain"].x.local_array, group_of(folder, "out")["image"][...]
    assert np.abs(image).max() > 0
    expected *= np.abs(image).max() / np.abs(expected).max()
    np.testing.assert_allclose(image, expected, rtol=0, atol=2e-4 * np.abs(image).max())
    survey, grid, regularised = (names[name] for name in ("survey", "grid", "regularised"))
    roughness = [float((names["along"] @ each).norm() / each.norm()) for each in (names["plain"].x, regularised.x)]
    assert 0 < roughness[1] < 0.9 * roughness[0]
    survey.write(folder / "b.sgy", regularised.x, grid)
    if comm.rank == 0:
        import segyio

        with segyio.open(str(folder / "b.sgy"), ignore_geometry=True) as file:
            np.testing.assert_array_equal(file.trace.raw[:], regularised.x.local_array.astype(np.float32))


def test_a_point_in_3d_comes_back_at_its_place(comm, folder):
    diffractor = np.array([150.0, 220.0, 240.0])  # at inline 112, crossline 18, row 12
    if comm.rank == 0:
        diffractor_file(folder / "a.sgy", diffractor)
    comm.barrier()
    options = lsm.Options(
        survey=str(folder / "a.sgy"), velocity="2000", dz=20, nz=20, iterations=3, frequency=FREQUENCY, amplitude="none"
    )
    numbers = job_numbers(lsm.run, lsm.Options(**(vars(options) | {"out": str(folder / "out")})), comm)
    assert (numbers["dx"], numbers["dy"]) == pytest.approx((20, 25), rel=1e-4)
    group = group_of(folder, "out")
    image = group["image"][...]
    assert group["image"].metadata.dimension_names == ("y", "x", "z")
    place = np.unravel_index(np.abs(image).argmax(), image.shape)
    expected = on_map(*diffractor[:2])
    np.testing.assert_allclose([group[name][place[:2]] for name in ("cdp_x", "cdp_y")], expected, atol=0.1)
    # Depths count from the highest station, the elevation of which is rounded to centimetres.
    highest = max(-each[2].min() for each in irregular_area()[1])
    assert group["z"][place[2]] == pytest.approx(diffractor[2] + highest, abs=0.1)
    assert numbers["residual_reduction"] < 0.8
    if comm.rank == 0:
        import segyio

        with segyio.open(str(folder / "out" / "image.sgy")) as file:  # with the geometry of a volume
            assert (file.ilines.size, file.xlines.size) == image.shape[:2]
            loudest = file.header[int(np.abs(file.trace.raw[:]).max(axis=1).argmax())]
        field = segyio.TraceField
        assert (loudest[field.INLINE_3D], loudest[field.CROSSLINE_3D]) == (112, 18)
        at = np.array([loudest[field.CDP_X], loudest[field.CDP_Y]]) / -loudest[field.SourceGroupScalar]
        np.testing.assert_allclose(at, expected, atol=0.1)


def area_survey(comm: Any) -> tuple[Survey, Grid]:
    """Return four shots, recorded late, of which the middle two have the same receivers, and their grid."""
    sources, receivers = irregular_area()
    groups = [np.abs(each[:, : 2 + shot]) for shot, each in enumerate(receivers[:3])]
    geometry = Geometry(sources[:, :4], [groups[0], groups[1], groups[1], groups[2]], 60, INTERVAL, 0.04)
    return Survey(geometry, comm), Grid(9, 7, 50.0, 30.0, ny=7, dy=50.0)


@pytest.mark.parametrize("whole", [True, False])
def test_default_rows_hold_what_an_image_in_water_has_between_them(comm, whole):
    geometry = small_geometry(samples=251)
    survey, wavelet = Survey(geometry, comm), ricker(FREQUENCY, INTERVAL)
    spikes = [each * (np.abs(each) > 2) for each in random_traces(geometry)]
    traces = [np.stack([np.convolve(row, wavelet[0], mode="same") for row in each]) for each in spikes]
    survey.traces = [traces[shot] for shot in survey.shots]
    coarse = survey.grid(1500.0, **({} if whole else {"dz": 50.0}))
    fine = replace(coarse, dz=coarse.dz / 5, nz=5 * coarse.nz - 4)
    images = []
    for grid in (coarse, fine):
        A = survey.operator(1500.0, grid, wavelet=wavelet, dtype="float64")
        images.append(A.adjoint(survey.data(dtype="float64")).local_array)
    deep = fine.z > 200  # beyond the stations, where an image has no wavelengths but those of the data
    between = CubicSpline(coarse.z, images[0], axis=1)(fine.z)
    error = np.linalg.norm((between - images[1])[:, deep]) / np.linalg.norm(images[1][:, deep])
    assert coarse.dx == 50
    if whole:
        assert error < 0.1 and "a quarter of the wavelength of" in survey.notes[0]
    else:  # as far apart as columns
        assert error > 0.5 and not survey.notes


@pytest.mark.parametrize("mode", ["analytic", "eikonal"])
def test_the_operator_in_3d_passes_the_dot_test(comm, mode):
    survey, grid = area_survey(comm)
    A = survey.operator("1500+0.6z", grid, frequency=FREQUENCY, mode=mode, dtype="float64")
    assert A.dottest()
    assert (A.domain.shape, A.range) == ((7, 9, 7), survey.layout)


@pytest.mark.filterwarnings("ignore:A new implementation of Kirchhoff:FutureWarning")
def test_the_operator_in_3d_is_that_of_pylops_for_each_shot(comm):
    import pylops

    survey, grid = area_survey(comm)
    geometry, late = survey.geometry, 10
    wavelet, centre = ricker(FREQUENCY, INTERVAL)
    A = survey.operator(SPEED, grid, wavelet=(wavelet, centre), dtype="float64")
    image = np.random.default_rng(2).normal(size=grid.shape)
    own = survey.by_shot((A @ collops.from_global(image, A.domain, comm=comm)).local_array)
    points = np.stack([axis.ravel() for axis in np.meshgrid(*grid.axes.values(), indexing="ij")])

    def times(positions: np.ndarray) -> np.ndarray:
        return np.linalg.norm(points[:, :, None] - positions[:, None, :], axis=0) / SPEED

    assert len(own) == len(survey.shots)
    for shot, traces in zip(survey.shots, own, strict=True):
        source, receivers = geometry.sources[:, shot : shot + 1], geometry.receivers[shot]
        serial = pylops.waveeqprocessing.Kirchhoff(
            *(grid.z, grid.x, INTERVAL * np.arange(60 + late), source, receivers, SPEED, wavelet, centre),
            y=grid.axes["y"], mode="byot", trav=(times(source), times(receivers)), engine="numpy",
        )  # fmt: skip
        expected = (serial @ image.ravel()).reshape(len(traces), -1)[:, late:]
        # The record of PyLops, which begins earlier, lets its first samples ring.
        scale = np.abs(expected).max()
        np.testing.assert_allclose(traces[:, centre:], expected[:, centre:], rtol=0, atol=1e-8 * scale)


def test_weights_in_3d_are_those_of_the_operator_of_one_spread(comm):
    """In constant velocity, where both know the times; every shot by itself."""
    from collops.comm import alone
    from collops.seismic.kirchhoff import Weighting

    survey, grid = area_survey(comm)
    geometry = survey.geometry
    wavelet, centre = ricker(FREQUENCY, INTERVAL)
    options = {"dtype": "float64", "weighting": Weighting("3d", 250.0), "antialias": True}
    A = survey.operator(SPEED, grid, wavelet=(wavelet, centre), **options)
    assert A.dottest()
    image = np.random.default_rng(2).normal(size=grid.shape)
    own = survey.by_shot((A @ collops.from_global(image, A.domain, comm=comm)).local_array)
    t = INTERVAL * np.arange(60 + 10)
    for shot, traces in zip(survey.shots, own, strict=True):
        positions = geometry.sources[:, shot : shot + 1], geometry.receivers[shot]
        options = {"y": grid.axes["y"], "amplitude": "3d", "aperture": 250.0, "antialias": True}
        single = collops.seismic.Kirchhoff(
            grid.z, grid.x, t, *positions, SPEED, wavelet, centre, mode="analytic", comm=alone(), **options
        )
        expected = (single @ collops.from_global(image, single.domain, comm=alone())).local_array
        expected = expected.reshape(len(traces), -1)[:, 10:]
        reach = len(wavelet) + 8  # the longer record lets its first samples ring, filters against aliasing further
        scale = np.abs(expected).max()
        np.testing.assert_allclose(traces[:, reach:], expected[:, reach:], rtol=0, atol=1e-8 * scale)
    with pytest.raises(InputError, match="amplitude '2d' does not suit a 3-D image"):
        survey.operator(SPEED, grid, wavelet=(wavelet, centre), weighting=Weighting("2d"))


def applied(comm: Any, A: Any) -> list[np.ndarray]:
    """Return this rank's data of an image, and the image of these data."""
    image = np.random.default_rng(2).normal(size=A.domain.shape).astype(A.dtype)
    data = A @ collops.from_global(image, A.domain, comm=comm)
    return [data.local_array, A.adjoint(data).local_array]


@pytest.mark.parametrize(
    "options", [{}, {"coarsen": 3}, {"mode": "eikonal", "antialias": True, "weighting": ("3d", 250.0, 60.0)}]
)
def test_tables_in_a_file_give_the_same_bits(comm, folder, options):
    from collops.seismic.kirchhoff import Weighting

    if "weighting" in options:
        options = {**options, "weighting": Weighting(*options["weighting"])}
    survey, grid = area_survey(comm)
    options = {"frequency": FREQUENCY, "dtype": "float64", **options}
    resident, streamed = (
        survey.operator("1500+0.6z", grid, streamed=each, folder=folder if each else None, **options)
        for each in (False, True)
    )
    for found, expected in zip(applied(comm, streamed), applied(comm, resident), strict=True):
        np.testing.assert_array_equal(found, expected)
    comm.barrier()
    assert not list(folder.iterdir())  # the file has no name any more


@pytest.mark.serial
def test_the_memory_of_streamed_tables_does_not_grow_with_the_shots(folder):
    """Allocations of NumPy; besides the tables, data and traces in the making do grow with the shots."""
    import tracemalloc

    from collops.comm import alone

    grid = Grid(161, 101, 5.0, 5.0)
    peaks = {}
    for shots in (1, 4, 16):  # the first one loads what all need
        towed = [np.stack([200.0 + 20 * shot + 10.0 * np.arange(12), np.zeros(12)]) for shot in range(shots)]
        sources = np.stack([200.0 + 20.0 * np.arange(shots), np.full(shots, 5.0)])
        survey = Survey(Geometry(sources, towed, 20, INTERVAL), alone())
        for streamed in (False, True):
            tracemalloc.start()
            A = survey.operator(2000.0, grid, frequency=40.0, coarsen=1, streamed=streamed, folder=folder)
            applied(survey.comm, A)
            peaks[shots, streamed] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    table = 4 * grid.points
    stations = [
        len(Survey(Geometry(sources[:, :n], towed[:n], 20, INTERVAL), alone()).geometry.stations[0]) for n in (4, 16)
    ]
    assert peaks[16, False] - peaks[4, False] > 0.9 * (stations[1] - stations[0]) * table
    assert peaks[16, True] - peaks[4, True] < 2 * table


def test_a_rank_has_the_tables_of_its_own_shots_only(comm):
    survey, grid = area_survey(comm)
    kept: list[Any] = []
    survey.operator("1500+0.6z", grid, frequency=FREQUENCY, kept=kept)
    own = [survey.geometry.sources[:, [shot]] for shot in survey.shots]
    own += [survey.geometry.receivers[shot] for shot in survey.shots]
    positions = np.unique(np.concatenate(own, axis=1), axis=1).shape[1] if own else 0
    assert all(each.times is kept[0].times for each in kept)
    assert not kept or kept[0].times.nbytes == 4 * grid.points * positions


def test_tables_that_do_not_fit_are_coarser_or_on_disk(comm, folder, monkeypatch):
    from collops.apps import stages

    survey, grid = area_survey(comm)
    A = survey.operator("1500+0.6z", grid, frequency=FREQUENCY, coarsen=2)
    most = int(comm.allreduce(np.array(len(survey.geometry.needed(survey.shots))), "max"))
    monkeypatch.setattr(stages, "available_memory", lambda _: (8 + 0.9 * most) * 4 * grid.points / 0.8)
    before = len(survey.notes)
    B = survey.operator("1500+0.6z", grid, frequency=FREQUENCY)
    assert "coarsened by 2" in survey.notes[before]
    for found, expected in zip(applied(comm, B), applied(comm, A), strict=True):
        np.testing.assert_array_equal(found, expected)
    # Not even with factor 8, of which a rank has 8 nodes for each station.
    monkeypatch.setattr(stages, "available_memory", lambda _: (8 * grid.points + 7) * 4 / 0.8)
    with pytest.raises(InputError, match=r"travel times of .* stations .* need"):
        survey.operator("1500+0.6z", grid, frequency=FREQUENCY)
    C = survey.operator("1500+0.6z", grid, frequency=FREQUENCY, folder=folder)
    assert "read from a file" in survey.notes[-1] and not C.capturable
    monkeypatch.undo()
    D = survey.operator("1500+0.6z", grid, frequency=FREQUENCY, coarsen=8)
    for found, expected in zip(applied(comm, C), applied(comm, D), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_tolerance_of_travel_times_is_noted(comm):
    survey, grid = area_survey(comm)
    options = {"frequency": FREQUENCY, "dtype": "float64", "mode": "eikonal", "coarsen": 2}
    exact = survey.operator("1500+0.6z", grid, **options)
    kept: list[Any] = []
    found = survey.operator("1500+0.6z", grid, **options, tolerance=5e-4, kept=kept)
    assert any("computed at every" in note and "root mean square error" in note for note in survey.notes)
    assert all(0 < each.error < 5e-4 / INTERVAL for each in kept)
    for one, other in zip(applied(comm, found), applied(comm, exact), strict=True):
        assert np.linalg.norm(one - other) < 0.1 * np.linalg.norm(other)
    assert np.linalg.norm(one - other) > 0  # of the images
    survey.operator("1500+0.6z", grid, **options, tolerance=1e-9)
    assert any("travel times are computed at all points" in note for note in survey.notes)
    survey.operator("1500+0.6z", grid, frequency=FREQUENCY, tolerance=1e-3)
    assert "by a formula: the tolerance of their errors does not apply" in survey.notes[-1]


@pytest.mark.parametrize(("coarsen", "x"), [(8, None), (8, 40.0), (3, None)])
def test_the_error_of_tables_is_that_of_their_times_and_of_their_interpolation(comm, coarsen, x):
    """An image that begins between points of the coarser grid, and tables that have other points than it."""
    receivers = np.stack([np.linspace(0, 400, 6), np.zeros(6)])
    survey, grid = Survey(Geometry(receivers[:, 1:4], [receivers] * 3, 200, 0.002), comm), Grid(41, 49, 10.0, 10.0)
    options = {"mode": "eikonal", "frequency": FREQUENCY, "dtype": "float64", "engine": "numpy"}
    options["target"] = None if x is None else grid.part(x=(x, 400.0), z=(30.0, 480.0))
    kept: list[Any] = []
    survey.operator("1500+0.6z", grid, **options, coarsen=coarsen, tolerance=5e-3, kept=kept)
    of_times, of_tables = survey.notes[-2:]
    assert "at every 8 points" in of_times and "worst of some stations" in of_tables
    estimate, reported = (float(note.split("error ")[1].split()[0]) for note in (of_times, of_tables))
    assert reported == estimate if (coarsen, x) == (8, None) else reported > estimate
    survey.operator("1500+0.6z", grid, **options, coarsen=1, kept=kept)
    for coarse, whole in zip(kept[: len(kept) // 2], kept[len(kept) // 2 :], strict=True):
        scale = 2.0**-whole.scale.fraction_bits
        pairs = zip(coarse.receivers, whole.receivers, strict=True)
        errors = [scale * (coarse.station_times(one) - whole.station_times(other)) for one, other in pairs]
        true = max(np.sqrt(np.mean(error**2)) for error in errors)
        assert 0.4 * coarse.error < true < 1.05 * coarse.error


def test_a_folder_that_is_not_there_is_one_error(comm, folder):
    survey, grid = area_survey(comm)
    with pytest.raises(InputError, match="name another folder") as caught:
        survey.operator(SPEED, grid, frequency=FREQUENCY, streamed=True, folder=folder / "none")
    assert comm.size == 1 or caught.value.on_all_ranks


def test_a_survey_on_an_area_comes_back_as_it_was_saved(comm, folder):
    survey, grid = area_survey(comm)
    geometry = survey.geometry
    every = random_traces(geometry)
    survey.traces = [every[shot] for shot in survey.shots]
    survey.save(folder / "a.sgy", grid, velocity="1800")
    found = read(folder / "a.sgy", comm)
    assert found.geometry.dims == 3 and (found.geometry.samples, found.geometry.start) == (60, 0.04)
    assert all(np.array_equal(one, other) for one, other in zip(found.traces, survey.traces, strict=True))
    assert found.defaults["velocity"] == "1800"
    # Its axes are others: those of the smallest rectangle around the stations.
    for one, other in zip(
        [found.geometry.sources, *found.geometry.receivers], [geometry.sources, *geometry.receivers], strict=True
    ):
        np.testing.assert_allclose(found.line.position(one[1], one[0]), other[1::-1], atol=1e-3)
        np.testing.assert_allclose(one[2], other[2], atol=1e-3)
    assert read(folder / "a.sgy", comm, dims=2).geometry.dims == 2


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda survey, grid: survey.traces, "no traces"),
        (lambda survey, grid: survey.write("a.sgy", np.zeros(grid.shape), grid), "has map positions for its image"),
        (lambda survey, grid: survey.operator(1.5, grid), "1 km/s is 1000 m/s"),
        (lambda survey, grid: survey.operator("v.npy", grid), "v.npy does not exist"),
        (lambda survey, grid: survey.operator(np.full((3, 4), 1500.0), grid), r"shape \(ny, nx, nz\)"),
        (lambda survey, grid: survey.operator(np.full((3, 4, 5), 1500.0), grid), "--ny and --nx and --nz"),
        (lambda survey, grid: survey.operator("3000-z", grid, frequency=20.0, mode="analytic"), "mode analytic"),
        (lambda survey, grid: survey.operator(1500.0, grid, frequency=200.0), "choose a --frequency"),
        (lambda survey, grid: survey.operator(1500.0, grid, frequency=20.0, wavelet=([1.0], 0)), "exclude each other"),
        (lambda survey, grid: survey.operator(1500.0, grid, wavelet=([1.0], 3)), "wavelet_center must be"),
        (lambda survey, grid: survey.operator(1500.0, Grid(9, 7, 50.0, 30.0)), "3-D needs a grid in 3-D"),
        (
            lambda survey, grid: survey.operator(1500.0, Grid(9, 7, 50, 30, ny=3, dy=50)),
            "y of .* outside the model, 0 to",
        ),
        (lambda survey, grid: survey.operator(1500.0, Grid(9, 7, 50, 30, ny=10**9, dy=50)), "larger --dx, --dy and"),
    ],
)
def test_what_cannot_be_used_is_one_error_on_every_rank(comm, call, complaint):
    with pytest.raises(InputError, match=complaint) as caught:
        call(*area_survey(comm))
    assert "\n" not in str(caught.value) and (comm.size == 1 or caught.value.on_all_ranks)


def test_traces_of_another_shape_are_refused(comm):
    survey, _ = area_survey(comm)
    survey.traces = [np.zeros((each.shape[1], 60)) for each in survey.geometry.receivers][
        survey.shots.start : survey.shots.stop
    ]
    assert survey.data().size == survey.geometry.traces * 60
    with pytest.raises(InputError, match="must have the shapes"):
        survey.traces = [np.zeros((1, 59))] * 9


@pytest.mark.serial
class TestArea:
    INLINE, CROSSLINE = (axis.ravel() for axis in np.meshgrid(np.arange(100, 112, 2), np.arange(7, 15), indexing="ij"))

    @pytest.mark.parametrize("side", [1, -1])
    def test_numbers_define_the_axes(self, side):
        left = side * INLINES
        y, x = 12.5 * (self.INLINE - 100), 20.0 * (self.CROSSLINE - 7)
        places = CORNER[:, None] + np.outer(left, y) + np.outer(CROSSLINES, x)
        line, bins = Bins.fit(self.INLINE, self.CROSSLINE, *places)
        assert (bins.first, bins.steps, line.side) == ((100, 7), (2, 1), side)
        np.testing.assert_allclose(bins.spacing, (25, 20))
        np.testing.assert_allclose(line.distance(*places), x, atol=1e-6)
        np.testing.assert_allclose(line.across(*places), y, atol=1e-6)
        np.testing.assert_allclose(line.position(line.distance(*places), line.across(*places)), places)
        grid = Grid(4, 3, 40.0, 10.0, -20.0, ny=2, dy=25.0)
        numbers = bins.numbers(grid)
        assert numbers is not None and [each.tolist() for each in numbers] == [[100, 102], [6, 8, 10, 12]]
        assert bins.numbers(Grid(4, 3, 30.0, 10.0, ny=2, dy=25.0)) is None

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            (lambda inline, crossline, places: (0 * inline, crossline, places), "must vary"),
            (lambda inline, crossline, places: (inline, inline, places), "regular grid"),
            (lambda inline, crossline, places: (inline, crossline, places + 0.5 * places[::-1]), "regular grid"),
            (
                lambda inline, crossline, places: (inline, np.random.default_rng(1).permutation(crossline), places),
                "regular grid",
            ),
        ],
    )
    def test_other_numbers_do_not(self, change, complaint):
        places = np.stack([20.0 * self.CROSSLINE, 12.5 * self.INLINE])
        inline, crossline, places = change(self.INLINE, self.CROSSLINE, places)
        with pytest.raises(InputError, match=complaint):
            Bins.fit(inline, crossline, *places)

    def test_without_numbers_the_axes_are_those_of_the_smallest_rectangle(self):
        rng = np.random.default_rng(0)
        y, x = rng.uniform(0, 200, 60), rng.uniform(0, 900, 60)
        y[:4], x[:4] = [0, 0, 200, 200], [0, 900, 0, 900]
        line = Line.around(*on_map(y, x))
        np.testing.assert_allclose(line.direction, CROSSLINES, atol=1e-9)
        np.testing.assert_allclose([line.distance(*on_map(y, x)), line.across(*on_map(y, x))], [x, y], atol=1e-6)

    def test_a_file_without_numbers_and_one_whose_stations_are_on_a_line(self, tmp_path):
        diffractor_file(tmp_path / "a.sgy", np.array([150.0, 220.0, 240.0]), bins=False)
        survey = read(tmp_path / "a.sgy")
        assert survey.geometry.dims == 3
        assert "the survey is 3-D" in survey.notes[0] and "degrees north of east" in survey.notes[1]
        grid = survey.grid(2000.0)
        assert grid.dx == grid.dy and max(grid.shape) <= 101
        grid.check_contains(survey.geometry)
        assert survey.geometry.sources[2].min() > 5  # below the highest receiver, which is up to 20 m above sea level
        geometry = small_geometry()
        write_survey(tmp_path / "b.sgy", geometry, random_traces(geometry), {})
        assert read(tmp_path / "b.sgy").geometry.dims == 2
        with pytest.raises(InputError, match="on one line: a 3-D image"):
            read(tmp_path / "b.sgy", dims=3)

    def test_a_velocity_volume_is_interpolated_between_its_columns(self, tmp_path):
        velocity_volume(tmp_path / "v.sgy")
        volume = read_volume(tmp_path / "v.sgy")
        line = Line((CORNER[0], CORNER[1]), (CROSSLINES[0], CROSSLINES[1]))
        grid = Grid(9, 7, 55.0, 30.0, ny=5, dy=60.0)
        notes: list[str] = []
        velocity = on_grid(volume, grid, line, notes)
        at_y, at_x, z = np.meshgrid(*grid.axes.values(), indexing="ij")
        inside = at_x <= 400
        np.testing.assert_allclose(velocity[inside], (1500 + at_y + 2 * at_x + 0.5 * z)[inside], atol=1)
        assert velocity[0, -1, 0] == pytest.approx(1500 + 2 * 400) and "20% of the image" not in notes[0]
        with pytest.raises(InputError, match="outside the image"):
            on_grid(volume, grid, Line(), [])
        one_line = type(volume)(volume.velocity[:6], volume.depth, volume.east[:6], volume.north[:6])
        with pytest.raises(InputError, match="on one line: a 3-D image"):
            on_grid(one_line, grid, line, [])
        assert on_grid(Gradient(1500, 1.0), grid, line, []).shape == (5, 9, 7)
