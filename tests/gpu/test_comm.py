"""Communicators on device arrays, over every wire that these ranks have, against NumPy on every rank's values."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops.errors import TransportError
from tests.comm import checks

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture(params=["nccl", "mpi", "staged"])
def wire(request, comm):
    """A communicator that sends device arrays by one wire."""
    if comm.device_transport is None:
        pytest.skip("no device on every rank")
    if comm.size == 1:
        return comm
    try:
        return collops.world(request.param)
    except TransportError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", checks.DTYPES)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
def test_reductions(wire, name, op):
    if not (name.startswith("complex") and op != "sum"):
        checks.check_reductions(wire, cupy, name, op)


@pytest.mark.parametrize("name", ["bool", "int16", "uint64"])
@pytest.mark.parametrize("op", ["land", "lor", "lxor"])
def test_logical_reductions(wire, name, op):
    checks.check_reductions(wire, cupy, name, op)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_average(wire, name):
    checks.check_average(wire, cupy, name)


@pytest.mark.parametrize("name", checks.DTYPES)
def test_movement(wire, name):
    checks.check_movement(wire, cupy, name)


@pytest.mark.parametrize("name", ["bool", "bfloat16", "float64", "complex128"])
def test_messages(wire, name):
    checks.check_messages(wire, cupy, name)


def test_strided_arrays(wire):
    checks.check_strided(wire, cupy)


def test_exchange_plan(wire):
    checks.check_plan(wire, cupy)


def test_exchange_plan_of_several_arrays(wire):
    checks.check_plan_of_several_arrays(wire, cupy)


def test_long_arrays_in_chunks(wire):
    """More than two chunks of the staged wire, with a ragged end."""
    x = cupy.arange(3_000_001, dtype=cupy.float64)
    expected = np.arange(3_000_001.0) * wire.size
    np.testing.assert_array_equal(wire.allreduce(x).get(), expected)
    root = wire.size - 1
    given = x if wire.rank == root else cupy.zeros_like(x)
    np.testing.assert_array_equal(wire.bcast(given, root).get(), np.arange(3_000_001.0))


def test_work_is_ordered_on_the_current_stream(wire):
    """A long computation before, and a change after, an allreduce that the host does not wait for."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.zeros(1 << 22, cupy.float32)
        for _ in range(50):
            x += 1
        total = wire.allreduce(x)
        x[...] = -1
        total = total + 1
    stream.synchronize()
    assert float(total.min()) == float(total.max()) == 50 * wire.size + 1


def test_nccl_calls_are_captured(wire):
    if wire.device_transport != "nccl":
        pytest.skip("only NCCL's calls can be captured in a CUDA graph")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.ones(1000, cupy.float32)
        wire.allreduce(x, out=x)
        x[...] = 1
        stream.begin_capture()
        wire.allreduce(x, out=x)
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
    stream.synchronize()
    assert float(x.max()) == float(x.min()) == float(wire.size) ** 3
