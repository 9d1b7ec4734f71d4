"""PyLops-MPI's operators: each against serial PyLops on the whole array, their algebra, and users' own classes."""

from __future__ import annotations

import warnings

import numpy as np
import pylops
import pytest

import collops.compat.pylops_mpi as pylops_mpi
from collops import profile
from collops.compat.pylops_mpi import _operators
from collops.compat.pylops_mpi.basicoperators.Halo import MPIHalo, halo_block_split
from collops.compat.pylops_mpi.basicoperators.MatrixMult import (
    MPIMatrixMult,
    active_grid_comm,
    block_gather,
    local_block_split,
)
from collops.compat.pylops_mpi.utils import dottest
from collops.compat.pylops_mpi.utils.decorators import reshaped
from collops.errors import InputError
from tests.operators.problems import assert_close, vector

Distributed, Partition = pylops_mpi.DistributedArray, pylops_mpi.Partition


@pytest.fixture(autouse=True)
def no_rank_is_left_out():
    """Forget after each test that it has left ranks out of a grid."""
    yield
    _operators._inactive.clear()


DIMS = (7, 6, 5)


def given(x: np.ndarray, uneven: bool = False):
    """Return a vector in even parts, or with all of it on the first rank."""
    size = pylops_mpi.DistributedArray(1).size
    return Distributed.to_dist(x, local_shapes=[x.size] + [0] * (size - 1) if uneven else None)


def assert_serial(op, serial, dtype="float64") -> None:
    """Assert that an operator on vectors and its adjoint agree with the serial ones."""
    x, y = vector(serial.shape[1], dtype, 1), vector(serial.shape[0], dtype, 2)
    assert op.shape == serial.shape
    assert_close((op @ given(x)).asarray(), np.ravel(serial @ x))
    assert_close((op @ given(x, uneven=True)).asarray(), np.ravel(serial @ x))
    assert_close((op.H @ given(y)).asarray(), np.ravel(serial.H @ y))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("FirstDerivative", {"sampling": 2.0}),
        ("FirstDerivative", {"kind": "forward"}),
        ("FirstDerivative", {"edge": True, "order": 5}),
        ("SecondDerivative", {"sampling": 0.5, "kind": "backward"}),
        ("SecondDerivative", {"edge": True}),
        ("Laplacian", {"axes": (0, 2), "weights": (1, 3), "sampling": (0.5, 2), "edge": True}),
    ],
)
def test_derivatives(name, options) -> None:
    op = getattr(pylops_mpi, "MPI" + name)(DIMS, **options)
    along = {} if "axes" in options else {"axis": 0}
    assert_serial(op, getattr(pylops, name)(DIMS, **along, **options))
    assert op.dims == op.dimsd == DIMS and op.dtype == np.float64
    assert [getattr(op, option) for option in options] == list(options.values())
    assert repr(op) == f"<210x210 MPI{name} with dtype=float64>"


def test_imaginary_parts_are_not_lost() -> None:
    x = vector(7, "complex128", 3)
    op = pylops_mpi.MPIFirstDerivative(7, dtype=np.float64)
    assert_close((op @ given(x)).asarray(), pylops.FirstDerivative(7, dtype="complex128") @ x)


def test_gradient() -> None:
    op, serial = (
        pylops_mpi.MPIGradient(DIMS, sampling=(1, 2, 3), kind="forward"),
        pylops.Gradient(DIMS, sampling=(1, 2, 3), kind="forward"),
    )
    x = vector(serial.shape[1], "float64", 1)
    found = op @ given(x)
    assert isinstance(found, pylops_mpi.StackedDistributedArray) and len(found.distarrays) == 3
    assert_close(found.asarray(), np.ravel(serial @ x))
    assert_close((op.H @ found).asarray(), serial.H @ (serial @ x))


