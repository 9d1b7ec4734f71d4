"""Sharded JAX arrays as distributed arrays, in one process with several devices and in several processes."""

from __future__ import annotations

import socket

import numpy as np
import pytest

import collops
from collops import Layout
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from tests.docs.pages import ROOT, blocks
from tests.launch import run_ranks

jax = pytest.importorskip("jax", reason="JAX is not installed")
Mesh, NamedSharding, PartitionSpec = jax.sharding.Mesh, jax.sharding.NamedSharding, jax.sharding.PartitionSpec
sharding = pytest.importorskip("collops.bridges.sharding")
layout_to_spec, spec_to_layout = sharding.layout_to_spec, sharding.spec_to_layout

VALUES = np.arange(384, dtype="float32").reshape(16, 24)
PAGE = ROOT / "docs" / "bridge-sharding.md"


def addresses(x):
    return [shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards]


@pytest.fixture
def devices(comm):
    if comm.size > 1:
        pytest.skip("several devices of one rank")
    return np.array(jax.devices())


# Layouts and partition specs


@pytest.mark.parametrize(
    ("layout", "names", "spec"),
    [
        (Layout.split(12, 4), "d", PartitionSpec("d")),
        (Layout.split((5, 6), 3, axis=1), ["d"], PartitionSpec(None, "d")),
        (Layout.grid((4, 3, 6), (2, 1, 3)), ["a", "b"], PartitionSpec("a", None, "b")),
        (Layout((4, 6), 6, (3, 2), (1, 0)), ["a", ("b", "c")], PartitionSpec(("b", "c"), "a")),
        (Layout((4, 6), 6, (3, 2), (1, None)), ["a", "b"], PartitionSpec("b", None)),
        (Layout.replicated((3, 5), 4), ["d"], PartitionSpec(None, None)),
        (Layout.split((3, 5), 1), ["d"], PartitionSpec(None, None)),
    ],
)
def test_specs_of_layouts(layout, names, spec):
    assert layout_to_spec(layout, names) == spec


def test_layouts_without_a_spec():
    for layout, names, message in (
        (Layout.split(10, 4), "d", r"\(3, 3, 2, 2\) along axis 0: pad"),
        (Layout.split(8, 2, sizes=(5, 3)), "d", "equal parts only"),
        (Layout.split(8, 4, mask=(0, 0, 1, 1)), "d", "mask"),
        (Layout.grid((4, 4), (2, 2)), "d", r"process grid \(2, 2\)"),
        ("rows", "d", "expected a layout"),
    ):
        with pytest.raises(LayoutError, match=message):
            layout_to_spec(layout, names)


@pytest.mark.parametrize(
    "layout",
    [
        *(Layout.split(12, 4), Layout.split((5, 7), 3, axis=1), Layout.replicated((3, 5), 4), Layout.split((0, 2), 1)),
        *(
            Layout.grid((4, 3, 6), (2, 1, 3)),
            Layout((4, 6), 12, (3, 2, 2), (2, 0)),
            Layout((4, 6), 12, (3, 2, 2), (1, None)),
        ),
    ],
    ids=str,
)
def test_layouts_of_blocks(layout):
    held = [tuple((part.start, part.stop) for part in layout.slices(rank)) for rank in range(layout.ranks)]
    assert sharding._layout_of_blocks(layout.shape, held) is layout
    if layout.split_axes:
        assert sharding._layout_of_blocks(layout.shape, [held[-1], *held[:-1]]) is None
        assert sharding._layout_of_blocks(layout.shape, [*held[:-1], held[0]]) is None


def test_ranks_need_their_processes(comm):
    """Without jax.distributed, each rank has an array of its own."""
    values = jax.numpy.asarray(VALUES)
    if comm.size == 1:
        assert spec_to_layout(values.sharding, (16, 24)) is Layout.replicated((16, 24), 1)
        return
    for call in (lambda: collops.from_jax(values), lambda: spec_to_layout(values.sharding, (16, 24))):
        with pytest.raises(LayoutError, match=r"jax\.distributed.*from_local"):
            call()
    with pytest.raises(LayoutError, match="process of JAX"):
        collops.to_jax(collops.zeros(2 * comm.size, engine="jax"))


