"""Fourier transforms of distributed arrays, along whole axes and split ones."""
