"""Blocks of columns on a simulated device: CuPy's arrays in host memory, and cuBLAS and our kernels played by NumPy."""

from __future__ import annotations

import ctypes
import importlib
import sys
import types

import numpy as np
import pytest

from collops import backend, profile
from collops.array import DistributedArray, from_global
from collops.array.kernels import generic
from collops.comm import call
from collops.comm.communicator import Communicator
from collops.comm.failure import Failures
from collops.comm.mpi import ControlChannel
from collops.comm.mpi_transport import MpiTransport
from collops.comm.nccl import NcclTransport
from collops.operators import BlockDiag, Columns, Diagonal, HStack, VStack, lift_local
from collops.operators.dense.device import KernelMatrix, bfloat16_matrix
from collops.operators.dense.matrix import DenseMatrix
from collops.operators.memory import store
from collops.operators.stacks import LocalSum
from tests.comm import device
from tests.operators.columns_checks import check_products
from tests.solvers.problems import ROWS, assert_close, random_matrix

OPERATIONS = (lambda matrix: matrix, lambda matrix: matrix.T, lambda matrix: matrix.conj().T)


class Array(device.Array):
    """The array of a device of four processors."""

    device = types.SimpleNamespace(id=0, attributes={"MultiProcessorCount": 4})


class Cublas:
    """cuBLAS on matrices that count columns first; it notes the extents of each product."""

    def __init__(self) -> None:
        self.products = []

    def __getattr__(self, name):
        dtype = np.dtype({"S": "f4", "D": "f8", "C": "c8", "Z": "c16"}[name[len("cublas")]])

        def gemm(handle, first, second, rows, columns, inner, alpha, a, leading_a, b, leading_b, beta, c, leading_c):
            left = OPERATIONS[first](_columns_first(a, (inner, rows) if first else (rows, inner), leading_a, dtype))
            of_b = (columns, inner) if second else (inner, columns)
            right = OPERATIONS[second](_columns_first(b, of_b, leading_b, dtype))
            one, old = (_columns_first(each, (1, 1), 1, dtype)[0, 0] for each in (alpha, beta))
            target = _columns_first(c, (rows, columns), leading_c, dtype)
            target[...] = one * (left @ right) + (old * target if old else 0)
            self.products.append((rows, columns, inner))
            return 0

        def gemv(handle, operation, rows, columns, alpha, a, leading, x, step_x, beta, y, step_y):
            assert step_x == step_y == 1
            sizes = (columns, 1, rows) if operation else (rows, 1, columns)
            return gemm(handle, operation, 0, *sizes, alpha, a, leading, x, sizes[2], beta, y, sizes[0])

        return {"gemm_v2": gemm, "gemv_v2": gemv}[name[len("cublasS") :]]


def _columns_first(address, shape, leading, dtype):
    rows, columns = shape
    assert leading >= max(1, rows)
    count = (columns - 1) * leading + rows
    memory = np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype)
    return np.lib.stride_tricks.as_strided(memory, shape, (dtype.itemsize, leading * dtype.itemsize))


def _by_numpy(self, matrix, x, out):
    """Return the product of a real matrix, maybe of the bits of bfloat16, with a vector, in the place of a kernel."""
    assert x.ndim == 1 and (out is None or out.flags.c_contiguous)
    return store((matrix if matrix.dtype.kind == "f" else (matrix.astype("u4") << 16).view("f4")) @ x, out)


@pytest.fixture(scope="module")
def xp():
    """A module that plays CuPy, with all functions of NumPy, and with its kernels for vectors."""
    cupy = device.module()
    cupy.ndarray = Array

    def on_device(function):
        return lambda *args, **options: function(*args, **options).view(Array)

    for name in ("empty", "zeros", "asarray", "ascontiguousarray", "full", "stack"):
        setattr(cupy, name, on_device(getattr(np, name)))
    cupy.__getattr__ = lambda name: getattr(np, name)
    cupy.cuda.Device = lambda: types.SimpleNamespace(mem_info=(1 << 30, 1 << 30))
    engine = backend.Engine("cupy", cupy, "device")
    engine.cuda = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", cupy)
        patch.setitem(backend._by_type, Array, engine)
        patch.setitem(call.engines, Array, engine)
        patch.setitem(sys.modules, "collops.array.kernels.cupy_kernels", generic)
        yield cupy


@pytest.fixture
def cublas(xp, monkeypatch):
    """The stand-in for the library, which our binding calls."""
    name = "collops.operators.dense.cublas"
    before = sys.modules.pop(name, None)
    binding, library = importlib.import_module(name), Cublas()
    monkeypatch.setattr(binding, "_library", lambda: library)
    monkeypatch.setattr(binding, "_handle", lambda number: 0)
    monkeypatch.setattr(KernelMatrix, "_product", _by_numpy)
    yield library
    sys.modules.pop(name)
    if before is not None:
        sys.modules[name] = before


@pytest.fixture(scope="module")
def ranks(xp):
    """The ranks, whose device arrays go by NCCL, which MPI plays."""
    from mpi4py import MPI

    control = MPI.COMM_WORLD.Dup()
    failures = Failures(ControlChannel(control), 60.0, oversubscribed=True)
    nccl = NcclTransport(device.Nccl(control.Dup()), control.size, control.rank, b"")  # type: ignore[arg-type]
    return Communicator(MpiTransport(control, failures), nccl, control=control, failures=failures)


def on_device(x):
    return DistributedArray(x.layout, x.comm, np.array(x.local_array).view(Array))


