"""The modules, names and signatures of PyLops-MPI's interface, and its helper functions."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import logging
import pkgutil
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import collops.compat.pylops_mpi as pylops_mpi
from collops.compat.pylops_mpi.utils import benchmark, dottest, mark
from collops.compat.pylops_mpi.utils.fft_helper import fftshift_nd, ifftshift_nd
from collops.profile import count_messages
from tests.compat.played import peers_nccl
from tests.compat.source import source

OURS = "collops.compat.pylops_mpi"
# A module, and names of other modules, that none of the peer's pages, scripts and tests use.
INNER = {"signalprocessing._baseffts"}
NOT_HERE = {
    **dict.fromkeys(("cupy_message", "nccl_message", "mpi4py_fft_message"), "why a package could not be imported"),
    "ENABLE_BENCHMARK": "the environment's BENCH_PYLOPS_MPI at import, which is read here when a function is decorated",
    "NcclCommunicator": "CuPy's class",
    "_mpi_calls": "calls a method of mpi4py",
    **dict.fromkeys(("commit_id", "__commit_id__", "__version_tuple__"), "of the peer's repository"),
    "logger": "the peer's own",
    "pyproximal_version": "of another package",
}
# Arguments that differ from PyLops-MPI's, and why.
DIFFERENT = {
    "CG.finalize": "takes further arguments, as PyLops' solvers do",
    "ISTA.finalize": "takes further arguments, as PyLops' solvers do",
    "CG.memory_usage": "takes the arguments of PyLops' solvers",
    "CGLS.memory_usage": "takes the arguments of PyLops' solvers",
    "FISTA.step": "z may be left out: the solver keeps it",
    "MPIProxOperator": "a derived class needs no operator of PyProximal",
    "MPIProxOperator.precomposition": "b may be left out",
    "ADMML2": "kwargs_solver is None by default, which means the same as {}",
}
WITHOUT_ARGUMENTS = ("Partition", "NcclOp", "NcclCommunicatorType")
NEEDS_PEER = pytest.mark.skipif(importlib.util.find_spec("pylops_mpi") is None, reason="PyLops-MPI is not installed")


def peers_modules() -> Iterator[tuple[str, ModuleType]]:
    """Go through PyLops-MPI's package and modules, by their names within the package."""
    import pylops_mpi as peer

    assert "collops" not in peer.__name__
    yield "", peer
    for found in pkgutil.walk_packages(peer.__path__, "pylops_mpi."):
        path = found.name.removeprefix("pylops_mpi.")
        if path == "utils._nccl":  # cannot be imported without CuPy
            with peers_nccl() as module:
                yield path, module
        elif path not in INNER:
            yield path, importlib.import_module(found.name)


def assigned(statements: list[Any]) -> Iterator[str]:
    """Go through the names that statements of a module define or assign."""
    for node in statements:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.If):
            yield from assigned([*node.body, *node.orelse])
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def defined(path: str, module: ModuleType) -> dict[str, Any]:
    """Return what a module defines or assigns: public names, those it exports, and all names of a private module."""
    private = path.rpartition(".")[2].startswith("_")
    names = set(assigned(ast.parse(Path(str(module.__file__)).read_text("utf-8")).body))
    names -= {"all", "__all__"}  # its own lists of exported names
    listed = getattr(module, "__all__", [])
    return {name: getattr(module, name) for name in names if private or name in listed or not name.startswith("_")}


def with_methods(name: str, theirs: Any, ours: Any) -> Iterator[tuple[str, Any, Any]]:
    """Go through a function, or a class and the methods that it defines."""
    yield name, theirs, ours
    if inspect.isclass(theirs):
        for member in vars(theirs):
            # Programs call the private methods of the mix-in class, which has no others.
            if not member.startswith("_") or (name == "DistributedMixIn" and not member.startswith("__")):
                assert hasattr(ours, member), f"{name}.{member}"
                yield f"{name}.{member}", getattr(theirs, member), getattr(ours, member)


def arguments(function: Any) -> list[tuple[str, Any, Any]]:
    """Return the name, kind and default of each argument, with None for ``MPI.COMM_WORLD`` and ``MPI.SUM``."""
    from mpi4py import MPI

    found = inspect.signature(function).parameters.values()
    defaults = [None if isinstance(argument.default, MPI.Comm | MPI.Op) else argument.default for argument in found]
    return [
        (argument.name, argument.kind, repr(default) if isinstance(default, Enum) else default)
        for argument, default in zip(found, defaults, strict=True)
    ]


@pytest.mark.serial
@NEEDS_PEER
def test_modules_names_and_arguments_are_those_of_the_peer() -> None:
    compared, different, left_out = 0, set(), set()
    for path, module in peers_modules():
        here = importlib.import_module(f"{OURS}.{path}".rstrip("."))
        for name, value in defined(path, module).items():
            if name in NOT_HERE:
                left_out.add(name)
                continue
            assert hasattr(here, name), f"{path}.{name}"
            assert path == "" or name in here.__all__, f"{path}.{name}"
            for what, theirs, ours in with_methods(name, value, getattr(here, name)):
                if not callable(theirs) or isinstance(theirs, Enum) or what in WITHOUT_ARGUMENTS:
                    continue
                expected, actual = arguments(theirs), arguments(ours)
                if any(kind is inspect.Parameter.VAR_POSITIONAL for _, kind, _ in expected):
                    continue  # a decorated method, which hides its arguments
                if actual != expected:
                    assert what in DIFFERENT, f"{what}: {actual} instead of {expected}"
                    different.add(what)
                    # Arguments passed by position have the same meaning.
                    names = [name for name, _, _ in expected]
                    assert [name for name, _, _ in actual][: len(names)] == names, what
                compared += 1
    assert compared > 100
    assert different == DIFFERENT.keys()
    assert left_out == NOT_HERE.keys()


