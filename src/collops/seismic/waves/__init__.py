"""Acoustic and elastic waves by finite differences: modelling, reverse-time migration and full-waveform inversion.

``F = Propagator(grid, geometry)`` models the traces of all shots, ``F(model)``; ``F.jacobian(model)`` is their
derivative, a :class:`collops.LinearOperator`, whose adjoint migrates.
"""

from __future__ import annotations

from collops.seismic.waves.born import Born
from collops.seismic.waves.encoding import SourceEncoding
from collops.seismic.waves.geometry import Geometry
from collops.seismic.waves.grid import Grid
from collops.seismic.waves.inversion import WaveformMisfit
from collops.seismic.waves.layers import Layers
from collops.seismic.waves.media.relaxation import Relaxation
from collops.seismic.waves.propagator import Propagator
from collops.seismic.waves.shot_shares import share_by_cost
from collops.seismic.waves.stencil import largest_step, phase_velocity
from collops.seismic.waves.storage import Storage
from collops.seismic.waves.wavelet import WaveletModelling

__all__ = [
    "Born",
    "Geometry",
    "Grid",
    "Layers",
    "Propagator",
    "Relaxation",
    "SourceEncoding",
    "Storage",
    "WaveformMisfit",
    "WaveletModelling",
    "largest_step",
    "phase_velocity",
    "share_by_cost",
]
