"""Blocks of columns on devices: products of matrices against NumPy and the host, launched and as a replayed graph."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp

from collops import profile
from collops.array import DistributedArray, from_global, full, random
from collops.operators import BlockDiag, Columns, Diagonal, HStack, Identity, VStack, lift_local
from collops.operators.csr import CSRMatrix
from collops.seismic import Kirchhoff
from collops.solvers import block_cg, block_cgls
from collops.uncertainty import GaussianPosterior, randomized_svd
from tests.operators.columns_checks import check_products
from tests.seismic.test_kirchhoff import survey
from tests.solvers.problems import ROWS, assert_close, joined, random_matrix

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

DTYPES = ["f4", "f8", "c8"]
COUNT = 70  # 64 columns, and the rest


def on_device(x):
    return DistributedArray(x.layout, x.comm, cupy.asarray(x.local_array))


def both(comm, kind, dtype):
    """Return a stack on the host, the same on the device, and the whole matrix; some ranks have two blocks or none."""

    def shape(n):
        return {VStack: (n + 3, 41), HStack: (41, n + 3), BlockDiag: (n + 20, 3 * n)}[kind]

    every = [[random_matrix(*shape(n), dtype, n) for n in rows] for rows in ROWS[: comm.size]]
    join = {VStack: np.vstack, HStack: np.hstack, BlockDiag: lambda blocks: scipy.linalg.block_diag(*blocks)}[kind]
    mine = every[comm.rank]
    return kind(mine, comm), kind([cupy.asarray(block) for block in mine], comm), join(joined(every))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kinds", ["f4 f4", "f8 f8", "c8 c8", "c16 c16", "f4 f8", "f8 c16", "c8 f4", "f4 c8"])
@pytest.mark.parametrize("shape", [(7, 4), (1, 1), (1, 5), (515, 1000), (1000, 515), (0, 3), (3, 0)])
def test_local_products(shape, kinds, order):
    kind, dtype = kinds.split()
    host = random_matrix(*shape, kind, 1)
    check_products(cupy, lift_local(cupy.asarray(host, order=order)), host, dtype)


def test_local_products_of_a_large_matrix():
    """Of which cuBLAS multiplies vectors, too."""
    host = random_matrix(3000, 3100, "f4", 1)
    check_products(cupy, lift_local(cupy.asarray(host)), host, "f4", count=33)


def test_local_products_in_half_precision():
    """Whose matrices CuPy multiplies."""
    host = random_matrix(30, 20, "f2", 1)
    check_products(cupy, lift_local(cupy.asarray(host)), host, "f2", factor=0.01)


@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("kind", [VStack, HStack, BlockDiag])
@pytest.mark.parametrize("dtype", DTYPES)
def test_stacks(comm, kind, dtype, square):
    """Launched and as a replayed graph, and a product and a sum of them."""
    _, op, whole = both(comm, kind, dtype)
    if square:
        op = op.H @ (0.5 * op) + 2.0 * (op.H @ op)
        whole = 2.5 * whole.conj().T @ whole
    columns = Columns(op, COUNT)
    assert columns.width == 64
    for apply, matrix, given, wanted in (
        (columns.forward, whole.T, op.domain, op.range),
        (columns.adjoint, whole.conj(), op.range, op.domain),
    ):
        X = random_matrix(COUNT, given.size, dtype, 5)
        block = on_device(Columns.join([from_global(x, given, comm=comm) for x in X]))
        out = on_device(Columns.join([full(wanted, 7.0, comm=comm, dtype=dtype)] * COUNT))
        assert apply(block, out=out) is out
        assert_close(out.gather().get(), X @ matrix, dtype)
        assert_close(apply(block).gather().get(), X @ matrix, dtype)
        with cupy.cuda.Stream(non_blocking=False) as stream:
            apply(block, out=out)
            stream.begin_capture()
            apply(block, out=out)
            graph = stream.end_capture()
            for factor in (2, 4):
                block.local_array *= 2
                out.local_array.fill(7)
                graph.launch(stream)
                stream.synchronize()
                assert_close(out.gather().get(), factor * X @ matrix, dtype)
        assert columns.dottest(engine="cupy")


@pytest.mark.parametrize("dtype", ["f4", "c8"])
def test_one_message_for_all_columns(comm, dtype):
    for kind in (VStack, HStack, BlockDiag):
        _, op, _ = both(comm, kind, dtype)
        x = random(Columns(op, COUNT).domain, comm=comm, dtype=dtype, engine="cupy", seed=1)
        with profile.count_messages() as sent:
            Columns(op.H @ op, COUNT).forward(x)
        assert [message.operation for message in sent.records] == ["allreduce"] * (
            2 * (comm.size > 1) * (kind is not BlockDiag)
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_sparse_matrices(comm, dtype):
    """Of CuPy, one of them without entries."""
    from cupyx.scipy import sparse

    host = random_matrix(23, 17, dtype, comm.rank) * (random_matrix(23, 17, "f8", comm.rank + 50) > 0.5)
    blocks = [sp.csr_matrix(block.astype(dtype)) for block in (host, np.zeros((4, 17)))]
    device, expected = VStack([sparse.csr_matrix(block) for block in blocks], comm), VStack(blocks, comm)
    assert Columns(device, COUNT).width == 64
    for name, layout in (("forward", device.domain), ("adjoint", device.range)):
        X = Columns.join([random(layout, comm=comm, dtype=dtype, seed=seed) for seed in range(COUNT)])
        image = getattr(Columns(device, COUNT), name)(on_device(X))
        assert_close(image.local_array.get(), getattr(Columns(expected, COUNT), name)(X).local_array, dtype)


def test_bfloat16(comm):
    """One column after the other, and one message."""
    host, device, _ = both(comm, VStack, "f8")
    X = Columns.join([random(host.range, comm=comm, dtype="f4", seed=seed) for seed in range(5)])
    columns = Columns(device.astype("bfloat16"), 5)
    with profile.count_messages() as sent:
        image = columns.adjoint(on_device(X))
    assert len(sent.records) == (comm.size > 1)
    assert_close(image.gather().get(), Columns(host.astype("bfloat16"), 5).adjoint(X).gather(), "f4")


def test_others_are_applied_to_one_column_after_the_other(comm):
    """Between operators that apply to all columns together, and alone."""
    host, device, _ = both(comm, VStack, "f8")
    weights = 1.0 + random(host.range, comm=comm, kind="uniform", seed=3)
    whole = sp.csr_array(sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(41, 41)))
    sparse = CSRMatrix.from_global(whole, comm=comm)
    options = {**survey(), "threads": None, "mode": "analytic", "comm": comm, "dtype": "float64"}
    pairs = [
        (host.H @ Diagonal(weights) @ host, device.H @ Diagonal(on_device(weights)) @ device),
        (host.H @ host + Identity(host.domain, comm=comm), device.H @ device + Identity(host.domain, comm=comm)),
        (sparse, sparse),
        (Kirchhoff(**options, engine="numpy"), Kirchhoff(**options, engine="cupy")),
    ]
    for expected, op in pairs:
        X = Columns.join([random(op.domain, comm=comm, dtype=op.dtype, seed=seed) for seed in range(3)])
        image = Columns(op, 3).forward(on_device(X))
        assert_close(image.gather().get(), Columns(expected, 3).forward(X).gather(), factor=1e4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_block_solvers(comm, dtype):
    host, device, _ = both(comm, VStack, dtype)
    y = Columns.join([random(host.range, comm=comm, dtype=dtype, seed=seed) for seed in range(5)])
    x = Columns(host.H, 5) @ y
    for solve, right in ((block_cgls, y), (lambda A, Y, **run: block_cg(A.H @ A, Y, **run), x)):
        problems = (host, right), (device, on_device(right))
        expected, found = (solve(A, Y, damp=1.0, niter=2, rtol=0) for A, Y in problems)
        assert found.iterations == expected.iterations
        assert_close(found.x.gather().get(), expected.x.gather(), dtype, factor=10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_posterior_samples_are_those_of_the_host(comm, dtype):
    host, device, whole = both(comm, VStack, dtype)
    noise = 0.1 * float(np.linalg.norm(whole, 2))
    real = np.empty(0, dtype).real.dtype
    found = []
    for op, engine in ((host, "numpy"), (device, "cupy")):
        posterior = GaussianPosterior(op, noise=noise, prior=1.0)
        samples = posterior.samples(COUNT, rtol=100 * float(np.finfo(real).eps), dtype=real, engine=engine)
        assert samples.x.engine.name == engine and samples.x.dtype == np.dtype(dtype)
        found.append(samples.x.gather())
    assert_close(found[1].get(), found[0], dtype, factor=10)
    covariance = np.linalg.inv(whole.conj().T @ whole / noise**2 + np.eye(41))
    np.testing.assert_allclose(np.mean(abs(found[0]) ** 2), np.trace(covariance).real / 41, rtol=0.15)


def test_the_largest_singular_values(comm):
    _, device, whole = both(comm, VStack, "f8")
    values = randomized_svd(device, 5, power=10, engine="cupy").values.get()
    np.testing.assert_allclose(values, np.linalg.svd(whole, compute_uv=False)[:5], rtol=1e-6)