@pytest.mark.serial
@NEEDS_PEER
def test_names_of_packages_are_those_of_the_peer() -> None:
    checked = 0
    for path, module in peers_modules():
        if not hasattr(module, "__path__"):
            continue
        here = importlib.import_module(f"{OURS}.{path}".rstrip("."))
        homes = {name: str(getattr(value, "__module__", "")) for name, value in vars(module).items()}
        imported = [name for name, home in homes.items() if home.startswith("pylops_mpi.") and not name.startswith("_")]
        for name in getattr(module, "__all__", imported):
            assert hasattr(here, name), f"{path}.{name}"
            checked += 1
    assert checked > 40


def names_in_use(folder: Path) -> Iterator[str]:
    """Go through the names below ``pylops_mpi`` that the peer's pages, scripts and tests import or mention."""
    folders = [path for name in ("docs", "examples", "tutorials*", "tests*") for path in folder.glob(name)]
    for path in [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".rst")]:
        text = path.read_text("utf-8")
        yield from re.findall(r"\bpylops_mpi((?:\.[A-Za-z_]\w*)+)", text)
        for module, names in re.findall(r"from pylops_mpi([\w.]*) import (\([^)]*\)|(?:[^\n]*\\\n)*[^\n]*)", text):
            yield from (f"{module}.{name}" for name in re.findall(r"([A-Za-z_]\w*)(?: as \w+)?", names))


def found_in(package: str, path: str) -> bool:
    """Return whether a name below a package can be imported or reached by attributes."""
    parts = path.strip(".").split(".")
    for number in range(len(parts) + 1):
        try:
            value = importlib.import_module(".".join([package, *parts[:number]]))
        except ModuleNotFoundError:
            return False
        for name in parts[number:]:
            value = getattr(value, name, None)
        if value is not None:
            return True
    return False


@pytest.mark.serial
@NEEDS_PEER
def test_names_that_the_peers_pages_and_programs_use(request, tmp_path) -> None:
    names = set(names_in_use(source(request.config, tmp_path)))
    assert {".utils._nccl.initialize_nccl_comm", ".utils._common._unroll_allgather_recv"} <= names
    assert len(names) > 100
    with peers_nccl():
        assert [name for name in names if found_in("pylops_mpi", name) and not found_in(OURS, name)] == []


def test_each_name_is_one_object_with_a_description() -> None:
    found: dict[str, set[int]] = {}
    for path, names in pylops_mpi._MODULES.items():
        module = importlib.import_module(f"{OURS}.{path}")
        assert set(names.split()) <= set(dir(module)) and path in str(module.__doc__)
        for name in names.split():
            value = getattr(module, name)
            found.setdefault(name, set()).add(id(value))
            assert not callable(value) or inspect.getdoc(value), name
    assert [name for name, objects in found.items() if len(objects) > 1] == []
    assert all(id(getattr(pylops_mpi, name)) in found[name] for name in found if hasattr(pylops_mpi, name))


@pytest.mark.serial
def test_modules_are_imported_by_their_names() -> None:
    program = (
        f"import {OURS}.optimization.basic as basic\n"
        f"from {OURS}.basicoperators.VStack import MPIVStack\n"
        f"from {OURS}.utils.benchmark import benchmark\n"
        f"from {OURS} import proximal, utils\n"
        f"from {OURS}.DistributedArray import DistributedArray\n"
        "import importlib.util\n"
        f"assert importlib.util.find_spec('{OURS}.proximal.optimization.primal')\n"
        "assert utils.benchmark is benchmark and callable(basic.cgls) and isinstance(DistributedArray, type)\n"
        "print(proximal.optimization.primal.__name__, MPIVStack.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == f"{OURS}.proximal.optimization.primal MPIVStack\n", done.stderr
    assert "MPIBlockDiag(ops, base_comm=None, mask=None, dtype=None)" in pydoc.plain(
        pydoc.render_doc(sys.modules[f"{OURS}.basicoperators.BlockDiag"].MPIBlockDiag)
    )


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


@pytest.mark.parametrize("split", [0, 1, 2])
def test_shifts_of_spectra_need_one_exchange(comm, split) -> None:
    """As in PyLops-MPI, other axes are shifted in place, and the split axis is shifted in a redistributed array."""
    values = np.arange(60.0).reshape(5, 4, 3)
    local = [axis for axis in range(3) if axis != split]
    for shift, serial in ((fftshift_nd, np.fft.fftshift), (ifftshift_nd, np.fft.ifftshift)):
        x = pylops_mpi.DistributedArray.to_dist(values, axis=split)
        with count_messages() as messages:
            shifted = shift(x, (split, *local))
        assert messages.total == (comm.size > 1)
        assert shifted.axis == (0 if split else 1)
        np.testing.assert_array_equal(shifted.asarray(), serial(values))
        np.testing.assert_array_equal(x.asarray(), serial(values, local))


def test_pictures(comm) -> None:
    import matplotlib.pyplot as plt

    plt.close("all")
    for values in (
        np.arange(12.0).reshape(4, 3),
        np.arange(5.0),
        np.ones((1, 2)),
    ):  # most ranks have no row of the last one
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
