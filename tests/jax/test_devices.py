"""Ranks with several devices each: a collective runs on one of them, and raises in a program on more."""

from __future__ import annotations

import pytest

from tests.launch import run_ranks

PROGRAM = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import collops, collops.jax

comm = collops.world()
mesh = Mesh(np.array(jax.devices()), ("d",))
x = np.arange(4.0) + 10 * comm.rank
summed = jax.shard_map(collops.jax.allreduce, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
sharded = jax.device_put(x, NamedSharding(mesh, P("d")))
for function, argument in (
    (jax.jit(summed), x),
    (collops.jax.jit(summed), x),
    (collops.jax.allreduce, sharded),
    (jax.jit(collops.jax.allreduce), sharded),
    (collops.jax.jit(collops.jax.allreduce), sharded),
):
    try:
        function(argument)
    except collops.errors.InputError as error:
        assert "the program runs on 2 devices" in str(error)
    else:
        raise SystemExit("a program on two devices of each rank was run")
expected = sum(np.arange(4.0) + 10 * rank for rank in range(comm.size))
np.testing.assert_array_equal(collops.jax.allreduce(x), expected)
print("as expected")
"""


@pytest.mark.serial
@pytest.mark.parametrize("ranks", [1, 2])
def test_programs_on_several_devices_of_a_rank(ranks):
    """They would pair the wrong devices: their calls arrive in any order."""
    done = run_ranks(ranks, PROGRAM, {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"})
    assert done.stdout.count("as expected") == ranks, done.stderr
