"""Benchmarks with libraries for GPUs, small: every program that is installed is right and timed."""

from __future__ import annotations

import importlib.util

import pytest

from collops.backend import engine
from collops_bench.registry import BENCHMARKS, Context, Options

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("device")]
pytest.importorskip("cupy", reason="CuPy is not installed")


def installed(module):
    return importlib.util.find_spec(module) is not None


def measured(name, comm):
    found = list(BENCHMARKS[name].measure(Context(comm, engine("cupy"), Options(quick=True))))
    for one in found:
        assert one.checks and all(each.error <= each.tolerance for each in one.checks)
    return found


def test_products(comm):
    fourier, sparse = (
        ("FFTND", {"CuPy": "cupy", "JAX": "jax"}),
        ("27-point stencil", {"CuPy": "cupy", "PyTorch": "torch"}),
    )
    found = measured("products", comm)
    assert [one.case for one in found] == [
        f"{name}, {way}" for name, _ in (fourier, sparse) for way in ("forward", "adjoint")
    ]
    for one in found:
        assert {"collops, eager", "collops, replayed"} <= set(one.timings)
        for name, module in dict((fourier, sparse))[one.case.partition(",")[0]].items():
            assert (name in one.timings) is (comm.size == 1 and installed(module)), one.missing


def test_collectives(comm):
    modules = {"torch.distributed": "torch", "nccl4py, high-level": "nccl"}
    for one in measured("collectives", comm):
        for name, module in modules.items():
            there = comm.size > 1 and comm.device_transport == "nccl" and installed(module)
            assert (name in one.timings) is there, one.missing
