"""The inversion: convolution with the wavelet, inverted by FISTA for as few spikes as explain the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

import numpy as np

from collops.apps.costs import Costs, solve_with_costs
from collops.apps.inversion import Stretch
from collops.apps.volume.problem import Problem

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator
    from collops.solvers import Run, SolverResult

__all__ = ["Inversion", "Matches", "invert", "match"]


@dataclass(frozen=True)
class Inversion:
    """What an inversion found and what it cost.

    Parameters
    ----------
    spikes, adjoint, unexplained : numpy.ndarray
        This rank's part of the reflection coefficients, of the adjoint of the data, and of the data that remain.
    residuals : numpy.ndarray
        Norm of the residual before the first iteration and after each.
    costs : Costs
        Of an iteration.
    """

    spikes: np.ndarray
    adjoint: np.ndarray
    unexplained: np.ndarray
    residuals: np.ndarray
    costs: Costs


@dataclass(frozen=True)
class Matches:
    """How the spikes that were found compare with the true ones.

    Parameters
    ----------
    true, found : int
        How many there are of at least a tenth of the largest true one.
    matched : int
        True ones that have one of the same sign within one sample.
    """

    true: int
    found: int
    matched: int


def invert(
    problem: Problem,
    comm: Communicator,
    compute: Engine,
    *,
    iterations: int,
    sparsity: float,
    threshold: str,
    **run: Unpack[Run],
) -> Inversion:
    r"""Find few reflection coefficients that explain the data. Collective.

    Parameters
    ----------
    problem : Problem
        Operator and volume.
    comm, compute, iterations, **run
        See `collops.apps.costs.solve_with_costs`.
    sparsity : float
        Weight :math:`\lambda` of the penalty: 0 asks for nothing, 1 leaves no spike.
    threshold : str
        Kind of shrinkage, see `collops.solvers.fista`.

    Notes
    -----
    .. math:: \min_r \tfrac12 \|d - W r\|^2 + \lambda \|W^T d\|_\infty \|r\|_1

    for the soft threshold; the others take the roots of the coefficients, or their number, in place of their sizes.

    Each trace is a problem of its own; the ranks share the step, the stopping rule and nothing else: an iteration
    sends one allreduce of three numbers.
    """
    from collops.solvers import fista
    from collops.solvers.thresholds import find_threshold

    operator, volume = problem.operator, problem.volume
    data = problem.vector(volume.traces, compute)
    stretch = Stretch.of(operator, data)
    spectrum = np.fft.rfft(volume.wavelet, 8 * len(volume.wavelet))
    # A convolution stretches no trace more than its strongest frequency; the margin is for those between samples.
    step = 1 / (1.01 * float((np.abs(spectrum) ** 2).max()))
    # In each step vanishes what is smaller than this share of the strongest value of the first one. The penalty of
    # FISTA counts twice, as its misfit is not halved.
    cut = sparsity * step * float(stretch.gradient.norm(np.inf))
    weight = 2 * find_threshold(threshold, None).parameter(cut) / step
    image, modelled = stretch.gradient.copy(), data.copy()

    def rehearse() -> None:
        operator.adjoint(data, out=image)
        operator.forward(image, out=modelled)

    def solve(*, niter: int, **run: Unpack[Run]) -> SolverResult:
        return fista(operator, data, niter=niter, eps=weight, alpha=step, tol=0.0, threshkind=threshold, **run)

    result, costs = solve_with_costs(solve, comm, compute, iterations=iterations, rehearse=rehearse, **run)
    return Inversion(
        problem.values(result.x),
        problem.values(stretch.gradient),
        problem.values(data - operator.forward(result.x, out=modelled)),
        np.asarray(result.residual_norms, dtype=np.float64),
        costs,
    )


def match(found: np.ndarray, truth: np.ndarray, comm: Communicator) -> Matches:
    """Compare spikes with the true ones. Collective.

    Parameters
    ----------
    found, truth : numpy.ndarray
        This rank's traces, samples along the last axis.
    """
    largest = float(comm.allreduce(np.array(float(np.abs(truth).max(initial=0.0))), "max")[()])
    counts = np.zeros(3)
    if largest and truth.size:
        signs_true, signs_found = (np.sign(v) * (np.abs(v) >= 0.1 * largest) for v in (truth, found))
        padded = np.pad(signs_found, [(0, 0)] * (truth.ndim - 1) + [(1, 1)])
        near = [padded[..., shift : shift + truth.shape[-1]] == signs_true for shift in range(3)]
        counts[:] = (
            np.count_nonzero(signs_true),
            np.count_nonzero(signs_found),
            np.count_nonzero((signs_true != 0) & np.logical_or.reduce(near)),
        )
    true, spikes, matched = (int(n) for n in comm.allreduce(counts))
    return Matches(true, spikes, matched)
