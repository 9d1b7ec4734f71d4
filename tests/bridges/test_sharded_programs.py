"""Programs compiled for sharded arrays: they send what the mathematics needs, and their values are right."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import scipy.sparse

import collops
from collops import operators, solvers
from collops.errors import UnsupportedTypeError
from collops.operators import Columns, LinearOperator
from tests.launch import QUICK_CODE

jax = pytest.importorskip("jax", reason="JAX is not installed")
Mesh, NamedSharding, PartitionSpec = jax.sharding.Mesh, jax.sharding.NamedSharding, jax.sharding.PartitionSpec

SHAPE = (16, 24)
VALUES = np.arange(384, dtype="float32").reshape(SHAPE)
REAL, COMPLEX = {"dtype": "float32"}, {"dtype": "complex64"}
MATRIX = np.random.default_rng(1).standard_normal(SHAPE).astype("float32")
KERNEL = np.random.default_rng(2).standard_normal((4, 8, 16)).astype("float32")
SPARSE = scipy.sparse.random(384, 384, 0.01, format="csr", dtype="float32", random_state=1)
COLLECTIVES = re.compile(
    r"= (\([^)]*\)|\S+) (all-gather|all-to-all|all-reduce|reduce-scatter|collective-permute)(?:-start)?\("
)


@pytest.fixture
def devices(comm):
    if comm.size > 1:
        pytest.skip("several devices of one rank")
    return np.array(jax.devices())


def collectives(*programs):
    """Return the kinds of collectives in compiled programs, each with the number of elements of its largest array."""
    largest = {}
    for program in programs:
        for result, kind in COLLECTIVES.findall(program):
            for shape in re.findall(r"\[([\d,]*)\]", result):
                size = int(np.prod([int(extent) for extent in shape.split(",") if extent]))
                largest[kind] = max(size, largest.get(kind, 0))
    return largest


def placed(array, mesh, *spec):
    """Return a distributed array of NumPy as one of JAX, with its last axes sharded."""

    def sharded(leaf):
        axes = spec[-leaf.ndim :] if leaf.ndim > 1 else spec[:1] if spec[0] else spec[1:]
        own = PartitionSpec(*[None] * (leaf.ndim - len(axes)), *axes)
        return collops.from_jax(jax.device_put(leaf.local_array, NamedSharding(mesh, own)))

    if isinstance(array, collops.StackedArray):
        return collops.StackedArray([sharded(leaf) for leaf in array.leaves])
    return sharded(array)


def check_values(found, expected):
    for part, right in zip(found.leaves, expected.leaves, strict=True):
        scale = np.abs(right.local_array).max()
        np.testing.assert_allclose(part.local_array, right.local_array, rtol=1e-4, atol=1e-5 * scale)


def faces(size):
    return {"collective-permute": size}


def summed(size):
    return {"all-reduce": size}


def gathered(size):
    return {"all-gather": size}


def by_engine(array):
    return lambda engine: collops.from_global(array, engine=engine).local_array


def smoothing():
    D = collops.FirstDerivative(SHAPE, **REAL)
    return 2 * collops.Identity(SHAPE, **REAL) + D.H @ D.conj()


NONE, PLANE, LINE = {}, faces(24), faces(16)
OPERATORS = {
    # The operator for an engine, and its collectives: forward and adjoint for sharded rows, then for sharded columns.
    "Identity": (lambda _: collops.Identity(SHAPE, **REAL), NONE, NONE, NONE, NONE),
    "Identity, padded": (
        lambda _: collops.Identity((32, 32), SHAPE, **REAL),
        *(faces(96), faces(256), faces(96), faces(192)),
    ),
    "Diagonal": (lambda _: collops.Diagonal(VALUES + 1), NONE, NONE, NONE, NONE),
    "Diagonal along an axis": (lambda _: collops.Diagonal(VALUES[:, 1], SHAPE, 0), NONE, NONE, NONE, NONE),
    "Sum": (lambda _: collops.Sum(SHAPE, 0, **REAL), summed(24), NONE, NONE, NONE),
    "Transpose": (lambda _: collops.Transpose(SHAPE, (1, 0), **REAL), NONE, NONE, NONE, NONE),
    "Zero": (lambda _: collops.Zero(SHAPE, **REAL), NONE, NONE, NONE, NONE),
    "Restriction to every second": (
        lambda _: collops.Restriction(SHAPE, range(0, 16, 2), 0, **REAL),
        NONE,
        NONE,
        NONE,
        NONE,
    ),
    "Restriction to a range": (
        lambda _: collops.Restriction(SHAPE, range(4, 12), 0, **REAL),
        *(faces(48), faces(48), NONE, NONE),
    ),
    "Restriction to any": (
        lambda _: collops.Restriction(SHAPE, [3, 0, 7, 2], 0, **REAL),
        *(summed(96), gathered(96), NONE, NONE),
    ),
    "Restriction to repeated": (
        lambda _: collops.Restriction(SHAPE, [0, 3, 3, 2], 0, **REAL),
        *(summed(96), summed(384), NONE, NONE),
    ),
    "FirstDerivative": (lambda _: collops.FirstDerivative(SHAPE, **REAL), PLANE, PLANE, NONE, NONE),
    "FirstDerivative of five points": (
        lambda _: collops.FirstDerivative(SHAPE, axis=1, order=5, edge=True, **REAL),
        *(NONE, NONE, faces(32), faces(32)),
    ),
    "SecondDerivative": (lambda _: collops.SecondDerivative(SHAPE, axis=1, **REAL), NONE, NONE, LINE, LINE),
    "Laplacian": (lambda _: collops.Laplacian(SHAPE, edge=True, **REAL), faces(48), faces(48), faces(32), faces(32)),
    "Gradient": (lambda _: collops.Gradient(SHAPE, **REAL), PLANE, PLANE, LINE, LINE),
    "Halo": (lambda _: collops.Halo(SHAPE, 4, **REAL), faces(48), faces(64), faces(32), faces(48)),
    "StackedVStack": (
        lambda _: collops.StackedVStack([collops.FirstDerivative(SHAPE, **REAL), collops.Identity(SHAPE, **REAL)]),
        *(PLANE, PLANE, NONE, NONE),
    ),
    "StackedHStack": (
        lambda _: collops.StackedHStack([collops.FirstDerivative(SHAPE, **REAL), collops.Identity(SHAPE, **REAL)]),
        *(PLANE, PLANE, NONE, NONE),
    ),
    "StackedBlockDiag": (
        lambda _: collops.StackedBlockDiag([collops.FirstDerivative(SHAPE, **REAL), collops.Identity(SHAPE, **REAL)]),
        *(PLANE, PLANE, NONE, NONE),
    ),
    "Columns": (lambda _: Columns(collops.FirstDerivative(SHAPE, **REAL), 2), PLANE, PLANE, NONE, NONE),
    "MatrixMult": (
        lambda engine: collops.MatrixMult(collops.from_global(MATRIX, engine=engine), 8),
        *(summed(128), summed(192), NONE, NONE),
    ),
    "Fredholm1": (
        lambda engine: collops.Fredholm1(by_engine(np.stack([MATRIX, 2 * MATRIX]))(engine), 8),
        *(summed(256), summed(384), NONE, NONE),
    ),
    # Local operators take vectors: an array that is sharded along another axis than the first is gathered.
    "BlockDiag": (lambda _: collops.BlockDiag([MATRIX]), summed(16), summed(24), summed(16), summed(24)),
    "VStack": (lambda _: collops.VStack([MATRIX]), summed(16), summed(24), summed(16), summed(24)),
    "VStack of arrays": (
        lambda _: collops.VStack([np.vstack([VALUES.ravel(), MATRIX.ravel()] * 2)], dims=SHAPE),
        *(summed(4), summed(384), gathered(384), summed(384)),
    ),
    "HStack": (lambda _: collops.HStack([MATRIX]), summed(16), summed(24), summed(16), summed(24)),
    # The products of all entries, and not the vector.
    "CSRMatrix": (lambda _: collops.CSRMatrix(SPARSE), *[summed(SPARSE.nnz)] * 4),
    # XLA gathers whole arrays for any Fourier transform.
    "FFT": (lambda _: collops.FFT(SHAPE, axis=0, **COMPLEX), *[gathered(384)] * 4),
    "FFT2D": (lambda _: collops.FFT2D(SHAPE, **COMPLEX), *[gathered(384)] * 4),
    "FFTND": (lambda _: collops.FFTND(SHAPE, axes=(0, 1), **COMPLEX), *[gathered(384)] * 4),
    "MDC": (
        lambda engine: collops.MDC(by_engine(np.stack([MATRIX[:, :8], MATRIX[:, 8:16]]) + 0j)(engine), nt=3, nv=4),
        *({**gathered(96), **summed(128)}, {**gathered(192), **summed(64)}, gathered(128), gathered(192)),
    ),
    # XLA gathers the windows, and the vectors of a Fourier transform.
    "BlockToeplitz": (
        lambda engine: collops.BlockToeplitz(by_engine(KERNEL)(engine)),
        *(gathered(64), gathered(32), {**gathered(128), **summed(40)}, {**gathered(64), **summed(80)}),
    ),
    "Sliding": (
        lambda _: collops.Sliding(np.eye(192, dtype="float32"), (24, 24), SHAPE, 8, 4),
        *(summed(192), {**faces(72), **gathered(288)}, gathered(576), gathered(576)),
    ),
    "Patch": (
        lambda _: collops.Patch(np.eye(64, dtype="float32"), (24, 40), SHAPE, (8, 8), (4, 4), (8, 8)),
        *(summed(64), {**faces(72), **gathered(240)}, gathered(960), {**faces(48), **gathered(240)}),
    ),
    "sums, products and adjoints": (lambda _: smoothing(), PLANE, PLANE, NONE, NONE),
}


def test_the_table_has_all_operators():
    known = {name for name in operators.__all__ if issubclass(type(getattr(operators, name)), type)}
    known = {name for name in known if issubclass(getattr(operators, name), LinearOperator)}
    shown = {name.replace(",", "").split()[0] for name in OPERATORS}
    assert known - shown == {"LinearOperator", "NonStationaryConvolve1D"}  # the latter does not take arrays of JAX


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_operators_send_what_they_need(devices, name, axis):
    make, *expected = OPERATORS[name]
    op, same = make("jax"), make("numpy")
    spec = ("a", None) if axis == "rows" else (None, "a")
    expected = expected[:2] if axis == "rows" else expected[2:]
    found = []
    for side, apply, right in ((op.domain, op.forward, same.forward), (op.range, op.adjoint, same.adjoint)):
        x = collops.random(side, dtype=op.dtype, seed=3)
        y = placed(x, Mesh(devices, "a"), *spec)
        program = jax.jit(apply).lower(y).compile(QUICK_CODE)
        found.append(collectives(program.as_text()))
        check_values(program(y), right(x))
    assert found == expected


def test_convolutions_take_no_arrays_of_jax():
    C = collops.NonStationaryConvolve1D(SHAPE, np.ones((2, 3)), (1, 3), 0)
    with pytest.raises(UnsupportedTypeError, match="NonStationaryConvolve1D does not support arrays of the engine jax"):
        C @ collops.ones(SHAPE, engine="jax")


# Solvers


def image(engine):
    """Return data in (0, 1)."""
    return collops.random(SHAPE, kind="uniform", engine=engine, **REAL)


def columns(y):
    return [y, y * y]


def split(method, *operator):
    """Return a call of a proximal method that minimises the distance to the data and the absolute values."""

    def solve(_, y):
        steps = {"tau": 0.1, "mu": 0.1} if operator else {"tau": 0.1}
        D = [collops.FirstDerivative(SHAPE, **REAL) for _ in operator]
        return method(collops.L2(b=y), collops.L1(0.1), *D, x0=0 * y, niter=2, **steps)

    return solve


SCALARS, MATRICES = {"all-reduce": 1}, {"all-reduce": 4}
COMPILED = {
    "cg": lambda A, y: collops.cg(A, y, niter=2),
    "cg with one reduction": lambda A, y: collops.cg(A, y, niter=2, reductions=1),
    "cg, pipelined": lambda A, y: collops.cg(A, y, niter=2, reductions="pipelined"),
    "minres": lambda A, y: collops.minres(A, y, niter=2),
    "bicgstab": lambda A, y: collops.bicgstab(A, y, niter=2),
    "cgls": lambda A, y: collops.cgls(A, y, niter=2, damp=0.1),
    "lsqr": lambda A, y: collops.lsqr(A, y, niter=2),
    "lsmr": lambda A, y: collops.lsmr(A, y, niter=2),
    "block_cg": lambda A, y: collops.block_cg(A, columns(y), niter=2),
    "block_cgls": lambda A, y: collops.block_cgls(A, columns(y), niter=2),
    "ista": lambda A, y: collops.ista(A, y, niter=2, alpha=1e-6, eps=0.1),
    "fista": lambda A, y: collops.fista(A, y, niter=2, alpha=1e-6, eps=0.1),
    "power_iteration": lambda A, y: collops.power_iteration(A, y, niter=2),
}
STEPWISE = {  # not one program, but one for each operation on arrays
    "gmres": (lambda A, y: collops.gmres(A, y, niter=2, restart=2), {"all-reduce": 6}),
    "hybrid_lsqr": (lambda A, y: collops.hybrid_lsqr(A, y, niter=2), SCALARS),
    "proximal_gradient": (split(collops.proximal_gradient), SCALARS),
    "admm": (split(collops.admm), SCALARS),
    "linearized_admm": (split(collops.linearized_admm, "D"), SCALARS),
    "primal_dual": (split(collops.primal_dual, "D"), SCALARS),
    "admm_l2": (
        lambda A, y: collops.admm_l2(
            *(collops.L1(0.1), A, y, collops.Identity(SHAPE, **REAL)), x0=0 * y, tau=0.1, niter=2, inner=2
        ),
        SCALARS,
    ),
}


def test_the_tables_have_all_solvers():
    named = {name for module in (solvers, solvers.proximal) for name in module.__all__ if name.islower()}
    others = {"cross_validate", "discrepancy", "solve", "lift_proximal"}
    assert named - others == {re.split("[ ,]", name)[0] for name in (*COMPILED, *STEPWISE)}


@pytest.mark.parametrize("name", COMPILED)
def test_solvers_send_scalars_only(devices, name):
    """And no program gathers an array that is sharded along both axes."""
    solve, A, x = COMPILED[name], collops.Diagonal(VALUES + 1), image("numpy")
    y = placed(x, Mesh(devices.reshape(2, 2), ("a", "b")), "a", "b")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the iteration limit
        program = jax.jit(lambda y: solve(A, y).x).lower(y).compile(QUICK_CODE)
        found, expected = program(y), solve(A, x).x
    assert collectives(program.as_text()) == (MATRICES if name.startswith("block") else SCALARS)
    assert found.local_array.sharding.shard_shape(found.shape)[-2:] == (8, 12)
    check_values(found, expected)


@pytest.fixture
def programs(monkeypatch):
    """The programs that XLA compiles."""
    compiler = pytest.importorskip("jax._src.compiler")
    if not hasattr(compiler, "backend_compile_and_load"):
        pytest.skip("this version of JAX has another function that compiles")
    texts = []

    def compiled(*arguments, known=compiler.backend_compile_and_load, **options):
        program = known(*arguments, **options)
        texts.extend(module.to_string() for module in program.hlo_modules())
        return program

    monkeypatch.setattr(compiler, "backend_compile_and_load", compiled)
    jax.clear_caches()
    yield texts
    jax.clear_caches()


@pytest.mark.parametrize("name", STEPWISE)
def test_stepwise_solvers_send_scalars_only(devices, name, programs):
    """On two devices: eager programs between more devices than cores can wait for each other until XLA ends them."""
    (solve, expected), A, x = STEPWISE[name], collops.Diagonal(VALUES + 1), image("numpy")
    y = placed(x, Mesh(devices[:2], "a"), None, "a")
    programs.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found, right = solve(A, y).x, solve(A, x).x
    assert collectives(*programs) == expected
    assert found.local_array.sharding.shard_shape(SHAPE) == (16, 12)
    check_values(found, right)


def test_matrices_of_rows(devices):
    """A matrix multiplies a sharded vector by a sum over the devices, if its columns are sharded."""
    mesh = Mesh(devices, "a")
    matrix = jax.device_put(MATRIX, NamedSharding(mesh, PartitionSpec(None, "a")))
    x = placed(collops.ones(24, **REAL), mesh, "a")
    program = jax.jit(lambda matrix, x: collops.BlockDiag([matrix]) @ x).lower(matrix, x).compile()
    assert collectives(program.as_text()) == summed(16)
