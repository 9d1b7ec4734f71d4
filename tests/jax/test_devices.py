"""Ranks with several devices: on 1, 2, 3 and 4 ranks with 4, 2, 1 and 1 devices each; see ``conftest.py``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import collops.jax as cj
from collops.errors import CommunicationError, InputError
from collops.jax.native import TYPES
from tests.jax.cases import ON_DEVICES
from tests.jax.checks import check_on_devices, close, on_devices

FAILED = (jax.errors.JaxRuntimeError, CommunicationError)
REDUCTIONS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
LOGICAL = {"land": np.logical_and, "lor": np.logical_or, "lxor": np.logical_xor}
several = pytest.mark.skipif(len(jax.local_devices()) < 2, reason="this rank has one device")


@pytest.fixture(scope="module")
def joined(comm):
    """All devices of all ranks."""
    return cj.clique(comm=comm)


def numbers(joined):
    """Return the ranks of this process's devices, as an operand that gives each device its own."""
    return jnp.arange(float(joined.first), joined.first + len(joined.devices))


@pytest.mark.parametrize("case", ON_DEVICES, ids=lambda case: case.name)
def test_collectives(comm, joined, case):
    check_on_devices(comm, joined, case)


def test_groups(comm):
    """All devices of this rank, and groups of different numbers of devices of each rank."""
    devices = jax.local_devices()
    own = cj.clique()
    assert (own.devices, own.size, own.first, own.comm) == (tuple(devices), len(devices), 0, None)
    assert cj.clique(devices) is own
    every = cj.clique(comm=comm)
    counts = comm.allgather_metadata(len(devices))
    assert (every.size, every.first) == (sum(counts), sum(counts[: comm.rank]))
    uneven = cj.clique(devices[: 1 + (comm.rank + len(devices)) % 2], comm=comm)
    for joined in (own, every, uneven):
        total = on_devices(joined, lambda x, joined=joined: cj.allreduce(x, comm=joined))(numbers(joined))
        np.testing.assert_array_equal(total, np.full(len(joined.devices), sum(range(joined.size))))
        gathered = on_devices(joined, lambda x, joined=joined: cj.allgather(x, comm=joined))(numbers(joined))
        np.testing.assert_array_equal(gathered, np.tile(np.arange(float(joined.size)), (len(joined.devices), 1)))


def test_dtypes_and_reductions(joined):
    """Of every dtype, also where integers wrap around: the devices of a process are reduced by our own code."""
    values, expected = {}, {}
    for name in TYPES:
        dtype = jnp.dtype(name)
        rows = [(np.arange(1, 7) * 31 % 7 + 50 * (party % 2)).astype(dtype) for party in range(joined.size)]
        values[name] = np.stack(rows)
        exact = values[name].astype(np.float64) if name in ("float16", "bfloat16") else values[name]
        if dtype.kind == "b":
            expected |= {(name, op): ufunc.reduce(exact) for op, ufunc in LOGICAL.items()}
        elif name.startswith("complex"):
            expected[name, "sum"] = exact.sum(0)
        elif dtype.kind in "iu":
            known = {**REDUCTIONS, **LOGICAL}
            expected |= {(name, op): known[op].reduce(exact).astype(dtype) for op in known}
        else:
            ops = ("sum", "min", "max") if dtype.itemsize == 2 else REDUCTIONS  # products would be rounded
            expected |= {(name, op): REDUCTIONS[op].reduce(exact) for op in ops}
    program = cj.jit(
        on_devices(
            joined,
            lambda rows: {f"{name} {op}": cj.allreduce(rows[name], op, comm=joined) for name, op in expected},
        )
    )
    mine = slice(joined.first, joined.first + len(joined.devices))
    found = program({name: rows[mine] for name, rows in values.items()})
    for (name, op), row in expected.items():
        result = found[f"{name} {op}"]
        assert result.dtype == jnp.dtype(name)
        for device in np.asarray(result).astype(row.dtype):
            np.testing.assert_array_equal(device, row, err_msg=f"{op} of {name}")


