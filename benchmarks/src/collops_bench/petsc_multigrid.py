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
        neighbours = sparse.kron(near[begin:stop], sparse.kron(near, near, "csr"), "csr")
    else:
        within = sparse.kron(near, one, "csr") + sparse.kron(one, near, "csr") - sparse.identity(plane, format="csr")
        neighbours = sparse.kron(one[begin:stop], within, "csr") + sparse.kron(
            near[begin:stop] - one[begin:stop], sparse.identity(plane, format="csr"), "csr"
        )
    rows = sparse.csr_matrix(neighbours[first - begin * plane : end - begin * plane])
    rows.sum_duplicates()
    rows.data[:] = -1.0
    own = np.repeat(np.arange(first, end), np.diff(rows.indptr)) == rows.indices
    rows.data[own] = points - 1.0
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
