"""64 samples of the posterior of a migration, and the solution for its mean.

The image has 121 x 81 points, the survey 20 shots, 61 receivers and 400 samples of 4 ms, as in the benchmark ``lsm``.
The noise is a tenth of the data. The mean and the samples are solved to 1e-3; the samples also with a preconditioner of
local spectra, whose computation counts. The figure ``solutions`` is the time in solutions for the mean.

The mean is checked by its normal equations. With the inverse covariance H, a sample s of n numbers has
:math:`s^T H s / n = 1` on average. In the directions in which they have not converged samples vary as the prior does:
to 1e-3 this number is about 1.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from collops.array import DistributedArray, random
from collops.operators import Columns, Identity, LinearOperator
from collops.preconditioners import local_spectra
from collops.solvers import SolverResult
from collops.uncertainty import GaussianPosterior
from collops_bench.lsm import Problem
from collops_bench.record import Measurement, check
from collops_bench.registry import Context
from collops_bench.timing import Plan, interleave

__all__ = ["measure"]

_MEAN = "mean"
_RTOL, _MAX_ITERATIONS = 1e-3, 500  # of the solutions
_NOISE = 0.1  # of the data, by their norms
_LARGEST_ERROR_OF_SAMPLES = 0.2


@dataclass(frozen=True)
class _Work:
    """A posterior with its data, and how many samples to draw."""

    operator: LinearOperator
    data: DistributedArray
    noise: float
    posterior: GaussianPosterior
    inverse: LinearOperator  # of the covariance
    count: int
    engine: str

    @classmethod
    def create(cls, context: Context, problem: Problem, count: int) -> _Work:
        """Return the work for a survey. Collective."""
        A, name = problem.operator(context), context.engine.name
        domain: Any = A.domain  # one layout, not a stack of them
        x = problem.model(context, A)
        y = A @ x
        noise, prior = (factor * float(z.norm()) / z.layout.size**0.5 for factor, z in ((_NOISE, y), (1.0, x)))
        y = y + noise * random(A.range, seed=2, comm=context.comm, dtype=y.dtype, engine=name)
        posterior = GaussianPosterior(A, noise=noise, prior=prior)
        inverse = posterior.hessian + posterior.damp * Identity(domain, comm=context.comm)
        return cls(A, y, noise, posterior, inverse, count, name)

    def mean(self) -> SolverResult:
        return self.posterior.mean(self.data, niter=_MAX_ITERATIONS, rtol=_RTOL)

    def samples(self, preconditioned: bool) -> SolverResult:
        options = {"niter": _MAX_ITERATIONS, "rtol": _RTOL, "dtype": self.data.dtype, "engine": self.engine}
        if preconditioned:
            root = local_spectra(self.inverse, engine=self.engine)
            options["M"] = root @ root
        return self.posterior.samples(self.count, **options)

    def error_of_mean(self, x: Any) -> float:
        """Return the residual of the normal equations, relative to their right-hand side."""
        right = self.operator.H @ (self.noise**-2 * self.data)
        return float((self.inverse @ x - right).norm()) / float(right.norm())

    def error_of_samples(self, block: Any) -> float:
        """Return by how much their mean square, in units of the covariance, differs from 1."""
        squares = [float(s.dot(self.inverse @ s)) / s.layout.size for s in Columns.split(block)]
        return abs(float(np.mean(squares)) - 1)


def measure(context: Context) -> Iterator[Measurement]:
    """Yield one measurement."""
    quick = context.options.quick
    problem = Problem(41, 30, 6, 5, 301, "float32") if quick else Problem(121, 81, 20, 61, 400, "float32")
    work = _Work.create(context, problem, 8 if quick else 64)
    samples = f"{work.count} samples"
    programs: dict[str, Callable[[], SolverResult]] = {
        _MEAN: work.mean,
        samples: lambda: work.samples(False),
        f"{samples}, preconditioned": lambda: work.samples(True),
    }
    checks, iterations = [], {}
    for name, program in programs.items():
        result = program()
        iterations[name] = result.iterations
        error = (work.error_of_mean if name == _MEAN else work.error_of_samples)(result.x)
        tolerance = 10 * _RTOL if name == _MEAN else _LARGEST_ERROR_OF_SAMPLES
        checks.append(check(context.comm, f"{name} of the posterior", error, tolerance))
    timings = interleave(programs, context.comm, context.engine, Plan(rounds=3, seconds=0.01))
    seconds_of_mean = timings[_MEAN].wall.median
    figures = {
        name: {"solutions": timing.wall.median / seconds_of_mean, "iterations": float(iterations[name])}
        for name, timing in timings.items()
    }
    yield Measurement(
        "samples of a posterior", problem.parameters, timings, ours=samples, checks=checks, figures=figures
    )
