"""The nonlinear problem of full-waveform inversion: attributes of traces as a function of a change of the velocity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collops import Diagonal, DistributedArray, LinearOperator, where
from collops.extend.applications import Job
from collops.extend.arrays import Array
from collops.extend.operators import filled
from collops.seismic.waveform.misfits import Attribute
from collops.seismic.waveform.problem import WaveProblem
from collops.seismic.waveform.recording import Recording
from collops.seismic.waves import Propagator
from collops.seismic.waves.born import serves_again


class Smoothing(LinearOperator):
    """Averages of a replicated model under a Gaussian, along all axes. Sends nothing.

    Parameters
    ----------
    propagator : Propagator
        Its domain, which is not split, is the domain and the range.
    length : float
        Standard deviation in metres.
    engine : Engine
        Of the arrays.
    """

    capturable = False

    def __init__(self, propagator: Propagator, length: float, engine: Any) -> None:
        grid = propagator.grid
        pairs = zip(grid.shape, grid.spacing, strict=True)
        self._matrices = [
            engine.from_host(_gaussian(size, length / step).astype(propagator.dtype)) for size, step in pairs
        ]
        super().__init__(propagator.domain, propagator.domain, propagator.dtype, propagator.comm)

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        xp, values = x.engine.xp, x.local_array
        for axis, matrix in enumerate(self._matrices):
            product = xp.tensordot(matrix, values, axes=(0 if adjoint else 1, axis))
            values = xp.moveaxis(product, 0, axis)
        return filled(out, values)


def _gaussian(size: int, deviation: float) -> np.ndarray:
    """Return the matrix of averages under a Gaussian; at the ends its rows still have the sum 1."""
    distance = np.subtract.outer(np.arange(size), np.arange(size)) / max(deviation, 1e-6)
    weights = np.exp(-0.5 * distance**2)
    return weights / weights.sum(axis=1, keepdims=True)


class Changes:
    r"""Velocities :math:`v_0 + D S x` within bounds, for unknowns x.

    D scales the unknowns of each point, and is 0 where the velocity is fixed. S is the identity, or `Smoothing`. If it
    is the identity, the bounds are bounds of the unknowns, `lower` and `upper`. Otherwise velocities are clipped.

    Parameters
    ----------
    job, waves
        The run and its problem.
    velocity : numpy.ndarray
        The velocity at which all unknowns are 0, within the bounds.
    scale : numpy.ndarray
        The diagonal of D.
    bounds : (float, float)
        Smallest and largest velocity in metres per second.
    smooth : float, optional
        Standard deviation of S in metres.

    Attributes
    ----------
    start : DistributedArray
        The unknowns of `velocity`: zeros.
    lower, upper : DistributedArray or None
        Bounds of the unknowns.
    """

    def __init__(
        self,
        job: Job[Any],
        waves: WaveProblem,
        velocity: np.ndarray,
        scale: np.ndarray,
        bounds: tuple[float, float],
        smooth: float | None,
    ) -> None:
        self._velocity, self._bounds = waves.model(job, velocity), bounds
        self._scale = Diagonal(waves.model(job, scale))
        self._smooth = None if smooth is None else Smoothing(waves.propagator, smooth, job.engine)
        self.start = waves.model(job, np.zeros_like(velocity))
        self.lower: Any = None
        self.upper: Any = None
        if smooth is None:
            free = scale > 0
            lower, upper = (np.where(free, (end - velocity) / np.where(free, scale, 1), 0) for end in bounds)
            self.lower, self.upper = waves.model(job, np.minimum(lower, 0)), waves.model(job, np.maximum(upper, 0))

    def velocity(self, x: Any) -> Any:
        """Return the velocity for unknowns, both arrays in the layout of the propagator's domain."""
        velocity = self._unclipped(x)
        if self._smooth is None:
            return velocity
        low, high = self._bounds
        velocity = where(velocity < low, low, velocity)
        return where(velocity > high, high, velocity)

    def derivative(self, x: Any) -> LinearOperator:
        """Return the derivative of `velocity`, which is 0 where a velocity is clipped."""
        if self._smooth is None:
            return self._scale
        velocity, (low, high) = self._unclipped(x), self._bounds
        inside = where((velocity >= low) & (velocity <= high), 1.0, 0.0 * velocity)
        return Diagonal(inside) @ self._scale @ self._smooth

    def _unclipped(self, x: Any) -> Any:
        return self._velocity + self._scale.forward(x if self._smooth is None else self._smooth.forward(x))


class Objective:
    r"""The problem :math:`\min_x \frac12 \|\phi(R F(v(x))) - \phi(d)\|^2` for nonlinear solvers.

    Parameters
    ----------
    propagator, recording
        F, and R without the frequencies above those of `observed`.
    observed : DistributedArray
        The traces d.
    misfit : callable
        The attribute :math:`\phi`, from ``MISFITS``.
    changes : Changes
        From unknowns to velocities.
    """

    def __init__(
        self,
        propagator: Propagator,
        recording: Recording,
        observed: DistributedArray,
        misfit: Callable[..., Attribute],
        changes: Changes,
    ) -> None:
        self._propagator, self._recording, self.changes = propagator, recording, changes
        self._xp, self._observed = observed.engine.xp, observed.local_array
        self._misfit = misfit
        self._target = misfit(self._observed, self._observed, self._xp).values
        self._last: tuple[Any, Attribute, LinearOperator | None] | None = None

    def residual(self, x: Any) -> DistributedArray:
        """Return the difference of the attributes. Collective."""
        return self._traces(self._linearised(x)[0].values - self._target)

    def jacobian(self, x: Any) -> LinearOperator:
        """Return the derivative of the residual. Collective."""
        attribute, born = self._linearised(x)
        born = born or self._propagator.jacobian(self.changes.velocity(x))
        derivative = AttributeDerivative(self._recording, attribute)
        return derivative @ self._recording @ born @ self.changes.derivative(x)

    def _linearised(self, x: Any) -> tuple[Attribute, LinearOperator | None]:
        """Return the attribute of the modelled traces, and the Jacobian of the propagator if it has wavefields.

        Solvers need both for the same unknowns.
        """
        if self._last is None or self._last[0] is not x:
            self._last = None  # before wavefields of other unknowns are kept
            velocity = self.changes.velocity(x)
            traces, born = self._propagator.linearise(velocity)
            modelled = self._recording.forward(traces)
            kept = born if serves_again(born, velocity) else None
            self._last = x, self._misfit(modelled.local_array, self._observed, self._xp), kept
        return self._last[1:]

    def _traces(self, local: Any) -> DistributedArray:
        return DistributedArray(self._recording.traces, self._propagator.comm, local)


class AttributeDerivative(LinearOperator):
    """The derivative of an attribute of the traces of each rank. Sends nothing."""

    capturable = False

    def __init__(self, recording: Recording, attribute: Attribute) -> None:
        self._attribute = attribute
        super().__init__(recording.range, recording.range, recording.dtype, recording.comm)

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        attribute = self._attribute
        return filled(out, (attribute.adjoint if adjoint else attribute.forward)(x.local_array))