@pytest.mark.parametrize("name", ["bfloat16", "float32", "float64"])
def test_nan_on_one_device_wins(joined, name):
    program = on_devices(joined, lambda x: [cj.allreduce(x, op, comm=joined) for op in ("min", "max")])
    for party in range(joined.size):
        x = numbers(joined).astype(name)
        here = party - joined.first
        if 0 <= here < len(joined.devices):
            x = x.at[here].set(-np.nan if party % 2 else np.nan)
        for result in program(x):
            assert np.isnan(np.asarray(result).astype(float)).all()


def test_order_in_a_program(comm, joined):
    """Independent collectives of two groups, in control flow, while the devices do different work."""
    own = cj.clique()

    def busy(x, times):
        return x + 0 * jax.lax.fori_loop(0, times, lambda _, y: jnp.sin(y @ y), jnp.full((30, 30), x))[0, 0]

    def turn(carry, number):
        a, b = carry
        a = cj.allreduce(busy(a, (number * 7 + a.astype(int)) % 5), "avg", comm=joined)
        b = jax.lax.cond(number % 2 == 0, lambda: cj.allreduce(b, "max", comm=own), lambda: b + 1)
        return (a, b), cj.allgather(b, comm=joined)

    def program(x):
        (a, b), gathered = jax.lax.scan(turn, (x, x), jnp.arange(6))
        c = jax.lax.while_loop(lambda c: c < 1e3, lambda c: cj.allreduce(c + 1, comm=joined), x)
        return a, b, gathered, jax.vmap(lambda y: cj.bcast(y, comm=joined))(jnp.stack([a, b])), c

    rows = [
        np.arange(float(first), first + count) for first, count in comm.allgather_metadata([joined.first, own.size])
    ]
    mean = np.concatenate(rows).mean()
    lasting, history = list(rows), []
    for number in range(6):
        lasting = [np.full_like(row, row.max()) if number % 2 == 0 else row + 1 for row in lasting]
        history.append(np.concatenate(lasting))
    c = np.concatenate(rows)
    while (c < 1e3).all():
        c = np.full_like(c, (c + 1).sum())
    for compiled in (cj.jit(on_devices(joined, program)), jax.jit(on_devices(joined, program))):
        for _ in range(3):
            a, b, gathered, sent, found = compiled(numbers(joined))
            close(a, np.full(own.size, mean))
            close(b, lasting[comm.rank])
            close(gathered, np.tile(np.stack(history), (own.size, 1, 1)))
            close(sent, np.tile([mean, lasting[0][0]], (own.size, 1)))
            close(found, c[joined.first : joined.first + own.size])


def test_order_of_programs(comm, joined):
    """Programs on all devices, on the last one and on any one, dispatched without waiting by both kinds of ``jit``."""
    last = cj.clique(joined.devices[-1:], comm=comm)

    def busy(x):
        return x + 0 * jax.lax.fori_loop(0, 30, lambda _, y: jnp.sin(y @ y), jnp.full((40, 40), x.sum()))[0, 0]

    programs = [
        (on_devices(joined, lambda x: cj.allreduce(busy(x), comm=joined)), joined.devices, joined.size),
        (on_devices(last, lambda x: cj.allreduce(busy(x), "max", comm=last)), last.devices, 1),
        (lambda x: cj.allreduce(busy(x), comm=comm), joined.devices[:1], comm.size),
    ]
    compiled = [(jit(program), *rest) for program, *rest in programs for jit in (cj.jit, jax.jit)]
    rng, results = np.random.default_rng(1), []
    for _ in range(60):
        which, where = rng.integers(len(compiled)), rng.integers(len(joined.devices))
        program, devices, expected = compiled[which]
        x = jnp.ones(len(devices))
        if len(devices) == 1 and which >= 4:
            x = jax.device_put(x, joined.devices[where])  # bound to a device, as the result then is
        results.append((program(x), expected))
    for found, expected in results:
        np.testing.assert_array_equal(found, np.full(len(found), expected))