def test_stacks_of_local_operators(comm) -> None:
    matrices = [vector(12, "float64", 10 + rank).reshape(4, 3) for rank in range(comm.size)]
    local = [pylops.MatrixMult(matrices[comm.rank])]
    serial = [pylops.MatrixMult(matrix) for matrix in matrices]
    assert_serial(pylops_mpi.MPIBlockDiag(local), pylops.BlockDiag(serial))
    for op, whole in (
        (pylops_mpi.MPIVStack(local), pylops.VStack(serial)),
        (pylops_mpi.MPIHStack(local), pylops.HStack(serial)),
    ):
        x, y = vector(op.shape[1], "float64", 1), vector(op.shape[0], "float64", 2)
        copies = [isinstance(op, pylops_mpi.MPIVStack), isinstance(op, pylops_mpi.MPIHStack)]
        kinds = [Partition.BROADCAST if copy else Partition.SCATTER for copy in copies]
        found = op @ Distributed.to_dist(x, partition=kinds[0])
        assert_close(found.asarray(), whole @ x)
        back = op.H @ Distributed.to_dist(y, partition=kinds[1])
        assert_close(back.asarray(), whole.H @ y)
        assert (back.partition, found.partition) == tuple(kinds)
    unsafe = pylops_mpi.MPIHStack(local).H @ Distributed.to_dist(
        vector(4, "float64", 2), partition=Partition.UNSAFE_BROADCAST
    )
    assert unsafe.partition is Partition.SCATTER
    assert pylops_mpi.MPIBlockDiag(local, dtype=np.complex128).dtype == np.complex128
    with pytest.raises(ValueError):
        pylops_mpi.MPIBlockDiag(local) @ given(np.ones(2))


def test_masks_of_block_diagonals(comm) -> None:
    mask = [rank % 2 for rank in range(comm.size)]
    op = pylops_mpi.MPIBlockDiag([pylops.Identity(3)], mask=mask)
    found = op @ given(np.arange(3.0 * comm.size))
    mine = np.concatenate([np.arange(3.0) + 3 * r for r in range(comm.size) if mask[r] == mask[comm.rank]])
    assert found.dot(found) == pytest.approx(mine @ mine)


def test_local_operator_on_copies(comm) -> None:
    serial = pylops.FirstDerivative(DIMS, axis=1)
    op = pylops_mpi.asmpilinearoperator(serial)
    assert pylops_mpi.asmpilinearoperator(op) is op
    x = vector(serial.shape[1], "float64", 1)
    for partition in (Partition.BROADCAST, Partition.UNSAFE_BROADCAST):
        with profile.count_messages() as counts:
            found = op.matvec(Distributed.to_dist(x, partition=Partition.UNSAFE_BROADCAST))
        assert counts.total == 0
        found = op @ Distributed.to_dist(x, partition=partition)
        assert found.partition is partition
        assert_close(found.local_array, serial @ x)
    assert op.dims == DIMS


def test_stacked_operators() -> None:
    laplacian, first = pylops_mpi.MPILaplacian(DIMS), pylops_mpi.MPIFirstDerivative(DIMS)
    serial = [pylops.Laplacian(DIMS), pylops.FirstDerivative(DIMS, axis=0)]
    n = laplacian.shape[0]
    x = vector(n, "float64", 1)
    above = pylops_mpi.MPIStackedVStack([laplacian, 2 * first])
    beside = pylops_mpi.MPIStackedBlockDiag([laplacian, first])
    assert above.shape == (2 * n, n) and beside.shape == (2 * n, 2 * n)
    found = above @ given(x)
    expected = np.concatenate([serial[0] @ x, 2 * (serial[1] @ x)])
    assert_close(found.asarray(), expected)
    assert_close((above.H @ found).asarray(), serial[0].H @ expected[:n] + 2 * (serial[1].H @ expected[n:]))
    again = beside @ found
    assert_close(again.asarray(), np.concatenate([serial[0] @ expected[:n], serial[1] @ expected[n:]]))
    assert isinstance(above.H @ above, pylops_mpi.MPIStackedLinearOperator)
    assert above.base_comm.Get_size() == above.size and above.base_comm.Get_rank() == above.rank
    assert dottest(above, above.H @ found, found) and dottest(beside, found, again)


