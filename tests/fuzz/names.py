"""What the names in a case stand for: arrays, operators and communicators, made anew for each case."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pylops
from scipy import sparse

import collops
from collops import array as array_room
from collops import backend, exchange, jacobi, operators, profile, solvers
from collops import comm as comm_room
from collops.array import DistributedArray, Layout, StackedArray, StackedLayout
from collops.compat import pylops_mpi
from collops.solvers import proximal

__all__ = ["NAMES", "names_for"]

_FIXED: dict[str, Any] = {
    "np": np,
    "inplace": operator,
    "mpi": pylops_mpi,
    "collops": collops,
    "arrays": array_room,
    "comms": comm_room,
    "exchange": exchange,
    "operators": operators,
    "solvers": solvers,
    "proximal": proximal,
    "profile": profile,
    "jacobi": jacobi,
    "backend": backend,
    "sparse": sparse,
    "pylops": pylops,
    "Layout": Layout,
    "StackedLayout": StackedLayout,
    "JUNK": object(),
    "NAN": float("nan"),
    "INF": float("inf"),
    "HUGE": 2**62,
}


def _vector(comm: Any, dtype: str = "float64", size: int = 7) -> DistributedArray:
    values = (np.arange(size) + 1).astype(dtype)
    return collops.from_global(values, comm=comm)


def _makers(comm: Any, folder: Path) -> dict[str, Callable[[], Any]]:
    size = comm.size

    def wide() -> Any:
        return collops.from_global(np.arange(24.0).reshape(6, 4), comm=comm)

    def forest(transport: str = "auto") -> Any:
        # Every rank has two roots; its leaves are the first root of each rank.
        return collops.StarForest(comm, 2, None, range(size), [0] * size, transport="mpi" if size > 1 else transport)

    def scatter() -> Any:
        layout = Layout.split(7, size)
        return collops.IndexScatter(layout, None, layout, None, comm=comm, transport="mpi" if size > 1 else "auto")

    def matrix() -> Any:
        entries = sparse.diags_array([1.0, 2.0, 1.0], offsets=[-1, 0, 1], shape=(7, 7)).tocsr()
        return collops.CSRMatrix.from_global(entries, comm=comm, transport="mpi" if size > 1 else "auto")

    def mpi_arrays() -> Any:
        return pylops_mpi.DistributedArray.to_dist(np.arange(3.0 * size))

    def self_comm() -> Any:
        from mpi4py import MPI

        return MPI.COMM_SELF

    return {
        "comm": lambda: comm,
        "self_comm": self_comm,
        "alone": comm_room.alone,
        "other_comm": lambda: comm.split(comm.rank),
        "layout": lambda: Layout.split(7, size),
        "x": lambda: _vector(comm),
        "y": lambda: _vector(comm),
        "complex_x": lambda: _vector(comm, "complex64"),
        "halves": lambda: _vector(comm, "float16"),
        "integers": lambda: _vector(comm, "int32"),
        "truths": lambda: _vector(comm) > 3,
        "empty": lambda: _vector(comm, size=0),
        "wide": wide,
        "wide_complex": lambda: wide() + 0j,
        "copies": lambda: collops.ones(Layout.replicated(7, size), comm=comm),
        "stacked": lambda: StackedArray([_vector(comm), wide()]),
        "foreign": lambda: _vector(comm_room.alone()),
        "Slope": lambda: collops.FirstDerivative(7, comm=comm),
        "Square": lambda: collops.Diagonal(_vector(comm), comm=comm),
        "Complex": lambda: collops.Diagonal(_vector(comm, "complex128"), comm=comm),
        "Wide": lambda: collops.FirstDerivative((6, 4), comm=comm),
        "Foreign": lambda: collops.FirstDerivative(7, comm=comm_room.alone()),
        "Matrix": matrix,
        "forest": forest,
        "scatter": scatter,
        "d": mpi_arrays,
        "D": lambda: pylops_mpi.MPIBlockDiag([pylops.MatrixMult(np.eye(3))]),
        "L1": lambda: proximal.L1(0.1),
        "L2": proximal.L2,
        "problem": lambda: jacobi.Problem(nx=8, ny=8, iterations=2),
        "numpy_engine": lambda: backend.engine("numpy"),
        "folder": lambda: str(folder),
        "store": lambda: str(folder / "store"),
        "market": lambda: str(folder / "matrix.mtx"),
    }


NAMES = frozenset(_FIXED)


def names_for(folder: Path) -> Callable[[Any], dict[str, Callable[[], Any]]]:
    """Return what gives a communicator's names; files that cases read are in `folder`, which all ranks see."""

    def names(comm: Any) -> dict[str, Callable[[], Any]]:
        fixed = {name: (lambda value=value: value) for name, value in _FIXED.items()}
        return fixed | _makers(comm, folder)

    return names
