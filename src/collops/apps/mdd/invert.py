"""The deconvolution by CGLS, beside the cross-correlation, which is where it begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from collops.apps.costs import Costs, MarkedOperator
from collops.apps.inversion import Stretch, least_squares
from collops.apps.mdd.problem import Problem
from collops.array import DistributedArray, zeros

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator
    from collops.solvers import Run

__all__ = ["Deconvolution", "deconvolve"]


@dataclass(frozen=True)
class Deconvolution:
    """What was found and what it cost.

    Parameters
    ----------
    response, correlation : DistributedArray
        The response, and the cross-correlation of the fields, on the host.
    step : float
        The factor at which the cross-correlation explains the data best.
    residuals : numpy.ndarray
        Norm of the residual before the first iteration and after each.
    costs : Costs
        Of an iteration.
    """

    response: Any
    correlation: Any
    step: float
    residuals: np.ndarray
    costs: Costs


def deconvolve(
    problem: Problem, comm: Communicator, compute: Engine, *, iterations: int, damp: float, **run: Unpack[Run]
) -> Deconvolution:
    r"""Find the response that turns the downgoing field into the upgoing one. Collective.

    Parameters
    ----------
    problem : Problem
        Fields and operator.
    comm, compute, iterations, **run
        See `collops.apps.inversion.least_squares`.
    damp : float
        Damping relative to the norm of the operator.

    Notes
    -----
    .. math:: U(s, v, t) = \int D(s, r, t) * R(r, v, t) \, dr

    is solved for :math:`R`. Its adjoint correlates both fields.
    """
    operator = problem.operator
    stretch = Stretch.of(operator, problem.data)
    kernel = operator.kernel
    spectra, product = (
        zeros(layout, comm=comm, dtype=kernel.dtype, engine=compute) for layout in (kernel.domain, kernel.range)
    )

    def rehearse() -> None:
        kernel.forward(spectra, out=product)
        kernel.adjoint(product, out=spectra)

    result, costs = least_squares(
        MarkedOperator(operator),
        problem.data,
        comm,
        compute,
        iterations=iterations,
        damp=damp * stretch.norm,
        rehearse=rehearse,
        sends_inside=True,
        **run,
    )
    return Deconvolution(
        _on_host(result.x),
        _on_host(stretch.gradient),
        stretch.step,
        np.asarray(result.residual_norms, dtype=np.float64),
        costs,
    )


def _on_host(array: Any) -> Any:
    return DistributedArray(array.layout, array.comm, array.engine.to_host(array.local_array))
