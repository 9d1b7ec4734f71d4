"""Real transforms on GPUs, in one pass over the memory: the tables and launches of ``real.cu``."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from collops._nvrtc import cuda_kernel
from collops.backend import Engine, LocalArray
from collops.operators.fourier.lines import digits, radices

_RADICES = {256: (16, 16), 512: (8, 8, 8), 1024: (16, 8, 8), 2048: (16, 16, 8)}  # of a chirp's steps, as in real.cu
_MAX_LENGTH = max(_RADICES)
_WARP, _MAX_THREADS = 32, 512  # of a block
_SHARED = 1 << 16  # bytes of a block
_MAX_PAIRS = 8
_MIN_COLUMNS = 16  # columns that a block transforms at once: fewer would leave most of the memory bandwidth unused
_MAX_BLOCKS = 65535  # of a grid's second axis


class Plan(NamedTuple):
    """A transform of `length` numbers in shared memory by steps of `radices`, or one of a chirp if that is ``None``."""

    length: int
    radices: tuple[int, ...] | None


def real_plan(samples: int, before: int, after: int) -> Plan | None:
    """Return the plan of transforms of `samples` numbers; ``None`` for transforms that the kernel does not support.

    Unsupported are long transforms, arrays of shape (before, samples, after) with few columns, and empty arrays.
    Lengths with large factors become a convolution with a chirp, of twice the length.
    """
    if after < _MIN_COLUMNS or not 0 < before <= _MAX_BLOCKS:
        return None
    factors = radices(samples)
    if factors is not None and samples <= _MAX_LENGTH:
        return Plan(samples, factors)
    return next((Plan(length, None) for length in _RADICES if length >= 2 * samples - 1), None)


class Axis(NamedTuple):
    """The samples of an axis and its selected frequencies: the struct of this name in ``real.cu``."""

    extent: int
    shift: int
    samples: int
    first: int
    frequencies: int
    turn: int


class RealTransform:
    """Real transforms along one axis, as `axis` describes it, with `factors` for all frequencies, on one engine."""

    def __init__(self, axis: Axis, plan: Plan, factors: np.ndarray, engine: Engine) -> None:
        self._engine = engine
        real = factors.dtype
        self._axis = np.array(axis, np.int32).view(np.dtype((np.void, 4 * len(axis))))
        kind = np.result_type(real, np.complex64)
        self._tables = [engine.from_host(t.astype(kind)) for t in _tables(axis.samples, plan)]
        self._tables.append(engine.from_host(factors))
        pairs = min(_MAX_PAIRS, _SHARED // (plan.length * kind.itemsize))
        self._columns = 2 * pairs
        self._shared = plan.length * pairs * kind.itemsize
        self._threads = min(_MAX_THREADS, -(-plan.length // _WARP) * _WARP)
        options = [f"-DREAL={'float' if real.itemsize == 4 else 'double'}", f"-DLENGTH={plan.length}"]
        options += [f"-DCOLUMNS={pairs}", f"-DTHREADS={self._threads}"]
        if plan.radices is not None:
            options.append(f"-DRADICES={digits(plan.radices)}")
        self._kernels = [
            cuda_kernel(__file__, ("steps.cu", "real.cu"), name, *options) for name in ("real_forward", "real_adjoint")
        ]
        for kernel in self._kernels:
            kernel.max_dynamic_shared_size_bytes = self._shared

    def __call__(self, source: LocalArray, target: LocalArray, axis: int, back: bool) -> LocalArray:
        """Transform a local array along an axis; `back` computes the adjoint.

        `target` is in C order. Along the first axis, only the elements of each sample need to be contiguous, so that
        `target` may be some columns of a larger array. `source` is read in place if it has this form, else copied.
        """
        if target.size == 0:
            return target
        before, after = math.prod(source.shape[:axis]), math.prod(source.shape[axis + 1 :])
        if not (source if axis else source[:1]).flags.c_contiguous:
            source = self._engine.contiguous(source)
        rows = (np.int64(after if axis else array.strides[0] // array.itemsize) for array in (source, target))
        arguments = (source, target, np.int64(after), *rows, self._axis, *self._tables)
        grid = -(-after // self._columns), before
        self._kernels[back](grid, (self._threads,), arguments, shared_mem=self._shared)
        return target


def _tables(samples: int, plan: Plan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the roots of unity, and for a chirp its conjugate's spectrum over the length and itself, in complex128.

    The spectrum is in the output order of the steps, and divided by its length.
    """
    length, factors = plan
    roots = np.exp(-2j * np.pi * np.arange(length) / length)
    if factors is not None:
        return roots, roots[:0], roots[:0]
    number = np.arange(samples, dtype=np.int64)
    chirp = np.exp(-1j * np.pi * (number * number % (2 * samples)) / samples)
    response = np.zeros(length, complex)
    response[:samples] = chirp.conj()
    response[length - samples + 1 :] = chirp[:0:-1].conj()
    order = np.arange(length).reshape(_RADICES[length][::-1]).transpose().ravel()
    return roots, np.fft.fft(response)[order] / length, chirp