def test_uncompiled_calls_compile_once(joined):
    """JAX by itself compiles the operands, primitives and results of an uncompiled ``shard_map`` at every call."""
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )

    def program(x):
        cj.barrier(comm=joined)
        return cj.allgather(cj.allreduce(x, "avg", comm=joined), comm=joined)

    mapped = on_devices(joined, program)
    x = jax.device_put(numbers(joined), NamedSharding(Mesh(np.array(joined.devices), "d"), PartitionSpec("d")))
    expected = np.full((len(joined.devices), joined.size), (joined.size - 1) / 2)
    np.testing.assert_array_equal(mapped(x), expected)
    assert compiled
    compiled.clear()
    for _ in range(3):
        np.testing.assert_array_equal(mapped(x), expected)
    assert not compiled


@pytest.fixture
def stored(tmp_path):
    """JAX's compilation cache in a folder of this rank; without it at the end."""
    options = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in options}
    for wanted in (options, before):
        for name, value in wanted.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        if wanted is options:
            yield tmp_path


def test_programs_are_stored(joined, stored):
    """And read again; also those that are not compiled explicitly."""
    hits = []
    jax.monitoring.register_event_listener(
        lambda event, **_: hits.append(event) if event.endswith("compilation_cache/cache_hits") else None
    )
    mapped = on_devices(joined, lambda x: cj.allreduce(3 * x, comm=joined))
    expected = np.full(len(joined.devices), 3 * sum(range(joined.size)))
    for program in (cj.jit(mapped), mapped):
        for _ in range(2):
            jax.clear_caches()
            np.testing.assert_array_equal(program(numbers(joined)), expected)
        assert hits
        hits.clear()


def test_without_jit(joined):
    """``jax.disable_jit`` turns a compiled ``shard_map`` into an uncompiled one."""
    with jax.disable_jit():
        found = jax.jit(on_devices(joined, lambda x: cj.allreduce(x, comm=joined)))(numbers(joined))
    np.testing.assert_array_equal(found, np.full(len(joined.devices), sum(range(joined.size))))


