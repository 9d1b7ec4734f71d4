"""One-dimensional transforms of each engine. The only code of this folder that differs between engines.

A class ``Transforms`` has ``fft(work, axis, norm, inverse)``, which may work in place, ``rfft(source, target, axis,
norm)`` and ``irfft(source, target, axis, norm, samples)``, which may overwrite its source. All are on local arrays in C
order and return the result, in `target` where that is given. `norm` is that of the operators: adjoints are scaled as
forwards are, not by the number of samples as inverses.
"""

from __future__ import annotations

from typing import Any

from collops.backend import Engine

__all__ = ["transforms_for"]

# NumPy, SciPy and JAX name the direction that is scaled; the operators' adjoints are scaled as their forwards are.
FORWARD: dict[str, Any] = {"ortho": "ortho", "none": "backward", "1/n": "forward"}
INVERSE: dict[str, Any] = {"ortho": "ortho", "none": "forward", "1/n": "backward"}


def transforms_for(engine: Engine, threads: int) -> Any:
    """Return transforms of arrays of `engine`, of which one on the host may use so many `threads`."""
    if engine.name == "numpy":
        from collops.operators.fourier.kernels.numpy_kernels import Transforms

        return Transforms(threads)
    if engine.name == "cupy":
        from collops.operators.fourier.kernels.cupy_kernels import Transforms

        return Transforms()
    return _GenericTransforms(engine.xp)


class _GenericTransforms:
    """Transforms of any array namespace, without given memory."""

    multiplies = False  # whether a product with a matrix may replace a short transform

    def __init__(self, xp: Any) -> None:
        self._xp = xp

    def fft(self, work: Any, axis: int, norm: str, inverse: bool) -> Any:
        """Transform a complex array."""
        transform, scaling = (self._xp.fft.ifft, INVERSE) if inverse else (self._xp.fft.fft, FORWARD)
        return transform(work, axis=axis, norm=scaling[norm]) if work.size else work

    def rfft(self, source: Any, target: Any, axis: int, norm: str) -> Any:
        """Return the non-negative frequencies of a real array."""
        if not source.size:
            shape = (*source.shape[:axis], source.shape[axis] // 2 + 1, *source.shape[axis + 1 :])
            return self._xp.zeros(shape, self._xp.result_type(source.dtype, "complex64"))
        return self._xp.fft.rfft(source, axis=axis, norm=FORWARD[norm])

    def irfft(self, source: Any, target: Any, axis: int, norm: str, samples: int) -> Any:
        """Return a real array from its non-negative frequencies; missing ones count as zero."""
        if not source.size:
            shape = (*source.shape[:axis], samples, *source.shape[axis + 1 :])
            return self._xp.zeros(shape, source.real.dtype)
        return self._xp.fft.irfft(source, samples, axis=axis, norm=INVERSE[norm])