def test_algebra() -> None:
    A, B = pylops_mpi.MPIFirstDerivative(DIMS, kind="forward"), pylops_mpi.MPISecondDerivative(DIMS)
    a, b = pylops.FirstDerivative(DIMS, axis=0, kind="forward"), pylops.SecondDerivative(DIMS, axis=0)
    for op, serial in (
        (A @ B, a @ b),
        (A * B, a * b),
        (2 * A, 2 * a),
        (A * 3.0, 3.0 * a),
        (-A, -a),
        (A + B, a + b),
        (A - B.H, a - b.H),
        (A**3, a**3),
        (A.T, a.T),
        (A.conj(), a.conj()),
        (A.H @ A + 0.1 * (B.H @ B), a.H @ a + 0.1 * (b.H @ b)),
    ):
        assert_serial(op, serial)
    x = vector(A.shape[0], "complex128", 1)
    serial = pylops.FirstDerivative(DIMS, axis=0, kind="forward", dtype="complex128")
    assert_close(((2j * A).H @ given(x)).asarray(), -2j * (serial.H @ x))
    assert isinstance(A + B, pylops_mpi.MPILinearOperator)
    assert repr(A @ B) == "<210x210 Product with dtype=float64>"
    with pytest.raises(ValueError):
        A @ pylops_mpi.MPIFirstDerivative(3)
    with pytest.raises(ValueError):
        A + pylops_mpi.MPIFirstDerivative(3)
    with pytest.raises(ValueError):
        A @ 2.0


def test_algebra_across_layouts(comm) -> None:
    dims = (comm.size + 1, 3)  # one rank has two rows, the blocks are as even as can be
    n = dims[0] * dims[1]
    weights = np.linspace(1, 2, n)
    mine = Distributed(n).native.layout.slices(comm.rank)[0]
    A, B = pylops_mpi.MPIBlockDiag([pylops.Diagonal(weights[mine])]), pylops_mpi.MPIFirstDerivative(dims)
    a, b = pylops.Diagonal(weights), pylops.FirstDerivative(dims, axis=0)
    for op, serial in ((A + B, a + b), (B - A, b - a), (A @ B, a @ b), (B @ A, b @ a), (B @ A @ B.H, b @ a @ b.H)):
        assert_serial(op, serial)


class OwnDerivative(pylops_mpi.MPILinearOperator):
    """A user's operator: two functions of arrays in their N-dimensional shape."""

    def __init__(self, dims) -> None:
        n = int(np.prod(dims))
        super().__init__(shape=(n, n), dtype=np.float64)
        self.dims = self.dimsd = dims

    @reshaped
    def _matvec(self, x):
        y = Distributed(x.global_shape, local_shapes=x.local_shapes)
        ghosts = x.add_ghost_cells(cells_back=1)
        y[:] = 0
        y[: ghosts.shape[0] - 1] = ghosts[1:] - ghosts[:-1]
        return y

    @reshaped
    def _rmatvec(self, x):
        last = x.rank == max(r for r, shape in enumerate(x.local_shapes) if shape[0])
        inner = x.copy()
        if last:
            inner[-1] = 0
        y = Distributed(x.global_shape, local_shapes=x.local_shapes)
        ghosts = inner.add_ghost_cells(cells_front=1)
        y[:] = -inner.local_array
        front = ghosts.shape[0] - inner.local_shape[0]
        y[1 - front :] += ghosts[:-1] if ghosts.shape[0] else 0
        return y


def test_operators_of_users() -> None:
    op, serial = OwnDerivative(DIMS), pylops.FirstDerivative(DIMS, axis=0, kind="forward")
    known = pylops_mpi.MPISecondDerivative(DIMS)
    b = pylops.SecondDerivative(DIMS, axis=0)
    assert_serial(op, serial)
    assert_serial(2 * (op.H @ op) + known @ op, 2 * (serial.H @ serial) + b @ serial)
    assert_serial(op**2, serial**2)
    y = vector(op.shape[0], "complex128", 2)
    scaled = (2j * op).rmatvec(Distributed.to_dist(y.real))
    assert_close(scaled.asarray(), -2j * (serial.H @ y.real))
    x = vector(op.shape[1], "float64", 1)
    stacked = pylops_mpi.MPIStackedVStack([op, known])
    expected = np.concatenate([serial @ x, b @ x])
    assert_close((stacked @ given(x)).asarray(), expected)
    n = op.shape[0]
    assert_close((stacked.H @ (stacked @ given(x))).asarray(), serial.H @ expected[:n] + b.H @ expected[n:])


