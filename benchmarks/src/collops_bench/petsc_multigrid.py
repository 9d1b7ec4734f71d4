"""PETSc's multigrid in an interpreter of its own: ``python petsc_multigrid.py POINTS SIDE KIND...`` prints JSON.

Debian's petsc4py needs another NumPy than collops, so that this file imports neither collops nor its package. Under
``mpiexec`` all ranks run it. Each kind, ``gamg`` or ``hypre``, sets up and solves twice with PETSc's defaults, and the
second time counts. Without a kind it prints the version of PETSc.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
from scipy import sparse


def stencil_rows(points: int, side: int, first: int, end: int) -> Any:
    """Return rows of Poisson's matrix of 7 or 27 points on a cube, zero around it, as a CSR matrix of SciPy."""
    plane = side * side
    begin, stop = first // plane, -(-end // plane)  # the planes that have these rows
    near = sparse.diags([1.0, 1.0, 1.0], [-1, 0, 1], shape=(side, side)).tocsr()
    one = sparse.identity(side, format="csr")
    if points == 27:
        within = beside = sparse.kron(near, near, "csr")
    else:
        within = sparse.kron(near, one, "csr") + sparse.kron(one, near, "csr") - sparse.identity(plane, format="csr")
        beside = sparse.identity(plane, format="csr")
    # All planes but the first and the last have the same rows, with other columns: they are copied.
    kinds: dict[tuple[bool, bool], Any] = {}
    wide = side**3 > np.iinfo(np.int32).max
    indices, lengths = [], []
    for number in range(begin, stop):
        kind = number > 0, number < side - 1
        if kind not in kinds:
            blocks = [beside if kind[0] else None, within, beside if kind[1] else None]
            rows = sparse.hstack([block for block in blocks if block is not None], format="csr")
            rows.sort_indices()
            kinds[kind] = rows.indices.astype(np.int64 if wide else np.int32), np.diff(rows.indptr)
        columns, counts = kinds[kind]
        indices.append(columns + columns.dtype.type((number - kind[0]) * plane))
        lengths.append(counts)
    starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths or [np.zeros(0, int)]))])
    chosen = slice(first - begin * plane, end - begin * plane + 1)
    columns = np.concatenate(indices or [np.zeros(0, np.int32)])[starts[chosen][0] : starts[chosen][-1]]
    starts = starts[chosen] - starts[chosen][0]
    values = np.full(len(columns), -1.0)
    values[columns == np.repeat(np.arange(first, end, dtype=columns.dtype), np.diff(starts))] = points - 1.0
    rows = sparse.csr_matrix((values, columns, starts), shape=(end - first, side**3))
    rows.has_canonical_format = True
    return rows


def right_side(side: int, first: int, end: int) -> Any:
    """Return rows of the right-hand side."""
    return np.random.default_rng(1).standard_normal(side**3)[first:end]


def main(arguments: list[str]) -> None:
    """Print the times of each kind, in seconds, its iterations, and the norm of the residual over the first one."""
    import petsc4py

    petsc4py.init([sys.argv[0]])
    from petsc4py import PETSc  # pyright: ignore[reportAttributeAccessIssue]

    comm = PETSc.COMM_WORLD
    found: dict[str, Any] = {"version": ".".join(map(str, PETSc.Sys.getVersion()))}
    if arguments:
        points, side = map(int, arguments[:2])
        first, end = (side**3 * rank // comm.size for rank in (comm.rank, comm.rank + 1))
        rows = stencil_rows(points, side, first, end)
        entries = rows.indptr.astype(PETSc.IntType), rows.indices.astype(PETSc.IntType), rows.data
        A = PETSc.Mat().createAIJ(((end - first, side**3),) * 2, csr=entries, comm=comm)
        b = A.createVecLeft()
        b.array[:] = right_side(side, first, end)
        for kind in arguments[2:]:
            for _ in range(2):
                found[kind] = _solved(PETSc, A, b, kind)
    if comm.rank == 0:
        print(json.dumps(found))


def _solved(PETSc: Any, A: Any, b: Any, kind: str) -> dict[str, float]:
    solver = PETSc.KSP().create(A.comm)
    solver.setOperators(A)
    solver.setType("cg")
    solver.setNormType(PETSc.KSP.NormType.UNPRECONDITIONED)
    solver.setTolerances(rtol=1e-8, max_it=200)
    solver.pc.setType(kind)
    x, residual = A.createVecs()
    A.comm.barrier()
    begin = time.perf_counter()
    solver.setUp()
    A.comm.barrier()
    between = time.perf_counter()
    solver.solve(b, x)
    A.comm.barrier()
    end = time.perf_counter()
    A.mult(x, residual)
    residual.aypx(-1.0, b)
    found = {
        "set-up": between - begin,
        "solution": end - between,
        "iterations": float(solver.getIterationNumber()),
        "residual": residual.norm() / b.norm(),
    }
    solver.destroy()
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
