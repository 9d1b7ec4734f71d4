"""Transforms of JAX arrays, by XLA's own."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

__all__ = ["Transforms"]

# JAX, as NumPy, names the direction that is scaled; the operators' adjoints are scaled as their forwards are.
_FORWARD = {"ortho": "ortho", "none": "backward", "1/n": "forward"}
_INVERSE = {"ortho": "ortho", "none": "forward", "1/n": "backward"}


class Transforms:
    """Transforms of variables; parameters as for the ones on the host."""

    __slots__ = ()

    multiplies = False  # whether a product with a matrix may take the place of a short transform

    def __init__(self, threads: int) -> None:
        pass

    def fft(self, work: Any, axis: int, norm: str, inverse: bool) -> None:
        """Transform a complex array in place."""
        if work.size:
            transform, scaling = (jnp.fft.ifft, _INVERSE) if inverse else (jnp.fft.fft, _FORWARD)
            work[...] = transform(work.value, axis=axis, norm=scaling[norm])

    def rfft(self, source: Any, target: Any, axis: int, norm: str) -> None:
        """Transform a real array; `target` gets the frequencies that are not negative."""
        if source.size:
            target[...] = jnp.fft.rfft(source.value, axis=axis, norm=_FORWARD[norm])

    def irfft(self, source: Any, target: Any, axis: int, norm: str) -> None:
        """Transform frequencies that are not negative back to a real array."""
        if target.size:
            target[...] = jnp.fft.irfft(source.value, target.shape[axis], axis=axis, norm=_INVERSE[norm])
