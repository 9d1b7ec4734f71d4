"""Transforms on the host: SciPy's in place and with threads; NumPy's where only that writes into given memory."""

from __future__ import annotations

import numpy as np
import scipy.fft

from collops.operators.fourier.kernels import FORWARD, INVERSE

__all__ = ["Transforms"]

_MANY = 1 << 16  # elements; below, threads cost more than they save


class Transforms:
    """Transforms of NumPy arrays.

    Parameters
    ----------
    threads : int
        That a large transform may use.
    """

    __slots__ = ("_threads",)

    multiplies = True  # whether a product with a matrix may replace a short transform

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def fft(self, work: np.ndarray, axis: int, norm: str, inverse: bool) -> np.ndarray:
        """Transform a complex array in place."""
        if work.size == 0:
            return work
        transform, scaling = (scipy.fft.ifft, INVERSE) if inverse else (scipy.fft.fft, FORWARD)
        result = transform(work, axis=axis, norm=scaling[norm], overwrite_x=True, workers=self._workers(work))
        if not np.may_share_memory(result, work):  # SciPy need not use the memory that it may overwrite
            work[...] = result
        return work

    def rfft(self, source: np.ndarray, target: np.ndarray, axis: int, norm: str) -> np.ndarray:
        """Transform a real array; `target` gets the non-negative frequencies."""
        workers = self._workers(source)
        if source.size and workers is None:
            np.fft.rfft(source, axis=axis, norm=FORWARD[norm], out=target)
        elif source.size:
            target[...] = scipy.fft.rfft(source, axis=axis, norm=FORWARD[norm], workers=workers)
        return target

    def irfft(self, source: np.ndarray, target: np.ndarray, axis: int, norm: str, samples: int) -> np.ndarray:
        """Transform non-negative frequencies back to a real array; `source` may be overwritten."""
        workers = self._workers(target)
        if target.size and workers is None:
            np.fft.irfft(source, samples, axis=axis, norm=INVERSE[norm], out=target)
        elif target.size:
            target[...] = scipy.fft.irfft(source, samples, axis=axis, norm=INVERSE[norm], workers=workers)
        return target

    def _workers(self, array: np.ndarray) -> int | None:
        return self._threads if self._threads > 1 and array.size >= _MANY else None