@several
def test_programs_on_several_devices_of_a_rank(comm):
    """A communicator of ranks would pair the wrong devices: their calls arrive in any order."""
    x = jnp.arange(4.0) + 10 * comm.rank
    mesh = Mesh(np.array(jax.local_devices()), "d")
    rows = PartitionSpec("d")
    summed = jax.shard_map(cj.allreduce, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    sharded = jax.device_put(x, NamedSharding(mesh, rows))
    for function, argument in (
        (summed, x),
        (jax.jit(summed), x),
        (cj.jit(summed), x),
        (cj.allreduce, sharded),
        (jax.jit(cj.allreduce), sharded),
        (cj.jit(cj.allreduce), sharded),
    ):
        with pytest.raises(InputError, match=f"the program runs on {len(mesh.devices)} devices"):
            function(argument)
    expected = sum(np.arange(4.0) + 10 * rank for rank in range(comm.size))
    np.testing.assert_array_equal(cj.allreduce(x), expected)


@several
def test_programs_that_are_not_for_the_devices_of_a_clique(joined):
    """Where JAX would give a device another part than its rank says, or the whole array to each."""
    own = list(joined.devices)
    x = jnp.arange(float(len(own)))

    def summed(x):
        return cj.allreduce(x, comm=joined)

    def over(mesh, manual=None):
        rows = PartitionSpec(mesh.axis_names[0])
        names = frozenset(manual or mesh.axis_names)
        return jax.shard_map(summed, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False, axis_names=names)

    reordered = over(Mesh(np.array(own[::-1]), "d"))
    partly = over(Mesh(np.array(own).reshape(-1, 2), ("a", "b")), manual="a")
    fewer = over(Mesh(np.array(own[:1]), "d"))
    sharded = jax.device_put(x, NamedSharding(Mesh(np.array(own), "d"), PartitionSpec("d")))
    for function, argument in ((reordered, x), (partly, x), (fewer, x), (summed, x), (summed, sharded)):
        for compiled in (jax.jit(function), cj.jit(function)):
            with pytest.raises(InputError, match="use it inside shard_map over the devices of the clique"):
                compiled(argument)
    for function in (reordered, fewer, summed):
        with pytest.raises(InputError, match="use it inside shard_map over the devices of the clique"):
            function(x)


def test_what_depends_on_the_rank_is_refused(joined):
    """All devices of a process run one program."""
    for call in (
        lambda x: cj.gather(x, comm=joined),
        lambda x: cj.reduce(x, comm=joined),
        lambda x: cj.allgatherv(x[None], [1] * joined.size, comm=joined),
        lambda x: cj.alltoallv(jnp.tile(x, 9), [9, *[0] * (joined.size - 1)], [9] * joined.size, comm=joined),
        jax.grad(lambda x: cj.bcast(x, comm=joined)),
        jax.grad(lambda x: cj.allreduce(x, "prod", comm=joined)),
    ):
        with pytest.raises(InputError, match="all devices run one program"):
            jax.jit(on_devices(joined, call))(numbers(joined))


def test_wrong_devices(comm):
    device = jax.local_devices()[0]
    for given, sentence in (([], "at least one"), ([device] * 2, "distinct devices")):
        with pytest.raises(InputError, match=sentence):
            cj.clique(given)
    with pytest.raises(InputError, match="communicator"):
        cj.clique(comm="world")
    with pytest.raises(InputError, match="at least one" if comm.size == 1 else "rank 0.*at least one"):
        cj.clique([] if comm.rank == 0 else [device], comm=comm)


def test_several_gpus_of_several_ranks_are_refused(comm):
    class Gpu:
        platform, process_index = "gpu", jax.process_index()

        def __init__(self, number):
            self.id = number

    one = cj.clique([Gpu(0)], comm=comm)
    assert (one.size, one.first) == (comm.size, comm.rank)
    if comm.size > 1:
        with pytest.raises(InputError, match=r"one GPU of each rank .* start a rank for each GPU"):
            cj.clique([Gpu(0), Gpu(1)], comm=comm)
        with pytest.raises(InputError, match="one kind on all ranks, not cpu and gpu"):
            cj.clique([Gpu(0)] if comm.rank else jax.local_devices()[:1], comm=comm)


@several
@pytest.mark.parametrize(
    ("on_first", "sentence"),
    [
        (lambda x, joined: cj.allreduce(x[:2], comm=joined).sum(), "but another one of this process"),
        (lambda x, _: x.sum(), r"devices of this rank make this call; the deadline is 2 s \(COLLOPS_TIMEOUT\)"),
    ],
    ids=["another call", "no call"],
)
def test_devices_of_a_process_that_disagree(monkeypatch, on_first, sentence):
    """An error, and no wrong number: later calls of this group raise too, and other groups are as before.

    ``test_failures.py`` has groups of several ranks.
    """
    monkeypatch.setenv("COLLOPS_TIMEOUT", "2")  # before the group, which keeps it
    other = cj.clique()
    joined = cj.Clique(other.devices, None, other.counts)  # another group of the same devices

    def program(x):
        first = jax.lax.axis_index("d") == 0
        return jax.lax.cond(first, lambda: on_first(x, joined), lambda: cj.allreduce(x, comm=joined).sum())

    rows = jnp.ones((len(joined.devices), 3))
    for _ in range(2):
        with pytest.raises(FAILED, match=sentence):
            jax.block_until_ready(cj.jit(on_devices(joined, program))(rows))
    total = cj.jit(on_devices(other, lambda x: cj.allreduce(x, comm=other)))(rows)
    np.testing.assert_array_equal(total, np.full(rows.shape, other.size))


def test_devices_in_another_order(comm):
    """The order of the clique counts, not that of the device numbers; the axes of the mesh may be several."""
    devices = jax.local_devices()[::-1]
    joined = cj.clique(devices, comm=comm)
    mesh = Mesh(np.array(devices).reshape(-1, min(2, len(devices))), ("a", "b"))
    rows = PartitionSpec(("a", "b"))
    gather = jax.shard_map(
        lambda x: cj.allgather(x, comm=joined),
        mesh=mesh,
        in_specs=rows,
        out_specs=PartitionSpec(None, rows[0]),
        check_vma=False,
    )
    found = cj.jit(gather)(numbers(joined))
    np.testing.assert_array_equal(found, np.tile(np.arange(float(joined.size))[:, None], len(devices)))
