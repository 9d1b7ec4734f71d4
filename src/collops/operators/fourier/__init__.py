"""Fourier transforms of distributed arrays, along whole axes and split ones."""

from __future__ import annotations

from collops.operators.fourier.fftnd import FFT, FFT2D, FFTND

__all__ = ["FFT", "FFT2D", "FFTND"]
