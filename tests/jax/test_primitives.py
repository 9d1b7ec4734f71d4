"""Every primitive alone and under jit, vmap, jvp and vjp, against NumPy on the arrays of all ranks."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import collops.jax as cj
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.jax.native import TYPES
from tests.jax.cases import CASES, LINEAR
from tests.jax.checks import check_case, check_nan_wins, close

REPLICATED = [case for case in LINEAR if case.name in ("allreduce sum", "bcast", "allgather")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_primitive(comm, case):
    check_case(comm, case)


@pytest.mark.parametrize("name", TYPES)
def test_dtypes(comm, name):
    values = [(np.arange(5) % 3 + rank).astype(jnp.dtype(name)) for rank in range(comm.size)]
    x = jnp.asarray(values[comm.rank])
    total = sum(value.astype("complex128" if name.startswith("complex") else "float64") for value in values)
    expected = np.any(values, axis=0) if name == "bool" else total.astype(jnp.dtype(name))

    @cj.jit
    def program(x):
        gathered = cj.allgather(x, comm=comm)
        highest = None if name.startswith("complex") else cj.allreduce(x, "max", comm=comm)
        return cj.allreduce(x, comm=comm), gathered, highest

    found, gathered, highest = program(x)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(found), expected)
    np.testing.assert_array_equal(np.asarray(gathered), np.stack(values))
    if highest is not None:
        np.testing.assert_array_equal(np.asarray(highest), np.max(values, axis=0))


@pytest.mark.parametrize(("name", "rounding", "least"), [("float16", 2.0**-11, 2.0**-24), ("bfloat16", 2.0**-8, 0.0)])
def test_half_precision_rounds_each_step(comm, name, rounding, least):
    """Each of the sums or products on the way is rounded, and is at most as large as that of the magnitudes."""
    values = [np.random.default_rng(rank).normal(size=300).astype(jnp.dtype(name)) for rank in range(comm.size)]
    exact = [value.astype(np.float32) for value in values]
    for op, ufunc, steps in (("sum", np.add, comm.size), ("prod", np.multiply, comm.size), ("min", np.minimum, 0)):
        found = np.asarray(cj.allreduce(jnp.asarray(values[comm.rank]), op, comm=comm)).astype(np.float32)
        bound = steps * (rounding * ufunc.reduce(np.abs(exact)) + least)
        assert (np.abs(found - ufunc.reduce(exact)) <= bound).all()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_wins(comm, name, op):
    check_nan_wins(comm, name, op)


@pytest.mark.parametrize("op", ["minloc", "maxloc"])
def test_nan_wins_with_its_lowest_index(comm, op):
    for first in range(comm.size):
        missing = first, first + 2
        values = [[np.nan if rank in missing else 3.0 - 2 * rank, float(rank)] for rank in range(comm.size)]
        x = jnp.asarray(values[comm.rank])
        np.testing.assert_array_equal(cj.allreduce(x, op, comm=comm), values[first])


@pytest.mark.parametrize("op", ["land", "lor", "lxor"])
@pytest.mark.parametrize("name", ["bool", "int16"])
def test_logical(comm, op, name):
    values = [np.array([0, 1, rank % 2, rank == 0]).astype(name) for rank in range(comm.size)]
    ufunc = {"land": np.logical_and, "lor": np.logical_or, "lxor": np.logical_xor}[op]
    found = cj.allreduce(jnp.asarray(values[comm.rank]), op, comm=comm)
    np.testing.assert_array_equal(found, ufunc.reduce(values).astype(name))


def test_operations_of_mpi4py(comm):
    MPI = pytest.importorskip("mpi4py.MPI")
    x = jnp.arange(3.0) + comm.rank
    np.testing.assert_array_equal(cj.allreduce(x, MPI.MAX, comm=comm), np.arange(3.0) + comm.size - 1)
    np.testing.assert_array_equal(cj.allreduce(x, MPI.SUM, comm=MPI.COMM_WORLD), cj.allreduce(x, comm=comm))


def test_methods_of_the_communicator(comm):
    x = jnp.arange(4.0) + comm.rank
    total = np.arange(4.0) * comm.size + sum(range(comm.size))
    np.testing.assert_array_equal(comm.allreduce(x), total)
    np.testing.assert_array_equal(jax.jit(lambda x: comm.allreduce(x=x))(x), total)
    assert (comm.reduce(x) is None) == (comm.rank > 0)
    assert comm.allgatherv(x).shape == (4 * comm.size,)
    np.testing.assert_array_equal(comm.allreduce(x, out=x), total)  # the result is returned, and x stays as it is
    np.testing.assert_array_equal(x, np.arange(4.0) + comm.rank)
    counts = [4 if rank else 3 for rank in range(comm.size)]
    mine = x[: counts[comm.rank]]
    rows = comm.gatherv(mine, counts, root=comm.size - 1)
    if comm.rank == comm.size - 1:
        everyone = [np.arange(4.0)[:count] + rank for rank, count in enumerate(counts)]
        np.testing.assert_array_equal(rows, np.concatenate(everyone))
    else:
        assert rows is None


def test_methods_of_the_communicator_are_differentiated_as_one_value(comm):
    """The sum over the ranks is one value, which each rank's part enters with the same slope."""
    x = jnp.arange(3.0) + comm.rank
    slope = jax.grad(lambda x: jnp.sum(comm.allreduce(x) ** 2))(x)
    np.testing.assert_allclose(slope, 2 * (np.arange(3.0) * comm.size + sum(range(comm.size))))


