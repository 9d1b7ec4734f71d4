"""Sparse linear systems from a file or on a synthetic mesh: ``collops solve``."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from collops.apps.files import Field, open_npy
from collops.apps.options import (
    METHOD,
    SYNTHETIC,
    AtLeast,
    CommonOptions,
    Dtype,
    NotNegative,
    OneOf,
    Out,
    SyntheticOnly,
    option,
)
from collops.apps.pictures import figure
from collops.apps.recipe import Findings, Job, Solution, relative_error
from collops.apps.stages import local_stage
from collops.comm.agreement import raised_together
from collops.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from collops.array import Array, DistributedArray
    from collops.operators import LinearOperator
    from collops.operators.csr import CSRMatrix
    from collops.solvers import SolverResult

_SYSTEM = "System"
_POINTS = 8000
_TOL = 1e-6
_CELLS, _MAX_POINTS = 300, 20000  # in figures


@dataclass(frozen=True, kw_only=True)
class Options(CommonOptions):
    """The options of ``collops solve``."""

    recorded = "matrix"

    matrix: Annotated[
        str | None,
        option("Matrix, in Matrix Market format; by default from a synthetic mesh.", _SYSTEM, metavar="FILE.mtx"),
    ] = None
    rhs: Annotated[
        str | None,
        option("Right-hand side.", _SYSTEM, metavar="FILE.mtx|FILE.npy", show_default="the matrix times ones"),
    ] = None
    points: Annotated[
        int | None,
        option("Number of inner points of the synthetic mesh.", _SYSTEM, show_default="8000"),
        AtLeast(8),
        SyntheticOnly(),
    ] = None
    method: Annotated[
        str | None,
        option(
            "Solver: cg (positive definite matrices), cgls or lsqr (least squares).",
            METHOD,
            show_default="cg if the matrix may be positive definite, else lsqr",
        ),
        OneOf("cg", "cgls", "lsqr"),
    ] = None
    partition: Annotated[
        str | None,
        option(
            "Distribution of the rows of a square matrix: metis (reorders them to reduce communication), or rows "
            "(keeps their order).",
            METHOD,
            show_default="metis if pymetis is installed",
        ),
        OneOf("metis", "rows"),
    ] = None
    precondition: Annotated[
        str,
        option(
            "Preconditioner: none; for square matrices jacobi or block-jacobi; for symmetric matrices also chebyshev, "
            "two-level or multigrid; or auto: multigrid for symmetric M-matrices, else none.",
            METHOD,
        ),
        OneOf("none", "auto", "jacobi", "block-jacobi", "chebyshev", "two-level", "multigrid"),
    ] = "none"
    levels: Annotated[
        bool, option("Show the rows and entries of the matrix of each level of multigrid.", METHOD, "--levels")
    ] = False
    tol: Annotated[
        float | None,
        option(
            "Tolerance: norm of the residual at which to stop, relative to the right-hand side.",
            METHOD,
            show_default="1e-6",
        ),
        NotNegative,
    ] = None
    iterations: Annotated[int, option("Maximum number of solver iterations."), AtLeast(1)] = 500
    noise: Annotated[
        float | None,
        option("Noise of the synthetic right-hand side, relative to its root mean square.", SYNTHETIC),
        NotNegative,
        SyntheticOnly(unless="rhs"),
    ] = None
    dtype: Dtype = "float64"
    out: Out = "collops-solve"

    def check(self) -> None:
        """Raise `InputError` for invalid or contradictory values."""
        super().check()
        if self.matrix is not None and not Path(self.matrix).is_file():
            raise InputError(f"{self.matrix} does not exist: check the path of the matrix file")
        if self.rhs is not None:
            if self.matrix is None:
                raise InputError("--rhs needs a matrix from a file: pass it with --matrix, or omit --rhs")
            if not Path(self.rhs).is_file():
                raise InputError(f"{self.rhs} does not exist: check the path of the right-hand side")
        if self.levels and self.precondition not in ("auto", "multigrid"):
            raise InputError("--levels needs --precondition multigrid or auto")


def run(job: Job[Options]) -> Findings:
    """Solve a sparse linear system with CG, CGLS or LSQR, with rows distributed to reduce communication.

    By default it solves a Poisson problem on an unstructured mesh of a cube; with --matrix, a system from a file.
    Writes image.png (the distribution of rows and the sparsity pattern), convergence.png and result.zarr.
    """
    options = job.options
    problem = prepare(job)
    facts, matrix = problem.facts, problem.matrix
    job.warn_of_idle_ranks(facts["rows"], "rows")

    tol = _TOL if options.tol is None else options.tol
    with job.stage("making the preconditioner"):
        precondition = _chosen_preconditioner(job, facts)
        M = _preconditioner(job, problem, precondition)
    solver, tolerances = _solver(problem, tol)
    writes = facts["columns"] * problem.data.dtype.itemsize + facts["rows"] * np.dtype(np.int32).itemsize
    solution = job.solve(solver, matrix, problem.data, writes=writes, M=M, **tolerances)

    residual, gradient = _measured(problem, solution.x, M)
    solution = replace(solution, residuals=np.append(solution.residuals[:-1], residual * float(problem.data.norm())))

    findings = _findings(job, problem, solution, precondition, _levels(M))
    matrix.free()
    first, *later = solution.residuals
    if problem.method == "cg" and len(later) >= facts["rows"] and later[-1] > first:
        # In exact arithmetic, CG on a positive definite matrix would have converged.
        job.listener.warn("the residual has grown: the matrix may not be positive definite: choose --method lsqr")
    return replace(findings, shortfall=_shortfall(options, problem.method, solution, residual, gradient))


def _findings(
    job: Job[Options], problem: Problem, solution: Solution, precondition: str, levels: list[tuple[int, int]] | None
) -> Findings:
    """Describe the results for the recipe, which writes them. Collective."""
    comm, options, facts, system = job.comm, job.options, problem.facts, problem.system
    x, error, ranks = job.engine.to_host(solution.x.gather()), None, np.zeros(0, np.int32)
    if system is not None:
        x = x[np.argsort(system.order[1])]  # in the order of the file
        error, ranks = relative_error(x, system.truth), system.parts.astype(np.int32)
    error = comm.allgather_metadata(error)[0]
    ghosts = [int(count) for count in comm.allgather(np.array(len(problem.matrix.ghosts)))]
    condition, factor = _convergence(solution)
    rows = [
        ("system", f"{facts['name']}: {facts['rows']} x {facts['columns']}, {facts['entries']} entries"),
        ("method", f"{problem.method} ({solution.status.replace('_', ' ')})"),
    ]
    if condition is not None and factor is not None:
        text = f"condition number about {condition:.3g}, residual x {factor:.3g} per iteration"
        rows.append(("convergence", text if precondition == "none" else f"{precondition}: {text}"))
    if levels is not None:
        complexity = sum(entries for _, entries in levels) / max(1, levels[0][1])
        rows.append(("multigrid", f"{len(levels)} levels, {complexity:.3g} times the entries of the matrix"))
        if options.levels:
            rows += [(f"level {n}", f"{size} rows, {entries} entries") for n, (size, entries) in enumerate(levels)]
    if facts["cut"] is not None:
        text = f"{facts['cut']} pairs of rows cut, at most {max(ghosts)} values from other ranks"
        rows.append(("partition", f"{facts['partition']}: {text}"))
    return Findings(
        title="sparse system",
        solution=solution,
        subject="solution",
        adjoint="",
        numbers={
            "matrix": options.matrix,
            "rhs": options.rhs,
            "problem": facts["name"],
            "method": problem.method,
            "precondition": precondition,
            "levels": levels,
            "status": solution.status,
            "condition_number": condition,
            "convergence_factor": factor,
            "tol": _TOL if options.tol is None else options.tol,
            **{name: facts[name] for name in ("rows", "columns", "entries", "partition", "cut")},
            "rows_by_rank": list(facts["sizes"]),
            "ghosts_by_rank": ghosts,
        },
        rows=rows,
        fields={"solution": Field(x, ("column",), "1"), "rank": Field(ranks, ("row",), "1")},
        draw=lambda folder: [] if system is None else [draw(folder, system)],
        error=error,
        curve=f"{problem.method.upper()}, {facts['name']}",
    )


def _shortfall(options: Options, method: str, solution: Solution, residual: float, gradient: float) -> str | None:
    """Return a message if the requested tolerance was not reached, else None."""
    from collops.solvers import Status
    from collops.solvers.result import ROUNDING

    status = Status[solution.status.upper()]
    # A status of convergence to rounding errors does not imply the tolerance.
    if not options.tol or (status.successful and (status not in ROUNDING or min(residual, gradient) <= options.tol)):
        return None
    measure, reached = ("gradient", gradient) if method == "cgls" else ("residual", residual)
    remedy = ": raise --iterations, or --tol" if solution.status == "iteration_limit" else ""
    return (
        f"the tolerance {options.tol:g} was not reached in {len(solution.residuals) - 1} iterations "
        f"({solution.status.replace('_', ' ')}; the {measure} is {reached:.3g} relative to the right-hand side){remedy}"
    )


# The system


class System(NamedTuple):
    """The whole system, on the first rank, in the order of the file."""

    matrix: Any
    data: np.ndarray  # the right-hand side
    truth: np.ndarray | None  # the solution from which `data` was computed
    points: np.ndarray | None  # positions of the unknowns, if they have any
    name: str  # in the table and in JSON
    parts: np.ndarray  # the rank of each row
    order: tuple[np.ndarray, np.ndarray]  # rows and columns in the order of the ranks
    sizes: tuple[int, ...]  # rows of each rank
    # number of entries that couple rows of different ranks; None for a rectangular matrix, which keeps its order
    cut: int | None

    def triples(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows, columns and values of the entries, numbered in the order of the ranks."""
        matrix = self.matrix.tocoo()
        rows, columns = (np.argsort(order)[old] for order, old in zip(self.order, matrix.coords, strict=True))
        return rows, columns, matrix.data


