"""Transforms on the host: SciPy's in place and with threads; NumPy's where only that writes into given memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.fft

__all__ = ["Transforms"]

# NumPy and SciPy name the direction that is scaled; the operators' adjoints are scaled as their forwards are.
_FORWARD: dict[str, Any] = {"ortho": "ortho", "none": "backward", "1/n": "forward"}
_INVERSE: dict[str, Any] = {"ortho": "ortho", "none": "forward", "1/n": "backward"}
_MANY = 1 << 16  # elements; below, threads cost more than they save


class Transforms:
    """Transforms of NumPy arrays.

    Parameters
    ----------
    threads : int
        That a large transform may use.
    """

    __slots__ = ("_threads",)

    multiplies = True  # whether a product with a matrix may take the place of a short transform

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def fft(self, work: np.ndarray, axis: int, norm: str, inverse: bool) -> None:
        """Transform a complex array in place."""
        if work.size == 0:
            return
        transform, scaling = (scipy.fft.ifft, _INVERSE) if inverse else (scipy.fft.fft, _FORWARD)
        result = transform(work, axis=axis, norm=scaling[norm], overwrite_x=True, workers=self._workers(work))
        if not np.may_share_memory(result, work):  # SciPy promises no more than that it may overwrite
            work[...] = result

    def rfft(self, source: np.ndarray, target: np.ndarray, axis: int, norm: str) -> None:
        """Transform a real array; `target` gets the frequencies that are not negative."""
        if source.size == 0:
            return
        workers = self._workers(source)
        if workers is None:
            np.fft.rfft(source, axis=axis, norm=_FORWARD[norm], out=target)
        else:
            target[...] = scipy.fft.rfft(source, axis=axis, norm=_FORWARD[norm], workers=workers)

    def irfft(self, source: np.ndarray, target: np.ndarray, axis: int, norm: str) -> None:
        """Transform frequencies that are not negative back to a real array; `source` may be overwritten."""
        if target.size == 0:
            return
        samples, workers = target.shape[axis], self._workers(target)
        if workers is None:
            np.fft.irfft(source, samples, axis=axis, norm=_INVERSE[norm], out=target)
        else:
            target[...] = scipy.fft.irfft(source, samples, axis=axis, norm=_INVERSE[norm], workers=workers)

    def _workers(self, array: np.ndarray) -> int | None:
        return self._threads if self._threads > 1 and array.size >= _MANY else None
