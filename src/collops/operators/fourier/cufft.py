"""Transforms on GPUs by cuFFT, with plans that are made once and transform along any axis without moving it."""

from __future__ import annotations

import math
from typing import Any

import cupy
from cupy.cuda import cufft

_FEW = 16  # calls for one transform; above, it is faster to move its axis to the end
_COMPLEX = {"F": cufft.CUFFT_C2C, "D": cufft.CUFFT_Z2Z}
_REAL = {"f": cufft.CUFFT_R2C, "d": cufft.CUFFT_D2Z}
_BACK = {"f": cufft.CUFFT_C2R, "d": cufft.CUFFT_Z2D}
_POWERS = {"ortho": 0.5, "none": 0.0, "1/n": 1.0}


class Transforms:
    """Transforms of CuPy arrays, and their plans.

    Plans are never dropped: a recorded CUDA graph may still use their memory.
    """

    def __init__(self) -> None:
        self._plans: dict[tuple[int, ...], Any] = {}

    def fft(self, work: Any, axis: int, norm: str, inverse: bool) -> Any:
        """Transform a complex array in place."""
        direction = cufft.CUFFT_INVERSE if inverse else cufft.CUFFT_FORWARD
        self._transform(work, work, axis, _COMPLEX[work.dtype.char], direction)
        _scale(work, work.shape[axis], norm)
        return work

    def rfft(self, source: Any, target: Any, axis: int, norm: str) -> Any:
        """Transform a real array; `target` gets the non-negative frequencies."""
        self._transform(cupy.ascontiguousarray(source), target, axis, _REAL[source.dtype.char], cufft.CUFFT_FORWARD)
        _scale(target, source.shape[axis], norm)
        return target

    def irfft(self, source: Any, target: Any, axis: int, norm: str, samples: int) -> Any:
        """Transform non-negative frequencies back to a real array; `source` is overwritten."""
        # Only the real parts of zero and Nyquist count, but cuFFT does not promise to ignore the imaginary ones.
        alone = slice(0, None, samples // 2) if samples % 2 == 0 else slice(0, 1)
        source[(slice(None),) * axis + (alone,)].imag = 0
        self._transform(source, target, axis, _BACK[target.dtype.char], cufft.CUFFT_INVERSE)
        _scale(target, samples, norm)
        return target

    def _transform(self, source: Any, target: Any, axis: int, kind: int, direction: int) -> None:
        """Run the plan that fits; arrays are in C order."""
        if source.size == 0:
            return
        before, after = math.prod(source.shape[:axis]), math.prod(source.shape[axis + 1 :])
        given, taken = source.shape[axis], target.shape[axis]
        if after == 1 and _fit(source, target):
            self._plan(kind, given, taken, 1, before).fft(source, target, direction)
        elif before <= _FEW and _fit(source, target, given * after, taken * after):
            plan = self._plan(kind, given, taken, after, after)
            sources, targets = source.reshape(before, -1), target.reshape(before, -1)
            for part in range(before):
                plan.fft(sources[part], targets[part], direction)
        else:
            turned = cupy.moveaxis(source, axis, -1).copy(order="C")
            result = turned if source is target else cupy.empty((*turned.shape[:-1], taken), target.dtype)
            self._plan(kind, given, taken, 1, before * after).fft(turned, result, direction)
            target[...] = cupy.moveaxis(result, -1, axis)

    def _plan(self, kind: int, given: int, taken: int, stride: int, batch: int) -> Any:
        """Return the plan of `batch` transforms, whose elements are `stride` apart, on the current device.

        With a stride of 1 the transforms follow each other, else their first elements do.
        """
        key = (cupy.cuda.runtime.getDevice(), kind, given, taken, stride, batch)
        plan = self._plans.get(key)
        if plan is None:
            samples = max(given, taken)
            apart = (given, taken) if stride == 1 else (1, 1)
            plan = self._plans[key] = cufft.PlanNd(
                *((samples,), (given,), stride, apart[0], (taken,), stride, apart[1]), *(kind, batch, "C", 0, taken)
            )
        return plan


def _fit(source: Any, target: Any, given: int = 0, taken: int = 0) -> bool:
    """Return whether arrays, and parts of them of so many elements, begin where cuFFT can read complex numbers."""
    offsets = source.data.ptr, target.data.ptr, given * source.itemsize, taken * target.itemsize
    return math.gcd(*offsets) % max(source.itemsize, target.itemsize) == 0


def _scale(array: Any, samples: int, norm: str) -> None:
    if norm != "none" and array.size:
        array *= samples ** -_POWERS[norm]
