"""PyLops-MPI and this package as two sides on which a case runs, and the comparison of its results."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pylops
import pytest

from tests.operators.problems import vector

PEER, OURS = "pylops_mpi", "collops.compat.pylops_mpi"
pytest.importorskip(PEER, reason="PyLops-MPI is not installed")
pyproximal = pytest.importorskip("pyproximal", reason="PyProximal is not installed")
MPI = pytest.importorskip("mpi4py.MPI", reason="mpi4py is not installed")

# PyLops warns about matrices and arrays whose dtypes differ, in both packages alike.
QUIET = [
    pytest.mark.filterwarnings("ignore:Matrix A is a complex object"),
    pytest.mark.filterwarnings("ignore:Casting complex values to real"),
]
DIMS = (17, 4)  # more rows on the first rank; PyLops-MPI's stencils need four rows on each
DTYPES = ("float32", "float64", "complex128")
COPIES = ("BROADCAST", "UNSAFE_BROADCAST")
# Where both packages compute one thing: sums in another order, and factors that one of them multiplies beforehand.
ROUNDING = 100


@dataclass
class Side:
    """One of the two packages, with the settings of a case."""

    package: str
    dtype: str = "float64"
    partition: str = "SCATTER"
    xp: Any = np
    nccl: Any = None
    base_comm: Any = None

    def __post_init__(self) -> None:
        self.pkg = importlib.import_module(self.package)
        self.base_comm = MPI.COMM_WORLD if self.base_comm is None else self.base_comm
        self.rank, self.size = self.base_comm.Get_rank(), self.base_comm.Get_size()

    def get(self, path: str) -> Any:
        """Return a class or function by the names of its module and itself, ``"utils.dottest.dottest"``."""
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(f"{self.package}.{module}"), name)

    def array(self, values: np.ndarray, sizes: Any = None, partition: str = "", mask: Any = None, axis: int = 0) -> Any:
        """Distribute `values`, which every rank has."""
        kind = self.pkg.Partition[partition or self.partition]
        options = {"base_comm": self.base_comm, "base_comm_nccl": self.nccl, "partition": kind, "axis": axis}
        if sizes is None:
            return self.pkg.DistributedArray.to_dist(self.xp.asarray(values), mask=mask, **options)
        options |= {"local_shapes": [(n,) for n in sizes], "mask": mask}
        if self.nccl is None:
            return self.pkg.DistributedArray.to_dist(self.xp.asarray(values), **options)
        # PyLops-MPI's to_dist cannot send sizes over NCCL.
        x = self.pkg.DistributedArray(values.shape, engine=self.xp.__name__, dtype=values.dtype, **options)
        start = sum(sizes[: self.rank]) if kind is self.pkg.Partition.SCATTER else 0
        x[:] = self.xp.asarray(values[start : start + x.local_shape[0]])
        return x

    def vector(self, size: int, sizes: Any = None, seed: int = 1) -> Any:
        """Return a random vector."""
        return self.array(vector(int(size), self.dtype, seed), sizes)

    def matrix(self, rows: int, columns: int, seed: int = 0) -> Any:
        """Return a local operator that differs from rank to rank, well conditioned if it is square."""
        values = vector(rows * columns, self.dtype, 10 * seed + self.rank).reshape(rows, columns)
        values += 4 * np.eye(rows, columns, dtype=self.dtype)
        return pylops.MatrixMult(self.xp.asarray(values), dtype=self.dtype)

    def stacked(self, *parts: Any) -> Any:
        return self.pkg.StackedDistributedArray(list(parts), base_comm=self.base_comm)


def values_of(x: Any) -> Any:
    """Return what is compared of a result: names of types, shapes and partitions, and arrays and numbers."""
    if hasattr(x, "distarrays"):
        return ["stacked", *map(values_of, x.distarrays)]
    if hasattr(x, "local_array"):
        shapes = [tuple(map(int, shape)) for shape in x.local_shapes]
        whole = tuple(map(int, x.global_shape))
        return [whole, shapes, x.partition.name, x.axis, x.engine, str(np.dtype(x.dtype)), on_host(x.local_array)]
    if isinstance(x, list | tuple):
        return [values_of(part) for part in x]
    if isinstance(x, bool | int | float | complex | str | type(None)):
        return [type(x).__name__, x]  # numbers are of the same Python type
    return [type(x).__module__.partition(".")[0], on_host(x)]


def on_host(x: Any) -> np.ndarray:
    return x.get() if hasattr(x, "get") else np.asarray(x)


def assert_same(actual: Any, expected: Any, rtol: float, path: str = "") -> None:
    """Assert that two results of :func:`values_of` agree; floating-point numbers up to `rtol` times the largest."""
    if isinstance(expected, list):
        assert isinstance(actual, list) and len(actual) == len(expected), (path, actual, expected)
        for number, pair in enumerate(zip(actual, expected, strict=True)):
            assert_same(*pair, rtol, f"{path}[{number}]")
    elif isinstance(expected, float | complex | np.ndarray):
        one, two = np.asarray(actual), np.asarray(expected)
        assert (one.shape, one.dtype) == (two.shape, two.dtype), path
        scale = float(np.abs(two).max(initial=0.0)) if two.dtype.kind in "fc" else 0.0
        np.testing.assert_allclose(one, two, rtol=0, atol=rtol * scale, err_msg=path)
    else:
        assert actual == expected, (path, actual, expected)


def compare(case: Callable[[Side], Any], sides: tuple[Side, Side], factor: float = ROUNDING) -> None:
    """Assert that a case has the same result by both packages."""
    expected, actual = (values_of(case(side)) for side in sides)
    # A float may be the norm of a single-precision array, which only PyLops-MPI adds up in double precision.
    assert_same(actual, expected, factor * float(np.finfo(sides[0].dtype).eps))


def both(**settings: Any) -> tuple[Side, Side]:
    return Side(PEER, **settings), Side(OURS, **settings)
