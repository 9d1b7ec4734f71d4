"""Device arrays between ranks without MPI: by NCCL if each has a GPU, through host memory if they share one."""

from __future__ import annotations

import pytest

from collops.comm.world import device_count
from tests.comm.without_mpi import WORLD, meeting, run, run_suite

pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.serial


@pytest.mark.skipif(device_count() == 0, reason="no GPU")
def test_device_arrays_without_mpi():
    size = min(max(device_count(), 2), 4)
    for code, out, err in run(WORLD + "print(comm.device_transport)", meeting(size), range(size)):
        assert (code, out) == (0, "nccl\n" if device_count() > 1 else "staged\n"), err
    run_suite(size, "tests/gpu/test_comm.py", "tests/gpu/test_starforest.py")
