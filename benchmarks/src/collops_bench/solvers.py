"""Krylov methods on sparse matrices of 200,000 rows, against PETSc's with the same preconditioner.

The matrices are finite differences on a box of 80 x 50 x 50 points: Poisson's equation; an anisotropic one, whose
coefficients along the three axes are 1, 0.1 and 0.01; and convection with diffusion, which is unsymmetric. Right-hand
sides are products with random vectors. Both programs solve until the residual is 1e-8 of the first; the figure
``iterations`` is how many they need, and the clock ``wall`` the cost of one more. Both begin at zero and
stop by the norm of the residual itself, so that iterations differ by rounding only.

The last measurement is of whole solutions to 1e-12, by CG in double precision and by CG in single precision with
flexible GMRES around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.array import Array, DistributedArray, random
from collops.errors import CollopsError
from collops.operators import CSRMatrix
from collops.preconditioners import chebyshev, inner_solve, jacobi
from collops.solvers import bicgstab, cg, gmres
from collops_bench.peers import why_no_petsc
from collops_bench.record import Check, Measurement, check
from collops_bench.registry import Context
from collops_bench.shared import messages_of_an_iteration
from collops_bench.timing import Plan, interleave, interleave_iterations

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["box_rows", "measure"]

PETSC = "PETSc"
REFINED = "PETSc, basis as orthonormal as ours"
_RTOL, _MAX_ITERATIONS = 1e-8, 2000
_DEGREE = 3  # of the Chebyshev polynomial
_IN_WORDS = {"none": "no preconditioner", "jacobi": "Jacobi", "chebyshev": "Chebyshev"}
_SAME = 2  # iterations by which programs may differ
_METHODS: dict[str, tuple[Callable[..., Any], str, dict[str, Any]]] = {
    "CG": (cg, "cg", {}),
    "GMRES(30)": (gmres, "gmres", {}),
    "BiCGStab": (bicgstab, "bcgs", {}),
}


@dataclass(frozen=True)
class _Case:
    """A matrix by the coefficients of its second and first derivatives along each axis, and how to solve with it."""

    matrix: str
    diffusion: tuple[float, float, float]
    convection: tuple[float, float, float]
    method: str
    precondition: str  # "none", "jacobi" or "chebyshev"

    @property
    def name(self) -> str:
        return f"{self.method} with {self.precondition}, {self.matrix}"


_STILL = (0.0, 0.0, 0.0)
_CASES = (
    *(_Case("Poisson", (1.0, 1.0, 1.0), _STILL, "CG", choice) for choice in ("none", "jacobi", "chebyshev")),
    *(_Case("anisotropic", (1.0, 0.1, 0.01), _STILL, "CG", choice) for choice in ("jacobi", "chebyshev")),
    *(
        _Case("convection and diffusion", (1.0, 1.0, 1.0), (0.8, 0.5, 0.3), choice, "jacobi")
        for choice in ("GMRES(30)", "BiCGStab")
    ),
)


def measure(context: Context) -> Iterator[Measurement]:
    """Yield one measurement for each matrix, method and preconditioner, and one of single precision, refined."""
    obstacle = why_no_petsc(context)
    for case in _CASES:
        yield _measure(context, case, obstacle)
    yield _refined(context)


def box_rows(
    shape: tuple[int, int, int],
    diffusion: tuple[float, float, float],
    convection: tuple[float, float, float],
    rows: slice,
) -> Any:
    """Return rows of a matrix of central differences on a box, zero around it, as a SciPy array.

    Along each axis the stencil is -d - c, 2 d, -d + c with the coefficients d and c of diffusion and convection.
    """
    from scipy import sparse

    total = sparse.csr_array((int(np.prod(shape)),) * 2)
    for axis, (extent, d, c) in enumerate(zip(shape, diffusion, convection, strict=True)):
        line = sparse.diags_array(np.array([-d - c, 2 * d, -d + c]), offsets=[-1, 0, 1], shape=(extent, extent))
        before, after = int(np.prod(shape[:axis])), int(np.prod(shape[axis + 1 :]))
        total += sparse.kron(sparse.kron(sparse.eye_array(before), line), sparse.eye_array(after), format="csr")
    return sparse.csr_array(total)[rows]


def _local_rows(case: _Case, quick: bool, comm: Communicator) -> Any:
    """Return this rank's share of the rows of a case."""
    shape = (8, 6, 5) if quick else (80, 50, 50)
    size = int(np.prod(shape))
    first, last = (size * rank // comm.size for rank in (comm.rank, comm.rank + 1))
    return box_rows(shape, case.diffusion, case.convection, slice(first, last))


def _measure(context: Context, case: _Case, obstacle: str | None) -> Measurement:
    comm, quick = context.comm, context.options.quick
    local = _local_rows(case, quick, comm)
    A = CSRMatrix(local, comm=comm)
    truth = random(A.domain, seed=1, comm=comm, engine=context.engine.name)
    y = A @ truth
    M = {"none": lambda: None, "jacobi": lambda: jacobi(A), "chebyshev": lambda: chebyshev(A, _DEGREE, M=jacobi(A))}[
        case.precondition
    ]()
    programs: dict[str, _Program] = {"collops": _ours(case, A, y, M)}
    missing = {} if obstacle is None else {PETSC: obstacle}
    if obstacle is None:
        programs[PETSC] = _petsc(case, local, y, getattr(M, "bounds", None))
        if case.method == "GMRES(30)":
            programs[REFINED] = _petsc(case, local, y, None, refined=True)
    result = {name: solve(_MAX_ITERATIONS, _RTOL) for name, solve in programs.items()}
    checks = [_right(context, name, x, truth) for name, (x, _) in result.items()]
    counts = {name: iterations for name, (_, iterations) in result.items()}
    if PETSC in counts:
        gap = float(abs(counts[PETSC] - counts["collops"]))
        checks.append(check(comm, f"iterations of {case.name} against {PETSC}'s", gap, float(_SAME)))
    # Fewer than either needs: beyond convergence programs would do different work.
    long = max(2, min(counts.values()) - 1)
    short = max(1, long // 5)
    solvers = {name: _exactly(name, solve) for name, solve in programs.items()}
    timings = interleave_iterations(
        solvers, comm, context.engine, Plan(rounds=3 if quick else 9), short=short, long=long
    )
    return Measurement(
        case.name,
        {"rows": A.shape[0], "entries": int(comm.allreduce(np.array(local.nnz))), "iterations": [short, long]},
        timings,
        missing,
        peer=PETSC,
        checks=checks,
        figures={name: {"iterations": float(count)} for name, count in counts.items()},
        messages=messages_of_an_iteration(solvers["collops"]) if long >= 10 else None,
        headline=f"{case.method} iteration, {_IN_WORDS[case.precondition]}, {case.matrix}, {A.shape[0]:,} rows",
    )


def _refined(context: Context) -> Measurement:
    """Measure whole solutions to 1e-12, in double precision and by corrections in single precision."""
    comm, quick = context.comm, context.options.quick
    case = _CASES[0]
    A = CSRMatrix(_local_rows(case, quick, comm), comm=comm)
    single = CSRMatrix(_local_rows(case, quick, comm).astype(np.float32), comm=comm)
    truth = random(A.domain, seed=1, comm=comm, engine=context.engine.name)
    y, M = A @ truth, inner_solve(single, cg, niter=_MAX_ITERATIONS, rtol=1e-4)
    programs: dict[str, Callable[[], Any]] = {
        "collops, double precision": lambda: cg(A, y, niter=_MAX_ITERATIONS, rtol=1e-12, progress=False).x.local_array,
        "collops": lambda: gmres(A, y, M=M, flexible=True, restart=10, rtol=1e-12, progress=False).x.local_array,
    }
    return Measurement(
        "CG in single precision, refined, Poisson",
        {"rows": A.shape[0], "rtol": 1e-12},
        interleave(programs, comm, context.engine, Plan(rounds=3 if quick else 9)),
        peer="collops, double precision",
        checks=[_right(context, name, solve(), truth, 1e-9) for name, solve in programs.items()],
    )


_Program = Callable[[int, float], tuple[Any, int]]  # from iterations at most and a tolerance to solution and iterations


def _ours(case: _Case, A: CSRMatrix, y: DistributedArray, M: Any) -> _Program:
    method, _, options = _METHODS[case.method]

    def solve(iterations: int, rtol: float) -> tuple[Any, int]:
        result = method(A, y, M=M, niter=iterations, rtol=rtol, progress=False, verify=False, **options)
        return result.x.local_array, result.iterations

    return solve


def _petsc(
    case: _Case, local: Any, y: DistributedArray, bounds: tuple[float, float] | None, refined: bool = False
) -> _Program:
    from petsc4py import PETSc  # pyright: ignore[reportAttributeAccessIssue]

    sizes = (local.shape[0], None), (local.shape[0], None)
    entries = local.indptr.astype(PETSc.IntType), local.indices.astype(PETSc.IntType), local.data
    matrix = PETSc.Mat().createAIJ(sizes, csr=entries, comm=PETSc.COMM_WORLD)
    x, b = matrix.createVecs()
    b.array[:] = y.local_array
    solver = PETSc.KSP().create(PETSc.COMM_WORLD)
    solver.setOperators(matrix)
    solver.setType(_METHODS[case.method][1])
    if case.method != "CG":
        solver.setPCSide(PETSc.PC.Side.RIGHT)
    solver.setNormType(PETSc.KSP.NormType.UNPRECONDITIONED)
    if refined:  # as without options, a single pass of the classical Gram-Schmidt method
        solver.setOptionsPrefix("refined_")
        PETSc.Options()["refined_ksp_gmres_cgs_refinement_type"] = "refine_always"
        solver.setFromOptions()
    solver.pc.setType("ksp" if case.precondition == "chebyshev" else case.precondition)
    if bounds is not None:
        options, inner = PETSc.Options(), solver.pc.getKSP()
        inner.setOptionsPrefix("inner_")
        options["inner_ksp_chebyshev_eigenvalues"] = f"{bounds[0]!r},{bounds[1]!r}"
        inner.setType("chebyshev")
        inner.setFromOptions()
        inner.setTolerances(max_it=_DEGREE + 1)
        inner.setNormType(PETSc.KSP.NormType.NONE)
        inner.pc.setType("jacobi")

    def solve(iterations: int, rtol: float) -> tuple[Any, int]:
        solver.setTolerances(rtol=rtol or 1e-50, atol=1e-50, max_it=iterations)
        x.set(0)
        solver.solve(b, x)
        return x.array, solver.getIterationNumber()

    return solve


def _exactly(name: str, solve: _Program) -> Callable[[int], Any]:
    """Return a function of a number of iterations that takes exactly this number: fewer could not be compared."""

    def run(iterations: int) -> Any:
        x, done = solve(iterations, 0.0)
        if done != iterations:
            raise CollopsError(f"{name} stopped after {done} of {iterations} iterations")
        return x

    return run


def _right(context: Context, name: str, x: Any, truth: Array, tolerance: float = 1e-4) -> Check:
    """Check a solution against the vector from which the right-hand side was made."""
    error = context.engine.to_host(x) - context.engine.to_host(truth.local_array)
    scale = float(truth.norm(np.inf))
    return check(context.comm, f"solution by {name}", float(abs(error).max(initial=0.0)) / scale, tolerance)