def test_arguments(comm):
    x = collops.ones(4 * comm.size)
    mesh = Mesh(np.array(jax.devices()[:1]), "d")
    own = NamedSharding(mesh, PartitionSpec())
    for call, kind, message in (
        (lambda: collops.from_jax(VALUES), UnsupportedTypeError, "from_global"),
        (lambda: collops.from_jax(jax.numpy.float32(1)), LayoutError, "axis" if comm.size == 1 else "distributed"),
        (lambda: collops.to_jax(VALUES), UnsupportedTypeError, "DistributedArray"),
        (lambda: collops.to_jax(x, mesh), InputError, "together"),
        (lambda: spec_to_layout(PartitionSpec("d"), 4), UnsupportedTypeError, "sharding of JAX"),
        (lambda: sharding.zeros(4, PartitionSpec("d")), UnsupportedTypeError, "sharding of JAX"),
        (lambda: sharding.random((), own), LayoutError, "axis" if comm.size == 1 else "distributed"),
    ):
        with pytest.raises(kind, match=message):
            call()


# One rank with several devices


@pytest.mark.parametrize("spec", [("a",), (("a", "b"),), (None, "b"), ("b", "a"), ()], ids=str)
def test_arrays_stay_on_their_devices(devices, spec):
    mesh = Mesh(devices.reshape(2, 2), ("a", "b"))
    own = NamedSharding(mesh, PartitionSpec(*spec))
    source = jax.device_put(VALUES, own)
    x = collops.from_jax(source)
    returned = collops.to_jax(x)
    assert returned.sharding.is_equivalent_to(own, 2)
    assert addresses(x.local_array) == addresses(returned) == addresses(source)
    assert addresses(collops.to_jax(x, mesh, PartitionSpec(*spec))) == addresses(source)
    copy = collops.from_global(source)
    assert copy.local_array.sharding.is_equivalent_to(own, 2)
    assert not set(addresses(copy.local_array)) & set(addresses(source))


def test_other_shardings(devices, monkeypatch):
    rows = NamedSharding(Mesh(devices, "d"), PartitionSpec("d"))
    x = collops.from_jax(jax.device_put(VALUES, rows))
    for mesh in (rows.mesh, Mesh(devices[::-1], "d"), Mesh(devices[:2], "d")):
        moved = collops.to_jax(x, mesh, PartitionSpec(None, "d"))
        assert moved.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(None, "d")), 2)
        assert np.array_equal(moved, VALUES)
    copied = jax.device_put
    monkeypatch.setattr(jax, "device_put", None)  # slower than a program between the same devices
    assert np.array_equal(collops.to_jax(x, rows.mesh, PartitionSpec(None, "d")), VALUES)
    monkeypatch.setattr(jax, "device_put", copied)
    made = collops.to_jax(collops.from_global(VALUES), rows.mesh, rows.spec)  # from the engine numpy
    assert made.sharding.is_equivalent_to(rows, 2) and np.array_equal(made, VALUES)