@pytest.mark.serial
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kinds", ["f4 f4", "f8 f8", "c8 c8", "c16 c16", "f4 f8", "f8 c16", "c8 f4", "f4 c8"])
@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (1, 1), (5, 1), (1, 5), (0, 3), (3, 0)])
def test_products_with_columns(xp, cublas, shape, kinds, order):
    kind, dtype = kinds.split()
    host = random_matrix(*shape, kind, 1)
    for matrix in (xp.asarray(host, order=order), xp.asarray(np.repeat(host, 2, axis=1))[:, ::2]):
        op = lift_local(matrix)
        assert op.columns_engine == "cupy" and isinstance(op, KernelMatrix) == (kind in ("f4", "f8"))
        check_products(xp, op, host, dtype)
    assert all(columns == 6 for _, columns, _ in cublas.products) and bool(cublas.products) == (0 not in shape)


@pytest.mark.serial
def test_products_that_allocate_nothing(xp, cublas, monkeypatch):
    """After the first ones of each kind."""
    for kind, dtype in (("f4", "f4"), ("c8", "c8"), ("f8", "c16"), ("f4", "f8")):
        op = lift_local(xp.asarray(random_matrix(5, 3, kind, 1)))
        X, Y = (xp.asarray(random_matrix(4, extent, dtype, 2)) for extent in (3, 5))
        given = [(op.forward_columns, X, xp.empty((4, 5), dtype)), (op.adjoint_columns, Y, xp.empty((4, 3), dtype))]
        for apply, source, out in given:
            apply(source, out)
        with monkeypatch.context() as patch:
            for where, name in ((xp, "empty"), (xp, "ascontiguousarray"), (Array, "conj"), (Array, "astype")):
                patch.setattr(where, name, None, raising=False)
            for apply, source, out in given:
                apply(source, out)


@pytest.mark.serial
@pytest.mark.parametrize("kind", ["bfloat16", "f2", "hip"])
def test_other_forms_multiply_one_column_after_the_other(xp, cublas, kind, monkeypatch):
    """Matrices in bfloat16, and all on AMD's devices; those in half precision are multiplied by CuPy."""
    host = random_matrix(5, 3, "f2" if kind == "f2" else "f4", 1)
    if kind == "f2":
        op, dtype = lift_local(xp.asarray(host)), "f2"
        assert type(op) is DenseMatrix
    elif kind == "hip":
        monkeypatch.setattr(backend.engine_of(xp.empty(0)), "cuda", False)
        op, dtype = lift_local(xp.asarray(host)), "f4"
        assert type(op) is KernelMatrix
    else:
        op, dtype = bfloat16_matrix(xp.asarray(host)), "f4"
        host = (np.asarray(op.matrix).astype("u4") << 16).view("f4")
    assert op.columns_engine == "cupy"
    check_products(xp, op, host, dtype, factor=0.01 if kind == "f2" else 1.0)
    assert not cublas.products


@pytest.mark.parametrize("kind", [VStack, HStack, BlockDiag])
@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_stacks_send_one_message_for_all_columns(ranks, xp, cublas, kind, dtype):
    """In sums and products as well, with several matrices on a rank or none, in blocks of 64."""
    every = [
        [random_matrix(*((7, n) if kind is HStack else (n, 7)), dtype, n) for n in rows] for rows in ROWS[: ranks.size]
    ]
    here, there = every[ranks.rank], [xp.asarray(block) for block in every[ranks.rank]]
    host, op = kind(here, ranks), kind(there, ranks)
    H, expected = ((0.5 * each).H @ each for each in (op, host))
    for one, of_host in ((op, host), (H, expected)):
        columns = Columns(one, 70)
        assert columns.width == 64
        for apply, of_one, layout in (
            (columns.forward, of_host.forward, one.domain),
            (columns.adjoint, of_host.adjoint, one.range),
        ):
            arrays = [from_global(x, layout, comm=ranks) for x in random_matrix(70, layout.size, dtype, 5)]
            block = on_device(Columns.join(arrays))
            cublas.products.clear()
            with profile.count_messages() as sent:
                image = apply(block)
            sizes = [count for _, count, _ in cublas.products]
            assert sizes == [64] * (len(there) * (1 + (one is H))) + [6] * (len(there) * (1 + (one is H)))
            with profile.count_messages() as of_each:
                images = [of_one(x) for x in arrays]
            assert type(image.local_array) is Array
            for found, wanted in zip(Columns.split(image), images, strict=True):
                assert_close(found.local_array, wanted.local_array, dtype)
            assert 70 * len(sent.records) == 2 * len(of_each.records)


class Doubled:
    """A local operator on any engine, whose functions for columns are for the host."""

    shape, dtype = (5, 5), np.dtype("c8")

    def forward_local(self, x, out):
        return store(2 * x, out)

    def forward_columns(self, X, out):
        assert type(X) is np.ndarray
        return np.multiply(2, X, out=out)

    adjoint_local, adjoint_columns = forward_local, forward_columns


def test_others_are_applied_to_one_column_after_the_other(ranks, xp, cublas):
    """Between operators that apply to all columns together, and alone."""
    A = VStack([xp.asarray(random_matrix(4, 5, "c8", ranks.rank))], ranks)
    D = Diagonal(on_device(from_global(np.arange(1.0, 1 + A.range.size), A.range, comm=ranks)), comm=ranks)
    block = Columns.join([from_global(x, A.domain, comm=ranks) for x in random_matrix(3, 5, "c8", 1)])
    image = Columns(A.H @ D @ A, 3) @ on_device(block)
    assert [count for _, count, _ in cublas.products] == [3, 3]
    for found, column in zip(Columns.split(image), Columns.split(on_device(block)), strict=True):
        assert_close(found.local_array, ((A.H @ D @ A) @ column).local_array, "c8")
    doubled = Columns(LocalSum([Doubled()], ranks), 3)
    for given in (block, on_device(block)):
        assert_close((doubled @ given).local_array, 2 * ranks.size * block.local_array, "c8")
