"""Transforms on GPUs by cuFFT, with cached plans for any axis, which need no transposition."""

from __future__ import annotations

import math

import cupy
from cupy.cuda import cufft

from collops.backend import Engine, LocalArray
from collops.operators.fourier.engines import scaling
from collops.operators.fourier.lines import find_lines, radices

_MAX_CALLS = 16  # maximum number of calls for one transform; with more, transposing the axis to the end is faster
_LENGTHS_OF_PLANS = range(
    513, 1025
)  # range in which the custom kernel has few columns per block and cuFFT, without large factors, still makes one pass
_COMPLEX = {"F": cufft.CUFFT_C2C, "D": cufft.CUFFT_Z2Z}
_REAL = {"f": cufft.CUFFT_R2C, "d": cufft.CUFFT_D2Z}
_BACK = {"f": cufft.CUFFT_C2R, "d": cufft.CUFFT_Z2D}


class Transforms:
    """Transforms of CuPy arrays, and their plans.

    Plans are never evicted: a recorded CUDA graph may still use their memory.
    """

    multiplies, real_kernels = False, True

    def __init__(self, engine: Engine, threads: int) -> None:
        self._plans: dict[tuple[object, ...], cufft.PlanNd] = {}

    def fft(
        self, source: LocalArray, target: LocalArray, axes: tuple[int, ...], norm: str, inverse: bool, samples: int
    ) -> LocalArray:
        """Transform a complex array along neighbouring axes."""
        if source.size == 0:
            return target
        source = cupy.ascontiguousarray(source)
        scale = scaling(samples, norm)
        direction = cufft.CUFFT_INVERSE if inverse else cufft.CUFFT_FORWARD
        last, kind = source.ndim - 1, _COMPLEX[target.dtype.char]
        outer = [axis for axis in axes[::-1] if axis != last]
        lines = [transform for axis in outer if (transform := find_lines(target, axis)) is not None]
        before, length = math.prod(source.shape[: axes[0]]), source.shape[axes[0]]
        plans_fit = length in _LENGTHS_OF_PLANS and radices(length) is not None
        by_plan = scale == 1 and len(axes) == 1 and before <= _MAX_CALLS and plans_fit
        if outer and len(lines) == len(outer) and not by_plan and _fit(source, target):
            if last in axes:  # first: the following transforms read from the cache, and work in place
                self._transform(source, target, (last,), kind, direction)
                source = target
            for axis, transform in zip(outer, lines, strict=True):
                transform(source, target, axis, scale, inverse)
                source, scale = target, 1.0
        else:
            self._transform(source, target, axes, kind, direction)
            if scale != 1:
                target *= scale
        return target

    def rfft(self, source: LocalArray, target: LocalArray, axis: int, norm: str) -> LocalArray:
        """Transform a real array; `target` gets the non-negative frequencies."""
        self._transform(cupy.ascontiguousarray(source), target, (axis,), _REAL[source.dtype.char], cufft.CUFFT_FORWARD)
        _scale(target, source.shape[axis], norm)
        return target

    def irfft(self, source: LocalArray, target: LocalArray, axis: int, norm: str, samples: int) -> LocalArray:
        """Transform non-negative frequencies back to a real array; `source` is overwritten."""
        # The imaginary parts of zero and Nyquist must not matter, but cuFFT does not guarantee to ignore them.
        alone = slice(0, None, samples // 2) if samples % 2 == 0 else slice(0, 1)
        source[(slice(None),) * axis + (alone,)].imag = 0
        self._transform(source, target, (axis,), _BACK[target.dtype.char], cufft.CUFFT_INVERSE)
        _scale(target, samples, norm)
        return target

    def _transform(
        self, source: LocalArray, target: LocalArray, axes: tuple[int, ...], kind: int, direction: int
    ) -> None:
        """Run the matching plan; arrays are in C order."""
        if source.size == 0:
            return
        first, end = axes[0], axes[-1] + 1
        before, after = math.prod(source.shape[:first]), math.prod(source.shape[end:])
        inputs, outputs = source.shape[first:end], target.shape[first:end]
        spacings = math.prod(inputs) * after, math.prod(outputs) * after
        if after == 1 and _fit(source, target):
            self._plan(kind, inputs, outputs, 1, before).fft(source, target, direction)
        elif before <= _MAX_CALLS and _fit(source, target, *spacings):
            plan = self._plan(kind, inputs, outputs, after, after)
            sources, targets = source.reshape(before, -1), target.reshape(before, -1)
            for part in range(before):
                plan.fft(sources[part], targets[part], direction)
        else:
            order = (*range(first), *range(end, source.ndim), *range(first, end))
            turned = source.transpose(order).copy(order="C")
            result = turned
            if source is not target:
                result = cupy.empty((*turned.shape[: -len(axes)], *outputs), target.dtype)
            self._plan(kind, inputs, outputs, 1, before * after).fft(turned, result, direction)
            target.transpose(order)[...] = result

    def _plan(
        self, kind: int, inputs: tuple[int, ...], outputs: tuple[int, ...], stride: int, batch: int
    ) -> cufft.PlanNd:
        """Return the plan of `batch` transforms, whose elements are `stride` apart, on the current device.

        With a stride of 1, the transforms are consecutive; otherwise, their first elements are.
        """
        key = (cupy.cuda.runtime.getDevice(), kind, inputs, outputs, stride, batch)
        plan = self._plans.get(key)
        if plan is None:
            samples = tuple(map(max, inputs, outputs))
            steps = (math.prod(inputs), math.prod(outputs)) if stride == 1 else (1, 1)
            plan = self._plans[key] = cufft.PlanNd(
                *(samples, inputs, stride, steps[0], outputs, stride, steps[1]), *(kind, batch, "C", 0, outputs[-1])
            )
        return plan


def _fit(source: LocalArray, target: LocalArray, inputs: int = 0, outputs: int = 0) -> bool:
    """Return whether arrays, and their parts of so many elements, are aligned for complex numbers of cuFFT."""
    offsets = source.data.ptr, target.data.ptr, inputs * source.itemsize, outputs * target.itemsize
    return math.gcd(*offsets) % max(source.itemsize, target.itemsize) == 0


def _scale(array: LocalArray, samples: int, norm: str) -> None:
    if norm != "none" and array.size:
        array *= scaling(samples, norm)
