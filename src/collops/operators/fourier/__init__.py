"""Fourier transforms of distributed arrays, along whole axes and split ones."""

from __future__ import annotations

from collops.operators.fourier.fft import FFT
from collops.operators.fourier.fft2d import FFT2D
from collops.operators.fourier.fftnd import FFTND

__all__ = ["FFT", "FFT2D", "FFTND"]
