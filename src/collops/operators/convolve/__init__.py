"""Convolution with filters that vary along the axis."""

from __future__ import annotations

from collops.operators.convolve.distributed import NonStationaryConvolve1D

__all__ = ["NonStationaryConvolve1D"]
