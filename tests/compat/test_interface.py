"""PyLops-MPI's interface: every name that it documents is here, with its arguments; and its helpers work."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import pkgutil

import numpy as np
import pytest

import collops.compat.pylops_mpi as pylops_mpi
from collops.compat.pylops_mpi.utils import benchmark, dottest, mark
from collops.compat.pylops_mpi.utils.fft_helper import fftshift_nd, ifftshift_nd

OURS = "collops.compat.pylops_mpi"
DOCUMENTED = {
    "": (
        *("Partition", "DistributedArray", "StackedDistributedArray", "MPILinearOperator", "asmpilinearoperator"),
        *("MPIStackedLinearOperator", "plot_distributed_array", "plot_local_arrays", "cg", "cgls", "ista", "fista"),
    ),
    "basicoperators": (
        *("MPIMatrixMult", "MPIBlockDiag", "MPIStackedBlockDiag", "MPIVStack", "MPIStackedVStack", "MPIHStack"),
        *("MPIHalo", "MPIFirstDerivative", "MPISecondDerivative", "MPILaplacian", "MPIGradient"),
    ),
    "signalprocessing": ("MPIFredholm1", "MPINonStationaryConvolve1D", "MPIFFT2D", "MPIFFTND"),
    "waveeqprocessing": ("MPIMDC",),
    "proximal": ("MPIProxOperator",),
    "proximal.proximal": ("MPIL2", "MPIL21"),
    "optimization.cls_basic": ("CG", "CGLS"),
    "optimization.basic": ("cg", "cgls"),
    "optimization.cls_sparsity": ("ISTA", "FISTA"),
    "optimization.sparsity": ("ista", "fista"),
    "optimization.eigs": ("power_iteration",),
    "proximal.optimization.primal": ("ProximalGradient", "ADMML2"),
    "proximal.optimization.primaldual": ("PrimalDual",),
    "DistributedArray": ("local_split", "subcomm_split"),
    "basicoperators.MatrixMult": ("block_gather", "local_block_split", "active_grid_comm"),
    "basicoperators.Halo": ("MPIHalo", "halo_block_split"),
    "utils": ("dottest", "benchmark", "mark"),
    "utils.decorators": ("reshaped",),
    "utils.deps": ("nccl_enabled", "cuda_aware_mpi_enabled", "nccl_import"),
    "utils.fft_helper": ("fftshift_nd", "ifftshift_nd"),
}


def found(package: str, module: str, name: str):
    return getattr(importlib.import_module(f"{package}.{module}".rstrip(".")), name)


@pytest.mark.parametrize("module", DOCUMENTED)
def test_every_documented_name_is_here(module) -> None:
    for name in DOCUMENTED[module]:
        assert found(OURS, module, name).__doc__ or not callable(found(OURS, module, name))


@pytest.mark.serial
@pytest.mark.skipif(importlib.util.find_spec("pylops_mpi") is None, reason="PyLops-MPI is not installed")
def test_arguments_are_those_of_the_peer() -> None:
    compared = 0
    for module, names in DOCUMENTED.items():
        for name in names:
            theirs, ours = found("pylops_mpi", module, name), found(OURS, module, name)
            pairs = [(name, theirs, ours)]
            if inspect.isclass(theirs):
                members = [member for member in vars(theirs) if not member.startswith("_")]
                assert [m for m in members if not hasattr(ours, m)] == [], name
                pairs += [(f"{name}.{m}", getattr(theirs, m), getattr(ours, m)) for m in members]
            for what, theirs, ours in pairs:
                if not callable(theirs) or isinstance(theirs, pylops_mpi.Partition) or what == "Partition":
                    continue
                expected = list(inspect.signature(theirs).parameters.values())
                if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in expected):
                    continue  # a decorated method, which hides its arguments
                actual = list(inspect.signature(ours).parameters.values())
                assert [p.name for p in actual[: len(expected)]] == [p.name for p in expected], what
                for ours_, theirs_ in zip(actual, expected, strict=False):
                    plain = isinstance(theirs_.default, int | float | str | tuple | None)
                    if plain and theirs_.default is not inspect.Parameter.empty:
                        assert ours_.default == theirs_.default, f"{what}({theirs_.name})"
                compared += 1
    assert compared > 80


@pytest.mark.serial
@pytest.mark.skipif(importlib.util.find_spec("pylops_mpi") is None, reason="PyLops-MPI is not installed")
def test_every_module_is_here() -> None:
    import pylops_mpi as peer

    theirs = {m.name.removeprefix("pylops_mpi.") for m in pkgutil.walk_packages(peer.__path__, "pylops_mpi.")}
    ours = {m.name.removeprefix(OURS + ".") for m in pkgutil.walk_packages(pylops_mpi.__path__, OURS + ".")}
    # What carries the messages there is not documented, and has no counterpart.
    inner = {"Distributed", "utils._common", "utils._mpi", "signalprocessing._baseffts"}
    assert theirs - ours <= inner, theirs - ours - inner


def test_dot_test(comm, capsys) -> None:
    op = pylops_mpi.MPIFirstDerivative(6)
    u = op @ pylops_mpi.DistributedArray.to_dist(np.arange(6.0))
    assert dottest(op, u, u, 6, 6, verb=True)
    assert "Dot test passed" in capsys.readouterr().out
    with pytest.raises(AssertionError):
        dottest(op, u, u, 5, 6)

    class Wrong(pylops_mpi.MPILinearOperator):
        def _matvec(self, x):
            return 2 * x

        def _rmatvec(self, x):
            return 3 * x

    wrong = Wrong(shape=(6, 6), dtype=np.float64)
    assert not dottest(wrong, u, u, raiseerror=False)
    with pytest.raises(AssertionError, match="failed"):
        dottest(wrong, u, u)


def test_times_of_functions(comm, capsys, caplog, monkeypatch) -> None:
    @benchmark
    def inner() -> int:
        mark("begin")
        mark("end")
        return 3

    @benchmark(description="all of it")
    def outer() -> int:
        mark("A")
        return inner()

    assert outer() == 3
    mark("outside")  # means nothing
    lines = capsys.readouterr().out.splitlines()
    if comm.rank:
        assert lines == []
    else:
        assert [line.split(": ")[0] for line in lines if line] == [
            "[decorator]all of it",
            "\t[decorator]inner",
            "\t\tbegin-->end",
        ]
    logger = logging.getLogger("times")
    with caplog.at_level(logging.INFO, logger="times"):
        benchmark(inner.__wrapped__, logger=logger)()
    assert ("total runtime" in caplog.text) is (comm.rank == 0)

    @benchmark
    def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        fails()
    monkeypatch.setenv("BENCH_PYLOPS_MPI", "0")
    assert benchmark(fails) is fails


@pytest.mark.parametrize("axes", [None, 0, (1,), (0, 2)])
def test_shifts_of_spectra(axes) -> None:
    values = np.arange(60.0).reshape(5, 4, 3)
    for axis in (0, 1):
        x = pylops_mpi.DistributedArray.to_dist(values, axis=axis)
        np.testing.assert_array_equal(fftshift_nd(x, axes).asarray(), np.fft.fftshift(values, axes))
        y = pylops_mpi.DistributedArray.to_dist(values, axis=axis)
        np.testing.assert_array_equal(ifftshift_nd(y, axes).asarray(), np.fft.ifftshift(values, axes))
    for shift in (fftshift_nd, ifftshift_nd):
        with pytest.raises(ValueError, match="another one to split"):
            shift(pylops_mpi.DistributedArray(4))


def test_pictures(comm) -> None:
    import matplotlib.pyplot as plt

    plt.close("all")
    for values in (np.arange(12.0).reshape(4, 3), np.arange(5.0), np.ones((1, 2))):  # of the last most have nothing
        x = pylops_mpi.DistributedArray.to_dist(values)
        pylops_mpi.plot_distributed_array(x)
        pylops_mpi.plot_local_arrays(x, "title", vmin=0, vmax=1)
    assert len(plt.get_fignums()) == (6 if comm.rank == 0 else 0)
    plt.close("all")


def test_nccl_is_asked_for_where_there_is_none(comm, monkeypatch) -> None:
    from collops.compat.pylops_mpi.utils._nccl import initialize_nccl_comm

    monkeypatch.setenv("NCCL_PYLOPS_MPI", "0")
    with pytest.raises(RuntimeError, match="NCCL_PYLOPS_MPI"):
        initialize_nccl_comm()
