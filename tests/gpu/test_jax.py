"""JAX's primitives over NCCL: each rank with a GPU of its own, and one process with all of them in ``shard_map``."""

from __future__ import annotations

import importlib.util
import os
from collections import deque

import numpy as np
import pytest

import collops
from collops.errors import InputError

pytestmark = pytest.mark.gpu
jax = pytest.importorskip("jax")
if importlib.util.find_spec("collops_native") is None and "COLLOPS_NATIVE" not in os.environ:
    pytest.skip("the native library is not built: pip install ./native", allow_module_level=True)

jnp = pytest.importorskip("jax.numpy")
cj = pytest.importorskip("collops.jax")
cases = pytest.importorskip("tests.jax.cases")
checks = pytest.importorskip("tests.jax.checks")
programs = pytest.importorskip("tests.jax.programs")
model = pytest.importorskip("tests.exchange.model")

try:
    cj.use_local_device()
except InputError as error:  # pytest's own world has used the GPUs
    pytest.skip(f"JAX needs one GPU for each rank: {error}", allow_module_level=True)
if jax.default_backend() != "gpu":
    pytest.skip("JAX has no GPU", allow_module_level=True)

PROGRAMS = int(os.environ.get("COLLOPS_RANDOM_PROGRAMS", "12"))  # a multiple of three


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_primitive(comm, case):
    if comm.size == 1 and case.name == "send and recv":
        pytest.skip("NCCL cannot send to oneself in two calls")
    checks.check_case(comm, case, np.float32)


@pytest.mark.parametrize("name", ["bool", "int16", "int32", "float16", "bfloat16", "complex64"])
def test_dtypes(comm, name):
    values = [(np.arange(5) % 3 + rank).astype(jnp.dtype(name)) for rank in range(comm.size)]
    total = sum(value.astype("complex64" if name.startswith("complex") else "float64") for value in values)
    expected = np.any(values, axis=0) if name == "bool" else total.astype(jnp.dtype(name))
    found = cj.allreduce(jnp.asarray(values[comm.rank]), comm=comm)
    assert found.dtype == jnp.dtype(name)
    np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_wins(comm, name, op):
    checks.check_nan_wins(comm, name, op)


@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_wins_in_star_forests(comm, op):
    """Several leaves of a root are combined by XLA, on a GPU by atomic operations."""
    rng = np.random.default_rng(5)
    graph, rank = model.Graph.drawn(rng, comm.size, most_roots=9, most_leaves=90), comm.rank
    roots = model.with_nan(rng, model.values(rng, graph.nroots, (2,), "float32"))
    leaves = model.with_nan(rng, model.values(rng, [graph.space(r) for r in range(comm.size)], (2,), "float32"))
    forest = collops.StarForest(comm, graph.nroots[rank], graph.leaves[rank], graph.ranks[rank], graph.indices[rank])
    x, y = jnp.asarray(roots[rank]), jnp.asarray(leaves[rank])
    down, up = cj.jit(lambda x, y: (forest.bcast(x, y, op), forest.reduce(y, x, op)))(x, y)
    np.testing.assert_array_equal(down, graph.bcast(roots, leaves, op)[rank])
    np.testing.assert_array_equal(up, graph.reduce(leaves, roots, op)[rank])


def test_order_in_control_flow(comm):
    """Collectives with nothing to do with each other, in a loop, a branch and nested programs."""
    x = jnp.full(1000, 1.0 + comm.rank)
    total = comm.size * (comm.size + 1) / 2

    def body(carry, _):
        a, b = carry
        b = jax.lax.cond(b[0] > 0, lambda: cj.allreduce(b, "max", comm=comm), lambda: b)
        return (cj.allreduce(a, "avg", comm=comm), b), a

    def program(x):
        (a, b), _ = jax.lax.scan(body, (x, 2 * x), None, length=5)
        c = jax.jit(lambda x: cj.bcast(x, comm=comm))(x)
        cj.barrier(comm=comm)
        d = jax.lax.fori_loop(0, 3, lambda _, d: cj.allreduce(d, "avg", comm=comm), x)
        return a, b, c, d

    for compiled in (cj.jit(program), jax.jit(program)):
        a, b, c, d = compiled(x)
        expected = [total / comm.size, 2 * comm.size, 1, total / comm.size]
        np.testing.assert_allclose([a[0], b[0], c[0], d[0]], expected, rtol=1e-6)


