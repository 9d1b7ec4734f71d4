"""The Jacobian of the propagator: linearised (Born) modelling, and migration as its exact transpose."""

from __future__ import annotations

import numpy as np

from collops import DistributedArray, LinearOperator
from collops.extend.arrays import Array
from collops.extend.operators import filled
from collops.seismic.waves.modelling import Modelling, check_host
from collops.seismic.waves.shot_sums import ShotSum


class Born(LinearOperator):
    r"""The derivative of the traces with respect to the velocity, at one model. Collective.

    Forward is linearised modelling of a change of the velocity in metres per second. Adjoint is migration of traces: of
    a residual, it is the gradient of half its squared norm; of reflections in a smooth model, it is reverse-time
    migration. It is the transpose of the discrete scheme with its layers and its free surface, exact to rounding.

    Parameters
    ----------
    modelling : Modelling
        The modelling of a propagator, whose ``jacobian`` makes this operator.
    model : DistributedArray
        The velocity at which it is linearised.

    Notes
    -----
    A change of :math:`c = v^2 \Delta t^2` scatters the Laplacian :math:`w^n` of the field, with its layers and sources:

    .. math::
        \delta u^{n+1} = 2\, \delta u^n - \delta u^{n-1} + c\, L\, \delta u^n + \delta c\, w^n.

    Forward propagates both fields together. Adjoint recomputes :math:`w^n` and visits it in reverse order, within the
    memory of the propagator, and sums :math:`\lambda^{n+1} w^n` with the adjoint field :math:`\lambda`. Images of shots
    are added in an order that does not depend on the ranks.

    Messages: as for the propagator. Adjoint: one exchange of halos for each step of both fields on several tiles, and
    one all-to-all and one allgather of images, among the ranks with the same tile.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.seismic.waves import Geometry, Grid, Layers, Propagator
    >>> grid = Grid((12, 10), (10.0, 10.0), order=2, layers=Layers(4))
    >>> geometry = Geometry([[30.0, 50.0]], [[80.0, 55.0]], np.hanning(30), 0.002)
    >>> F = Propagator(grid, geometry, dtype="float64", kernels="numpy")
    >>> F.jacobian(collops.full(F.domain, 2000.0)).dottest()
    True
    """

    capturable = False

    def __init__(self, modelling: Modelling, model: DistributedArray) -> None:
        self._velocity = modelling.velocity(model)
        self._modelling = modelling
        self._march = modelling.march(self._velocity)
        super().__init__(modelling.domain, modelling.range, modelling.dtype, modelling.comm)

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        check_host(x, "the data" if adjoint else "a change of the model")
        own = np.ascontiguousarray(x.local_array, self.dtype)
        return filled(out, self._migrated(own) if adjoint else self._linearised(own))

    def _linearised(self, change: np.ndarray) -> np.ndarray:
        modelling = self._modelling
        tile, traces = modelling.tile, modelling.no_traces()
        scattering = (modelling.slope(self._velocity) * tile.extend(change)).astype(self.dtype)
        if tile.surface:
            scattering[..., 0] = 0
        for number, shot in enumerate(modelling.shots):
            self._march.linearised(modelling.shot(shot), scattering, traces[number])
        return modelling.joined(traces)

    def _migrated(self, traces: np.ndarray) -> np.ndarray:
        modelling = self._modelling
        tile, images = modelling.tile, ShotSum(modelling.shots)
        for number, shot in enumerate(modelling.shots):
            image = np.zeros(tile.inner, self.dtype)
            self._march.migrate(modelling.shot(shot), traces[number], image)
            images.add(image)
        total = np.empty(self._velocity.size, self.dtype)
        images.total(modelling.shares, total, modelling.across)
        return tile.fold((2 / self._velocity * total.reshape(tile.inner)).astype(self.dtype))
