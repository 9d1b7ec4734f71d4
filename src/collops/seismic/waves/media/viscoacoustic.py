"""Viscoacoustic media: any other medium with a quality factor, and the stability of their scheme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.signal import lfilter

from collops.errors import InputError
from collops.extend.arrays import LocalArray
from collops.extend.engines import engine_of
from collops.seismic.waves.grid import Slab, Tile
from collops.seismic.waves.media.medium import Medium, grid_values
from collops.seismic.waves.media.relaxation import Mechanisms
from collops.seismic.waves.media.variable_density import VariableDensity
from collops.seismic.waves.media.vti import VTI
from collops.seismic.waves.shot import Shot


class Viscoacoustic(Medium):
    r"""A medium with a quality factor and constant density, and the base of those with more parameters.

    The wave equation has a convolution with the modulus in time, relative to the modulus at the reference frequency
    [1]_. The scheme filters the result of L, and sources, in time: for the filter see :class:`RelaxationSteps`. Its
    response H at the first sample is a factor of the coefficients C.

    The gains of all mechanisms are negative or 0. Then the imaginary part of H is positive between the frequency 0 and
    the Nyquist frequency, where H is largest and real, and the scheme is stable if it were with the coefficients
    :math:`C \max H`: outside the unit circle, :math:`-(z - 2 + 1 / z) / H(z)` is real only where z is. It is negative
    where z is positive, and exceeds :math:`4 / \max H` where z is negative, so that no eigenvalue of the operator can
    equal it.

    Parameters
    ----------
    tile : Tile
        The tile.
    quality_factor : array
        The quality factor in the band of the relaxation, of the grid's shape.
    mechanisms : Mechanisms
        The relaxation mechanisms.
    **parameters : array
        Of the medium without attenuation.

    Raises
    ------
    InputError
        If a parameter cannot be used.

    References
    ----------
    .. [1] Blanch, J. O., Robertsson, J. O. A., and Symes, W. W., "Modeling of a constant Q: Methodology and algorithm
       for an efficient and optimally inexpensive viscoelastic technique", Geophysics 60(1), 176-184, 1995.
    """

    name = "attenuation"

    def __init__(self, tile: Tile, quality_factor: ArrayLike, mechanisms: Mechanisms, **parameters: ArrayLike) -> None:
        super().__init__(tile, **parameters)
        values = grid_values("quality_factor", quality_factor, tile.grid)
        if not (values > 0).all():
            raise InputError("quality factors must be positive")
        filters = mechanisms.filters(tile.with_halo(values))
        self._first, self._decays, self._gains = filters.first[tile.box], mechanisms.decays, filters.gains
        self.wavenumber *= math.sqrt(filters.largest)

    def memory(self, tile: Tile) -> int:
        """Return the elements of a row of the memory variables of a tile that are not of the layers."""
        return -(-len(self._decays) * math.prod((*self.fields, *tile.shape)) // 2)

    def coefficients(self, square: LocalArray) -> LocalArray:
        """Return the coefficients for the squared velocity on the tile."""
        first = engine_of(square).xp.asarray(self._first.astype(square.dtype, copy=False))
        return first * super().coefficients(square)

    def shot(self, shot: Shot) -> Shot:
        """Return a shot whose source is filtered in time."""
        shot = super().shot(shot)
        signal = shot.source.astype(np.float64)
        gains = self._gains[(slice(None), *self.tile.box)].reshape(len(self._decays), -1)[:, shot.source_points]
        later = [gain * lfilter([0, 1], [1, -d], signal, axis=0) for gain, d in zip(gains, self._decays, strict=True)]
        return replace(shot, source=(signal + sum(later)).astype(shot.source.dtype))

    def host_steps(self, compiled: bool, slabs: Sequence[Slab], dtype: np.dtype, threads: int | None) -> Any:
        """Return the steps of hosts, in Numba or in plain NumPy."""
        if compiled:
            from collops.seismic.waves.steps.numba_relaxation import NumbaRelaxationSteps as RelaxationSteps
        else:
            from collops.seismic.waves.steps.relaxation import RelaxationSteps
        steps = super().host_steps(compiled, slabs, dtype, threads)
        return RelaxationSteps(self.tile, slabs, dtype, threads, steps, self._decays, self._gains)

    def device_steps(self, slabs: Sequence[Slab], dtype: np.dtype, xp: Any) -> Any:
        """Return the steps of a device, of which `xp` is the module of arrays."""
        from collops.seismic.waves.cuda.media_steps import CudaRelaxationSteps

        steps = super().device_steps(slabs, dtype, xp)
        return CudaRelaxationSteps(self.tile, slabs, dtype, xp, steps, self._decays, self._gains)

    def traced_steps(self, slabs: Sequence[Slab], dtype: np.dtype) -> Any:
        """Return the steps of JAX."""
        from collops.seismic.waves.steps.jax_laplacians import TracedRelaxationSteps

        steps = super().traced_steps(slabs, dtype)
        return TracedRelaxationSteps(self.tile, slabs, dtype, None, steps, self._decays, self._gains)


class ViscoacousticDensity(Viscoacoustic, VariableDensity):
    """A medium with a quality factor and a density at each point."""

    name = "attenuation and variable density"


class ViscoacousticVTI(Viscoacoustic, VTI):
    """A medium with a quality factor and a vertical axis of symmetry; both stresses are attenuated alike."""

    name = "attenuation and VTI anisotropy"
