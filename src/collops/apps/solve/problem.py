"""The system to solve: read or made by the first rank, ordered, and given to all ranks."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.apps.arrays import open_npy
from collops.apps.job import Listener
from collops.apps.solve.mesh import poisson
from collops.apps.solve.options import Options
from collops.apps.stages import local_stage, raised_together
from collops.array import DistributedArray, Layout
from collops.errors import InputError
from collops.operators.csr import CSRMatrix, Partition, partition_rows
from collops.operators.csr.market import read_matrix

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["Problem", "System", "prepare"]

_POINTS = 8000


@dataclass(frozen=True)
class System:
    """What the first rank knows; the rows and columns are in the order in which the system came.

    Parameters
    ----------
    matrix : scipy.sparse.csr_array
    data : numpy.ndarray
        The right-hand side.
    truth : numpy.ndarray or None
        The solution that `data` was made of.
    points : numpy.ndarray or None
        Where the unknowns are in space, if they are anywhere.
    partition : Partition or None
        Of a square matrix; ``None`` leaves rows and columns in their order.
    name : str
        What it is, for a person.
    """

    matrix: Any
    data: np.ndarray
    truth: np.ndarray | None
    points: np.ndarray | None
    partition: Partition | None
    name: str


@dataclass(frozen=True)
class Problem:
    """The system on all ranks.

    Parameters
    ----------
    matrix : CSRMatrix
    data : DistributedArray
        The right-hand side.
    method : str
        How it is solved.
    system : System or None
        On the first rank.
    facts : dict
        What every rank knows of it: rows, columns, entries, ``cut``, ``partition``, ``name`` and ``symmetric``.
    """

    matrix: CSRMatrix
    data: DistributedArray
    method: str
    system: System | None
    facts: dict[str, Any] = field(default_factory=dict)


def prepare(options: Options, comm: Communicator, compute: Engine, listener: Listener) -> Problem:
    """Read or make the system, order it, and give each rank its rows. Collective.

    Raises
    ------
    InputError
        On every rank, if the system cannot be used.
    """
    listener.stage("reading" if options.matrix else "making the mesh")
    ordering = options.partition
    if ordering is None:
        ordering = "metis" if importlib.util.find_spec("pymetis") is not None else "rows"
        ordering = comm.allgather_metadata(ordering)[0]
        if ordering == "rows" and comm.size > 1:
            listener.note("rows stay in their order: pymetis is not installed (collops[metis])")
    system: System | None = None
    with local_stage(comm):
        if comm.rank == 0:
            system = _system(options, comm.size, ordering)
    facts = comm.allgather_metadata(None if system is None else _facts(system, ordering))[0]
    with raised_together():
        method = _method(options, facts)
    if facts["partition"] is None and options.partition == "metis":
        listener.warn("a matrix that is not square keeps its order: --partition metis has no effect")

    listener.stage("giving out the rows")
    shape = facts["rows"], facts["columns"]
    rows = Layout.split(shape[0], comm.size, sizes=facts["sizes"])
    dtype = np.result_type(options.dtype, np.complex64) if facts["complex"] else np.dtype(options.dtype)
    i, j, values = _triples(system)
    matrix = CSRMatrix.from_coo(i, j, values.astype(dtype), shape, rows=rows, comm=comm)
    data = np.empty(0, dtype) if system is None else system.data[_order(system, 0)].astype(dtype)
    mine = comm.scatterv(data, rows.sizes[0], out=np.empty(rows.local_size(comm.rank), dtype))
    return Problem(matrix, DistributedArray(rows, comm, compute.from_host(mine)), method, system, facts)


def _system(options: Options, ranks: int, partition: str) -> System:
    from scipy import sparse

    if options.matrix is None:
        mesh = poisson(options.points or _POINTS, options.seed)
        matrix, points, truth = mesh.matrix, mesh.points, mesh.solution
        name = f"Poisson problem, {len(points)} points, {mesh.tetrahedra} tetrahedra"
    else:
        matrix, points, truth = sparse.csr_array(read_matrix(options.matrix)), None, None
        name = Path(options.matrix).name
    rows, columns = matrix.shape
    if not rows or not columns:
        raise InputError(f"{options.matrix} has {rows} rows and {columns} columns: there is nothing to solve")
    _check_finite(matrix.data, options.matrix)
    if options.rhs is not None:
        data = _read_rhs(options.rhs, rows)
        _check_finite(data, options.rhs)
    else:
        truth = np.ones(columns) if truth is None else truth
        data = _with_noise(matrix @ truth, options)
    ordered = partition_rows(matrix, ranks, partition) if rows == columns else None
    return System(matrix, data, truth, points, ordered, name)


def _check_finite(values: np.ndarray, path: str | None) -> None:
    if not np.isfinite(values).all():
        raise InputError(f"{path} has values that are infinite or no numbers (NaN): there is no solution")


def _with_noise(data: np.ndarray, options: Options) -> np.ndarray:
    """Add noise relative to the root mean square of the data."""
    level = (options.noise or 0.0) * float(np.sqrt(np.mean(np.abs(data) ** 2)))
    return data + level * np.random.default_rng(options.seed).standard_normal(len(data)) if level else data


def _read_rhs(path: str, rows: int) -> np.ndarray:
    data = open_npy(Path(path)) if Path(path).suffix.lower() == ".npy" else read_matrix(path)
    if math.prod(data.shape) != rows:
        raise InputError(f"{path} has the shape {data.shape}, but the matrix has {rows} rows")
    if data.dtype.kind not in "biufc":
        raise InputError(f"{path} has values of type {data.dtype}, which are no numbers")
    return np.array(data if isinstance(data, np.ndarray) else data.toarray()).reshape(-1)


def _facts(system: System, ordering: str) -> dict[str, Any]:
    matrix, partition = system.matrix, system.partition
    symmetric = matrix.shape[0] == matrix.shape[1]
    if symmetric:
        difference = abs(matrix - matrix.conj().T)
        symmetric = bool(difference.nnz == 0 or difference.max() <= 1e-12 * abs(matrix).max())
    return {
        "name": system.name,
        "rows": int(matrix.shape[0]),
        "columns": int(matrix.shape[1]),
        "entries": int(matrix.nnz),
        "symmetric": symmetric,
        "complex": matrix.dtype.kind == "c" or system.data.dtype.kind == "c",
        "partition": None if partition is None else ordering,
        "sizes": None if partition is None else list(partition.sizes),
        "cut": None if partition is None else partition.cut,
    }


def _method(options: Options, facts: dict[str, Any]) -> str:
    if options.method is None:
        return "cg" if facts["symmetric"] else "lsqr"
    if options.method == "cg" and not facts["symmetric"]:
        raise InputError("--method cg needs a symmetric matrix, which this one is not: use cgls or lsqr")
    return options.method


def _order(system: System, axis: int) -> np.ndarray:
    return np.arange(system.matrix.shape[axis]) if system.partition is None else system.partition.order


def _triples(system: System | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the entries in the new order; none on ranks that do not know the system."""
    if system is None:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    matrix = system.matrix.tocoo()
    places = []
    for axis in (0, 1):
        order = _order(system, axis)
        new = np.empty_like(order)
        new[order] = np.arange(len(order))
        places.append(new[matrix.coords[axis]])
    return places[0], places[1], matrix.data
