"""A model of the velocity on a tile: the coefficients of the medium, their changes, and the gradient of images."""

from __future__ import annotations

from collops import StackedArray
from collops.extend.arrays import Array, LocalArray
from collops.extend.engines import engine_of
from collops.seismic.waves.elastic_model import ElasticModel
from collops.seismic.waves.modelling import Modelling, check_supported


class VelocityModel:
    """The velocity on this rank's tile, with the other parameters of the medium fixed.

    Parameters
    ----------
    modelling : Modelling
        The modelling.
    velocity : array
        On the tile, in double precision.

    Attributes
    ----------
    image_shape : tuple of int
        Of the image of a shot: the sum over time of the products of the adjoint field, multiplied by C, and the stored
        wavefield, of the fields whose coefficients depend on the velocity.
    """

    def __init__(self, modelling: Modelling, velocity: LocalArray) -> None:
        self._modelling, self._velocity = modelling, velocity
        self.image_shape = modelling.tile.inner

    @property
    def coefficients(self) -> LocalArray:
        """The coefficients C of the scheme, in double precision."""
        square = engine_of(self._velocity).xp.square(self._velocity)
        return self._modelling.scaled(self._modelling.medium.coefficients(square))

    def scattering(self, change: Array) -> LocalArray:
        """Return the derivative of C along a change of the model, in double precision. Sends nothing."""
        tile, xp = self._modelling.tile, change.engine.xp
        (own,) = change.leaves
        slope = self._modelling.scaled(self._modelling.medium.slope(self._velocity))
        return slope * tile.extend(xp.asarray(own.local_array, self._modelling.dtype), xp)

    def gradient(self, image: LocalArray) -> list[LocalArray]:
        """Return the gradient on this rank's block from an image of all shots. Sends nothing."""
        tile, factor = self._modelling.tile, self._modelling.medium.relative_slope(self._velocity)
        return [tile.fold((factor * image).astype(image.dtype), engine_of(image).xp)]


def model_on_tile(modelling: Modelling, model: Array) -> VelocityModel | ElasticModel:
    """Return a model, of one velocity or a stack of two, on this rank's tile, after checking it. Collective."""
    check_supported(model, "the model")
    if isinstance(model, StackedArray):
        return ElasticModel(modelling, model)
    return VelocityModel(modelling, modelling.velocity(model))
