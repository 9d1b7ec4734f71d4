"""The cases of both packages in ``tests/compat`` with CuPy arrays whose messages go by NCCL in both packages."""

from __future__ import annotations

import importlib

import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

# Without PyLops-MPI they skip.
from tests.compat.array_cases import ARRAY_CASES, ARRAYS  # noqa: E402
from tests.compat.operator_cases import CASES, OPERATORS, applied  # noqa: E402
from tests.compat.proximal_cases import PROXIMAL  # noqa: E402
from tests.compat.sides import OURS, PEER, Side, compare  # noqa: E402
from tests.compat.solver_cases import CONDITION, SOLVERS  # noqa: E402

# PyLops-MPI takes a subcommunicator of MPI only.
ON_DEVICES = [case for case in ARRAY_CASES if case[0] != "subcommunicators"]
PRODUCTS = [case for case in CASES if not OPERATORS[case[0]].host_only]


@pytest.fixture(scope="module")
def communicators(device, comm):
    """Each package's communicator of NCCL."""
    if comm.size > 1 and comm.device_transport != "nccl":
        pytest.skip("device arrays do not go by NCCL")
    if not importlib.import_module("pylops_mpi.utils.deps").nccl_enabled:
        pytest.skip("PyLops-MPI finds no NCCL")
    modules = [importlib.import_module(f"{package}.utils._nccl") for package in (PEER, OURS)]
    return [module.initialize_nccl_comm() for module in modules]


def on_devices(communicators, **settings):
    theirs, mine = communicators
    options = {"xp": cupy, **settings}
    return Side(PEER, nccl=theirs, **options), Side(OURS, nccl=mine, **options)


@pytest.mark.parametrize(("name", "partition", "dtype"), PRODUCTS, ids=lambda part: part)
def test_operators(communicators, name, partition, dtype) -> None:
    sides = on_devices(communicators, partition=partition, dtype=dtype)
    compare(applied(OPERATORS[name]), sides)


@pytest.mark.parametrize(("name", "partition", "dtype"), ON_DEVICES, ids=lambda part: part)
def test_arrays(communicators, name, partition, dtype) -> None:
    compare(ARRAYS[name], on_devices(communicators, partition=partition, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", SOLVERS)
def test_solvers(communicators, name, dtype) -> None:
    compare(SOLVERS[name], on_devices(communicators, dtype=dtype), CONDITION)


@pytest.mark.parametrize("name", PROXIMAL)
def test_proximal(communicators, name) -> None:
    compare(PROXIMAL[name], on_devices(communicators), 1000 * CONDITION)
