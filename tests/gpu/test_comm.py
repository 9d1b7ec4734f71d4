"""Communicators on device arrays, over every transport that these ranks have, against NumPy on every rank's values."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import collops
from collops.comm.nccl import NcclOfCupy
from collops.errors import InputError, TransportError, UnsupportedTypeError
from tests.comm import checks

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture(params=["nccl", "nccl by CuPy", "mpi", "staged"], scope="module")
def joined(request, device, comm):
    """A communicator that sends device arrays by one transport."""
    if comm.size == 1:
        return comm
    name, _, by_cupy = request.param.partition(" ")
    try:
        joined = collops.world(name)
    except TransportError as error:
        pytest.skip(str(error))
    if not by_cupy:
        return joined
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("collops.comm.nccl"), "load_binding", NcclOfCupy)
        return joined.split(101)  # a color of its own: communicators of equal splits are kept


@pytest.mark.parametrize("name", checks.DTYPES)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
def test_reductions(joined, name, op):
    if not (name.startswith("complex") and op != "sum"):
        checks.check_reductions(joined, cupy, name, op)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_wins(joined, name, op):
    checks.check_nan_wins(joined, cupy, name, op)


@pytest.mark.parametrize("name", ["bool", "int16", "uint64"])
@pytest.mark.parametrize("op", ["land", "lor", "lxor"])
def test_logical_reductions(joined, name, op):
    checks.check_reductions(joined, cupy, name, op)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_average(joined, name):
    checks.check_average(joined, cupy, name)
    checks.check_started_reductions(joined, cupy, name)


@pytest.mark.parametrize("name", checks.DTYPES)
def test_movement(joined, name):
    checks.check_movement(joined, cupy, name)


@pytest.mark.parametrize("name", ["bool", "bfloat16", "float64", "complex128"])
def test_messages(joined, name):
    checks.check_messages(joined, cupy, name)


def test_strided_arrays(joined):
    checks.check_strided(joined, cupy)


def test_exchange_plan(joined):
    checks.check_plan(joined, cupy)


def test_exchange_plan_of_several_arrays(joined):
    checks.check_plan_of_several_arrays(joined, cupy)


def test_long_arrays_in_chunks(joined):
    """More than two chunks of the staged transport, with a ragged end."""
    x = cupy.arange(3_000_001, dtype=cupy.float64)
    expected = np.arange(3_000_001.0) * joined.size
    np.testing.assert_array_equal(joined.allreduce(x).get(), expected)
    root = joined.size - 1
    given = x if joined.rank == root else cupy.zeros_like(x)
    np.testing.assert_array_equal(joined.bcast(given, root).get(), np.arange(3_000_001.0))


def test_work_is_ordered_on_the_current_stream(joined):
    """A long computation before, and a change after, an allreduce that the host does not wait for."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.zeros(1 << 22, cupy.float32)
        for _ in range(50):
            x += 1
        total = joined.allreduce(x)
        x[...] = -1
        total = total + 1
    stream.synchronize()
    assert float(total.min()) == float(total.max()) == 50 * joined.size + 1


def test_nccl_calls_are_captured(joined):
    if joined.device_transport != "nccl":
        pytest.skip("only NCCL's calls can be captured in a CUDA graph")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.ones(1000, cupy.float32)
        joined.allreduce(x, out=x)
        x[...] = 1
        stream.begin_capture()
        joined.allreduce(x, out=x)
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
    stream.synchronize()
    assert float(x.max()) == float(x.min()) == float(joined.size) ** 3


def test_another_current_gpu_is_refused(joined):
    """Messages and arrays would be on streams of two GPUs, and results wrong; JAX leaves another GPU current."""
    if joined.size == 1 or joined.device_transport != "nccl":
        pytest.skip("only NCCL is bound to one GPU")
    own, count = cupy.cuda.Device(), cupy.cuda.runtime.getDeviceCount()
    if count == 1:
        pytest.skip("each rank sees only its own GPU")
    with cupy.cuda.Device((own.id + 1) % count):
        x = cupy.ones(3)
        for call in (joined.allreduce, joined.allgather):
            with pytest.raises(InputError, match=f"from GPU {own.id}"):
                call(x)
    with pytest.raises(UnsupportedTypeError, match=f"but GPU {own.id} is current"):
        collops.from_local(x, comm=joined)
    assert joined.allreduce(cupy.ones(3)).tolist() == [joined.size] * 3
