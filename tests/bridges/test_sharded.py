"""Fourier transforms and halos of sharded JAX arrays against NumPy, their messages, and their derivatives."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest
import scipy.sparse

from collops.errors import InputError, LayoutError, UnsupportedTypeError
from tests.bridges.test_sharding import free_port
from tests.docs.pages import ROOT, blocks
from tests.launch import run_ranks

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy
Mesh, NamedSharding, P = jax.sharding.Mesh, jax.sharding.NamedSharding, jax.sharding.PartitionSpec

sharded = pytest.importorskip("collops.bridges.sharded")
fftn, ifftn, rfftn, irfftn = sharded.fftn, sharded.ifftn, sharded.rfftn, sharded.irfftn

COLLECTIVES = re.compile(r" (all-gather|all-to-all|all-reduce|reduce-scatter|collective-permute)(?:-start)?\(")


@pytest.fixture
def grid(comm):
    """Return a function that makes a mesh with the axes a and b."""
    if comm.size > 1:
        pytest.skip("several devices of one rank")
    devices = np.array(jax.devices())
    return lambda *shape: Mesh(devices[: np.prod(shape)].reshape(shape), ("a", "b")[: len(shape)])


def values(*shape, kind="complex64", seed=1):
    x = np.random.default_rng(seed).standard_normal((2, *shape))
    return (x[0] + 1j * x[1]).astype(kind) if np.dtype(kind).kind == "c" else x[0].astype(kind)


def placed(x, mesh, *spec):
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


def compiled(function, *arguments):
    """Return the result of a compiled program, and its collectives."""
    program = jax.jit(function).lower(*arguments).compile()
    return program(*arguments), sorted(COLLECTIVES.findall(program.as_text()))


def close(found, expected, tol=2e-6):
    return found.dtype == expected.dtype and abs(np.asarray(found) - expected).max() <= tol * abs(expected).max()


SLABS, PENCILS = (4,), (2, 2)
CASES = {
    # mesh, shape, spec, axes, spec of the result, number of all-to-alls
    "slabs": (SLABS, (8, 12, 5), ("a",), None, None, 2),
    "slabs transposed": (SLABS, (8, 12, 5), ("a",), None, (None, "a"), 1),
    "back": (SLABS, (8, 12, 5), (None, "a"), None, ("a",), 1),
    "last axis": (SLABS, (4, 3, 8), (None, None, "a"), None, None, 2),
    "pencils": (PENCILS, (4, 8, 10), ("a", "b"), None, None, 3),
    "uneven pencils": (PENCILS, (4, 6, 10), ("a", "b"), None, None, 4),
    "pencils transposed": (PENCILS, (4, 6, 10), ("a", "b"), None, (None, "a", "b"), 2),
    "pencils back": (PENCILS, (4, 6, 10), (None, "a", "b"), None, ("a", "b"), 2),
    "both names on one axis": (PENCILS, (8, 12, 5), (("a", "b"),), None, None, 2),
    "squares": (PENCILS, (8, 12), ("a", "b"), None, None, 3),
    "whole axes": (SLABS, (8, 5, 6), ("a",), (1, 2), None, 0),
    "whole axes in between": (SLABS, (6, 5, 8), (None, None, "a"), (0, 1), None, 0),
    "split axis of a batch": (SLABS, (8, 12), ("a",), (0,), None, 2),
    "padded": (SLABS, (8, 5, 7), ("a",), None, None, 2),
    "padded batch": (PENCILS, (3, 8), (None, "a"), (1,), None, 2),
    "vector": (SLABS, (48,), ("a",), None, None, 3),
    "short rows": (SLABS, (2, 16), (None, "a"), None, None, 3),
    "four axes": (SLABS, (4, 3, 2, 8), (None, None, None, "a"), None, None, 2),
    "axes in another order": (SLABS, (8, 12, 5), ("a",), (2, 0), None, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_complex_transforms(grid, name):
    shape, extents, spec, axes, out_spec, messages = CASES[name]
    mesh, x = grid(*shape), values(*extents)
    source = placed(x, mesh, *spec)
    out = None if out_spec is None else P(*out_spec)
    for ours, theirs in ((fftn, np.fft.fftn), (ifftn, np.fft.ifftn)):
        found, sent = compiled(partial(ours, axes=axes, out_spec=out, sharding=source.sharding), source)
        assert close(found, theirs(x, axes=axes))
        assert found.sharding.is_equivalent_to(NamedSharding(mesh, out or P(*spec)), x.ndim)
        assert sent == ["all-to-all"] * messages


@pytest.mark.parametrize(
    ("shape", "extents", "spec", "axes", "out_spec", "messages"),
    [
        (SLABS, (8, 12, 5), ("a",), None, None, 2),
        (SLABS, (8, 12, 6), ("a",), None, (None, "a"), 1),
        (PENCILS, (4, 6, 10), ("a", "b"), None, None, 4),
        (PENCILS, (8, 4, 6), ("a", "b"), None, (None, "a", "b"), 2),
        (SLABS, (4, 8), (None, "a"), None, ("a",), 3),  # the split axis must be real and whole
        (SLABS, (8, 4, 4), (None, "a"), (1, 0), None, 2),
    ],
)
def test_real_transforms(grid, shape, extents, spec, axes, out_spec, messages):
    mesh, x = grid(*shape), values(*extents, kind="float32")
    source, out = placed(x, mesh, *spec), None if out_spec is None else P(*out_spec)
    found, sent = compiled(partial(rfftn, axes=axes, out_spec=out, sharding=source.sharding), source)
    assert close(found, np.fft.rfftn(x, axes=axes))
    assert sent == ["all-to-all"] * messages
    last = (axes or range(x.ndim))[-1]
    back = partial(irfftn, axes=axes, n=x.shape[last], out_spec=P(*spec), sharding=found.sharding)
    returned, sent = compiled(back, found)
    assert close(returned, x) and returned.sharding.is_equivalent_to(source.sharding, x.ndim)
    assert sent == ["all-to-all"] * messages


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_norms(grid, norm):
    x, real = values(8, 12, 5), values(8, 12, 5, kind="float32")
    for ours, theirs, source in ((fftn, np.fft.fftn, x), (ifftn, np.fft.ifftn, x), (rfftn, np.fft.rfftn, real)):
        assert close(ours(placed(source, grid(4), "a"), norm=norm), theirs(source, norm=norm))
    half = np.fft.rfftn(real, norm=norm).astype("complex64")
    assert close(irfftn(placed(half, grid(4), "a"), n=5, norm=norm), real)


@pytest.mark.parametrize("dtype", ["float16", "int32", "float32", "bool"])
def test_types_are_promoted(grid, dtype):
    x = (values(8, 12, kind="float32") * 3).astype(dtype)
    assert close(fftn(placed(x, grid(4), "a")), np.fft.fftn(x.astype("float32")).astype("complex64"))
    assert close(rfftn(placed(x, grid(4), "a")), np.fft.rfftn(x.astype("float32")).astype("complex64"))


@pytest.mark.usefixtures("jax_double")
def test_double_precision(grid):
    x, real = values(8, 12, 5, kind="complex128"), values(8, 12, 5, kind="float64")
    assert close(fftn(placed(x, grid(4), "a")), np.fft.fftn(x), 1e-14)
    assert close(rfftn(placed(real, grid(2, 2), "a", "b"), out_spec=P("a", "b")), np.fft.rfftn(real), 1e-14)
    assert close(fftn(placed(x[:, 0, 0][:4], grid(2), "a")), np.fft.fft(x[:4, 0, 0]), 1e-14)


def test_long_vectors_keep_their_precision(grid):
    x = values(1 << 18)
    assert close(fftn(placed(x, grid(4), "a")), np.fft.fft(x), 1e-6)


@pytest.mark.parametrize(
    ("shape", "extents", "spec", "out_spec"),
    [
        (SLABS, (8, 24, 5), ("a",), ("a",)),
        (SLABS, (8, 8, 6), ("a",), (None, "a")),
        (PENCILS, (8, 8, 6), ("a", "b"), ("a", "b")),
        (PENCILS, (4, 6, 12), ("a", "b"), ("a", "b")),
        (PENCILS, (4, 8, 12), ("a", "b"), (None, "a", "b")),
    ],
)
def test_chunks(grid, shape, extents, spec, out_spec):
    x = values(*extents)
    source = placed(x, grid(*shape), *spec)
    once, twice = (
        compiled(partial(fftn, chunks=chunks, sharding=source.sharding, out_spec=P(*out_spec)), source)
        for chunks in (1, 2)
    )
    assert close(twice[0], np.fft.fftn(x))
    assert len(once[1]) < len(twice[1]) <= 2 * len(once[1]) and set(twice[1]) == {"all-to-all"}


@pytest.mark.parametrize(
    ("spec", "out_spec", "copies"), [(("a",), ("a",), 4), (("a",), (None, "a"), 3), ((None, "a"), ("a",), 3)]
)
def test_copies(grid, spec, out_spec, copies):
    """A transform of slabs copies each block once on either side of an all-to-all, or else of a transform."""
    source = placed(values(8, 12, 5), grid(4), *spec)
    program = jax.jit(partial(fftn, out_spec=P(*out_spec), sharding=source.sharding))
    text = program.lower(source).compile().as_text()
    text = text[text.index("ENTRY") :]
    written = re.findall(r"= c64\[([\d,]+)\]\S* (?:fusion|copy|transpose|slice|concatenate)\(", text)
    assert sum(np.prod(np.array(shape.split(","), int)) for shape in written) == copies * 8 * 12 * 5 // 4


def test_other_results_are_resharded(grid):
    x = values(8, 12, 5)
    found = fftn(placed(x, grid(4), "a"), out_spec=P())
    assert close(found, np.fft.fftn(x)) and found.sharding.is_fully_replicated
    assert close(fftn(placed(x, grid(4))), np.fft.fftn(x))
    assert close(fftn(placed(x, grid(1), "a")), np.fft.fftn(x))


def test_explicit_meshes(grid):
    """Whose axes are part of the types of arrays."""
    x = values(8, 12, 5)
    mesh = Mesh(grid(4).devices, "a", axis_types=(jax.sharding.AxisType.Explicit,))
    source = placed(x, mesh, "a")
    for found in (fftn(source), jax.jit(partial(fftn, sharding=source.sharding))(source)):
        assert close(found, np.fft.fftn(x)) and found.sharding.is_equivalent_to(source.sharding, 3)


# Derivatives and transformations


@pytest.mark.parametrize("traced", [False, True])
def test_derivatives(grid, traced):
    x, y, direction = (values(8, 12, 5, seed=seed) for seed in range(3))
    source, goal, tangent = (placed(each, grid(4), "a") for each in (x, y, direction))
    sharding = source.sharding if traced else None

    def misfit(x):
        return (abs(fftn(x, sharding=sharding) - goal) ** 2).sum() / 2

    slope, sent = compiled(jax.grad(misfit), source) if traced else (jax.grad(misfit)(source), None)
    assert close(slope, np.conj(x.size * np.fft.ifftn(np.fft.fftn(x) - y)).astype("complex64"))
    assert slope.sharding.is_equivalent_to(source.sharding, 3)
    _, moved = jax.jvp(partial(fftn, sharding=sharding), (source,), (tangent,))
    assert close(moved, np.fft.fftn(direction))
    if traced:
        assert sent == ["all-to-all"] * 4


def test_derivatives_with_copies(grid):
    """No sums over the copies."""
    x = values(8, 12)
    source = placed(x, grid(2, 2), "a")
    slope, sent = compiled(jax.grad(lambda x: (abs(fftn(x, sharding=source.sharding)) ** 2).sum() / 2), source)
    assert close(slope, x.size * np.conj(x)) and sent == ["all-to-all"] * 4


def test_adjoints_of_real_transforms(grid):
    x, y = values(8, 12, 5, kind="float32"), values(8, 12, 3)
    forward, pull = jax.vjp(rfftn, placed(x, grid(4), "a"))
    (adjoint,) = pull(placed(y, grid(4), "a"))
    product = np.sum(np.asarray(forward) * y)  # JAX's cotangents are not conjugated
    assert np.isclose(product.real, np.vdot(x, adjoint), rtol=1e-4)
    forward, pull = jax.vjp(partial(irfftn, n=5), placed(y, grid(4), "a"))
    (adjoint,) = pull(placed(x, grid(4), "a"))
    assert np.isclose(np.vdot(x, forward), np.sum(np.asarray(adjoint) * y).real, rtol=1e-4)


def test_batches(grid):
    x = values(3, 8, 12)
    mesh = grid(4)
    own = NamedSharding(mesh, P("a"))
    found = jax.jit(jax.vmap(partial(fftn, sharding=own)))(placed(x, mesh, None, "a"))
    assert close(found, np.fft.fftn(x, axes=(1, 2)))
    found = jax.vmap(partial(map_twice, sharding=own))(placed(x.real, mesh, None, "a"))
    assert close(found, np.pad(x.real, ((0, 0), (1, 1), (0, 0)))[:, 2:] - x.real)


def map_twice(x, sharding):
    return sharded.map_overlap(lambda block: block[2:] - block[1:-1], x, np.array([1, 0]), sharding=sharding)


def test_arguments(grid):
    mesh = grid(4)
    x = placed(values(8, 12, 6), mesh, "a")
    for call, kind, message in (
        (lambda: fftn(np.ones(4)), UnsupportedTypeError, "sharded array of JAX"),
        (lambda: fftn(jnp.ones(4)), UnsupportedTypeError, "NamedSharding"),
        (lambda: jax.jit(fftn)(x), InputError, "sharding="),
        (lambda: jax.jit(partial(fftn, sharding=P("a")))(x), UnsupportedTypeError, "must be a NamedSharding"),
        (lambda: fftn(x, (0, 3)), InputError, "not axes"),
        (lambda: fftn(x, (0, 0)), InputError, "different"),
        (lambda: fftn(x, norm="unit"), InputError, "norm"),
        (lambda: fftn(x, chunks=0), InputError, "chunks"),
        (lambda: fftn(x, chunks=5), InputError, "5 equal pieces"),
        (lambda: fftn(x, out_spec=P(None, None, "a")), LayoutError, "equal parts only"),
        (lambda: fftn(x, out_spec=P("b")), LayoutError, "cannot have"),
        (lambda: rfftn(x), UnsupportedTypeError, "fftn"),
        (lambda: rfftn(placed(values(4, 8, kind="float32"), mesh, None, "a")), LayoutError, "out_spec"),
        (lambda: irfftn(x, n=4), InputError, "10 or 11"),
        (lambda: rfftn(x.real, ()), InputError, "at least one axis"),
        (lambda: fftn(placed(values(24), mesh, "a")), LayoutError, "square of the number"),
        (lambda: fftn(placed(values(8, 0), mesh, "a")), InputError, "without elements"),
        (lambda: sharded.map_overlap(abs, np.ones(4), 1), UnsupportedTypeError, "sharded array of JAX"),
        (lambda: sharded.map_overlap(abs, x, (1, 1)), InputError, "each of 3 axes"),
        (lambda: sharded.map_overlap(abs, x, 1), LayoutError, "return a block"),
        (lambda: sharded.map_overlap(abs, x, (3, 0, 0)), InputError, "between 0 and the 2 planes"),
        (lambda: sharded.map_overlap(abs, x, 1, "reflect"), InputError, "boundary"),
        (lambda: sharded.sparse_product(np.eye(4), x.sharding), UnsupportedTypeError, "SciPy"),
        (lambda: sharded.sparse_product(scipy.sparse.eye(4), x.sharding)(x), LayoutError, "cannot multiply"),
        (lambda: sharded.sparse_product(scipy.sparse.eye(4), P("a")), UnsupportedTypeError, "NamedSharding"),
        (lambda: sharded.sparse_product(scipy.sparse.eye(6), x.sharding), LayoutError, "6 elements"),
    ):
        with pytest.raises(kind, match=message):
            call()


# Halos


@pytest.mark.parametrize("boundary", ["zeros", "periodic", "edge"])
@pytest.mark.parametrize("shape", [SLABS, PENCILS])
def test_halos(grid, shape, boundary):
    x = values(8, 12, kind="float32")
    source = placed(x, grid(*shape), *("a", "b")[: len(shape)])
    mode = {"zeros": "constant", "periodic": "wrap", "edge": "edge"}[boundary]
    around = np.pad(x, ((1, 1), (2, 2)), mode=mode)

    def stencil(block):
        return 2 * block[2:, 4:] - block[:-2, :-4] + block[1:-1, 2:-2]

    def program(x):
        return sharded.map_overlap(stencil, x, (1, 2), boundary, sharding=source.sharding)

    found, sent = compiled(program, source)
    assert close(found, stencil(around)) and found.sharding.is_equivalent_to(source.sharding, 2)
    assert sent == ["collective-permute"] * 2 * len(shape)
    y = values(8, 12, kind="float32", seed=2)
    _, pull = jax.vjp(program, source)
    (adjoint,) = pull(placed(y, source.sharding.mesh, *source.sharding.spec))
    assert np.isclose(np.vdot(y, found), np.vdot(adjoint, x), rtol=1e-5)


def test_halos_of_one_side(grid):
    x = np.arange(8.0, dtype="float32")
    mapped = jax.shard_map(
        lambda block: sharded.halo_exchange(block, (2, 0), 0, "a"), mesh=grid(4), in_specs=P("a"), out_specs=P("a")
    )
    found = np.asarray(mapped(placed(x, grid(4), "a"))).reshape(4, 4)
    assert np.array_equal(found, [[0, 0, 0, 1], [0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7]])


# Sparse products and transposes


@pytest.mark.parametrize("shape", [(16, 16), (8, 24)])
def test_sparse_products(grid, shape):
    generator = np.random.default_rng(3)
    dense = np.where(generator.random(shape) < 0.2, generator.standard_normal(shape), 0).astype("float32")
    dense[4:8] = 0  # a device without entries
    mesh = grid(2, 2)
    split = NamedSharding(mesh, P(("b", "a")))
    product = sharded.sparse_product(scipy.sparse.csr_array(dense), split)
    x, y = values(shape[1], kind="float32"), values(shape[0], kind="float32", seed=2)
    found, sent = compiled(lambda product, x: product(x), product, jax.device_put(x, split))
    assert np.allclose(found, dense @ x, atol=1e-5) and found.sharding.is_equivalent_to(split, 1)
    assert sent == ["all-to-all"]
    columns = values(shape[1], 3)
    assert np.allclose(product(jax.device_put(columns, split)), dense @ columns, atol=1e-5)
    _, pull = jax.vjp(product, jax.device_put(x, split))
    assert np.allclose(pull(jax.device_put(y, split))[0], dense.T @ y, atol=1e-5)


def test_sparse_products_send_what_they_need(grid):
    """One element to each neighbour, or none."""
    split = NamedSharding(grid(4), P("a"))
    near = scipy.sparse.diags_array([1.0, -2.0, 1.0], offsets=[-1, 0, 1], shape=(64, 64), dtype="float32")
    *_, sent = jax.tree.leaves(sharded.sparse_product(near, split))
    assert sent.shape == (4, 4, 1)
    x = jax.device_put(values(64, kind="float32"), split)
    product = sharded.sparse_product(2 * scipy.sparse.eye_array(64, dtype="float32"), split)
    found, messages = compiled(product, x)
    assert np.allclose(found, 2 * x) and messages == []


def test_transposes_need_one_exchange(grid):
    x = values(8, 12, 4)
    own = NamedSharding(grid(4), P("a"))
    program = jax.jit(lambda x: x.transpose(1, 2, 0), out_shardings=own).lower(jax.device_put(x, own)).compile()
    assert np.array_equal(program(jax.device_put(x, own)), x.transpose(1, 2, 0))
    assert COLLECTIVES.findall(program.as_text()) == ["all-to-all"]


# Several processes, and the page

PROCESSES = """
import jax, numpy as np, scipy.sparse
jax.config.update("jax_num_cpu_devices", 2)
import collops
from collops.bridges.sharded import fftn, map_overlap, sparse_product
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

