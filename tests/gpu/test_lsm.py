"""The migration on devices against the same on hosts, on any number of ranks; straight rays need no further package."""

from __future__ import annotations

import numpy as np
import pytest

from collops.apps.lsm.migrate import invert
from tests.apps.test_lsm_migrate import modelled, small_problem

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
        problem = small_problem(comm, towed=towed, mode="analytic")
        found.append(invert(*modelled(comm, problem, name, iterations=8, damp=0.1)))
    host, device = found
    np.testing.assert_allclose(device.image, host.image, rtol=0, atol=1e-7 * np.abs(host.image).max())
    np.testing.assert_allclose(device.solution.residuals, host.solution.residuals, rtol=1e-7)
    assert device.solution.execution == "replayed CUDA graph"


def test_a_profile_divides_iterations_on_devices(comm):
    problem = small_problem(comm, towed=False, mode="analytic")
    host, device = (
        invert(*modelled(comm, problem, name, iterations=8, profile=True)).solution for name in ("numpy", "cupy")
    )
    assert device.execution == "eager"
    assert all(each.shape == (comm.size,) and (each >= 0).all() for each in device.seconds.values())
    assert device.seconds["modelling"].any()
    assert device.messages <= host.messages
