"""The inversion: reflection modelling beside a lateral Laplacian, solved by CGLS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from collops.apps.costs import Costs
from collops.apps.inversion import Stretch, least_squares
from collops.apps.volume.problem import Problem

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator
    from collops.solvers import Run

__all__ = ["Inversion", "invert", "regularised"]


@dataclass(frozen=True)
class Inversion:
    """What an inversion found and what it cost.

    Parameters
    ----------
    update, adjoint : numpy.ndarray
        This rank's part of the change of the logarithm of the impedance, and of the adjoint of the data.
    unexplained : numpy.ndarray
        This rank's part of the data that remain.
    residuals : numpy.ndarray
        Norm of the residual of data and roughness together, before the first iteration and after each.
    misfit : float
        Norm of the residual of the data alone, relative to the data that the background leaves unexplained.
    costs : Costs
        Of an iteration.
    """

    update: np.ndarray
    adjoint: np.ndarray
    unexplained: np.ndarray
    residuals: np.ndarray
    misfit: float
    costs: Costs


def invert(
    problem: Problem,
    traces: np.ndarray,
    comm: Communicator,
    compute: Engine,
    *,
    iterations: int,
    weight: float,
    damp: float,
    **run: Unpack[Run],
) -> Inversion:
    r"""Find the smallest smooth change of the model that explains the data. Collective.

    Parameters
    ----------
    problem : Problem
        Operator and volume.
    traces : numpy.ndarray
        This rank's part of the data that the background leaves unexplained.
    comm, compute, iterations, **run
        See `collops.apps.inversion.least_squares`.
    weight, damp : float
        Of the lateral Laplacian and of the size of the update, relative to the norm of the operator.

    Notes
    -----
    .. math:: \min_\delta \|d - A \delta\|^2 + (w \|A\|)^2 \|\nabla^2 \delta\|^2 + (\epsilon \|A\|)^2 \|\delta\|^2

    An iteration sends the halo of the Laplacian twice and two scalar allreduces.
    """
    operator = problem.operator
    data = problem.vector(traces, compute)
    stretch = Stretch.of(operator, data)

    def rehearse() -> None:
        operator.adjoint(data, out=image)
        operator.forward(image, out=modelled)

    image, modelled = stretch.gradient.copy(), data.copy()
    stack, stacked = regularised(problem, operator, data, weight * stretch.norm)
    result, costs = least_squares(
        stack,
        stacked,
        comm,
        compute,
        iterations=iterations,
        damp=damp * stretch.norm,
        rehearse=rehearse,
        **run,
    )
    unexplained = data - operator.forward(result.x, out=modelled)
    whole = float(data.norm())
    return Inversion(
        problem.values(result.x),
        problem.values(stretch.gradient),
        problem.values(unexplained),
        np.asarray(result.residual_norms, dtype=np.float64),
        float(unexplained.norm()) / whole if whole else 0.0,
        costs,
    )


def regularised(problem: Problem, operator: Any, data: Any, weight: float) -> tuple[Any, Any]:
    """Return the operator with the weighted lateral Laplacian below it, and the data with zeros below them.

    Parameters
    ----------
    problem : Problem
        Whose cube it is; axes of fewer than three traces have no second derivative, and are left out.
    operator, data
        Of the modelling. They are returned as they are if there is nothing to regularise.
    weight : float
        Of the Laplacian.
    """
    from collops.array import StackedArray, zeros_like
    from collops.operators import Laplacian, StackedVStack

    cube, comm = problem.cube, operator.comm
    axes = tuple(axis for axis, extent in enumerate(cube.shape[:-1]) if extent > 2)
    if not (weight and axes):
        return operator, data
    laplacian = Laplacian(
        cube.layout(comm.size),
        axes=axes,
        weights=(1.0,) * len(axes),
        sampling=(1.0,) * len(axes),
        comm=comm,
        dtype=operator.dtype,
    ).flat
    return StackedVStack([operator, weight * laplacian]), StackedArray([data, zeros_like(data)])
