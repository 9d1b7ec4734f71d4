"""Proximal operators and methods of both packages: each case returns its results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pylops

from tests.compat.operator_cases import Built, block_diag
from tests.compat.sides import Side, pyproximal
from tests.compat.solver_cases import seen


def prox(s: Side, name: str) -> Any:
    return s.get(f"proximal.{name}")


def local_prox(s: Side) -> Any:
    f, x = prox(s, "MPIProxOperator")(pyproximal.L1(0.3)), s.vector(11)
    y = s.stacked(x, s.vector(9, seed=3))
    moved = f.precomposition(2.0, s.vector(11, seed=2))
    scaled = f.postcomposition(3.0)
    # PyLops-MPI's NCCL has no booleans, which the value of a box is.
    box = [prox(s, "MPIProxOperator")(pyproximal.Box(-2.0, 2.0))(x)] if s.nccl is None else []
    return [
        *(g(x) for g in (f, scaled, moved)),
        *(g.prox(x, 0.5) for g in (f, scaled, moved)),
        [f(y), f.prox(y, 0.5), f.proxdual(x, 0.5), f.proxdual(y, 0.5)],
        *box,
    ]


def quadratic(s: Side) -> Any:
    x, b, q = (s.vector(11, seed=seed) for seed in (1, 2, 3))
    L2 = prox(s, "MPIL2")
    results = []
    for f in (L2(), L2(b=b, sigma=3.0), L2(b=b, q=q, alpha=0.5), L2(q=q, qgrad=False)):
        results.append([f(x), f.grad(x), f.prox(x.copy(), 0.5)])
    return results


def misfit(s: Side, solver: str = "cgls") -> Built:
    op, truth = block_diag(s)
    options = {"sigma": 2.0, "x0": truth.zeros_like(), "niter": 4, "kwargs_solver": {"tol": 0.0}}
    return prox(s, "MPIL2")(op, op @ truth, solver=solver, **options), truth


def misfit_prox(s: Side, solver: str) -> Any:
    f, x = misfit(s, solver)
    return [f(2 * x), f.grad(2 * x), f.prox(2 * x, 0.1), f.prox(3 * x, 0.1)]


def lengths(s: Side) -> Any:
    f, x = prox(s, "MPIL21")(ndim=2, sigma=0.7), s.stacked(s.vector(11, seed=1), s.vector(11, seed=2))
    return [f(x), f.prox(x, 0.5), f.proxdual(x, 0.5), f.sum_squared(x)]


def sparse_misfit(s: Side) -> tuple[Any, ...]:
    f, x = misfit(s)
    return f, prox(s, "MPIProxOperator")(pyproximal.L1(0.3)), x


def proximal_gradient(s: Side, **options: Any) -> Any:
    f, g, x = sparse_misfit(s)
    return seen(prox(s, "optimization.ProximalGradient"), f, g, x.zeros_like(), tau=1e-3, niter=6, **options)


def identity(s: Side, x: Any) -> Any:
    return s.pkg.MPIBlockDiag([pylops.Identity(int(x.local_shape[0]), dtype=s.dtype)])


def admm(s: Side, **options: Any) -> Any:
    f, g, x = sparse_misfit(s)
    options |= {"tau": 0.5, "niter": 3, "kwargs_solver": {"niter": 4, "tol": 0.0}}
    return seen(prox(s, "optimization.ADMML2"), g, f.Op, f.b, identity(s, x), x.zeros_like(), **options)


def primal_dual(s: Side, **options: Any) -> Any:
    f, g, x = sparse_misfit(s)
    zero = x.zeros_like()
    return seen(
        prox(s, "optimization.PrimalDual"), f, g, identity(s, x), zero, zero.copy(), 0.9, 0.9, niter=3, **options
    )


PROXIMAL: dict[str, Callable[[Side], Any]] = {
    "L1 of PyProximal": local_prox,
    "L2": quadratic,
    "L2 with an operator": lambda s: misfit_prox(s, "cgls"),
    "L2 with an operator, cg": lambda s: misfit_prox(s, "cg"),
    "L21": lengths,
    "proximal gradient": proximal_gradient,
    "proximal gradient, Vandenberghe": lambda s: proximal_gradient(s, acceleration="vandenberghe"),
    "proximal gradient, FISTA": lambda s: proximal_gradient(s, acceleration="fista"),
    "proximal gradient, under-relaxed": lambda s: proximal_gradient(s, eta=0.5),
    "ADMM": admm,
    "primal-dual": primal_dual,
    "primal-dual, both": lambda s: primal_dual(s, returny=True, gfirst=False, callbacky=True),
}