class Problem(NamedTuple):
    """The system on all ranks."""

    matrix: CSRMatrix
    data: DistributedArray  # the right-hand side
    method: str  # ``"cg"``, ``"cgls"`` or ``"lsqr"``
    system: System | None  # on the first rank
    facts: dict[str, Any]  # see `_facts`; the same on every rank


def prepare(job: Job[Options]) -> Problem:
    """Read or synthesise the system on the first rank, order it, and distribute its rows. Collective."""
    from collops.array import Layout
    from collops.operators.csr import CSRMatrix

    options, comm = job.options, job.comm
    with job.stage("reading" if options.matrix else "generating the mesh"):
        ordering = options.partition
        if ordering is None:
            ordering = "metis" if importlib.util.find_spec("pymetis") is not None else "rows"
            ordering = comm.allgather_metadata(ordering)[0]
            if ordering == "rows" and comm.size > 1:
                job.listener.note("rows keep their order: pymetis is not installed (collops[metis])")
        system: System | None = None
        with local_stage(comm):
            if comm.rank == 0:
                system = _system(options, comm.size, ordering)
        facts = comm.allgather_metadata(None if system is None else _facts(system, ordering))[0]
        with raised_together():
            method = _method(options, facts)
        if facts["partition"] is None and options.partition == "metis":
            job.listener.warn("--partition metis has no effect: a matrix that is not square keeps its order")

    with job.stage("distributing the rows"):
        shape = facts["rows"], facts["columns"]
        rows = Layout.split(shape[0], comm.size, sizes=facts["sizes"])
        dtype = np.result_type(options.dtype, np.complex64) if facts["complex"] else np.dtype(options.dtype)
        nothing = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
        i, j, values = nothing if system is None else system.triples()
        matrix = CSRMatrix.from_coo(i, j, values.astype(dtype), shape, rows=rows, comm=comm)
        data = np.empty(0, dtype) if system is None else system.data[system.order[0]].astype(dtype)
        local_data = comm.scatterv(data, rows.sizes[0], out=np.empty(rows.local_size(comm.rank), dtype))
    return Problem(matrix, job.array(rows, local_data), method, system, facts)


