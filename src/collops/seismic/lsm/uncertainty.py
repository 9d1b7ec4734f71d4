"""The standard deviation of a migrated image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collops.errors import InputError
from collops.extend.applications import interruption

if TYPE_CHECKING:
    from collops.extend.applications import Job
    from collops.seismic.lsm.options import Options

_ITERATIONS = 100


class Uncertainty(NamedTuple):
    """The standard deviation of each point of an image, and the parameters of the posterior."""

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
    """Estimate the standard deviation of the image from `count` samples of the posterior. Collective.

    Noise and reflectivity are white. The standard deviation of the noise follows from the norm of the residual,
    `residual`, and this rank's number of samples with nonzero weight, `counted`; the standard deviation of the
    reflectivity follows from `damp`, or from the image. `root` is the preconditioner of the migration, a Hermitian
    approximation of the inverse square root of its normal operator. Its square preconditions the sampling: conjugate
    gradients are independent of the scale of a preconditioner, which does not change the posterior. A signal that ends
    the job also ends the sampling, so that the image is written in time.

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
        raise InputError("--uncertainty needs an image and a residual that are not zero")

    def ended(*_: Any) -> bool:
        return bool(job.comm.allreduce(np.array(int(interruption.received())), "max"))

    with job.stage(f"drawing {count} samples of the posterior"):
        run = {"niter": _ITERATIONS, "seed": job.options.seed, "progress": job.listener.live}
        run["callback"] = ended
        run["M"] = None if root is None else root @ root
        posterior = GaussianPosterior(operator, noise=noise, prior=prior)
        result = posterior.samples(count, dtype=job.options.dtype, engine=job.engine.name, **run)
    if not result.status.successful:
        reason = "were ended by a signal" if result.status is Status.STOPPED else "have not converged"
        job.listener.warn(f"the samples of the posterior {reason}: the standard deviation is too large")
    variance = np.mean(np.square(job.on_host(result.x), dtype=np.float64), axis=0)
    variance = DistributedArray(operator.domain, job.comm, variance).gather()
    return Uncertainty(np.sqrt(variance), noise, prior, result.iterations)
