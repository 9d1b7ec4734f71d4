"""The Jacobian of the propagator: linearised (Born) modelling, and migration as its exact transpose."""

from __future__ import annotations

import math

from collops import DistributedArray, LinearOperator
from collops.errors import UnsupportedTypeError
from collops.extend.arrays import Array, LocalArray
from collops.extend.operators import filled
from collops.seismic.waves.modelling import Modelling, check_supported
from collops.seismic.waves.shot_sums import ShotSum
from collops.seismic.waves.velocity_model import model_on_tile


def serves_again(jacobian: LinearOperator, model: Array) -> bool:
    """Return whether to keep the Jacobian of :meth:`Propagator.linearise` at a model for its next product there.

    Without wavefields it saves little, and the storage of devices must be free between gradients. All ranks agree.
    """
    return model.engine.memory == "host" or (isinstance(jacobian, Born) and jacobian.reusable)


class Born(LinearOperator):
    r"""The derivative of the traces with respect to the velocity, or both velocities, at one model. Collective.

    Forward is linearised modelling of a change of the model in metres per second. Adjoint is migration of traces: of
    a residual, it is the gradient of half its squared norm; of reflections in a smooth model, it is reverse-time
    migration. It is the transpose of the discrete scheme with its layers and its free surface, exact to rounding.

    Parameters
    ----------
    modelling : Modelling
        The modelling of a propagator, whose ``jacobian`` makes this operator.
    model : DistributedArray or StackedArray
        The velocity at which it is linearised, or a stack of the velocities of P and S waves in elastic media.

    Notes
    -----
    A change of the coefficients c, with constant density :math:`v^2 \Delta t^2`, scatters the Laplacian :math:`w^n` of
    the field, with its layers and sources:

    .. math::
        \delta u^{n+1} = 2\, \delta u^n - \delta u^{n-1} + c\, L\, \delta u^n + \delta c\, w^n.

    Forward propagates both fields together. Adjoint recomputes :math:`w^n` and visits it in reverse order, within the
    memory of the propagator, and sums :math:`\lambda^{n+1} w^n` with the adjoint field :math:`\lambda`. Images of shots
    are added in an order that does not depend on the ranks. With respect to both velocities of elastic media there is
    such a sum of each field, which the transpose of the derivative of the moduli maps to the velocities.

    Changes of the model and data must be of the engine of `model`.

    Messages: as for the propagator. Adjoint: the exchanges of halos for each step of both fields on several tiles, and
    one all-to-all and one allgather of images, among the ranks with the same tile. On several tiles, both velocities
    take one more exchange of halos forward, and one for each shear stress in the adjoint.

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

    def __init__(self, modelling: Modelling, model: Array) -> None:
        self._model, self._engine = model_on_tile(modelling, model), model.engine
        self._modelling = modelling
        self._march = modelling.march(self._model.coefficients)
        self._kept: dict[int, LocalArray] = {}  # wavefields of shots, from `modelled`
        self.reusable = False  # on devices if it has those of all shots
        super().__init__(model.layout, modelling.range, modelling.dtype, modelling.comm)

    def modelled(self) -> DistributedArray:
        """Return the traces of the model, and keep the wavefields of the shots that fit the memory. Collective."""
        modelling = self._modelling
        traces = modelling.no_traces(self._engine)
        self._kept, self.reusable = modelling.kept(self._engine, self._march.wavefields)
        for number, shot in enumerate(modelling.shots):
            self._march.model(modelling.shot(shot), traces[number], *self._wavefields(number))
        return DistributedArray(modelling.range, modelling.comm, modelling.joined(traces))

    def _wavefields(self, number: int) -> list[LocalArray]:
        """Return the wavefields of a shot, if they were kept, as the last argument of a time loop."""
        return [self._kept[number]] if number in self._kept else []

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        what = "the data" if adjoint else "a change of the model"
        check_supported(x, what)
        if x.engine is not self._engine:
            raise UnsupportedTypeError(
                f"{what} must be of {self._engine.name}, as the model is, not of {x.engine.name}"
            )
        if not adjoint:
            return filled(out, self._linearised(x))
        (traces,) = x.leaves
        gradients = self._migrated(self._engine.xp.ascontiguousarray(traces.local_array, self.dtype))
        for leaf, values in zip(out.leaves, gradients, strict=True):
            filled(leaf, values)
        return out

    def _linearised(self, change: Array) -> LocalArray:
        modelling = self._modelling
        traces, scattering = modelling.no_traces(self._engine), self._model.scattering(change).astype(self.dtype)
        for number, shot in enumerate(modelling.shots):
            self._march.linearised(modelling.shot(shot), scattering, traces[number], *self._wavefields(number))
        return modelling.joined(traces)

    def _migrated(self, traces: LocalArray) -> list[LocalArray]:
        modelling, xp, shape = self._modelling, self._engine.xp, self._model.image_shape
        images, traces = ShotSum(modelling.shots), modelling.residuals(traces)
        for number, shot in enumerate(modelling.shots):
            image = xp.zeros(shape, self.dtype)
            self._march.migrate(modelling.shot(shot), traces[number], image, *self._wavefields(number))
            images.add(image)
        total = images.total(modelling.shares, xp.empty(math.prod(shape), self.dtype), modelling.across)
        return self._model.gradient(total.reshape(shape))