def _chosen_preconditioner(job: Job[Options], facts: dict[str, Any]) -> str:
    """Return the name of the preconditioner; raise InputError if the matrix or the engine does not allow it."""
    name = job.options.precondition
    if name == "auto":
        name = "multigrid" if facts["m_matrix"] else "none"
        job.listener.note(
            f"preconditioner: {name} (the matrix is {'a' if facts['m_matrix'] else 'not a'} symmetric M-matrix)"
        )
    with raised_together():
        if name != "none" and facts["rows"] != facts["columns"]:
            raise InputError(f"--precondition {name} needs a square matrix: omit it")
        if name == "block-jacobi" and job.engine.memory != "host":
            raise InputError(f"--precondition {name} runs on the host only: use --engine numpy, or chebyshev")
        if name in ("chebyshev", "two-level", "multigrid") and not facts["symmetric"]:
            raise InputError(f"--precondition {name} needs a symmetric matrix: use jacobi or block-jacobi")
    return name


def _preconditioner(job: Job[Options], problem: Problem, name: str) -> LinearOperator | None:
    """Return the preconditioner of this name, or None. Collective."""
    from collops.preconditioners import block_jacobi, chebyshev, jacobi, multigrid, two_level

    makers: dict[str, Callable[[CSRMatrix], LinearOperator | None]] = {
        "none": lambda matrix: None,
        "jacobi": jacobi,
        "block-jacobi": block_jacobi,
        "chebyshev": lambda matrix: chebyshev(matrix, M=jacobi(matrix)),
        "two-level": two_level,
        "multigrid": lambda matrix: multigrid(matrix, engine=job.engine if job.engine.mutable else "numpy"),
    }
    with raised_together():
        return makers[name](problem.matrix)


