"""The Kirchhoff operator on a split image: devices against hosts, and recorded as a CUDA graph."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops.array import from_global
from collops.seismic.kirchhoff import split
from tests.seismic.test_kirchhoff_split import uneven
from tests.seismic.test_kirchhoff_tables import survey

cupy = pytest.importorskip("cupy")
try:
    _DEVICES = cupy.cuda.runtime.getDeviceCount()
except cupy.cuda.runtime.CUDARuntimeError:
    _DEVICES = 0
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_DEVICES == 0, reason="no GPU")]

TOLERANCE = {"float32": 2e-4, "float64": 1e-9}


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("factor", [1, 4])
@pytest.mark.parametrize(
    ("axes", "dtype", "more"),
    [
        (2, "float32", {}),
        (3, "float64", {}),
        (2, "float64", {"amplitude": "2.5d", "aperture": 150.0, "max_dip": 60.0, "antialias": True}),
    ],
)
def test_devices_do_what_hosts_do(comm, axes, dtype, more, factor, blocks, monkeypatch):
    monkeypatch.setattr(split, "BLOCK", -(-5 * 37 * 120 // blocks))
    s = survey(axes, dtype=dtype, comm=comm, threads=None, coarsen=factor, **more)
    layout = uneven((21, 33) if axes == 2 else (9, 21, 33), comm.size)
    device, host = (collops.seismic.Kirchhoff(**s, layout=layout, engine=engine) for engine in ("cupy", "numpy"))
    assert device.dottest(engine="cupy")
    rng = np.random.default_rng(1)
    for there, here in ((device, host), (device.H, host.H)):
        values = rng.standard_normal(here.domain.shape).astype(dtype)
        found = there @ from_global(values, there.domain, comm=comm, engine="cupy")
        expected = (here @ from_global(values, here.domain, comm=comm)).gather()
        assert np.linalg.norm(found.gather().get() - expected) <= TOLERANCE[dtype] * np.linalg.norm(expected)


def test_a_step_is_recorded(comm):
    s = survey(2, dtype="float64", comm=comm, threads=None)
    operator = collops.seismic.Kirchhoff(**s, layout=uneven((21, 33), comm.size), engine="cupy")
    assert operator.capturable
    data = operator @ collops.random(operator.domain, seed=1, comm=comm, dtype="float64", engine="cupy")
    recorded, eager = (collops.cgls(operator, data, niter=6, tol=0, graph=graph) for graph in (True, False))
    np.testing.assert_allclose(recorded.x.gather().get(), eager.x.gather().get(), rtol=0, atol=1e-8)
