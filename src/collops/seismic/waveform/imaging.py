"""What reverse-time migration and its least-squares form share: reflections, their operator, and illumination."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.ndimage import binary_dilation

from collops import Diagonal, DistributedArray, LinearOperator
from collops.extend.applications import Job
from collops.seismic.lsm.regularisation import probed_diagonal
from collops.seismic.survey import Grid
from collops.seismic.waveform.problem import WaveProblem

_FLOOR = 1e-2  # of the illumination, relative to its maximum


def reflections(job: Job[Any], waves: WaveProblem) -> DistributedArray:
    """Return the data without the waves of the smooth velocity, such as the direct wave. Collective.

    They are subtracted if the propagator modelled the data. Recorded data have been muted instead, since their wavelet
    and their amplitudes are not known well enough.
    """
    if not waves.own:
        return waves.observed
    with job.stage("modelling the direct wave"):
        return waves.observed - waves.modelled(job, waves.problem.velocity)


def born(job: Job[Any], waves: WaveProblem) -> LinearOperator:
    """Return the operator from a change of the velocity below the water to the traces. Collective."""
    below = Diagonal(waves.model(job, 1.0 * ~waves.water))
    return waves.recording @ waves.propagator.jacobian(waves.model(job, waves.problem.velocity)) @ below


def illumination(job: Job[Any], operator: LinearOperator) -> np.ndarray:
    """Estimate the diagonal of the normal operator: the squared norm of the traces of each point. Collective."""
    with job.stage("illumination"):
        return np.maximum(probed_diagonal(job, operator.H @ operator), 0)


def compensated(image: np.ndarray, diagonal: np.ndarray) -> np.ndarray:
    """Return an image divided by its illumination, at least a hundredth of the largest."""
    return image / np.maximum(diagonal, _FLOOR * float(diagonal.max()) or 1.0)


def laplacian(image: np.ndarray, grid: Grid, water: np.ndarray) -> np.ndarray:
    r"""Return :math:`-\nabla^2` of an image, which removes its smooth part: waves scattered forwards [1]_.

    It is 0 in the water and next to it, where the image jumps. At the edges, second differences across them are 0.

    References
    ----------
    .. [1] Zhang, Y., and Sun, J., "Practical issues in reverse time migration: true amplitude gathers, noise removal
       and harmonic source encoding", First Break 27, 53-59, 2009.
    """
    result = np.zeros(image.shape)
    for axis, step in enumerate(grid.spacing):
        inner = tuple(slice(1, -1) if other == axis else slice(None) for other in range(image.ndim))
        result[inner] -= np.diff(image, 2, axis=axis) / step**2
    return np.where(binary_dilation(water), 0.0, result)
