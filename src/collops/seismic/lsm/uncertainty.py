"""The standard deviation of a migrated image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collops.errors import InputError
from collops.extend.applications import interruption

if TYPE_CHECKING:
    from collops.extend.applications import Job
    from collops.seismic.lsm.problem import Options

_ITERATIONS = 100


class Uncertainty(NamedTuple):
    """The standard deviation of each point of an image, and what it was found from."""

    deviation: np.ndarray
    noise: float  # standard deviation of the samples of the traces
    prior: float  # standard deviation of the reflectivity
    iterations: int


def uncertainty(
    job: Job[Options],
    count: int,
    operator: Any,
    image: np.ndarray,
    residual: float,
    counted: int,
    damp: float,
    root: Any = None,
) -> Uncertainty:
    """Find the standard deviation of the image from `count` samples of the posterior. Collective.

    The noise is as strong as the residual, of which the norm and this rank's number of samples that count are given.
    The reflectivity is as strong as `damp` says, or as the image. Both are white. `root` is the preconditioner of the
    migration, a Hermitian approximation of the inverse root of its normal operator. Its square preconditions the
    samples: conjugate gradients do not depend on the scale of a preconditioner, and it does not change the posterior.
    A signal that asks the job to end also ends the samples, so that the image is written in time.

    Raises
    ------
    InputError
        If the residual or the image is zero.
    """
    from collops import DistributedArray, Status
    from collops.extend.solvers import GaussianPosterior

    samples = float(job.comm.allreduce(np.array(float(counted))))
    noise = residual / np.sqrt(samples) if samples else 0.0
    prior = noise / damp if damp else float(np.sqrt(np.mean(np.square(image, dtype=np.float64))))
    if not noise or not prior:
        raise InputError("--uncertainty compares the image with the residual, and one of them is zero")

    def ended(*_: Any) -> bool:
        return bool(job.comm.allreduce(np.array(int(interruption.received())), "max"))

    with job.stage(f"drawing {count} samples of the posterior"):
        run = {"niter": _ITERATIONS, "seed": job.options.seed, "progress": job.listener.live}
        run["callback"] = ended
        run["M"] = None if root is None else root @ root
        posterior = GaussianPosterior(operator, noise=noise, prior=prior)
        found = posterior.samples(count, dtype=job.options.dtype, engine=job.engine.name, **run)
    if not found.status.successful:
        early = "were ended by a signal" if found.status is Status.STOPPED else "have not converged"
        job.listener.warn(f"the samples of the posterior {early}: the standard deviation is too large")
    variance = np.mean(np.square(job.on_host(found.x), dtype=np.float64), axis=0)
    variance = DistributedArray(operator.domain, job.comm, variance).gather()
    return Uncertainty(np.sqrt(variance), noise, prior, found.iterations)
