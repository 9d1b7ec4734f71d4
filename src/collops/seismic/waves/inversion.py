"""Full-waveform inversion as nonlinear least squares: the residual of modelled and observed traces."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from collops import DistributedArray, LinearOperator
from collops.errors import LayoutError
from collops.extend.arrays import Array
from collops.seismic.waves.born import serves_again
from collops.seismic.waves.modelling import check_supported
from collops.seismic.waves.propagator import Propagator


@dataclass(frozen=True)
class WaveformMisfit:
    """The problem of full-waveform inversion for :mod:`collops.solvers.nonlinear`.

    Parameters
    ----------
    propagator : Propagator
        Models the traces.
    observed : DistributedArray
        The observed traces, in its layout ``range``.

    Raises
    ------
    LayoutError, UnsupportedTypeError
        If `observed` has another layout, or is not a real array of NumPy, CuPy or JAX.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.seismic.waves import Geometry, Grid, Layers, Propagator, WaveformMisfit
    >>> from collops.solvers.nonlinear import lbfgs
    >>> grid = Grid((12, 10), (10.0, 10.0), order=2, layers=Layers(4))
    >>> geometry = Geometry([[30.0, 50.0]], [[80.0, 55.0]], np.hanning(30), 0.002)
    >>> F = Propagator(grid, geometry, dtype="float64", kernels="numpy")
    >>> problem = WaveformMisfit(F, F(collops.full(F.domain, 2100.0)))
    >>> result = lbfgs(problem, collops.full(F.domain, 2000.0), niter=2, lower=1500.0)
    >>> bool(result.residual_norms[-1] < 0.5 * result.residual_norms[0])
    True
    """

    propagator: Propagator
    observed: DistributedArray
    # The model of the last residual, and the derivative there, with its wavefields.
    _last: list[tuple[Array, LinearOperator]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (isinstance(self.observed, DistributedArray) and self.observed.engine.traced):
            check_supported(self.observed, "the observed data")
        if self.observed.layout is not self.propagator.range:
            raise LayoutError(f"observed data must have the layout {self.propagator.range}, not {self.observed.layout}")

    def residual(self, x: Array) -> DistributedArray:
        """Return modelled minus observed traces. Collective."""
        if x.engine.traced:
            return self.propagator(x) - self.observed
        self._last.clear()  # before wavefields of another model are kept
        traces, jacobian = self.propagator.linearise(x)
        if serves_again(jacobian, x):
            self._last.append((x.copy(), jacobian))
        return traces - self.observed

    def jacobian(self, x: Array) -> LinearOperator:
        """Return the derivative of the residual. Collective.

        It is the one that the last residual kept, if its model has the same values on all ranks.
        """
        for last, jacobian in self._last:
            if x.layout is last.layout and x.comm is last.comm and x.engine is last.engine:
                pairs = zip(x.leaves, last.leaves, strict=True)
                changed = not all(bool((new.local_array == old.local_array).all()) for new, old in pairs)
                if not self.propagator.comm.allreduce(np.array([float(changed)]), "max")[0]:
                    return jacobian
        return self.propagator.jacobian(x)