def _levels(M: LinearOperator | None) -> list[tuple[int, int]] | None:
    """Return the numbers of rows and of entries of each level of multigrid; None for another preconditioner."""
    from collops.preconditioners import Multigrid

    return list(zip(M.rows, M.entries, strict=True)) if isinstance(M, Multigrid) else None


def _convergence(solution: Solution) -> tuple[float | None, float | None]:
    """Return an estimate of the condition number, and the mean reduction factor of the residual per iteration."""
    condition = float(solution.details["acond" if "acond" in solution.details else "condition"])
    first, *later = solution.residuals
    factor = float((later[-1] / first) ** (1 / len(later))) if later and first else None
    return condition if np.isfinite(condition) else None, factor


def _solver(problem: Problem, tol: float) -> tuple[Callable[..., SolverResult], dict[str, Any]]:
    """Return the solver and its tolerances."""
    from collops.solvers import cg, cgls, lsqr

    if problem.method == "lsqr":
        return lsqr, {"atol": tol, "btol": tol}
    return (cg, {"rtol": tol}) if problem.method == "cg" else (cgls, {"rtol": 0.0, "gtol": tol})


def _measured(problem: Problem, x: Array, M: LinearOperator | None) -> tuple[float, float]:
    """Return the norms of the residual and of the gradient of a solution, relative to the norms at zero. Collective.

    For CG, the gradient is the residual.
    """

    def norms(residual: Array) -> np.ndarray:
        gradient = residual if problem.method == "cg" else problem.matrix.adjoint(residual)
        if problem.method != "cg" and M is not None:
            gradient = M.adjoint(gradient)
        return np.array([float(residual.norm()), float(gradient.norm())])

    reached, first = norms(problem.data - problem.matrix.forward(x)), norms(problem.data)
    return tuple(np.divide(reached, first, out=np.zeros(2), where=first > 0).tolist())


def _system(options: Options, ranks: int, partition: str) -> System:
    from scipy import sparse

    from collops.array import Layout
    from collops.operators.csr import partition_rows
    from collops.operators.csr.market import read_matrix

    if options.matrix is None:
        mesh = poisson(options.points or _POINTS, options.seed)
        matrix, points, truth = mesh.matrix, mesh.points, mesh.solution
        name = f"Poisson problem, {len(points)} points, {mesh.tetrahedra} tetrahedra"
    else:
        matrix, points, truth = sparse.csr_array(read_matrix(options.matrix)), None, None
        name = Path(options.matrix).name
    rows, columns = matrix.shape
    if not rows or not columns:
        raise InputError(f"{options.matrix} must have rows and columns, not {rows} and {columns}")
    _check_finite(matrix.data, options.matrix)
    if options.rhs is not None:
        data = _read_rhs(options.rhs, rows)
        _check_finite(data, options.rhs)
    else:
        truth = np.ones(columns) if truth is None else truth
        data = matrix @ truth
        if level := (options.noise or 0.0) * float(np.sqrt(np.mean(np.abs(data) ** 2))):
            data = data + level * np.random.default_rng(options.seed).standard_normal(len(data))
    if rows == columns:
        parts, order, sizes, cut = partition_rows(matrix, ranks, partition)
        return System(matrix, data, truth, points, name, parts, (order, order), sizes, cut)
    sizes = Layout.split((rows,), ranks).sizes[0]
    parts, order = np.repeat(np.arange(ranks), sizes), (np.arange(rows), np.arange(columns))
    return System(matrix, data, truth, points, name, parts, order, sizes, None)


