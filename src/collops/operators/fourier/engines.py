"""One-dimensional transforms of each engine: the only code of this folder that differs between engines.

The transforms of an engine have ``fft(work, axis, norm, inverse)``, which may work in place, ``rfft(source, target,
axis, norm)`` and ``irfft(source, target, axis, norm, samples)``, which may overwrite its source. All are on local
arrays in C order and return the result, in `target` if that is given. `norm` is that of the operators: an adjoint is
scaled as its forward is, not by the number of samples as an inverse.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.backend import Engine

__all__ = ["HostTransforms"]

_MANY = 1 << 16  # elements; below, threads cost more than they save
# NumPy, SciPy and JAX name the direction that is scaled.
_FORWARD: dict[str, Any] = {"ortho": "ortho", "none": "backward", "1/n": "forward"}
_INVERSE: dict[str, Any] = {"ortho": "ortho", "none": "forward", "1/n": "backward"}


def transforms_for(engine: Engine, threads: int) -> Any:
    """Return the transforms of arrays of `engine`, which may use so many `threads` on the host."""
    if engine.name == "numpy":
        return HostTransforms(threads)
    if engine.name == "cupy":
        from collops.operators.fourier.cufft import Transforms

        return Transforms()
    return _GenericTransforms(engine.xp)


class _GenericTransforms:
    """Transforms of any array namespace, which ignore given memory."""

    multiplies = False  # whether a product with a matrix may replace a short transform

    def __init__(self, xp: Any) -> None:
        self._xp = xp

    def fft(self, work: Any, axis: int, norm: str, inverse: bool) -> Any:
        """Transform a complex array."""
        transform, scaling = (self._xp.fft.ifft, _INVERSE) if inverse else (self._xp.fft.fft, _FORWARD)
        return transform(work, axis=axis, norm=scaling[norm]) if work.size else work

    def rfft(self, source: Any, target: Any, axis: int, norm: str) -> Any:
        """Return the non-negative frequencies of a real array."""
        if not source.size:
            shape = (*source.shape[:axis], source.shape[axis] // 2 + 1, *source.shape[axis + 1 :])
            return self._xp.zeros(shape, self._xp.result_type(source.dtype, "complex64"))
        return self._xp.fft.rfft(source, axis=axis, norm=_FORWARD[norm])

    def irfft(self, source: Any, target: Any, axis: int, norm: str, samples: int) -> Any:
        """Return a real array from its non-negative frequencies; missing ones count as zero."""
        if not source.size:
            shape = (*source.shape[:axis], samples, *source.shape[axis + 1 :])
            return self._xp.zeros(shape, source.real.dtype)
        return self._xp.fft.irfft(source, samples, axis=axis, norm=_INVERSE[norm])


class HostTransforms:
    """Transforms of NumPy arrays: SciPy's, in place or with threads, and NumPy's, which write into given memory."""

    multiplies = True

    def __init__(self, threads: int) -> None:
        import scipy.fft

        self._scipy: Any = scipy.fft
        self._threads = threads

    def fft(self, work: np.ndarray, axis: int, norm: str, inverse: bool) -> np.ndarray:
        """Transform a complex array in place."""
        if work.size == 0:
            return work
        transform, scaling = (self._scipy.ifft, _INVERSE) if inverse else (self._scipy.fft, _FORWARD)
        result = transform(work, axis=axis, norm=scaling[norm], overwrite_x=True, workers=self._workers(work))
        if not np.may_share_memory(result, work):  # SciPy need not use the memory that it may overwrite
            work[...] = result
        return work

    def rfft(self, source: np.ndarray, target: np.ndarray, axis: int, norm: str) -> np.ndarray:
        """Transform a real array; `target` gets the non-negative frequencies."""
        workers = self._workers(source)
        if source.size and workers is None:
            np.fft.rfft(source, axis=axis, norm=_FORWARD[norm], out=target)
        elif source.size:
            target[...] = self._scipy.rfft(source, axis=axis, norm=_FORWARD[norm], workers=workers)
        return target

    def irfft(self, source: np.ndarray, target: np.ndarray, axis: int, norm: str, samples: int) -> np.ndarray:
        """Transform non-negative frequencies back to a real array; `source` may be overwritten."""
        workers = self._workers(target)
        if target.size and workers is None:
            np.fft.irfft(source, samples, axis=axis, norm=_INVERSE[norm], out=target)
        elif target.size:
            target[...] = self._scipy.irfft(source, samples, axis=axis, norm=_INVERSE[norm], workers=workers)
        return target

    def _workers(self, array: np.ndarray) -> int | None:
        return self._threads if self._threads > 1 and array.size >= _MANY else None
