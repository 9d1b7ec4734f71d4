"""The migration on devices against the same on hosts, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest

from collops.apps.lsm.migrate import kirchhoff, least_squares, model_traces
from collops.backend import engine
from tests.apps.test_lsm_migrate import small_problem

cupy = pytest.importorskip("cupy")
try:
    _DEVICES = cupy.cuda.runtime.getDeviceCount()
except cupy.cuda.runtime.CUDARuntimeError:
    _DEVICES = 0
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_DEVICES == 0, reason="no GPU")]


@pytest.mark.parametrize("towed", [False, True])
def test_devices_find_the_image_that_hosts_find(comm, towed):
    found = []
    for name in ("numpy", "cupy"):
        compute = engine(name)
        problem = small_problem(comm, towed=towed)
        operator = kirchhoff(problem, comm, compute, "float64")
        traces = model_traces(operator, problem, comm, compute, "float64")
        found.append(
            least_squares(operator, traces, comm, compute, dtype="float64", iterations=8, damp=0.1, progress=False)
        )
    host, device = found
    np.testing.assert_allclose(device.image, host.image, rtol=0, atol=1e-7 * np.abs(host.image).max())
    np.testing.assert_allclose(device.residuals, host.residuals, rtol=1e-7)
    assert device.costs.execution == "replayed CUDA graph"
    assert device.costs.split.seconds.shape == (comm.size, 3)
    assert (device.costs.split.seconds[:, 0] > 0).all()
    assert device.costs.messages_per_iteration <= host.costs.messages_per_iteration