@pytest.mark.parametrize("first", range(0, PROGRAMS, 3))
def test_random_programs_again_and_again(comm, first, jax_double):
    """XLA runs calls one by one at first, then records them as it goes, each rank others, and replays what it has."""
    programs.check_programs(comm, range(first, first + 3), cj.jit, calls=5)


def test_calls_that_some_ranks_have_recorded(comm):
    """Ranks keep different numbers of results, so that addresses come again, and are recorded, after other calls."""
    total, n = comm.size * (comm.size + 1) / 2, comm.size
    rank = 1.0 + comm.rank
    programs = (
        (lambda x: cj.allreduce(x, comm=comm), lambda turn: total + n * turn),
        (lambda x: cj.bcast(x, root=n - 1, comm=comm), lambda turn: n + turn),
        (lambda x: cj.allgather(x, comm=comm).mean(0), lambda turn: total / n + turn),
        (lambda x: cj.reduce_scatter(jnp.broadcast_to(x, (n, 500)), comm=comm), lambda turn: total + n * turn),
        (lambda x: sum_of_many(x, comm), lambda turn: total / n + turn),
    )
    compiled = [(cj.jit(program), expected) for program, expected in programs]
    kept = deque(maxlen=1 + 70 * comm.rank)
    for turn in range(400):
        program, expected = compiled[0 if turn % 3 else turn // 3 % len(compiled)]
        kept.append((program(jnp.full(500, rank + turn, jnp.float32)), expected(turn)))
    for result, expected in kept:
        np.testing.assert_allclose(result, np.full(500, expected), rtol=1e-5)
    x = jnp.full(500, rank)
    for turn in range(50):
        np.testing.assert_allclose(compiled[turn % 2][0](x), np.full(500, total if turn % 2 == 0 else n), rtol=1e-6)


def sum_of_many(x, comm):
    """Enough of them for XLA to record the program."""
    for _ in range(8):
        x = cj.allreduce(x, "avg", comm=comm)
    return x


def test_several_devices_of_one_process(comm):
    if comm.size > 1:
        pytest.skip("one process")
    devices = jax.local_devices()
    mesh = jax.sharding.Mesh(np.array(devices), "i")
    spec = jax.sharding.PartitionSpec("i")
    joined = cj.clique()
    n = len(devices)
    x = jnp.arange(4.0 * n).reshape(n, 4)

    def again(x, _):
        """Long enough to be recorded, with a branch in it."""
        x = jax.lax.cond(x[0, 0] < 1e9, lambda: cj.allreduce(x, "avg", comm=joined), lambda: x)
        for _ in range(3):
            x = cj.allreduce(x, "avg", comm=joined)
        return x, None

    branching = cj.jit(
        jax.shard_map(
            lambda x: jax.lax.scan(again, x, None, length=5)[0],
            mesh=mesh,
            in_specs=spec,
            out_specs=spec,
            check_vma=False,
        )
    )
    np.testing.assert_allclose(branching(x), np.tile(np.asarray(x).mean(0), (n, 1)), rtol=1e-6)

    def local(x):
        y = cj.allreduce(x, comm=joined)
        z = cj.allgather(x[0], comm=joined)
        return y, z.sum(0, keepdims=True), cj.allreduce(x, "max", comm=joined)

    program = cj.jit(jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    for _ in range(6):
        total, gathered, highest = program(x)
    expected = np.tile(np.asarray(x).sum(0), (n, 1))
    np.testing.assert_allclose(total, expected)
    np.testing.assert_allclose(gathered, expected)
    np.testing.assert_allclose(highest, np.tile(np.asarray(x).max(0), (n, 1)))
    highest = program(x.at[n - 1, 2].set(np.nan))[2]
    np.testing.assert_array_equal(np.isnan(highest), np.tile([False, False, True, False], (n, 1)))
    gradient = jax.grad(lambda x: jnp.sum(program(x)[0] ** 2))(x)
    np.testing.assert_allclose(gradient, 2 * n * expected)


def test_a_compiled_solver_and_its_derivative(comm):
    """Least squares over the ranks' matrices, and how the energy of its solution depends on the data."""
    matrix = np.random.default_rng(comm.rank).standard_normal((9, 5)).astype(np.float32)
    whole = np.vstack(comm.allgather_metadata(matrix.tolist()))
    A = collops.VStack([jnp.asarray(matrix)], comm)
    data, y = (collops.random(A.range, seed=1, dtype="float32", comm=comm, engine=name) for name in ("numpy", "jax"))
    inverse = np.linalg.pinv(whole)
    expected = inverse @ data.gather()
    found = collops.cgls(A, y, niter=20, tol=1e-12).x
    np.testing.assert_allclose(np.asarray(found.gather()), expected, atol=1e-4)

    def energy(y):
        x = collops.cgls(A, y, niter=20, tol=1e-12).x
        return x.vdot(x)

    slope = jax.grad(energy)(y)
    np.testing.assert_allclose(np.asarray(slope.gather()), 2 * inverse.T @ expected, atol=1e-3)


def test_products_have_the_precision_of_single_precision(comm):
    """XLA multiplies float32 in TF32 unless it is told otherwise, with an error of some 3e-4."""
    random = np.random.default_rng(5)
    matrix, slices = random.normal(size=(96, 256)), random.normal(size=(5, 64, 256))[comm.rank :: comm.size]
    wanted = collops.MatrixMult(collops.from_global(matrix, comm=comm), 40, comm=comm)
    rows = collops.from_global(matrix, comm=comm, dtype="float32", engine="jax")
    found = collops.MatrixMult(rows, 40, kind=wanted.kind, process_grid=wanted.process_grid, comm=comm)
    batches = collops.Fredholm1(slices, 9, comm=comm), collops.Fredholm1(jnp.asarray(slices, "float32"), 9, comm=comm)
    for double, single in ((wanted, found), batches):
        for way, layout in (("forward", double.domain), ("adjoint", double.range)):
            x, y = (
                collops.random(layout, seed=1, comm=comm, dtype=dtype, engine=engine)
                for dtype, engine in (("float64", "numpy"), ("float32", "jax"))
            )
            expected, values = getattr(double, way)(x).gather(), np.asarray(getattr(single, way)(y).gather())
            assert np.linalg.norm(values - expected) < 5e-6 * np.linalg.norm(expected), (type(double).__name__, way)


def test_waves(comm):
    """Traces and the image of the host, in single precision; density has steps of its own."""
    from collops.seismic.waves import Propagator
    from tests.seismic.test_waves import arrays_of, small

    for density in (None, np.linspace(1000.0, 2000.0, 17 * 14).reshape(17, 14)):
        F = Propagator(*small(2, 4), density=density, kernels="numpy", comm=comm)
        velocity, _, data = arrays_of(F)
        on_device, residual = (
            collops.from_global(x.gather().astype(np.float32), layout=x.layout, engine="jax", comm=comm)
            for x in (velocity, data)
        )
        pairs = [(F(on_device), F(velocity))]
        pairs.append((F.jacobian(on_device).adjoint(residual), F.jacobian(velocity).adjoint(data)))
        for found, expected in pairs:
            values = expected.gather()
            assert np.linalg.norm(np.asarray(found.gather()) - values) < 1e-4 * np.linalg.norm(values)
