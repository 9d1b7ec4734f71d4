"""A model of the velocities of P and S waves on a tile: its checks, coefficients, changes, and gradients of images."""

from __future__ import annotations

import math

import numpy as np

from collops import StackedArray, StackedLayout
from collops.errors import InputError, LayoutError
from collops.extend.arrays import Array, LocalArray
from collops.extend.communication import raised_together
from collops.extend.engines import Engine, engine_of
from collops.seismic.waves.media.elastic import Elastic
from collops.seismic.waves.modelling import Modelling


class ElasticModel:
    """Both velocities on this rank's tile, after checking them on all ranks, with the density fixed. Collective.

    It has the attributes and methods of :class:`VelocityModel`. Images are of all fields. Messages: two small
    allreduces, and on several tiles an exchange of halos.

    Parameters
    ----------
    modelling : Modelling
        The modelling.
    model : StackedArray
        The velocities of P and of S waves.

    Raises
    ------
    InputError, LayoutError
        On every rank, if the medium is not elastic, the layout is another one, or these velocities cannot be used.
    """

    def __init__(self, modelling: Modelling, model: StackedArray) -> None:
        check_stack(modelling, model)
        self._modelling, self._medium = modelling, elastic_medium(modelling)
        tile, xp = modelling.tile, model.engine.xp
        own = (xp.asarray(leaf.local_array, np.float64) for leaf in model.leaves)
        self._velocity, shear = (tile.extend(values, xp) for values in own)
        near = modelling.surrounded(shear, self._medium.margin, self._medium.margin)
        self._shear = self._medium.with_next(near)
        largest = self._checked(model.engine, self._velocity, shear)
        self.image_shape = *self._medium.fields, *tile.inner
        wavenumber = self._medium.wavenumber_of(model.engine.to_host(near), largest[1])
        wavenumber = float(modelling.comm.allreduce(np.array([wavenumber]), "max")[0])
        with raised_together():
            modelling.check_interval(largest[0], wavenumber)

    @property
    def coefficients(self) -> LocalArray:
        """The coefficients C of the scheme, in double precision."""
        square = self._velocity * self._velocity
        return self._modelling.scaled(self._medium.moduli.coefficients(square, self._shear))

    def scattering(self, change: Array) -> LocalArray:
        """Return the derivative of C along a change of the model. Collective: an exchange of halos on several tiles."""
        modelling, xp = self._modelling, change.engine.xp
        of_velocity, of_shear = (
            modelling.tile.extend(xp.asarray(leaf.local_array, modelling.dtype), xp) for leaf in change.leaves
        )
        near = modelling.surrounded(of_shear, 0, 1)
        return modelling.scaled(self._medium.moduli.change(self._velocity, self._shear, of_velocity, near))

    def gradient(self, image: LocalArray) -> list[LocalArray]:
        """Return both gradients on this rank's block from an image of all shots.

        Collective: on several tiles an exchange of halos for each shear stress.
        """
        moduli, modelling, xp = self._medium.moduli, self._modelling, engine_of(image).xp
        weighted = moduli.weighted(self._shear, image)
        near = [modelling.surrounded(values, 1, 0, beyond="constant") for values in weighted]
        gradients = moduli.gradient(self._velocity, self._shear, image, near)
        return [modelling.tile.fold(values.astype(image.dtype), xp) for values in gradients]

    def _checked(self, engine: Engine, velocity: LocalArray, shear: LocalArray) -> tuple[float, float]:
        """Return the largest velocity of each kind of all ranks, after checking the values. Collective."""
        modelling, surface = self._modelling, self._modelling.tile.surface
        least, largest, least_shear, largest_shear = (float(x) for v in (velocity, shear) for x in (v.min(), v.max()))
        # Comparisons with NaN are false.
        invalid = not (least > 0 and largest < math.inf)
        invalid_shear = not (least_shear >= 0 and largest_shear < math.inf)
        negative = not (invalid or invalid_shear or self._medium.moduli.admits(velocity, self._shear))
        solid = surface and bool((shear[..., 0] > 0).any())
        bounds = [0.0 if bad else x for bad, x in ((invalid, largest), (invalid_shear, largest_shear))]
        facts = np.array([invalid or negative, invalid_shear, solid, *modelling.sizes(), *bounds], np.float64)
        invalid, invalid_shear, solid, points, plane, *bounds = modelling.comm.allreduce(facts, "max")
        with raised_together():
            modelling.check_sizes(engine, points, plane)
            if invalid_shear:
                raise InputError("shear velocities must be finite and not negative")
            if invalid:
                raise InputError(f"velocities must be positive and finite{self._medium.requirement}")
            if solid:
                self._medium.check_near_surface(modelling.geometry)
        return float(bounds[0]), float(bounds[1])


def check_stack(modelling: Modelling, model: StackedArray) -> None:
    """Raise an error unless the medium has two velocities, and a stack their layouts. Sends nothing."""
    elastic_medium(modelling)
    if model.layout is not StackedLayout([modelling.domain] * 2) or model.comm is not modelling.comm:
        raise LayoutError(
            f"a stacked model has the velocities of P and of S waves, each in the layout {modelling.domain} of the "
            f"propagator, not {model.layout}"
        )


def elastic_medium(modelling: Modelling) -> Elastic:
    """Return the medium. Raises InputError if it has no shear velocity."""
    if not isinstance(modelling.medium, Elastic):
        raise InputError("a stacked model of two velocities needs an elastic medium: pass shear_velocity")
    return modelling.medium
