"""Products of distributed matrices on devices: against the host, launched and as a replayed CUDA graph."""

from __future__ import annotations

import numpy as np
import pytest

from collops.array import DistributedArray, Layout, from_global, random
from collops.errors import UnsupportedTypeError
from collops.operators import MatrixMult
from collops.operators.dense import multiply
from collops.operators.matrix_mult import choice
from collops.solvers import cgls
from tests.operators.problems import assert_close, matrix

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

DTYPES = ["f4", "f8", "c8", "c16"]
REPLAYED = "replayed CUDA graph"


@pytest.fixture(params=["rounds", "kept rows"])
def algorithm(request, monkeypatch):
    if request.param == "rounds":
        monkeypatch.setattr(choice, "_MAX_KEPT", -1)
        monkeypatch.setattr(choice, "_ROUND", 50_000)
    return request.param


def grids(ranks: int) -> list[tuple[int, int]]:
    return [(p, ranks // p) for p in range(1, ranks + 1) if ranks % p == 0]


def on_device(x: DistributedArray) -> DistributedArray:
    return DistributedArray(x.layout, x.comm, cupy.asarray(x.local_array))


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (5, 3, 2), (64, 128, 32), (300, 200, 1), (1, 70, 90), (0, 3, 2), (3, 0, 2)]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_local_products(dtype, shape, adjoint):
    rows, inner, columns = shape
    a, b = matrix(rows, inner, dtype, 1), matrix(rows if adjoint else inner, columns, dtype, 2)
    expected = (a.conj().T if adjoint else a) @ b
    out = cupy.full(expected.shape, np.nan, dtype)
    multiply(cupy.asarray(a), cupy.asarray(b), out, adjoint=adjoint)
    assert_close(out.get(), expected, dtype)
    multiply(cupy.asarray(a), cupy.asarray(b), out, adjoint=adjoint, accumulate=True)
    assert_close(out.get(), 2 * expected, dtype)


@pytest.mark.parametrize("kind", ["summa", "block"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_products(comm, algorithm, dtype, kind):
    whole, x, y = matrix(301, 257, dtype, 1), matrix(257, 93, dtype, 2), matrix(301, 93, dtype, 3)
    for grid in grids(comm.size):
        for gather in {False, kind == "block"}:
            A = from_global(cupy.asarray(whole), comm=comm)
            op = MatrixMult(A, 93, kind, process_grid=grid, gather_range=gather)
            for apply, given, expected, before, after in (
                (op.forward, x, whole @ x, op.domain, op.range),
                (op.adjoint, y, whole.conj().T @ y, op.range, op.domain),
            ):
                there = from_global(cupy.asarray(given), before, comm=comm)
                out = random(after, comm=comm, dtype=dtype, engine="cupy")
                for _ in range(3):  # the buffers of the rounds take turns from call to call
                    assert apply(there, out) is out
                    assert_close(out.gather().get(), expected, dtype, factor=5)
                    out.local_array.fill(7)
            assert op.dottest(engine="cupy")


@pytest.mark.parametrize("kind", ["summa", "block"])
@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_products_in_a_capture(comm, algorithm, dtype, kind):
    whole, x = matrix(301, 257, dtype, 1), matrix(257, 93, dtype, 2)
    op = MatrixMult(from_global(cupy.asarray(whole), comm=comm), 93, kind)
    there = from_global(cupy.asarray(x), op.domain, comm=comm)
    y, back = (
        random(op.range, comm=comm, dtype=dtype, engine="cupy"),
        random(op.domain, comm=comm, dtype=dtype, engine="cupy"),
    )
    with cupy.cuda.Stream(non_blocking=False) as stream:
        op.adjoint(op.forward(there, y), back)
        stream.begin_capture()
        op.adjoint(op.forward(there, y), back)
        graph = stream.end_capture()
        there.local_array *= 2
        for _ in range(2):
            graph.launch(stream)
        stream.synchronize()
        assert_close(y.gather().get(), 2 * whole @ x, dtype, factor=5)
        assert_close(back.gather().get(), 2 * whole.conj().T @ (whole @ x), dtype, factor=50)


def test_within_a_solver(comm, algorithm):
    whole, x = matrix(60, 40, "f8", 1), matrix(40, 7, "f8", 2)
    host = MatrixMult(from_global(whole, comm=comm), 7, "summa")
    device = MatrixMult(from_global(cupy.asarray(whole), comm=comm), 7, "summa")
    y = host.forward(from_global(x, host.domain, comm=comm))
    expected = cgls(host, y, niter=10, tol=0)
    result = cgls(device, on_device(y), niter=10, tol=0)
    assert result.execution == REPLAYED
    assert_close(result.x.gather().get(), expected.x.gather(), factor=1000)


def test_other_types_and_memories(comm, algorithm):
    whole, x = matrix(60, 40, "f4", 1), matrix(40, 7, "c8", 2)
    op = MatrixMult(from_global(cupy.asarray(whole), comm=comm), 7, "summa")
    assert_close(op.forward(from_global(cupy.asarray(x), op.domain, comm=comm)).gather().get(), whole @ x, "c8")
    wide = matrix(40, 7, "f8", 2)
    assert_close(op.forward(from_global(cupy.asarray(wide), op.domain, comm=comm)).gather().get(), whole @ wide, "f4")
    half = MatrixMult(from_global(cupy.asarray(whole).astype("f2"), comm=comm), 7)
    assert half.forward(random(half.domain, comm=comm, dtype="f2", engine="cupy")).dtype == np.float16
    with pytest.raises(UnsupportedTypeError, match="engine"):
        op.forward(random(op.domain, comm=comm, dtype="f4"))


def test_blocks_of_every_rank(comm):
    p, q = grids(comm.size)[len(grids(comm.size)) // 2]
    layout = Layout.grid((70, 50), (p, q))
    whole = matrix(70, 50, "f4", 3)
    op = MatrixMult(cupy.asarray(whole[layout.slices(comm.rank)]), 9, process_grid=(p, q), comm=comm)
    x = matrix(50, 9, "f4", 4)
    assert_close(op.forward(from_global(cupy.asarray(x), op.domain, comm=comm)).gather().get(), whole @ x, "f4")
