"""Fixed-point travel times: what the kernels add, shift and mask instead of floating-point seconds.

A time is stored in units of the sampling step with as many bits behind the point as the trace length leaves. The
sum of a source and a receiver time is then exact; in float32 the fraction that weights the interpolation would
keep only about four digits at the end of a thousand samples. The tables take 4 bytes a time for float32
operators and 8 for float64.
"""

from __future__ import annotations

import numpy as np

_MANTISSA_BITS = {np.dtype(np.float32): 23, np.dtype(np.float64): 52}
_FIXED_TYPES = {np.dtype(np.float32): np.dtype(np.int32), np.dtype(np.float64): np.dtype(np.int64)}


def fixed_type(dtype: np.dtype) -> np.dtype:
    """Integer type of the travel-time tables of an operator of type `dtype` (float32 or float64)."""
    return _FIXED_TYPES[np.dtype(dtype)]


def fraction_bits(n_samples: int, dtype: np.dtype) -> int:
    """Bits behind the point for traces of `n_samples`, such that the sum of two saturated times fits."""
    dtype = np.dtype(dtype)
    free = 8 * dtype.itemsize - 1 - int(2 * n_samples).bit_length()
    return min(free, _MANTISSA_BITS[dtype])


def to_fixed(times: np.ndarray, step: float, n_samples: int, out: np.ndarray) -> None:
    """Write times as fixed-point numbers.

    Parameters
    ----------
    times : numpy.ndarray
        Travel times in seconds, not negative; infinity means "never arrives".
    step : float
        Sampling step in seconds.
    n_samples : int
        Samples of a trace. Times behind it are stored as `n_samples`: wherever the other time is, the sum stays
        behind the trace.
    out : numpy.ndarray
        int32 or int64 array of the same shape that receives the numbers.
    """
    real = np.dtype(np.float32 if out.dtype.itemsize == 4 else np.float64)
    scaled = np.minimum(np.asarray(times, dtype=np.float64) / step, n_samples)
    np.copyto(out, np.rint(np.ldexp(scaled, fraction_bits(n_samples, real))), casting="unsafe")
