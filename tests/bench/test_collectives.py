from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collops.backend import engine
from collops_bench.collectives import (
    OPERATIONS,
    _buffers,
    _error_of,
    _ours,
    bus_factor,
    communicators_by_transport,
    sizes_up_to,
)
from collops_bench.registry import BENCHMARKS, Context, Options

TORCH_INSTALLED = importlib.util.find_spec("torch") is not None


@pytest.mark.serial
def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert [bus_factor(operation, 4) for operation in OPERATIONS] == [1.5, 1.0, 1.0, 0.75, 0.75, 0.75]
    assert bus_factor("allreduce", 1) == 0.0


@pytest.mark.serial
def test_sizes() -> None:
    sizes = sizes_up_to(8 << 30)
    assert sizes[0] == 8
    assert sizes[-2:] == [4 << 30, 8 << 30]
    assert sizes == sorted(set(sizes))
    assert {64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30} <= set(sizes)
    assert sizes_up_to(100) == [8, 64]


@pytest.mark.serial
def test_host_arrays_have_no_transport_of_gpus() -> None:
    """On a machine with GPUs too, where NCCL's name would let them be registered with it."""
    comm: Any = SimpleNamespace(transport="nccl", host_transport="mpi", size=2)
    context = Context(comm, engine("numpy"), Options(quick=True))
    assert communicators_by_transport(context) == ({"collops mpi": comm}, {})


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_right_answers_are_right_and_wrong_ones_are_seen(comm, operation: str) -> None:
    buffers = _buffers(np, operation, comm, 60 * comm.size)
    program = _ours(operation, comm, buffers)
    assert _error_of(engine("numpy"), program, buffers) == 0.0

    def wrong() -> None:
        program()
        buffers.target.reshape(-1)[-1] += 1

    assert _error_of(engine("numpy"), wrong, buffers) == 1.0
    assert np.isnan(_error_of(engine("numpy"), lambda: None, buffers))


def test_every_operation_is_measured_and_checked(comm) -> None:
    context = Context(comm, engine("numpy"), Options(quick=True))
    seen = set()
    for measurement in BENCHMARKS["collectives"].measure(context):
        seen.add(measurement.case)
        assert measurement.checks
        assert all(one.error == 0.0 for one in measurement.checks)
        assert measurement.ours in measurement.timings
        assert ("MPI" in measurement.timings) is (comm.size > 1)
        assert ("MPI" in measurement.missing) is (comm.size == 1)
        torch = TORCH_INSTALLED and comm.size > 1
        assert ("torch.distributed" in measurement.timings) is torch
        assert ("torch.distributed" in measurement.missing) is not torch
        package = "PyLops-MPI" in measurement.timings or "PyLops-MPI" in measurement.missing
        assert package is (measurement.case == "allreduce")
        figures = measurement.figures[measurement.ours]
        factor = bus_factor(measurement.case, comm.size)
        assert figures["bus_bandwidth"] == pytest.approx(factor * figures["algorithm_bandwidth"])
        median = measurement.timings[measurement.ours].wall.median
        assert figures["algorithm_bandwidth"] == pytest.approx(measurement.parameters["size"] / median)
    assert seen == set(OPERATIONS)