def _check_finite(values: np.ndarray, path: str | None) -> None:
    if not np.isfinite(values).all():
        raise InputError(f"{path} has infinite values or NaN: replace them with finite numbers")


def _read_rhs(path: str, rows: int) -> np.ndarray:
    from collops.operators.csr.market import read_matrix

    data = open_npy(Path(path)) if Path(path).suffix.lower() == ".npy" else read_matrix(path)
    if max(data.shape, default=0) != rows or math.prod(data.shape) != rows:
        raise InputError(f"{path} has the shape {data.shape}, but the matrix has {rows} rows")
    if data.dtype.kind not in "biufc":
        raise InputError(f"{path} has values of type {data.dtype}: save numbers")
    return np.array(data if isinstance(data, np.ndarray) else data.toarray()).reshape(-1)


def _facts(system: System, ordering: str) -> dict[str, Any]:
    matrix = system.matrix
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
        "definite": symmetric and _may_be_definite(matrix.tocoo()),
        "m_matrix": symmetric and _may_be_m_matrix(matrix.tocoo()),
        "complex": matrix.dtype.kind == "c" or system.data.dtype.kind == "c",
        "partition": None if system.cut is None else ordering,
        "sizes": list(system.sizes),
        "cut": system.cut,
    }


def _may_be_definite(matrix: Any) -> bool:
    """Return whether no diagonal block of one or two rows of a Hermitian matrix has a negative eigenvalue."""
    diagonal, (rows, columns) = matrix.diagonal().real.astype(np.float64), matrix.coords
    largest = (1 + 1e-12) * diagonal[rows] * diagonal[columns]
    return bool((diagonal >= 0).all() and (np.abs(matrix.data).astype(np.float64) ** 2 <= largest).all())


def _may_be_m_matrix(matrix: Any) -> bool:
    """Return whether a symmetric matrix is real, with a positive diagonal and no positive entry elsewhere.

    Such a matrix is an M-matrix if it is positive definite.
    """
    if matrix.dtype.kind == "c" or not _may_be_definite(matrix):
        return False
    rows, columns = matrix.coords
    return bool((matrix.diagonal() > 0).all() and (matrix.data[rows != columns] <= 0).all())


def _method(options: Options, facts: dict[str, Any]) -> str:
    if options.method == "cg" and not facts["symmetric"]:
        raise InputError("--method cg needs a symmetric matrix: use cgls or lsqr")
    return options.method or ("cg" if facts["definite"] else "lsqr")


# The synthetic mesh


class Mesh(NamedTuple):
    """A Poisson problem, and the positions of its unknowns."""

    matrix: Any  # symmetric and positive definite; the unknowns are the inner points
    points: np.ndarray  # positions of the unknowns, shape ``(unknowns, 3)``
    solution: np.ndarray  # a smooth function at the points
    tetrahedra: int  # number of elements