@pytest.mark.parametrize("case", REPLICATED, ids=lambda case: case.name)
def test_replicated_cotangents(comm, case):
    """A value that all ranks hold counts once: what reaches each rank is its own part, and no message is needed."""
    name = case.name.split()[0]
    x, y = (jnp.asarray(case.inputs(comm.size, seed)[comm.rank]) for seed in (1, 2))

    def apply(x):
        root = {"root": comm.size - 1} if name == "bcast" else {}
        return getattr(cj, name)(x, **root, comm=comm, cotangents="replicated")

    cotangent = case.expect(case.inputs(comm.size, 3), comm.rank)
    (found,) = jax.vjp(apply, x)[1](cotangent)
    expected = {
        "allreduce": cotangent,
        "allgather": cotangent[comm.rank] if name == "allgather" else None,
        "bcast": cotangent * (comm.rank == comm.size - 1),
    }[name]
    close(found, expected)
    program = str(jax.make_jaxpr(jax.linear_transpose(apply, x))(cotangent))
    assert "collops_linear_map" in program
    assert f"collops_{name}[" not in program
    twice = jax.linear_transpose(lambda y: jax.linear_transpose(apply, x)(y)[0], cotangent)
    close(twice(y)[0], case.expect(case.inputs(comm.size, 2), comm.rank))


def test_second_derivatives(comm):
    x, t = jnp.arange(1.0, 4.0) + comm.rank, jnp.ones(3)

    def loss(x):
        return jnp.sum(cj.allreduce(x**2, "prod", comm=comm) + cj.allreduce(jnp.sin(x), comm=comm) ** 2)

    step = 1e-5
    numerical = (jax.grad(loss)(x + step * t) - jax.grad(loss)(x - step * t)) / (2 * step)
    np.testing.assert_allclose(jax.jvp(jax.grad(loss), (x,), (t,))[1], numerical, rtol=1e-6)


def test_ties_share_the_derivative(comm):
    y, pull = jax.vjp(lambda x: cj.allreduce(x, "max", comm=comm), jnp.ones(2))
    close(pull(jnp.ones(2))[0], np.ones(2))  # of a cotangent of 1 on each of `size` ranks, shared by `size` ranks
    close(y, np.ones(2))


def test_receipt_of_a_message_is_zero(comm):
    """Whatever the memory that XLA gives for it held before."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    program = cj.jit(lambda x: (cj.send(x, after, comm=comm), cj.recv(x, before, comm=comm)))
    for _ in range(5):
        freed = [jnp.full((), np.nan) for _ in range(8)]
        jax.block_until_ready(freed)
        del freed
        assert float(program(jnp.ones(3))[0]) == 0


def test_donated_argument(comm):
    reduce = cj.jit(lambda x: cj.allreduce(2 * x, comm=comm), donate_argnums=0)
    np.testing.assert_array_equal(reduce(jnp.ones(1000)), np.full(1000, 2.0 * comm.size))


def test_constants_are_not_written_over(comm):
    """Results are written over operands that nothing else uses; the next call uses a constant again."""
    reduce = cj.jit(lambda: cj.allreduce(np.arange(3.0), comm=comm))
    for _ in range(3):
        np.testing.assert_array_equal(reduce(), np.arange(3.0) * comm.size)


def test_static_arguments(comm):
    scaled = cj.jit(lambda x, power, *, extra: cj.allreduce(x**power, comm=comm) + extra, static_argnums=1)
    np.testing.assert_array_equal(scaled(jnp.full(2, 3.0), 2, extra=1.0), np.full(2, 9.0 * comm.size + 1))
    named = cj.jit(lambda x, power: cj.allreduce(x**power, comm=comm), static_argnames="power")
    np.testing.assert_array_equal(named(jnp.full(2, 3.0), power=2), np.full(2, 9.0 * comm.size))


def test_methods(comm):
    class Doubling:
        factor = 2.0

        @functools.partial(cj.jit, static_argnums=0)
        def total(self, x):
            return self.factor * cj.allreduce(x, comm=comm)

    np.testing.assert_array_equal(Doubling().total(jnp.ones(3)), np.full(3, 2.0 * comm.size))


def test_argument_errors(comm):
    x = jnp.ones((comm.size + 1, 2))
    with pytest.raises(LayoutError, match="blocks"):
        cj.alltoall(x, comm=comm)
    with pytest.raises(LayoutError, match="rows"):
        cj.allgatherv(x, [1] * comm.size, comm=comm)
    with pytest.raises(InputError, match="must be a rank from 0 to"):
        cj.bcast(x, comm.size, comm=comm)
    with pytest.raises(InputError, match="root must be an integer"):
        cj.bcast(x, 0.0, comm=comm)
    with pytest.raises(InputError, match="known when tracing"):
        jax.jit(lambda x, root: cj.bcast(x, root, comm=comm))(x, 0)
    with pytest.raises(InputError, match="counts must be"):
        cj.allgatherv(x, [1.5] * comm.size, comm=comm)
    with pytest.raises(InputError, match="tag"):
        cj.send(x, 0, -1, comm=comm)
    with pytest.raises(InputError, match="must be ranks or replicated"):
        cj.allreduce(x, comm=comm, cotangents="both")
    with pytest.raises(InputError, match="destinations"):
        cj.neighbor_exchange([x], [], [], [], comm=comm)
    with pytest.raises(InputError, match="communicator"):
        cj.allreduce(x, comm="world")
    with pytest.raises(UnsupportedTypeError, match="median"):
        cj.allreduce(x, "median", comm=comm)
    with pytest.raises(UnsupportedTypeError, match="complex"):
        cj.allreduce(x + 1j, "max", comm=comm)
    with pytest.raises(UnsupportedTypeError, match="rounded"):
        cj.allreduce(jnp.ones(2, int), "avg", comm=comm)