@pytest.mark.parametrize("halo", [1, 2, (1, 0, 2), (1, 2, 0, 0, 1, 1)])
def test_halo(comm, halo) -> None:
    dims, grid = (8, 3, 3 * comm.size - 1), (1, 1, comm.size)
    op = MPIHalo(dims, halo, grid)
    x = vector(int(np.prod(dims)), "float64", 4).reshape(dims)
    box = halo_block_split(dims, op.size and pylops_mpi.DistributedArray(1).base_comm, grid)
    mine = x[box]
    sizes = comm.allgather_metadata(mine.size)
    parts = Distributed(x.size, local_shapes=sizes)
    parts[:] = mine.ravel()
    found = op @ parts
    widths = np.ravel([[halo, halo]] * 3) if np.ndim(halo) == 0 else np.array(halo)
    widths = np.repeat(widths, 2) if widths.size == 3 else widths
    padded = np.pad(x, widths.reshape(3, 2))
    begin = [s.start for s in box]
    expected = padded[
        tuple(slice(b, b + n + f + a) for b, n, f, a in zip(begin, mine.shape, widths[::2], widths[1::2], strict=True))
    ]
    if np.ndim(halo) == 0:  # then there is none at the ends of the array
        keep = []
        for extent, b, n in zip(dims, begin, mine.shape, strict=True):
            first, last = min(halo, b), min(halo, extent - b - n)
            keep.append(slice(halo - first, halo + n + last))
        expected = expected[tuple(keep)]
    assert_close(found.local_array, expected.ravel())
    assert_close((op.H @ found).local_array, mine.ravel())
    assert op.local_extent == expected.shape and op.dims == dims
    with pytest.raises(ValueError):
        MPIHalo(dims, halo, (1, 1, comm.size + 1))


