"""The inversion of a migration: choose weight and iterations, minimise, and keep the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from collops.extend.applications import Gradient, Job, Solution
from collops.seismic.lsm.regularisation import TRIED, Penalty

if TYPE_CHECKING:
    from collops import DistributedArray, LinearOperator, SolverResult
    from collops.extend.arrays import Array
    from collops.seismic.lsm.options import Options

ITERATIONS = 30
"""Iterations with --damp, and the maximum if held-out traces determine their number."""

_PATIENCE = 5  # iterations without a better prediction of held-out traces, after which the search ends


@dataclass(frozen=True)
class Migration:
    """The result of a migration; images have the shape of the grid."""

    image: np.ndarray  # the least-squares image
    adjoint: np.ndarray  # the adjoint image
    adjoint_scale: float  # the scale factor with which the adjoint image fits the data best
    solution: Solution  # of the solver
    damp: float  # of the solution; not relative to the operator's norm
    weight: float | None  # of the regularisation
    # with held-out traces: their relative residual norm before the first iteration and after each
    shares: np.ndarray | None


def invert(
    job: Job[Options],
    operator: LinearOperator,
    traces: list[np.ndarray],
    held: list[np.ndarray] | None = None,
    more_bytes: int = 0,
    preconditioner: LinearOperator | None = None,
) -> Migration:
    r"""Find the image :math:`m` that minimises :math:`\|d - A m\|^2 + (\epsilon \|A\|)^2 \|m\|^2`. Collective.

    :math:`d` are the traces, one array per shot of this rank, and :math:`\epsilon` is the option damp. The norm of the
    operator :math:`A` is estimated from below (`Gradient`). `Penalty` has the terms of the option regularise.

    The number of iterations is the option; or, if `held` has masks of held-out traces, the number after which an image
    of the other traces predicts them best. The weight of the penalty is chosen likewise. The amplitudes of a Kirchhoff
    operator differ from recorded amplitudes, so that its residual stays above the noise, and is as coherent as ground
    roll or multiples. Therefore neither the discrepancy principle nor criteria for white noise apply; prediction of
    held-out shots does.
    """
    from collops.extend.solvers import cross_validate

    data = vector(job, operator, traces)
    penalty = Penalty(job.options.regularise, job, operator, Gradient.from_data(operator, data))
    choose = None
    if held is not None:
        parts = [np.broadcast_to(mask[:, None], shot.shape) for mask, shot in zip(held, traces, strict=True)]
        choose = partial(cross_validate, operator, data, vector(job, operator, parts))
    return minimised(penalty, penalty.method, data, preconditioner, choose, more_bytes)


def minimised(
    penalty: Penalty,
    form: Callable[..., Callable[..., SolverResult]],
    right: Array,
    preconditioner: LinearOperator | None,
    shares_of: Callable[..., np.ndarray] | None,
    more_bytes: int,
) -> Migration:
    """Choose iterations and weight, with held-out traces if `shares_of` returns their misfits, and solve. Collective.

    `form` is the method or the normal method of the penalty, and `right` the data or the adjoint of the data.
    """
    job, options, gradient = penalty.job, penalty.job.options, penalty.gradient
    damp = (options.damp or 0.0) * gradient.norm
    # The images of result.zarr, at most float64, and their sections on the page.
    writes = 2 * 4 * 8 * penalty.operator.domain.size + more_bytes
    niter, weight, shares = options.iterations or ITERATIONS, options.weight, None
    if shares_of is not None:
        with job.stage("choosing the number of iterations" if penalty.kind is None else "choosing the regularisation"):
            # With --iterations, compare the images after the last iteration.
            run = {"patience": _PATIENCE if options.iterations is None else niter, "progress": job.listener.live}
            tried = {
                candidate: shares_of(method=form(candidate or 0.0, damp, preconditioner), niter=niter, **run)
                for candidate in (TRIED if penalty.kind and weight is None else (weight,))
            }
        best = min if options.iterations is None else lambda norms: norms[-1]
        weight, shares = min(tried.items(), key=lambda trial: best(trial[1]))
        if options.iterations is None and options.damp is None:
            niter = max(1, int(shares.argmin()))
    method = form(weight or 0.0, damp, preconditioner)
    solution = job.solve(method, penalty.operator, right, writes=writes, niter=niter)
    solution = replace(solution, residuals=penalty.residuals(solution))
    adjoint = job.gather(gradient.x)
    return Migration(job.gather(solution.x), adjoint, gradient.step, solution, damp, weight, shares)


def vector(job: Job[Options], operator: LinearOperator, parts: list[np.ndarray]) -> DistributedArray:
    """Return a vector in the range of the operator from one array per shot of this rank."""
    flat = np.concatenate([np.empty(0), *(part.ravel() for part in parts)], dtype=job.options.dtype)
    return job.array(operator.range, flat)
