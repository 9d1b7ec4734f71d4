"""Multi-dimensional deconvolution of wavefields on a line of receivers."""

from __future__ import annotations

from collops.seismic.mdd.deconvolve import Options, run

__all__ = ["Options", "run"]
