"""Non-stationary convolution on GPUs, by the kernel of ``convolve.cu``."""

from __future__ import annotations

import numpy as np

from collops._nvrtc import cuda_kernel
from collops.backend import LocalArray
from collops.errors import UnsupportedTypeError
from collops.operators.convolve.blocks import FilterBank

_THREADS = 256
_WARP = 32
_BYTES = 16  # bytes of the columns of a tile; for tiles see convolve.cu
_TYPES = "fdFD"


class Convolution:
    """Convolution of local arrays on a device; parameters as for ``blocks.Convolution``."""

    def __init__(self, bank: FilterBank, offset: int, extent: int) -> None:
        import cupy

        char = bank.taps.dtype.char
        if char not in _TYPES:
            raise UnsupportedTypeError(f"NonStationaryConvolve1D does not support dtype {bank.taps.dtype} on devices")
        self._char = char
        self._taps = cupy.asarray(bank.taps)
        self._extent = np.int64(extent)
        # The first of this rank's samples, counted from the first filter, the spacing, and the shape of the filters.
        self._filters = np.int64(offset - bank.origin), np.int64(bank.step), *map(np.int32, bank.taps.shape)

    def __call__(self, extended: LocalArray, out: LocalArray, *, adjoint: bool) -> None:
        """Fill `out`, (outer, samples, inner), from `extended`, which has half a filter more on either side."""
        if out.size == 0:
            return
        option, threads = tiling(out.shape, out.dtype.itemsize)
        name = f"{'adjoint' if adjoint else 'forward'}_{self._char}"
        cuda_kernel(__file__, "convolve.cu", name, option)(
            (-(-threads // _THREADS),),
            (_THREADS,),
            (extended, self._taps, out, np.int64(threads), self._extent, np.int64(out.shape[2]), *self._filters),
        )


def tiling(shape: tuple[int, int, int], itemsize: int) -> tuple[str, int]:
    """Return the compiler's option for results of a shape, (outer, samples, inner), and the number of threads."""
    outer, samples, inner = shape
    coalesced = inner >= _WARP
    rows, columns = (8 if itemsize < _BYTES else 4, _BYTES // itemsize) if coalesced else (4 if itemsize < 8 else 2, 1)
    return f"-DWIDE={coalesced:d}", outer * -(-samples // rows) * -(-inner // columns)
