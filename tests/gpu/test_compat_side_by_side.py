"""The cases of ``tests/compat/test_side_by_side.py`` with CuPy arrays whose messages go by NCCL in both packages."""

from __future__ import annotations

import importlib

import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
cases = pytest.importorskip("tests.compat.test_side_by_side", reason="PyLops-MPI is not installed")

# PyLops-MPI takes a subcommunicator of MPI only.
ARRAYS = [case for case in cases.ARRAY_CASES if case[0] != "subcommunicators"]
OPERATORS = [case for case in cases.CASES if not cases.OPERATORS[case[0]].host_only]


@pytest.fixture(scope="module")
def communicators(device, comm):
    """Each package's communicator of NCCL."""
    if comm.size > 1 and comm.device_transport != "nccl":
        pytest.skip("device arrays do not go by NCCL")
    if not importlib.import_module("pylops_mpi.utils.deps").nccl_enabled:
        pytest.skip("PyLops-MPI finds no NCCL")
    modules = [importlib.import_module(f"{package}.utils._nccl") for package in (cases.PEER, cases.OURS)]
    return [module.initialize_nccl_comm() for module in modules]


def on_devices(communicators, **settings):
    theirs, mine = communicators
    options = {"xp": cupy, **settings}
    return cases.Side(cases.PEER, nccl=theirs, **options), cases.Side(cases.OURS, nccl=mine, **options)


@pytest.mark.parametrize(("name", "partition", "dtype"), OPERATORS, ids=lambda part: part)
def test_operators(communicators, name, partition, dtype) -> None:
    sides = on_devices(communicators, partition=partition, dtype=dtype)
    cases.compare(cases.applied(cases.OPERATORS[name]), sides)


@pytest.mark.parametrize(("name", "partition", "dtype"), ARRAYS, ids=lambda part: part)
def test_arrays(communicators, name, partition, dtype) -> None:
    cases.compare(cases.ARRAYS[name], on_devices(communicators, partition=partition, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", cases.SOLVERS)
def test_solvers(communicators, name, dtype) -> None:
    cases.compare(cases.SOLVERS[name], on_devices(communicators, dtype=dtype), cases.CONDITION)


@pytest.mark.parametrize("name", cases.PROXIMAL)
def test_proximal(communicators, name) -> None:
    cases.compare(cases.PROXIMAL[name], on_devices(communicators), 1000 * cases.CONDITION)
