"""One ``shard_map`` over the GPUs of two ranks, which are processes of ``jax.distributed``."""

from __future__ import annotations

import pytest

from collops.comm.world import device_count
from tests.launch import run_ranks

pytestmark = [pytest.mark.gpu, pytest.mark.serial]
checks = pytest.importorskip("tests.jax.test_global_mesh", reason="needs JAX")


@pytest.mark.skipif(device_count() < 2, reason="fewer than two GPUs")
def test_shard_map_over_the_gpus_of_all_ranks():
    program = checks.PROGRAM.format(setup="cj.use_local_device()", each=1)
    # The tests' own process may have allocated most of the memory.
    done = run_ranks(2, program, {"COLLOPS_TIMEOUT": "60", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
    assert done.stdout.count("right") == 2, done.stderr[-3000:]