comm = collops.world()
jax.distributed.initialize("localhost:PORT", comm.size, comm.rank)
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
values = np.random.default_rng(1).standard_normal((4, 6, 8)).astype("complex64")
own = NamedSharding(mesh, P("a", "b"))
x = jax.make_array_from_callback(values.shape, own, lambda index: values[index])
rows = NamedSharding(mesh, P(("a", "b")))
y = jax.make_array_from_callback((4,), rows, lambda index: values[:, 0, 0][index])
for found, expected in (
    (fftn(x), np.fft.fftn(values)),
    (fftn(x, out_spec=P(None, "a", "b")), np.fft.fftn(values)),
    (sparse_product(2 * scipy.sparse.eye_array(4, k=1, format="csr"), rows)(y), 2 * np.eye(4, k=1) @ values[:, 0, 0]),
    (map_overlap(lambda block: block[2:], x, (1, 0, 0), "periodic"), np.roll(values, -1, 0)),
):
    for shard in found.addressable_shards:
        assert np.allclose(shard.data, expected[shard.index], atol=1e-4)
print("done", flush=True)
"""


@pytest.mark.serial
def test_processes():
    done = run_ranks(2, PROCESSES.replace("PORT", free_port()), {})
    assert done.stdout.count("done\n") == 2, done.stderr


@pytest.mark.serial
def test_the_page(comm, capsys):
    page = ROOT / "docs" / "bridge-sharded.md"
    (program,) = blocks(page, "python")
    exec(compile(program, str(page), "exec"), {})
    printed = capsys.readouterr().out
    assert printed.count("True") == 5 and "False" not in printed
