"""`collops lsm` and Kirchhoff operators in VTI and TTI media: depths and gathers of a flat reflector, files, errors."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from collops.array import from_global
from collops.errors import InputError
from collops.seismic import Kirchhoff, lsm
from collops.seismic.kirchhoff import Thomsen, TravelTimes
from collops.seismic.signals import ricker_shape
from collops.seismic.survey import Geometry, Grid
from collops.seismic.survey.anisotropy import thomsen_on
from tests.apps.jobs import group_of
from tests.seismic.files import write_traces
from tests.seismic.test_anisotropic_arrivals import SPEED, group_time
from tests.seismic.test_lsm_depth import migrated, peak

DEPTH, EPSILON, DELTA = 312.0, 0.25, 0.15


@cache
def two_way(half_offset: float) -> float:
    """Return the time of the echo of a flat reflector in the VTI medium, by group velocities."""
    return 2 * group_time(np.array([half_offset, DEPTH]), EPSILON, DELTA, 0.0, 0.0)


def line() -> Geometry:
    x = 40.0 * np.arange(31)
    sources = np.stack([x[3:-3:3], np.zeros(9)])
    return Geometry(sources, [np.stack([x, np.zeros(31)])] * 9, 150, 0.004)


def echoes(geometry: Geometry) -> list[np.ndarray]:
    traces = []
    for source, receivers in zip(geometry.sources.T, geometry.receivers, strict=True):
        times = np.array([two_way(round(offset / 2, 3)) for offset in np.abs(receivers[0] - source[0])])
        traces.append(
            (0.2 / times[:, None] * ricker_shape(20.0 * (geometry.times - times[:, None]))).astype(np.float32)
        )
    return traces


def test_a_flat_reflector_is_imaged_at_its_depth(comm, folder):
    """With flat gathers, which an isotropic medium cannot have at this depth."""
    given = {"iterations": 1, "gathers": 5, "gather_columns": 3, "nx": 31, "dx": 40.0, "dz": 6.0, "nz": 68}
    said = migrated(comm, folder, line(), echoes(line()), epsilon=f"{EPSILON}", delta=f"{DELTA}", **given)
    columns = group_of(folder, "out")["adjoint_image"][...]
    image = columns[13:18].mean(axis=0)
    assert abs(peak(image, 6.0) - DEPTH) < 2.0
    assert said["anisotropy"] == "VTI, epsilon 0.25, delta 0.15" and said["mode"] == "eikonal"
    assert abs(said["velocity_ratio"] - 1) < 0.03
    isotropic = migrated(comm, folder, line(), echoes(line()), **given)
    wrong = group_of(folder, "out")["adjoint_image"][...][13:18].mean(axis=0)
    assert isotropic["anisotropy"] is None and isotropic["velocity_ratio"] < 0.92
    assert wrong.max() < 0.7 * image.max()


def test_operators_model_the_times_of_the_group_velocity(comm):
    """And their weights are those of an isotropic medium."""
    h, tilt = 20.0, 35.0
    x, z, t = h * np.arange(21), h * np.arange(16), 0.002 * np.arange(400)
    sources, receivers = np.array([[100.0, 300.0], [0.0, 0.0]]), np.array([[40.0, 200.0, 385.0], [0.0, 7.0, 0.0]])
    given = {"z": z, "x": x, "t": t, "sources": sources, "receivers": receivers, "wavelet_center": 0, "comm": comm}
    given |= {"velocity": np.full((21, 16), SPEED), "wavelet": np.ones(1), "kernels": "numpy"}
    A = Kirchhoff(**given, thomsen=Thomsen(0.25, 0.05, tilt))
    image = np.zeros((21, 16))
    image[13, 9] = 1
    traces = (A @ from_global(image, A.domain, comm=comm)).gather().reshape(A.dimsd)
    point = np.array([13 * h, 9 * h])
    down, up = (
        np.array([group_time(point - station, 0.25, 0.05, tilt, 0.0) for station in stations.T])
        for stations in (sources, receivers)
    )
    assert np.abs(traces @ t / traces.sum(axis=-1) - (down[:, None] + up)).max() < 1e-4
    taps = ricker_shape(10.0 * 0.002 * np.arange(-60, 61))
    changed = {"velocity": np.broadcast_to(1500.0 + 0.6 * z, (21, 16)), "wavelet": taps, "wavelet_center": 60}
    weighted = [
        Kirchhoff(**(given | changed), amplitude="2.5d", thomsen=thomsen) for thomsen in (None, Thomsen(0.2, 0.1, 20.0))
    ]
    results = [(each @ from_global(image, each.domain, comm=comm)).gather() for each in weighted]
    energies = [(result.reshape(A.dimsd) ** 2).sum(axis=-1) for result in results]
    np.testing.assert_allclose(energies[1], energies[0], rtol=1e-2)
    assert np.abs(results[1] - results[0]).max() > 0.1 * np.abs(results[0]).max()


@pytest.mark.serial
def test_parameters_are_read_as_velocities_are(tmp_path):
    """From numbers, tables of depth and NumPy files, of any sign; the notes give their ranges."""
    grid, notes = Grid(nx=5, nz=4, dx=10.0, dz=10.0), []
    np.save(tmp_path / "tilt.npy", np.linspace(-30, 30, 20).reshape(5, 4))
    (tmp_path / "delta.txt").write_text("0 -0.1\n20 0.1\n")
    texts = {"epsilon": "0.2", "delta": f"depth:{tmp_path / 'delta.txt'}", "tilt": str(tmp_path / "tilt.npy")}
    thomsen = thomsen_on(grid, None, texts, None, notes)
    assert thomsen is not None and thomsen.epsilon == 0.2 and thomsen.tilt[4, 3] == 30
    np.testing.assert_allclose(thomsen.delta, np.tile([-0.1, 0.0, 0.1, 0.1], (5, 1)))
    assert notes[0] == "delta from a table, down to 20 m, on an image down to 30 m; constant beyond"
    assert notes[1].endswith("TTI, epsilon 0.2, delta -0.1 to 0.1, tilt -30 to 30 degrees")
    assert thomsen_on(grid, None, {"epsilon": "0"}, None, notes) is None
    columns = 10 * np.arange(5)
    headers = {"INLINE_3D": np.full(5, 7), "CDP_X": columns, "CDP_Y": 0 * columns, "SourceGroupScalar": 0 * columns + 1}
    values = np.linspace(-0.2, 0.2, 20).reshape(5, 4).astype(np.float32)
    write_traces(tmp_path / "delta.sgy", values, headers, 10000, "DELTA")
    with (tmp_path / "delta.sgy").open("r+b") as file:  # a file in feet
        file.seek(3254)
        file.write((2).to_bytes(2, "big"))
    from_segy = thomsen_on(grid, None, {"delta": str(tmp_path / "delta.sgy")}, None, notes)
    assert from_segy is not None
    # Columns are 10 feet and rows 10 feet apart; the values have no unit.
    np.testing.assert_allclose(from_segy.delta[0, 0], -0.2, rtol=1e-6)
    np.testing.assert_allclose(from_segy.delta[-1, -1], 0.2, rtol=1e-6)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epsilon": "fast"}, "cannot understand --epsilon fast: pass a number"),
        ({"epsilon": "absent.npy"}, "absent.npy does not exist"),
        ({"tilt": "30"}, "--tilt needs --epsilon or --delta"),
        ({"epsilon": "0.2", "mode": "analytic"}, "--mode analytic is for isotropic media"),
    ],
)
def test_options_that_cannot_be_used(options, sentence):
    with pytest.raises(InputError, match=sentence):
        lsm.Options(**options).check()


@pytest.mark.serial
def test_anisotropy_needs_first_arrivals():
    with pytest.raises(InputError, match="use mode 'eikonal', not 'analytic'"):
        TravelTimes("analytic", 1500.0, thomsen=Thomsen(0.1))
