"""What collectives accept besides arrays: pytrees leaf by leaf; and the sentences for what they do not accept."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import collops
import collops.jax as cj
from collops.errors import InputError, UnsupportedTypeError
from tests.launch import run_ranks


def tree_of(rank, rows=()):
    """Arrays of two dtypes and shapes, a number and a missing leaf."""
    return {
        "weights": [np.full((*rows, 2), rank + 1.5), np.arange(6).reshape(2, 3) * np.ones((*rows, 1, 1), int) + rank],
        "scale": np.full(rows, 0.5 + rank),
        "absent": None,
    }


def stacked(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def over(trees, combine):
    return jax.tree.map(lambda stack: combine(stack, axis=0), stacked(trees))


def same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_allclose, found, expected)


COLLECTIVES = {
    "allreduce": (lambda x, comm: cj.allreduce(x, "max", comm=comm), lambda trees, rank: over(trees, np.max)),
    "allreduce by keyword": (lambda x, comm: cj.allreduce(x=x, comm=comm), lambda trees, rank: over(trees, np.sum)),
    "reduce": (
        lambda x, comm: cj.reduce(x, root=comm.size - 1, comm=comm),
        lambda trees, rank: over(trees, np.sum) if rank == len(trees) - 1 else trees[rank],
    ),
    "bcast": (lambda x, comm: cj.bcast(x, comm.size - 1, comm=comm), lambda trees, rank: trees[-1]),
    "allgather": (lambda x, comm: cj.allgather(x, comm=comm), lambda trees, rank: stacked(trees)),
    "gather": (
        lambda x, comm: cj.gather(x, comm=comm),
        lambda trees, rank: stacked(trees) if rank == 0 else trees[rank],
    ),
}
BLOCKS = {
    "scatter": (
        lambda x, comm: cj.scatter(x if comm.rank == 0 else jax.tree.map(lambda leaf: leaf[0], x), comm=comm),
        lambda trees, rank: jax.tree.map(lambda leaf: leaf[rank], trees[0]),
    ),
    "reduce_scatter": (
        lambda x, comm: cj.reduce_scatter(x, comm=comm),
        lambda trees, rank: jax.tree.map(lambda leaf: leaf[rank], over(trees, np.sum)),
    ),
    "alltoall": (
        lambda x, comm: cj.alltoall(x, comm=comm),
        lambda trees, rank: stacked([jax.tree.map(lambda leaf: leaf[rank], tree) for tree in trees]),
    ),
}


@pytest.mark.parametrize("name", [*COLLECTIVES, *BLOCKS])
def test_pytrees(comm, name):
    apply, expect = {**COLLECTIVES, **BLOCKS}[name]
    trees = [tree_of(rank, (comm.size,) if name in BLOCKS else ()) for rank in range(comm.size)]
    expected = expect(trees, comm.rank)
    for compile in (lambda function: function, jax.jit, cj.jit):
        same(compile(lambda tree: apply(tree, comm))(trees[comm.rank]), expected)
    same(jax.vmap(lambda tree: apply(tree, comm))(stacked([trees[comm.rank]] * 3)), stacked([expected] * 3))


def test_derivative_of_a_pytree(comm):
    """The rank's weight is in the sum of every rank."""
    weights = {"a": jnp.arange(3.0) + comm.rank, "b": (jnp.ones(2),)}
    slope = jax.grad(lambda w: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(cj.allreduce(w, comm=comm))))(weights)
    total = np.arange(3.0) * comm.size + sum(range(comm.size))
    same(slope, {"a": 2 * comm.size * total, "b": (2 * comm.size**2 * np.ones(2),)})


def test_a_pytree_is_one_program(comm, monkeypatch):
    """Nothing is sent if a leaf is invalid, and the program is not compiled again."""
    launched = []
    plain = cj.order.Jit.dispatch
    monkeypatch.setattr(cj.order.Jit, "dispatch", lambda self, *args: launched.append(self) or plain(self, *args))
    tree = {"a": jnp.ones(2), "b": jnp.arange(3)}
    for _ in range(2):
        same(cj.allreduce(tree, comm=comm), {"a": np.full(2, comm.size), "b": np.arange(3) * comm.size})
    assert len(launched) == 2
    assert launched[0] is launched[1]
    same(cj.allreduce({}, comm=comm), {})
    with pytest.raises(UnsupportedTypeError, match="'avg' of int"):
        cj.allreduce(tree, "avg", comm=comm)
    with pytest.raises(InputError, match="must be a rank from 0 to"):
        cj.bcast(tree, comm.size, comm=comm)


def test_operations_of_mpi4py_on_pytrees(comm):
    mpi = pytest.importorskip("mpi4py.MPI", reason="mpi4py is not installed")
    found = cj.allreduce([jnp.full(2, comm.rank), 1.0 * comm.rank], mpi.MAX, comm=comm)
    same(found, [np.full(2, comm.size - 1), comm.size - 1.0])