@pytest.mark.parametrize("kind", ["summa", "block"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_matrix_products_on_square_grids(comm, kind, dtype) -> None:
    N, K, M = 5, 4, 7
    A, X = vector(N * K, dtype, 1).reshape(N, K), vector(K * M, dtype, 2).reshape(K, M)
    base = pylops_mpi.DistributedArray(1).base_comm
    grid, rank, row, col, active = active_grid_comm(base, N, M)
    side = int(grid.Get_size() ** 0.5)
    assert (rank, row, col) == (grid.Get_rank(), rank // side, rank % side)
    assert active is (comm.rank < int(comm.size**0.5) ** 2)
    blocks = [slice(i * -(-M // side), (i + 1) * -(-M // side)) for i in range(side)]
    rows = [slice(i * -(-N // side), (i + 1) * -(-N // side)) for i in range(side)]
    if kind == "summa":
        mine, part = A[local_block_split(A.shape, rank, grid)], X[local_block_split(X.shape, rank, grid)]
        wanted = (A @ X)[local_block_split((N, M), rank, grid)]
    else:
        mine, part, wanted = A[rows[col]], X[:, blocks[row]], (A @ X)[:, blocks[row]]
    op = MPIMatrixMult(mine, M, base_comm=grid, kind=kind, dtype=dtype)
    sizes = grid.allgather(part.size)
    mask = [r % side for r in range(grid.Get_size())] if kind == "block" else None
    x = Distributed(sum(sizes), base_comm=grid, local_shapes=sizes, mask=mask, dtype=dtype)
    x[:] = part.ravel()
    y = op @ x
    assert_close(y.local_array, wanted.ravel())
    assert y.mask == mask
    back = op.H @ y
    whole = A.conj().T @ A @ X
    expected = whole[local_block_split(whole.shape, rank, grid)] if kind == "summa" else whole[:, blocks[row]]
    assert_close(back.local_array, expected.ravel())
    if kind == "summa":
        assert_close(block_gather(y, (N, M), grid), A @ X)
    # Ranks outside the grid need not take part, although no communicator is given.
    after = pylops_mpi.MPIBlockDiag([pylops.Identity(wanted.size, dtype=dtype)]) @ op
    assert_close((after @ x).local_array, wanted.ravel())


def test_wrong_matrix_products(comm) -> None:
    with pytest.raises(NotImplementedError):
        MPIMatrixMult(np.ones((2, 2)), 2, kind="cannon")
    if comm.size in (1, 4):
        with pytest.raises(InputError, match="M must be at least 1"):
            MPIMatrixMult(np.ones((2, 2)), 0)
    if comm.size in (2, 3):
        with pytest.raises(RuntimeError, match="square"):
            MPIMatrixMult(np.ones((2, 2)), 2)
        with pytest.raises(RuntimeError, match="square"):
            local_block_split((2, 2), 0, pylops_mpi.DistributedArray(1).base_comm)


@pytest.mark.parametrize("norm", ["none", "1/n"])
@pytest.mark.parametrize("real", [False, True])
def test_fourier_transforms(norm, real) -> None:
    dtype = "float64" if real else "complex128"
    x = vector(int(np.prod(DIMS)), dtype, 1)
    options = {"norm": norm, "real": real, "dtype": dtype}
    for axes, shift in (((0, 1, 2), False), ((0, 2), (True, False))):
        op = pylops_mpi.signalprocessing.MPIFFTND(DIMS, axes=axes, fftshift_after=shift, **options)
        serial = pylops.signalprocessing.FFTND(DIMS, axes=axes, fftshift_after=shift, **options)
        found = op * given(x)
        assert_close(found.asarray(), np.ravel(serial @ x))
        assert_close((op.H @ found).asarray(), serial.H @ (serial @ x))
        assert_close((op / found).asarray(), x)
        assert op.dimsd == serial.dimsd
    op = pylops_mpi.signalprocessing.MPIFFT2D(DIMS[:2], **options)
    y = vector(int(np.prod(DIMS[:2])), dtype, 1)
    assert_close((op * given(y)).asarray(), pylops.signalprocessing.FFT2D(DIMS[:2], **options) @ y)
    with pytest.raises(ValueError):
        pylops_mpi.signalprocessing.MPIFFTND(DIMS, norm="ortho")
    with pytest.raises(ValueError):
        pylops_mpi.signalprocessing.MPIFFT2D((4,))


def slices(comm, n: int) -> slice:
    return slice(n * comm.rank // comm.size, n * (comm.rank + 1) // comm.size)


def test_fredholm(comm) -> None:
    G = vector(5 * 3 * 4, "complex128", 1).reshape(5, 3, 4)
    op = pylops_mpi.signalprocessing.MPIFredholm1(G[slices(comm, 5)], nz=2, dtype="complex128")
    serial = pylops.signalprocessing.Fredholm1(G, nz=2, dtype="complex128")
    x = Distributed.to_dist(vector(serial.shape[1], "complex128", 2), partition=Partition.BROADCAST)
    y = op @ x
    assert y.partition is Partition.BROADCAST
    assert_close(y.asarray(), serial @ x.asarray())
    assert_close((op.H @ y).asarray(), serial.H @ y.asarray())
    assert op.dims == serial.dims and op.dimsd == serial.dimsd and op.nz == 2 and op.G.shape[1:] == (3, 4)


def test_multi_dimensional_convolution(comm) -> None:
    nt, nf = 9, 4
    G = vector(nf * 3 * 2, "complex128", 1).reshape(nf, 3, 2)
    options = {"nt": nt, "nv": 2, "dt": 0.1, "dr": 2.0, "twosided": True}
    op = pylops_mpi.waveeqprocessing.MPIMDC(G[slices(comm, nf)], nfreq=nf, **options)
    serial = pylops.waveeqprocessing.MDC(G, **options)
    m = vector(serial.shape[1], "float64", 2)
    for x in (m, m + 0j):
        y = op @ Distributed.to_dist(x, partition=Partition.BROADCAST)
        assert y.dtype == np.complex128
        assert_close(y.asarray(), (serial @ m).real)
        assert_close((op.H @ y).asarray(), (serial.H @ (serial @ m).real).real)
        assert_close((op.T @ y).asarray(), (op.H @ y).asarray())
    with pytest.raises(ValueError):
        pylops_mpi.waveeqprocessing.MPIMDC(G[slices(comm, nf)], 8, 2, nf)


def test_complex_multiples_of_what_takes_real_parts(comm) -> None:
    """The adjoint multiplies first, while PyLops-MPI drops imaginary parts before."""
    G = vector(2 * 3 * 4, "complex128", 1).reshape(2, 3, 4)[slices(comm, 2)]
    for op in (
        pylops_mpi.asmpilinearoperator(pylops.signalprocessing.FFT(6, real=True)),
        pylops_mpi.MPIBlockDiag([pylops.signalprocessing.FFT(6, real=True)]),
        pylops_mpi.signalprocessing.MPIFFTND((4, 6), axes=(1,), real=True, dtype="float64"),
        pylops_mpi.waveeqprocessing.MPIMDC(G, nt=5, nv=1, nfreq=2),
    ):
        y = Distributed.to_dist(vector(op.shape[0], "complex128", 2), partition=op.partitions[1])
        assert_close((((1 + 2j) * op).H @ y).asarray(), (op.H @ (y * (1 - 2j))).asarray())


@pytest.mark.parametrize("axis", [0, 1])
def test_non_stationary_convolution(comm, axis) -> None:
    dims = (13, 11)
    hs, ih = vector(15, "float64", 1).reshape(3, 5), (2, 5, 8)
    op = pylops_mpi.signalprocessing.MPINonStationaryConvolve1D(dims, hs, ih, axis=axis)
    serial = pylops.signalprocessing.NonStationaryConvolve1D(dims, hs, ih, axis=axis)
    x = vector(int(np.prod(dims)), "float64", 2).reshape(dims)
    parts = Distributed.to_dist(x, axis=axis)
    for apply, expected in ((op.matvec, serial @ x.ravel()), (op.rmatvec, serial.H @ x.ravel())):
        found = apply(parts.ravel()).reshape(parts.local_shape, axis=axis)
        assert_close(found.asarray(), expected.reshape(dims))


def test_steady_state_sends_data_only(comm) -> None:
    # The peer sends shapes, and broadcasts the whole model, in each of these.
    diagonal = pylops_mpi.MPIBlockDiag([pylops.Identity(6 * DIMS[1] * DIMS[2] // 6)])
    x = diagonal @ Distributed(diagonal.shape[1])
    laplacian = pylops_mpi.MPILaplacian((comm.size * DIMS[1], DIMS[2]))
    vertical = pylops_mpi.MPIVStack([pylops.Identity(5)])
    copies = Distributed.to_dist(np.ones(5), partition=Partition.BROADCAST)
    data = vertical @ copies
    y = laplacian @ x
    with profile.count_messages() as counts:
        diagonal @ x
        vertical @ copies
        x + 2 * x
        x.zeros_like()
    assert counts.total == 0
    with profile.count_messages() as counts:
        vertical.H @ data
    assert counts.total == counts["allreduce"] == (comm.size > 1)
    with profile.count_messages() as counts:
        laplacian.H @ y
    assert counts.counts() == ({"exchange": 1} if comm.size > 1 else {})


def test_kirchhoff_operators_of_pylops_keep_their_travel_times(comm):
    """Programs stack PyLops' operators: their eikonal times start half a cell around the stations, unlike ours."""
    pytest.importorskip("skfmm")
    z, x, t = 10.0 * np.arange(11), 10.0 * np.arange(13), 0.004 * np.arange(40)
    stations = np.array([[20.0, 60.0, 110.0, 90.0], [0.0, 0.0, 10.0, 0.0]])
    velocity = np.broadcast_to(1500.0 + 2.0 * z, (13, 11)).copy()

    def kirchhoff(sources):
        more = {"mode": "eikonal", "engine": "numpy"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pylops.waveeqprocessing.Kirchhoff(z, x, t, sources, stations, velocity, np.ones(1), 0, **more)

    own = kirchhoff(stations[:, comm.rank % 4 :][:, :1])
    stacked = pylops_mpi.MPIVStack([own])
    serial = pylops.VStack([kirchhoff(stations[:, rank % 4 :][:, :1]) for rank in range(comm.size)])
    image = vector(serial.shape[1], "float64", 3)
    model = Distributed(image.size, partition=Partition.BROADCAST)
    model[:] = image
    assert_close((stacked @ model).asarray(), serial @ image)