@pytest.mark.parametrize("spec", [("a",), (None, ("a", "b")), ("b", "a"), ()], ids=str)
def test_devices_make_their_parts(devices, spec):
    own = NamedSharding(Mesh(devices.reshape(2, 2), ("a", "b")), PartitionSpec(*spec))
    before = {id(array) for array in jax.live_arrays()}
    made = {
        (name, values): getattr(sharding, name)(VALUES.shape, *values, own, dtype="float32")
        for name, values in (("zeros", ()), ("ones", ()), ("full", (2.5,)))
    }
    assert all(x.local_array.sharding.is_equivalent_to(own, 2) for x in made.values())
    shapes = {
        shard.data.shape for array in jax.live_arrays() if id(array) not in before for shard in array.addressable_shards
    }
    assert shapes == {own.shard_shape(VALUES.shape)}
    for (name, values), x in made.items():
        assert x.dtype == "float32" and x.layout is Layout.replicated(VALUES.shape, 1)
        expected = getattr(collops, name)(VALUES.shape, *values, dtype="float32")
        assert np.array_equal(x.local_array, expected.local_array)
    traced = jax.jit(lambda: sharding.ones(VALUES.shape, own, dtype="float32"))()
    assert np.array_equal(traced.local_array, np.ones(VALUES.shape))
    assert traced.local_array.sharding.is_equivalent_to(own, 2)


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_random_numbers_with_a_sharding(devices, kind, dtype, monkeypatch):
    filled = []
    monkeypatch.setattr(
        sharding, "fill_random", lambda *where, known=sharding.fill_random: filled.append(known(*where)) or filled[-1]
    )
    for spec in (("a", "b"), (None, "b"), ("b",)):
        filled.clear()
        own = NamedSharding(Mesh(devices.reshape(2, 2), ("a", "b")), PartitionSpec(*spec))
        x = sharding.random(VALUES.shape, own, kind=kind, seed=7, dtype=dtype)
        assert x.local_array.sharding.is_equivalent_to(own, 2) and x.dtype == dtype
        assert [part.size for part in filled] == [VALUES.size // len(filled)] * (4 if len(spec) == 2 and spec[0] else 2)
        expected = collops.random(VALUES.shape, kind=kind, seed=7, dtype=dtype).local_array
        assert np.allclose(x.local_array, expected, rtol=1e-6)


def test_in_traced_functions(devices):
    rows = NamedSharding(Mesh(devices, "d"), PartitionSpec("d"))
    source = jax.device_put(VALUES, rows)

    def energy(y):
        x = collops.from_jax(y)
        return collops.to_jax(x * x, rows.mesh, PartitionSpec(None, "d")).sum() / 2

    slope = jax.jit(jax.grad(energy))(source)
    assert np.array_equal(slope, VALUES)
    assert len(slope.sharding.device_set) == 4


OPERATORS = {
    "first": lambda: collops.FirstDerivative((16, 24), dtype="float32"),
    "Laplacian": lambda: collops.Laplacian((16, 24), edge=True, dtype="float32"),
    "gradient": lambda: collops.Gradient((16, 24), dtype="float32"),
    "diagonal": lambda: collops.Diagonal(VALUES + 1),
    "restriction": lambda: collops.Restriction((16, 24), range(0, 16, 2), 0, dtype="float32"),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", OPERATORS)
def test_results_keep_the_sharding(devices, name, axis):
    """On two devices: eager programs between more devices than cores can wait for each other until XLA ends them."""
    op = OPERATORS[name]()
    own = NamedSharding(Mesh(devices[:2], "a"), PartitionSpec(*(None,) * axis, "a"))
    sharded = collops.from_jax(jax.device_put(VALUES, own))
    for function in (lambda x: op @ x, lambda x: op.H @ (op @ x)):
        found, expected = function(sharded), function(collops.from_global(VALUES))
        for part, right in zip(found.leaves, expected.leaves, strict=True):
            assert part.local_array.sharding.is_equivalent_to(own, 2)
            assert np.allclose(part.local_array, right.local_array, atol=1e-3)


# Several processes

PROCESSES = """
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", DEVICES)
import collops
from collops import Layout, profile
from collops.bridges.sharding import layout_to_spec, spec_to_layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

comm = collops.world()
jax.distributed.initialize("localhost:PORT", comm.size, comm.rank)
ranks, devices = comm.size, np.array(jax.devices())
values = np.arange(6.0 * 12 * 4, dtype="float32").reshape(12, 24)

def addresses(x):
    return {shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards}

def sharded(mesh, *spec):
    sharding = NamedSharding(mesh, P(*spec))
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

first = devices.reshape(ranks, -1)  # processes x devices of each
by_rank, both = Mesh(first[:, 0], "r"), Mesh(first, ("r", "d"))
split, copies = Layout.split((12, 24), ranks), Layout.replicated((12, 24), ranks)
columns = Layout.split((12, 24), ranks, axis=1)
for mesh, spec, layout, shared in [
    (by_rank, ("r",), split, True),
    (by_rank, (None, "r"), columns, True),
    (by_rank, (), copies, True),
    (both, ("r",), split, True),  # several copies in a rank
    (both, (("r", "d"),), split, DEVICES == 1),
    (both, ("r", "d"), split, DEVICES == 1),
    (both, ("d", "r"), columns, DEVICES == 1),
    (both, (None, "d"), copies, DEVICES == 1),
]:
    source = sharded(mesh, *spec)
    assert spec_to_layout(source.sharding, (12, 24), comm) is layout
    with profile.count_messages() as messages:
        x = collops.from_jax(source)
        back = collops.to_jax(x, mesh, P(*spec))
    assert sum(messages.counts().values()) == 2, messages.counts()  # of metadata
    assert x.layout is layout and np.array_equal(x.gather(), values), spec
    assert (x.local_array.unsafe_buffer_pointer() in addresses(source)) == shared, spec
    assert back.sharding.is_equivalent_to(source.sharding, 2)
    for shard in back.addressable_shards:
        assert np.array_equal(shard.data, values[shard.index])
    if shared:
        assert x.local_array.unsafe_buffer_pointer() in addresses(back)

# Arrays made with a sharding.
from collops.bridges import sharding
for mesh, spec, layout in ((by_rank, ("r",), split), (both, (None, ("r", "d")), columns), (both, (), copies)):
    own = NamedSharding(mesh, P(*spec))
    for made, expected in (
        (sharding.zeros((12, 24), own, dtype="int32"), np.zeros((12, 24))),
        (sharding.full((12, 24), 1.5, own), np.full((12, 24), 1.5)),
        (sharding.random((12, 24), own, seed=2), collops.random((12, 24), seed=2).gather()),
    ):
        assert made.layout is layout and np.allclose(made.gather(), expected, atol=1e-6), spec

# Without a layout: the ranks in another order, and the devices of the mesh too.
for mesh in (Mesh(first[::-1, 0], "r"), Mesh(first[::-1], ("r", "d"))):
    source = sharded(mesh, "r")
    try:
        spec_to_layout(source.sharding, (12, 24), comm)
        raise SystemExit("found a layout")
    except collops.errors.LayoutError as error:
        assert "C order" in str(error)
    x = collops.from_jax(source)
    assert x.layout is split and np.array_equal(x.gather(), values)

# Layouts that differ from the sharding: one redistribution. Extents that JAX cannot divide: an error.
uneven = Layout.split((12, 24), ranks, sizes=[12 - 3 * (ranks - 1), *[3] * (ranks - 1)])
x = collops.from_global(values, uneven, engine="jax")
for made in (collops.to_jax(x), collops.to_jax(x, by_rank, P(None, "r"))):
    for shard in made.addressable_shards:
        assert np.array_equal(shard.data, values[shard.index])
assert collops.to_jax(x).sharding.is_equivalent_to(NamedSharding(by_rank, P("r")), 2)
odd = collops.ones(2 * ranks + 1, engine="jax")
for call, message in (
    (lambda: collops.to_jax(odd), "equal parts only"),
    (lambda: collops.to_jax(odd, by_rank, P("r")), "cannot have the sharding"),
    (lambda: sharding.ones(2 * ranks + 1, NamedSharding(by_rank, P("r"))), "cannot have the sharding"),
    (lambda: collops.from_jax(jax.numpy.ones(4)), "jax.distributed"),
    (lambda: collops.from_jax(sharded(by_rank, "r"), comm.split(comm.rank)), "one rank"),
    (lambda: jax.jit(lambda y: collops.from_jax(y).local_array)(sharded(by_rank, "r")), "traced"),
):
    try:
        call()
        raise SystemExit("no error: " + message)
    except collops.errors.CollopsError as error:
        assert message in str(error), error

# Operators and solvers in between.
data = collops.from_jax(sharded(by_rank, "r"))
D = collops.FirstDerivative(data.layout, dtype="float32")
assert np.allclose((D @ data).gather(), np.pad((values[2:] - values[:-2]) / 2, ((1, 1), (0, 0))))
x = collops.to_jax(collops.cg(2 * collops.Identity(data.layout, dtype="float32"), data, niter=3).x, by_rank, P("r"))
assert all(np.allclose(shard.data, values[shard.index] / 2) for shard in x.addressable_shards)
print("done", flush=True)
"""


def free_port():
    with socket.create_server(("localhost", 0)) as server:
        return str(server.getsockname()[1])


@pytest.mark.serial
@pytest.mark.parametrize(("ranks", "devices"), [(2, 2), (3, 1)])
def test_processes(ranks, devices):
    program = PROCESSES.replace("DEVICES", str(devices)).replace("PORT", free_port())
    done = run_ranks(ranks, program, {})
    assert done.stdout.count("done\n") == ranks, done.stderr  # Gloo writes lines of its own


@pytest.mark.serial
def test_the_page(devices, capsys):
    program = "".join(blocks(PAGE, "python"))
    exec(compile(program, str(PAGE), "exec"), {})
    assert capsys.readouterr().out == 2 * "True\n"
    done = run_ranks(2, program.replace("29400", free_port()), {})
    assert done.stdout.count("True\n") == 4, done.stderr