def keys(comm):
    return jax.random.key(1)


REFUSED = {
    "key": (keys, r"jax\.random\.key_data\(key\)"),
    "float8": (lambda comm: jnp.ones(2, "float8_e4m3fn"), r"float8_e4m3fn cannot be sent.*astype\('float16'\)"),
    "int4": (lambda comm: jnp.ones(2, "int4"), r"int4 cannot be sent.*astype\('int8'\)"),
    "key in a tree": (lambda comm: {"a": jnp.ones(2), "b": jax.random.key(1)}, r"jax\.random\.key_data\(key\)"),
    "text": (lambda comm: "text", "expected an array of numbers, not 'text'"),
    "text in a tree": (lambda comm: {"a": jnp.ones(2), "b": "text"}, "expected an array of numbers, not 'text'"),
    "dates": (lambda comm: np.zeros(2, "M8[s]"), "expected an array of numbers"),
    "distributed": (lambda comm: collops.ones(3, comm=comm, engine="jax"), r"local_array"),
    "stacked": (lambda comm: collops.StackedArray([collops.ones(3, comm=comm, engine="jax")]), r"local_array"),
    "distributed in a tree": (lambda comm: [collops.ones(3, comm=comm, engine="jax")], r"local_array"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("collective", ["allreduce", "bcast", "allgather"])
def test_what_is_not_sent(comm, name, collective):
    """One sentence, before anything is sent, in each mode of JAX that can hold the argument."""
    make, sentence = REFUSED[name]
    x, apply = make(comm), getattr(cj, collective)
    with pytest.raises(UnsupportedTypeError, match=sentence):
        apply(x, comm=comm)
    if name not in ("text", "text in a tree", "dates"):
        for call in (
            jax.jit(lambda: apply(x, comm=comm)),
            cj.jit(lambda: apply(x, comm=comm)),
            lambda: jax.grad(lambda t: (apply(x, comm=comm), t)[1])(1.0),
        ):
            with pytest.raises(UnsupportedTypeError, match=sentence):
                call()
    np.testing.assert_array_equal(cj.allreduce(jnp.ones(2), comm=comm), np.full(2, comm.size))


def test_sentences_of_the_methods_of_a_communicator(comm):
    with pytest.raises(UnsupportedTypeError, match="key_data"):
        comm.allreduce(jax.random.key(0))
    with pytest.raises(UnsupportedTypeError, match="expected an array of numbers"):
        cj.sendrecv({"a": 1.0}, 2.0, comm.rank, comm.rank, comm=comm)


def test_keys_travel_as_data(comm):
    """As the sentence advises; raw keys are arrays of integers."""
    key = jax.random.key(comm.rank)
    data = cj.bcast(jax.random.key_data(key), comm.size - 1, comm=comm)
    expected = jax.random.normal(jax.random.key(comm.size - 1), 3)
    np.testing.assert_array_equal(jax.random.normal(jax.random.wrap_key_data(data), 3), expected)
    raw = cj.bcast(jax.random.PRNGKey(comm.rank), comm.size - 1, comm=comm)
    np.testing.assert_array_equal(raw, jax.random.PRNGKey(comm.size - 1))


SHARDED = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import collops

comm = collops.world()
mesh = Mesh(np.array(jax.devices()), ("d",))
y = np.arange(4, dtype="float32")
A = collops.BlockDiag([np.diag(y + 1)])
for spec in (P("d"), P()):
    spread = jax.device_put(y, NamedSharding(mesh, spec))
    for on_all_ranks in (True, False):
        x = spread if on_all_ranks or comm.rank == comm.size - 1 else jax.device_put(y)
        for layout in (None, A.range):
            if comm.size == 1:  # nothing is sent, and XLA works on both devices
                data = collops.from_local(x, layout)
                np.testing.assert_allclose(collops.cgls(A, data, niter=20, tol=1e-9).x.gather(), y / (y + 1), 1e-4)
                continue
            try:
                collops.from_local(x, layout)
            except collops.errors.UnsupportedTypeError as error:
                assert "is on one device, but this one is spread over 2" in str(error), error
            else:
                raise SystemExit("an array on two devices was accepted")
    if comm.size > 1:
        for make in (
            lambda x: collops.DistributedArray(A.range, comm, x),
            lambda x: collops.from_global(x),
            lambda x: collops.from_global(x, root=1),
        ):
            try:
                make(spread)
            except collops.errors.UnsupportedTypeError as error:
                assert "is on one device, but this one is spread over 2" in str(error), error
            else:
                raise SystemExit("an array on two devices was accepted")
            make(jax.device_put(spread, jax.local_devices()[0]))
print("as expected")
"""


@pytest.mark.serial
@pytest.mark.parametrize("ranks", [1, 2])
def test_arrays_on_several_devices(ranks):
    done = run_ranks(ranks, SHARDED, {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"})
    assert done.stdout.count("as expected") == ranks, done.stderr
