"""The CUDA kernels with tables on coarser nodes, with rows in any order, and from a file, against those of hosts."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops.seismic.kirchhoff import FixedTables, LocalKirchhoff, Weighting
from collops.seismic.survey import Grid
from tests.seismic.test_kirchhoff_tables import survey
from tests.seismic.test_lsm_target import LINE, line_survey
from tests.seismic.test_survey import FREQUENCY, area_survey

cupy = pytest.importorskip("cupy")
try:
    _DEVICES = cupy.cuda.runtime.getDeviceCount()
except cupy.cuda.runtime.CUDARuntimeError:
    _DEVICES = 0
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_DEVICES == 0, reason="no GPU")]

TOLERANCE = {"float32": 2e-4, "float64": 1e-9}


def check(device: LocalKirchhoff, host: LocalKirchhoff, tolerance: float = 0.0) -> None:
    rng = np.random.default_rng(1)
    for size, name in ((device.shape[1], "forward_local"), (device.shape[0], "adjoint_local")):
        vector = rng.standard_normal(size).astype(device.dtype)
        found, expected = getattr(device, name)(cupy.asarray(vector)).get(), getattr(host, name)(vector)
        bound = max(tolerance, TOLERANCE[device.dtype.name])
        assert np.linalg.norm(found - expected) <= bound * np.linalg.norm(expected)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("factor", [1, 3, 4])
@pytest.mark.parametrize(
    ("axes", "more"),
    [
        (2, {}),
        (3, {}),
        (2, {"amplitude": "2.5d", "aperture": 150.0, "max_dip": 60.0, "antialias": True}),
        (3, {"amplitude": "3d", "antialias": True}),
        (2, {"mode": "eikonal"}),
    ],
)
def test_devices_interpolate_as_hosts_do(comm, axes, more, factor, dtype, deterministic):
    if "mode" in more:
        more = {**more, "velocity": np.broadcast_to(800 + 1.5 * 10 * np.arange(33), (21, 33))}
    s = survey(axes, dtype=dtype, comm=comm.split(comm.rank), threads=None, coarsen=factor, **more)
    device = collops.seismic.Kirchhoff(**s, engine="cupy", deterministic=deterministic)
    # First arrivals are computed on the device as well, and agree to the tolerance of the sweeps.
    check(device.local, collops.seismic.Kirchhoff(**s, engine="numpy").local, 1e-3 if "mode" in more else 0.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("samples", [300, 9000])
def test_rows_in_any_order(samples, dtype):
    rng = np.random.default_rng(5)
    seconds = rng.uniform(0, 0.9 * samples / 2, (70, 30, 40))
    tables = FixedTables.from_seconds(seconds[:30], seconds[30:], 1.0, samples, dtype)
    some = tables.select(rng.permutation(70)[:17], rng.permutation(70)[:41])
    on_device = some.to_engine(collops.backend.engine("cupy"))
    device = LocalKirchhoff(on_device, (30, 40), np.hanning(31), 9, engine="cupy")
    host = LocalKirchhoff(some, (30, 40), np.hanning(31), 9, engine="numpy")
    check(device, host)
    before = cupy.get_default_memory_pool().used_bytes()
    again = LocalKirchhoff(on_device, (30, 40), np.hanning(31), 9, engine="cupy")
    scratch = 2 * 17 * 41 * samples * device.dtype.itemsize
    assert cupy.get_default_memory_pool().used_bytes() - before < scratch + tables.times.nbytes // 8
    check(again, host)


@pytest.mark.parametrize("options", [{}, {"coarsen": 3}, {"antialias": True, "dtype": "float64"}])
def test_streamed_tables_give_the_same_data(comm, tmp_path, options):
    folder = comm.allgather_metadata(str(tmp_path))[0]
    shots, grid = area_survey(comm)
    assert isinstance(grid, Grid)
    options = {"frequency": FREQUENCY, "engine": "cupy", **options}
    resident, streamed = (
        shots.operator("1500+0.6z", grid, streamed=each, folder=folder, **options) for each in (False, True)
    )
    assert resident.capturable and not streamed.capturable
    rng = np.random.default_rng(2)
    image = cupy.asarray(rng.standard_normal(grid.shape).astype(resident.dtype))
    m = collops.DistributedArray(resident.domain, comm, image)
    data = resident.forward(m)
    scale = float(abs(data.local_array).max()) if data.local_array.size else 1.0
    found = streamed.forward(m).local_array
    cupy.testing.assert_allclose(found, data.local_array, rtol=0, atol=1e-5 * scale)
    image, expected = (each.adjoint(data).local_array for each in (streamed, resident))
    cupy.testing.assert_allclose(image, expected, rtol=0, atol=1e-5 * float(abs(expected).max()))


@pytest.mark.parametrize(
    "options",
    [{}, {"coarsen": 2}, {"mode": "eikonal"}, {"weighting": Weighting("2.5d", 150.0, 60.0), "antialias": True}],
)
def test_an_image_of_a_part_of_the_model(comm, options):
    line, grid = line_survey(comm.split(comm.rank))
    line.traces = [np.random.default_rng(shot).normal(size=line.trace_shape(shot)) for shot in line.shots]
    images = []
    for engine in ("numpy", "cupy"):
        run = {"frequency": FREQUENCY, "dtype": "float64", "engine": engine, "target": grid.part(**LINE)}
        A = line.operator("1500+0.8z", grid, **run, **options)
        image = A.adjoint(line.data(dtype="float64", engine=engine))
        images.append(image.engine.to_host(image.gather()))
    limit = 1e-3 if "mode" in options else 1e-9
    assert np.abs(images[1] - images[0]).max() <= limit * np.abs(images[0]).max() > 0
