"""Non-stationary convolution on GPUs, by the kernel of ``convolve.cu``."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from collops.backend import cuda_kernel
from collops.errors import UnsupportedTypeError
from collops.operators.convolve.blocks import FilterBank

_THREADS = 256
_TYPES = "fdFD"


class CudaConvolution:
    """Convolution of local arrays on a device; parameters as for :class:`BlockConvolution`."""

    def __init__(self, bank: FilterBank, offset: int, extent: int) -> None:
        char = bank.taps.dtype.char
        if char not in _TYPES:
            raise UnsupportedTypeError(f"there is no convolution on devices for arrays of dtype {bank.taps.dtype}")
        self._forward = cuda_kernel(__file__, "convolve.cu", f"forward_{char}")
        self._adjoint = cuda_kernel(__file__, "convolve.cu", f"adjoint_{char}")
        self._taps = cupy.asarray(bank.taps)
        self._extent = np.int64(extent)
        # The first of this rank's samples, counted from the first filter, the spacing, and the shape of the filters.
        self._filters = np.int64(offset - bank.origin), np.int64(bank.step), *map(np.int32, bank.taps.shape)

    def __call__(self, extended: Any, out: Any, *, adjoint: bool) -> None:
        """Fill `out`, (outer, samples, inner), from `extended`, which has half a filter more on either side."""
        if out.size == 0:
            return
        (self._adjoint if adjoint else self._forward)(
            (-(-out.size // _THREADS),),
            (_THREADS,),
            (extended, self._taps, out, np.int64(out.size), self._extent, np.int64(out.shape[2]), *self._filters),
        )
