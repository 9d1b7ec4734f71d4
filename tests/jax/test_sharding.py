"""Local arrays that are spread over several devices of a rank, and meshes with automatic and with explicit axes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import collops
import collops.jax as cj
from collops import Layout
from collops.array import full_like, ones_like
from collops.errors import InputError, UnsupportedTypeError

DEVICES = jax.local_devices()
VALUES = np.arange(32.0).reshape(8, 4)
MESHES = {
    "automatic": lambda: Mesh(np.array(DEVICES), "d"),
    "explicit": lambda: jax.make_mesh((len(DEVICES),), ("d",), devices=DEVICES),
    "explicit in two axes": lambda: jax.make_mesh((len(DEVICES) // 2, 2), ("a", "b"), devices=DEVICES),
}


@pytest.fixture(params=MESHES)
def mesh(request):
    if len(DEVICES) < 2:
        pytest.skip("this rank has one device")
    return MESHES[request.param]()


def rows(mesh):
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names))


def test_sharded_arrays_stay_sharded(comm, mesh):
    given = jax.device_put(VALUES, rows(mesh))
    whole = Layout.replicated(VALUES.shape, comm.size)
    if comm.size > 1:
        for layout in (whole, None):
            with pytest.raises(UnsupportedTypeError, match=r"device_put") as caught:
                collops.from_global(given, layout)
            with pytest.raises(UnsupportedTypeError, match="device_put"):
                collops.from_local(given, layout)
        moved = eval(str(caught.value).partition("use ")[2].partition(", or start")[0], {"jax": jax, "array": given})
        assert np.array_equal(collops.from_global(moved).gather(), VALUES)
        assert np.array_equal(collops.from_global(given, engine="numpy").gather(), VALUES)
        return
    x = collops.from_local(given)
    made = [
        *(collops.from_global(given, **options) for options in ({}, {"layout": whole}, {"root": 0})),
        collops.from_global(given, dtype="float32"),
        *(x, x + 1, x + x, collops.zeros_like(x), collops.empty_like(x), ones_like(x), full_like(x, 2.0), x.copy()),
        *(x + collops.zeros_like(x), collops.axpby(2, x, 1, x), x.astype("float32"), x.redistribute(whole)),
        *(collops.where(x > 0, x, 0), np.sin(x), collops.Diagonal(VALUES) @ x, collops.Identity((8, 4)) @ x),
    ]
    for array in made:
        assert array.local_array.sharding.is_equivalent_to(given.sharding, 2)
    assert np.array_equal(made[0].gather(), VALUES)


def test_eager_and_compiled_maps(comm, mesh):
    joined = cj.clique(DEVICES)
    x = jax.device_put(jnp.asarray(VALUES), rows(mesh))

    def local(row):
        total = cj.allreduce(row, comm=joined)
        first = cj.bcast(row, comm=joined)
        every = cj.allgather(row, comm=joined)
        cj.barrier(comm=joined)
        return total + first + every[-1]

    mapped = jax.shard_map(local, mesh=mesh, in_specs=rows(mesh).spec, out_specs=rows(mesh).spec, check_vma=False)
    blocks = VALUES.reshape(len(DEVICES), -1, 4)
    expected = np.tile(blocks.sum(axis=0) + blocks[0] + blocks[-1], (len(DEVICES), 1))
    for run in (mapped, cj.jit(mapped), jax.jit(mapped)):
        found = run(x)
        assert np.array_equal(found, expected)
        assert found.sharding.is_equivalent_to(x.sharding, 2)


@pytest.mark.parametrize("spec", ["split", "replicated"])
@pytest.mark.parametrize("call", [cj.allreduce, cj.bcast, cj.allgather], ids=lambda call: call.__name__)
def test_maps_that_check_what_varies_are_refused(comm, mesh, call, spec):
    joined = cj.clique(DEVICES)
    sharding = rows(mesh) if spec == "split" else NamedSharding(mesh, PartitionSpec())
    x = jax.device_put(jnp.asarray(VALUES), sharding)
    for given in ({}, {"check_vma": True}):
        mapped = jax.shard_map(
            lambda row: call(row, comm=joined), mesh=mesh, in_specs=sharding.spec, out_specs=sharding.spec, **given
        )
        for run in (mapped, cj.jit(mapped), jax.jit(mapped)):
            with pytest.raises(InputError, match="check_vma=False"):
                run(x)