def poisson(count: int, seed: int) -> Mesh:
    r"""Discretise :math:`-\Delta u = f` in the unit cube, with :math:`u = 0` on its faces, by linear finite elements.

    The mesh has about `count` inner points at random positions.

    Notes
    -----
    The points of a lattice are moved at random by up to a third of its spacing, and numbered at random, as in meshes
    from files. Their Delaunay tetrahedra are the elements. The element matrix is :math:`V g_i \cdot g_j`, with the
    volume :math:`V` and the gradients :math:`g_i` of the four linear basis functions.
    """
    from scipy import sparse
    from scipy.spatial import Delaunay

    side = max(2, round(count ** (1 / 3)))
    lattice = np.stack(np.meshgrid(*(np.arange(side + 2),) * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    inner = np.logical_and(lattice > 0, lattice < side + 1).all(axis=1)
    rng = np.random.default_rng(seed)
    points = lattice.astype(np.float64)
    points[inner] += rng.uniform(-1 / 3, 1 / 3, (int(inner.sum()), 3))
    points /= side + 1
    shuffled = rng.permutation(len(points))
    points = points[shuffled]
    corners = np.asarray(Delaunay(points).simplices)
    edges = points[corners[:, 1:]] - points[corners[:, :1]]
    determinant = np.linalg.det(edges)
    solid = np.abs(determinant) > 1e-9 / (side + 1) ** 3  # without flat elements in the faces of the cube
    corners, edges, determinant = corners[solid], edges[solid], determinant[solid]
    gradients = np.empty((len(corners), 4, 3))
    gradients[:, 1:] = np.linalg.inv(edges).transpose(0, 2, 1)
    gradients[:, 0] = -gradients[:, 1:].sum(axis=1)
    local = np.einsum("eid,ejd,e->eij", gradients, gradients, np.abs(determinant) / 6)
    rows, columns = np.repeat(corners, 4, axis=1).reshape(-1), np.tile(corners, (1, 4)).reshape(-1)
    full = sparse.csr_array(sparse.coo_array((local.reshape(-1), (rows, columns)), shape=(len(points),) * 2))
    chosen = np.flatnonzero(inner.take(shuffled))
    matrix = sparse.csr_array(full[chosen][:, chosen])
    solution = np.sin(np.pi * points[chosen]).prod(axis=1)
    return Mesh(matrix, points[chosen], solution, len(corners))


# The figure


def draw(folder: Path, system: System) -> Path:
    """Draw the distribution of the unknowns and the sparsity pattern; return the path."""
    image = folder / "image.png"
    with figure(image, 2, (11.0, 5.0)) as (_, (left, right)):
        _draw_partition(left, system)
        _draw_sparsity(right, system)
    return image


def _draw_partition(axes: Axes, system: System) -> None:
    """Draw the unknowns at their positions, or by row number without positions, in the colours of their ranks."""
    import matplotlib as mpl

    rows, parts, ranks = system.matrix.shape[0], system.parts, len(system.sizes)
    colors = (
        mpl.colormaps["tab10"](np.arange(ranks)) if ranks <= 10 else mpl.colormaps["turbo"](np.linspace(0, 1, ranks))
    )
    if system.points is None:
        shown = np.linspace(0, rows - 1, min(rows, _MAX_POINTS)).astype(int)
        axes.scatter(shown, parts[shown], c=colors[parts[shown]], s=4, linewidths=0)
        axes.set(xlabel="row, as in the file", ylabel="rank", title="Rows by rank")
        axes.set_yticks(range(ranks) if ranks <= 16 else range(0, ranks, ranks // 8))
    else:
        # Draw only a slab through the middle: points at the surface would hide all others.
        near = np.abs(system.points[:, 2] - 0.5)
        shown = np.argsort(near)[: min(_MAX_POINTS, max(200, len(near) // 4))]
        axes.scatter(*system.points[shown, :2].T, c=colors[parts[shown]], s=10, linewidths=0)
        axes.set(xlabel="x", ylabel="y", title="Unknowns by rank, in a slab through the middle")
        axes.set_aspect("equal")


def _draw_sparsity(axes: Axes, system: System) -> None:
    """Draw the density of entries in the order of ranks, with lines between ranks."""
    rows, columns, _ = system.triples()
    extents = [max(1, extent) for extent in system.matrix.shape]
    bins = [min(_CELLS, extent) for extent in extents]
    counts, *_ = np.histogram2d(rows, columns, bins=bins, range=[[0, extents[0]], [0, extents[1]]])
    axes.imshow(
        np.log1p(counts),
        cmap="Blues",
        extent=(0, extents[1], extents[0], 0),
        aspect="auto" if extents[0] != extents[1] else "equal",
        interpolation="nearest",
    )
    for row in np.cumsum(system.sizes)[:-1]:
        axes.axhline(row, color="#c8553d", lw=0.8)
        if system.cut is not None:
            axes.axvline(row, color="#c8553d", lw=0.8)
    ranks = len(system.sizes)
    axes.set(xlabel="column", ylabel="row", title=f"Entries, {ranks} {'ranks' if ranks > 1 else 'rank'}")
