"""One ``shard_map`` over the devices of several ranks, which are processes of ``jax.distributed``."""

from __future__ import annotations

import pytest

from tests.launch import run_ranks

pytestmark = pytest.mark.serial

PROGRAM = """
import socket
import jax
import collops
import collops.jax as cj
{setup}
comm = collops.world()
port = 0
if comm.rank == 0:
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        port = unused.getsockname()[1]
port = comm.allgather_metadata(port)[0]
# The only GPU that use_local_device leaves; under Open MPI and Slurm JAX looks for that of the local rank.
jax.distributed.initialize("localhost:" + str(port), comm.size, comm.rank, local_device_ids=[0])

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from collops.errors import InputError

joined = cj.clique(comm=comm)
numbers = np.arange(float(joined.size))
rows = PartitionSpec(("a", "b"))


def mapped(function, devices):
    mesh = Mesh(np.array(devices).reshape(-1, {each}), ("a", "b"))
    values = numbers[joined.first:][: len(devices)] if len(devices) < joined.size else numbers
    x = jax.make_array_from_callback(values.shape, NamedSharding(mesh, rows), lambda index: values[index])
    return jax.shard_map(function, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False), x


def check(result, expected):
    for part in result.addressable_shards:
        np.testing.assert_array_equal(np.asarray(part.data), expected[part.index])


def program(x):
    total = cj.allreduce(x, comm=joined)
    both = jax.lax.psum(total, ("a", "b"))  # of XLA, in the same program
    gathered = cj.allgather(x, comm=joined).reshape(-1)
    exchanged = cj.alltoall(x + jnp.zeros((joined.size, 1)), comm=joined).reshape(-1)
    return total, both, gathered, exchanged, cj.allreduce(gathered[:1], "max", comm=joined)


everywhere = np.ones(joined.size)
expected = (
    everywhere * numbers.sum(),
    everywhere * numbers.sum() * joined.size,
    np.tile(numbers, joined.size),
    np.tile(numbers, joined.size),
    0 * everywhere,
)
function, x = mapped(program, jax.devices())
for compiled in (jax.jit(function), cj.jit(function)):
    for _ in range(3):
        for result, wanted in zip(compiled(x), expected, strict=True):
            check(result, wanted)
summed, _ = mapped(lambda x: cj.allreduce(x * x, comm=joined), jax.devices())
check(summed(x), everywhere * (numbers**2).sum())
check(jax.jit(jax.grad(lambda x: summed(x).sum()))(x), 2 * joined.size * numbers)

function, part = mapped(lambda x: cj.allreduce(x, comm=joined), joined.devices)
np.testing.assert_array_equal(np.asarray(cj.jit(function)(part)), [numbers.sum()] * {each})
np.testing.assert_array_equal(cj.allreduce(jnp.ones(3), comm=comm), [comm.size] * 3)

for wrong, devices in ((joined, jax.devices()[::-1]), (comm, jax.devices()), (cj.clique(), jax.devices())):
    function, x = mapped(lambda x: cj.allreduce(x, comm=wrong), devices)
    for compiled in (jax.jit(function), cj.jit(function), function):
        try:
            compiled(x)
        except InputError as error:
            assert "shard_map" in str(error)
        else:
            raise AssertionError(wrong)
comm.barrier()
print("right")
"""


def test_shard_map_over_the_devices_of_all_ranks():
    program = PROGRAM.format(setup='jax.config.update("jax_num_cpu_devices", 2)', each=2)
    done = run_ranks(2, program, {"COLLOPS_TIMEOUT": "60"})
    assert done.stdout.count("right") == 2, done.stderr[-3000:]
