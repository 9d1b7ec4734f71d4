"""Data that cannot be meant are one error, with its remedy, on every rank and before anything is computed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collops
from collops.apps import recipe
from collops.apps.recipe import run_job
from collops.errors import InputError
from collops.seismic import lsm, poststack
from collops.seismic.lsm import migrate
from tests.apps.jobs import Listener, needs_real_data
from tests.seismic.files import (
    REAL,
    random_traces,
    set_binary,
    set_header,
    small_geometry,
    small_survey,
    stacked_volume,
    write_survey,
    write_traces,
)


@pytest.fixture(autouse=True)
def computes_nothing(monkeypatch):
    def reached(*_: Any, **__: Any) -> None:
        raise RuntimeError("the solver is reached")

    monkeypatch.setattr(migrate, "kirchhoff", reached)
    monkeypatch.setattr(recipe.Gradient, "from_data", reached)


def start(application: Any, comm: Any, folder: Path, **options: Any) -> Listener:
    """Run an application as far as the solver."""
    listener = Listener()
    with pytest.raises(RuntimeError, match="the solver is reached"):
        run_job(application.run, application.Options(out=str(folder / "out"), **options), comm, listener)
    return listener


def refused(application: Any, comm: Any, folder: Path, complaint: str, **options: Any) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        run_job(application.run, application.Options(out=str(folder / "out"), **options), comm, Listener())
    assert "\n" not in str(caught.value)
    assert comm.size == 1 or caught.value.on_all_ranks


def survey(folder: Path) -> Path:
    return small_survey(folder / "a.sgy")


def test_a_mute_that_leaves_nothing(comm, folder):
    path = str(folder / "a.sgy")
    if comm.rank == 0:
        geometry = small_geometry()
        apart = dataclasses.replace(geometry, sources=geometry.sources + np.array([[50.0], [0.0]]))
        write_survey(Path(path), apart, random_traces(geometry), {})
    comm.barrier()
    refused(lsm, comm, folder, "--mute 0.001 excludes all.*such as 1500", survey=path, velocity="1500", mute="0.001")
    start(lsm, comm, folder, survey=path, velocity="1500", mute="1e5")


@pytest.mark.parametrize("application", [lsm, poststack])
def test_a_model_in_place_of_data(comm, folder, application):
    if comm.rank == 0:
        geometry = small_geometry()
        model = [1500 + 10 * np.arange(40) + 0 * traces for traces in random_traces(geometry)]
        write_survey(folder / "lsm.sgy", geometry, model, {})
        stacked_volume(folder / "poststack.sgy", np.full((5, 4, 40), 2000, np.float32))
    comm.barrier()
    path = str(folder / f"{application.__name__.split('.')[-1]}.sgy")
    options = {"survey": path, "velocity": "1500"} if application is lsm else {"volume": path}
    refused(application, comm, folder, "pass seismic data, not velocities", **options)


@pytest.mark.serial
class TestVelocity:
    @pytest.mark.parametrize("make", [str, lambda speed: f"{speed}+0.0006z", np.full, "section"])
    @pytest.mark.parametrize(("speed", "complaint"), [(1.5, "1 km/s is 1000 m/s"), (16_000, "1 ft/s is 0.3048 m/s")])
    def test_in_other_units(self, comm, tmp_path, make, speed, complaint):
        text = make(speed) if callable(make) and make is not np.full else str(tmp_path / "v.npy")
        if make is np.full:
            np.save(text, np.full((31, 21), speed))
        elif make == "section":
            text = str(velocity_section(tmp_path / "v.sgy", speed))
        refused(lsm, comm, tmp_path, complaint, survey=str(survey(tmp_path)), velocity=text)

    def test_that_may_be_in_feet(self, comm, tmp_path):
        warnings = start(lsm, comm, tmp_path, survey=str(survey(tmp_path)), velocity="5000+0.6z").warnings
        assert len(warnings) == 1 and "feet" in warnings[0]
        assert not start(lsm, comm, tmp_path, survey=str(survey(tmp_path)), velocity="1480+0.6z").warnings

    def test_in_degrees(self, comm, tmp_path):
        path = velocity_section(tmp_path / "v.sgy", 2000.0, CoordinateUnits=np.full(9, 3))
        refused(
            lsm, comm, tmp_path, "v.sgy has coordinates in degrees", survey=str(survey(tmp_path)), velocity=str(path)
        )


def velocity_section(path: Path, speed: float, **more: np.ndarray) -> Path:
    headers = {"INLINE_3D": np.ones(9, int), "CDP_X": 50 * np.arange(9), **more}
    return write_traces(path, np.full((9, 30), speed, np.float32), headers, 20_000, "VELOCITY")


@pytest.mark.serial
class TestSurvey:
    """The receivers of `small_survey` are 100 m apart, the sources 100 m."""

    @pytest.mark.parametrize("positions", ["groups", "sources", "CDP"])
    def test_a_stack(self, comm, tmp_path, positions):
        at = 430_000 + 25 * np.arange(20)
        names = {"groups": ("SourceX", "GroupX"), "sources": ("SourceX",), "CDP": ("CDP_X",)}[positions]
        headers = {"FieldRecord": np.ones(20, int), **dict.fromkeys(names, at)}
        path = write_traces(tmp_path / "a.sgy", VALUES[:20], headers, 4000, "STACK")
        refused(lsm, comm, tmp_path, "stacked traces.*collops poststack", survey=str(path), velocity="1500")

    def test_one_receiver_at_the_origin(self, comm, tmp_path):
        headers = {"FieldRecord": np.arange(36), "SourceX": 10 + 4 * np.arange(36)}
        path = write_traces(tmp_path / "a.sgy", VALUES, headers, 4000, "SHOTS")
        assert not start(lsm, comm, tmp_path, survey=str(path), velocity="1500").warnings

    @pytest.mark.parametrize(("scalar", "times"), [(1, "1e[+]04"), (-1000, "10")])
    def test_a_wrong_scalar(self, comm, tmp_path, scalar, times):
        path = survey(tmp_path)
        every_header(path, 71, scalar)
        complaint = rf"coordinates give {times} times as much: correct the scalar .*bytes 71 to 72"
        refused(lsm, comm, tmp_path, complaint, survey=str(path), velocity="1500")
        every_header(path, 37, 0, 4)  # no offsets
        if scalar == 1:
            # Columns of 32 km and more.
            complaint = "all receivers are .* m or more, further .* than a wave of 1500 m/s .*bytes 71 to 72"
            for trace in range(15):
                set_header(path, trace, 73, 5_000_000 + trace // 5, size=4)
            refused(lsm, comm, tmp_path, complaint, survey=str(path), velocity="1500")

    def test_columns_wider_than_wavelengths(self, comm, tmp_path):
        path = survey(tmp_path)
        every_header(path, 71, -100)
        every_header(path, 37, 0, 4)
        options = {"survey": str(path), "velocity": "1500", "frequency": 30.0, "dz": 100.0}
        warnings = start(lsm, comm, tmp_path, **options).warnings
        assert "more than 4 wavelengths of 50 m" in warnings[-2] and "choose another --dz" in warnings[-1]

    def test_a_line_much_shorter_than_a_wavelength(self, comm, tmp_path):
        """As of positions in degrees of which no header says so."""
        path = survey(tmp_path)
        every_header(path, 71, -10_000)
        every_header(path, 69, -10_000)
        every_header(path, 37, 0, 4)
        for trace in range(15):
            for byte, value in ((73, 21_000 + 10 * (trace // 5)), (81, 21_000 + 10 * (trace % 5))):
                set_header(path, trace, byte, value, size=4)
        options = {"survey": str(path), "velocity": "1500", "frequency": 30.0, "dz": 10.0, "nz": 30}
        (warning,) = start(lsm, comm, tmp_path, **options).warnings
        assert "all stations lie within 0.004 m" in warning and "degrees" in warning

    def test_offsets_in_other_units(self, comm, tmp_path):
        path = survey(tmp_path)
        set_binary(path, 3255, 2)  # feet of coordinates and offsets alike
        assert not start(lsm, comm, tmp_path, survey=str(path), velocity="1500").warnings
        for trace in range(15):
            set_header(path, trace, 37, 300 * (trace % 5) - 300 * (trace // 5 + 1), size=4)
        warnings = start(lsm, comm, tmp_path, survey=str(path), velocity="1500").warnings
        assert any("offsets" in warning and "check the units" in warning for warning in warnings)

    def test_traces_without_coordinates(self, comm, tmp_path):
        geometry = small_geometry()
        path = tmp_path / "a.sgy"
        shifted = geometry.sources + np.array([[430_000.0], [0.0]])
        groups = [each + np.array([[430_000.0], [0.0]]) for each in geometry.receivers]
        write_survey(
            path, dataclasses.replace(geometry, sources=shifted, receivers=groups), random_traces(geometry), {}
        )
        set_header(path, 7, 81, 0, size=4)
        refused(lsm, comm, tmp_path, "coordinates 0, 0 at live trace 8", survey=str(path), velocity="1500")

    def test_a_good_file_gives_no_warning(self, comm, tmp_path):
        assert not start(lsm, comm, tmp_path, survey=str(survey(tmp_path)), velocity="1500", frequency=30.0).warnings


def every_header(path: Path, byte: int, value: int, size: int = 2) -> None:
    for trace in range(15):
        set_header(path, trace, byte, value, size=size)


VALUES = np.random.default_rng(0).normal(size=(36, 40)).astype(np.float32)


@pytest.mark.serial
class TestStack:
    @pytest.mark.parametrize("axis", ["X", "Y"])
    def test_shots(self, comm, tmp_path, axis):
        shot, channel = np.divmod(np.arange(36), 12)
        headers = {"FieldRecord": shot, f"Source{axis}": 50 * shot, f"Group{axis}": 50 * shot + 200 + 25 * channel}
        path = write_traces(tmp_path / "a.sgy", VALUES, headers, 4000, "SHOTS")
        refused(poststack, comm, tmp_path, "not shots.*36 traces of 3 sources.*collops lsm", volume=str(path))

    def test_stacks_with_the_source_of_one_trace_each(self, comm, tmp_path):
        number = np.arange(36)
        headers = {"CDP": number, "SourceX": 50 * (number // 4), "GroupX": 50 * (number // 4) + 200 + 25 * (number % 4)}
        path = write_traces(tmp_path / "a.sgy", VALUES, headers, 4000, "STACK")
        assert not start(poststack, comm, tmp_path, volume=str(path)).warnings


@needs_real_data
@pytest.mark.serial
class TestRealData:
    SHOTS, STACK, MODEL = (
        str(REAL / name) for name in ("viking_small.segy", "volve_stack_twt.sgy", "volve_migration_velocity_depth.sgy")
    )

    def test_good_files(self, comm, tmp_path):
        assert not start(lsm, comm, tmp_path, survey=self.SHOTS, velocity="1500+0.6z", mute="1500").warnings
        assert not start(lsm, comm, tmp_path, survey=self.SHOTS, velocity=self.MODEL).warnings
        assert not start(poststack, comm, tmp_path, volume=self.STACK).warnings

    def test_the_wrong_file(self, comm, tmp_path):
        for path in (self.STACK, self.MODEL):
            refused(lsm, comm, tmp_path, "stacked traces or a model", survey=path, velocity="1500+0.6z")
        refused(poststack, comm, tmp_path, "480 traces of 4 sources", volume=self.SHOTS)
        refused(poststack, comm, tmp_path, "velocities or another model", volume=self.MODEL)
        refused(lsm, comm, tmp_path, "velocities must be positive", survey=self.SHOTS, velocity=self.STACK)


@pytest.mark.serial
def test_a_current_folder_that_has_been_removed(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for options in ({"out": "x"}, {"out": str(tmp_path / "x"), "checkpoint": "y"}):
        with pytest.raises(InputError, match="the current folder has been removed: change to another one"):
            lsm.Options(**options).check()
    x = collops.ones(3)
    with pytest.raises(InputError, match="the current folder has been removed"):
        collops.save("x.zarr", x)
    with pytest.raises(InputError, match="checkpoints cannot be written to y"):
        collops.cgls(collops.Identity(3), x, niter=2, checkpoint="y")
