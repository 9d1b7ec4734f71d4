"""Block-Toeplitz products on devices: the kernels of every precision and width against the host, and in a graph."""

from __future__ import annotations

import numpy as np
import pytest

from collops.array import from_global, random
from collops.operators import BlockToeplitz, Columns
from collops.operators.toeplitz.device import batch
from collops.operators.toeplitz.spectra import PRECISIONS, spectra_of
from collops.solvers import cgls
from tests.array.cases import values
from tests.operators.test_toeplitz import STORED, grids, kernel
from tests.solvers.problems import assert_close

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

REPLAYED = "replayed CUDA graph"


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 20), (11, 148), (70, 6), (5, 33), (200, 1000)])
@pytest.mark.parametrize(("stored", "accumulate"), STORED)
def test_kernels(stored, accumulate, rows, columns):
    """Matrices that are loaded four, two and one element at a time; one vector and several."""
    accumulated = np.dtype(np.complex64 if accumulate == "float32" else np.complex128)
    host = values((3, rows, columns), "f8", 1) * 10.0 ** np.arange(-(rows // 2), rows - rows // 2).clip(-8, 8)[:, None]
    ours, theirs = (spectra_of(xp.asarray(host), 6, stored, accumulated, xp) for xp in (np, cupy))
    np.testing.assert_allclose(theirs.squares, ours.squares, rtol=1e-12)
    np.testing.assert_allclose(theirs.errors, ours.errors, rtol=1e-3, atol=1e-25 * ours.squares.max())
    matrices = np.fft.rfft(host, 6, axis=0)
    product = batch(theirs)
    scale = np.sqrt(ours.squares.max())
    allowed = np.sqrt(ours.errors.max()) + 1e-5 * scale * (accumulate == "float32") + 1e-13 * scale
    for count in (1, 3):
        for apply, given, exact in (
            (product.forward, columns, matrices),
            (product.adjoint, rows, matrices.conj().swapaxes(1, 2)),
        ):
            x = values((4, given, count), accumulated, 2)
            out = cupy.full((4, exact.shape[1], count), np.nan, accumulated)
            assert apply(cupy.asarray(x), out) is out
            assert np.linalg.norm(out.get() - exact @ x) <= allowed * np.linalg.norm(x)


@pytest.mark.parametrize("stored", PRECISIONS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_as_on_the_host(comm, dtype, stored):
    for grid in grids(comm.size):
        _, mine = kernel(comm, grid, 9, dtype)
        host, op = (BlockToeplitz(K, process_grid=grid, stored=stored, comm=comm) for K in (mine, cupy.asarray(mine)))
        np.testing.assert_allclose(op.error_bound, host.error_bound, rtol=0.1)
        for name, layout in (("forward", op.domain), ("adjoint", op.range)):
            for kind in sorted({dtype, "c8", "c16"}):  # in the same order on all ranks
                x = values(layout.shape, kind, 1)
                expected = getattr(host, name)(from_global(x, layout, comm=comm)).gather()
                given = from_global(cupy.asarray(x), layout, comm=comm)
                for _ in range(2):
                    assert_close(getattr(op, name)(given).gather().get(), expected, dtype)
        assert op.dottest(engine="cupy")


@pytest.mark.parametrize("stored", PRECISIONS)
def test_many_right_hand_sides(comm, stored):
    _, mine = kernel(comm, (1, comm.size), 9, "f4")
    op = BlockToeplitz(cupy.asarray(mine), stored=stored, comm=comm)
    columns = Columns(op, 5)
    assert columns.width == 5
    X = random(columns.domain, seed=1, comm=comm, dtype="f4", engine="cupy")
    for image, x in zip(Columns.split(columns @ X), Columns.split(X), strict=True):
        assert_close(image.local_array.get(), (op @ x).local_array.get(), "f4")
    assert columns.dottest(engine="cupy")


@pytest.mark.parametrize("stored", PRECISIONS)
def test_within_a_solver(comm, stored):
    """A recorded step gives what an eager one gives."""
    _, mine = kernel(comm, (1, comm.size), 9, "f8")
    op = BlockToeplitz(cupy.asarray(mine), stored=stored, comm=comm)
    y = from_global(cupy.asarray(values(op.dimsd, "f8", 1)), op.range, comm=comm)
    eager, replayed = (cgls(op, y, niter=8, tol=0, graph=graph) for graph in (False, True))
    assert op.capturable and replayed.execution == REPLAYED
    assert_close(replayed.x.gather().get(), eager.x.gather().get(), factor=10)
