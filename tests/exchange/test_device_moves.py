"""The kernels of moves and of sparse products, compiled for the host, against those of NumPy and SciPy."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from collops.exchange.packing import numpy_moves
from collops.exchange.packing.index import Index
from collops.operators.csr.compressed import CompressedRows
from tests.exchange.host_cuda import COMPILER, Array, fake_cupy
from tests.exchange.model import values, with_nan

pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
]

INDICES = {
    "run": lambda rng, n: np.arange(n) + 2,
    "stride": lambda rng, n: np.arange(n) * 2 + 1,
    "box": lambda rng, n: np.arange(60).reshape(3, 4, 5)[:, 1:3, ::2].reshape(-1)[: n - n % 6],
    "different": lambda rng, n: rng.permutation(60)[:n],
    "repeated": lambda rng, n: rng.integers(0, 5, n),
    "one": lambda rng, n: np.full(n, 3),
    "none": lambda rng, n: np.empty(0, int),
}


@pytest.fixture
def on_device(monkeypatch, tmp_path_factory):
    """Import a module of the GPU's with a stand-in for CuPy."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(tmp_path_factory.mktemp("kernels")))
    imported = []

    def load(name):
        for each in ("collops.comm.device_launch", name):
            monkeypatch.delitem(sys.modules, each, raising=False)
            imported.append(each)
        return importlib.import_module(name)

    yield load
    for name in imported:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("dtype", "ops"),  # each operation of a type compiles
    [
        ("float32", ("replace", "sum", "max")),
        ("complex128", ("replace", "prod")),
        ("int16", ("min", "lxor")),
        ("bool", ("sum", "land")),
    ],
)
def test_moves(on_device, dtype, ops):
    moves = on_device("collops.exchange.packing.cupy_moves")
    moves.wait_while_source = str  # deadlines of devices
    rng = np.random.default_rng(0)
    kind = np.dtype(dtype)
    for op in ops:
        for width in (1, 3):
            for name, make in INDICES.items():
                target = Index(make(rng, 18))
                for other in ("run", "different", "box"):
                    source = Index(INDICES[other](rng, 18)[: target.size])
                    target_of_size = Index(target.points[: source.size])
                    given, taken = values(rng, (64, 64), (width,) if width > 1 else (), dtype)
                    if op in ("min", "max") and kind.kind == "f":
                        given, taken = with_nan(rng, (given, taken))
                    want = taken.copy()
                    numpy_moves.mover(source, target_of_size, op, kind, width, True)(given, want)
                    for deterministic in (True, False):
                        got = taken.copy().view(Array)
                        move = moves.mover(source, target_of_size, op, kind, width, deterministic)
                        move(given.view(Array), got)
                        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, err_msg=f"{op} {name} {other}")
                        if deterministic:
                            assert got.tobytes() == want.tobytes()
                    want_before, before = given.copy(), given.copy().view(Array)
                    want, got = taken.copy(), taken.copy().view(Array)
                    numpy_moves.fetcher(source, target_of_size, op, kind, width)(want_before, want, want_before)
                    moves.fetcher(source, target_of_size, op, kind, width)(before, got, before)
                    assert got.tobytes() == want.tobytes() and before.tobytes() == want_before.tobytes()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_sparse_products(on_device, dtype, sparse):
    device = on_device("collops.operators.csr.device")
    device._THREADS = device._MAX_LANES = 1  # threads that add up together cannot be run here
    rng = np.random.default_rng(0)
    filled = np.array([1, 0, 1, 1, 0, 0, 1, 1, 1])[:, None] if sparse else 1
    A = sp.csr_array((filled * rng.integers(-2, 3, (9, 7)) * (1 if dtype == "float32" else 1 + 1j)).astype(dtype))
    block = device.DeviceBlock(A, np.dtype(dtype))
    x, y = (rng.integers(-3, 4, n).astype(dtype).view(Array) for n in (7, 9))
    out = np.full(9, 5, dtype).view(Array)
    block.multiply(x, out, False)
    np.testing.assert_array_equal(out, A @ x)
    block.multiply(x, out, True)
    np.testing.assert_array_equal(out, 2 * (A @ x))
    for adjoint in (None, CompressedRows.from_host(A.conj().T.tocsr(), device.cupy.asarray)):
        if adjoint is not None:
            block.set_adjoint(adjoint)
        out = np.full(7, 5, dtype).view(Array)
        block.multiply_adjoint(y, out, False)
        np.testing.assert_array_equal(out, A.conj().T @ y)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_combinations_of_sparse_products_and_vectors(on_device, dtype):
    """Rows are longer than the entries that a block reads at once; vectors whose factor is 0 are not read."""
    device = on_device("collops.operators.csr.device")
    device._THREADS = device._MAX_LANES = 1
    rng = np.random.default_rng(0)

    def integers(*shape):
        values = rng.integers(-3, 4, shape)
        return (values + 1j * rng.integers(-3, 4, shape) if dtype == "complex64" else values).astype(dtype)

    A = integers(6, 19) * np.array([1, 1, 0, 1, 1, 1])[:, None]
    block = device.DeviceBlock(sp.csr_array(A), np.dtype(dtype))
    x, y, before, weights = (integers(n).view(Array) for n in (19, 6, 6, 6))
    unread = np.full(19, np.nan, dtype).view(Array)
    for a, b, c, d in ((2.0, -1.0, 0.5, 4.0), (0.0, 0.0, 1.0, 1.0), (0.0, 1.0, 0.5, 0.0), (1.0, 0.0, -2.0, 1.0)):
        for factor in (weights, None):
            out = np.full(6, 5, dtype).view(Array)
            found = block.combine(x, y if d else unread, before if b else unread, out, (a, b, c, d), factor)
            expected = a * x[:6] + b * before + (1 if factor is None else factor) * (d * y - c * (A @ x))
            expected[2] = 5  # a row without entries
            np.testing.assert_array_equal(found, expected)
    out = before.copy().view(Array)
    block.combine(x, out, out, out, (0.0, 1.0, 1.0, 0.0), weights)
    np.testing.assert_array_equal(out, before - weights * (A @ x))
