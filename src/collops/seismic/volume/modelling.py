"""Post-stack modelling: one small matrix, such as a convolution, applied to every trace."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.extend.applications import local_stage

if TYPE_CHECKING:
    from collops import LinearOperator
    from collops.extend.applications import Job
    from collops.extend.arrays import LocalArray
    from collops.extend.engines import Engine

__all__ = ["convolution", "reflection"]

# Dense pieces of a banded matrix with this many rows have few zeros; up to twice as many, a single product is faster.
_PIECE = 512


def convolution(wavelet: np.ndarray, samples: int) -> Any:
    """Return the sparse matrix of the convolution with a wavelet whose time zero is its middle sample."""
    from scipy.sparse import diags_array

    half = len(wavelet) // 2
    return diags_array(
        [np.full(samples - abs(lag), wavelet[half + lag]) for lag in range(-half, half + 1)],
        offsets=range(0 + half, -half - 1, -1),
        shape=(samples, samples),
        format="csr",
    )


def reflection(samples: int) -> Any:
    r"""Return the sparse matrix from the logarithm of the impedance to reflection coefficients.

    Sample :math:`i` of the result is :math:`(\ln Z_{i+1} - \ln Z_i) / 2`, which equals
    :math:`(Z_{i+1} - Z_i) / (Z_{i+1} + Z_i)` for small contrasts; the last sample is 0.
    """
    from scipy.sparse import diags_array

    diagonal = np.full(samples, -0.5)
    diagonal[-1] = 0
    return diags_array([diagonal, np.full(samples - 1, 0.5)], offsets=[0, 1], shape=(samples, samples), format="csr")


class TraceMatrix:
    """One square sparse matrix, with a row per sample, applied to each of several traces.

    Results are zero for missing traces, where `live` (bool, one per grid point) is False.
    """

    def __init__(self, matrix: Any, live: np.ndarray, compute: Engine, dtype: str) -> None:
        from collops.extend.operators import multiply

        size = live.size * matrix.shape[0]
        self.shape: tuple[int, int] = (size, size)
        self.dtype = np.dtype(dtype)
        self._multiply = multiply
        self._traces = (live.size, matrix.shape[0])
        self._live = None if live.all() else compute.from_host(live.reshape(-1, 1).astype(dtype))
        self._forward, self._adjoint = (_pieces(m, compute, self.dtype) for m in (matrix.T.tocsr(), matrix.tocsr()))
        # Products of several pieces allocate memory.
        self.capturable: bool = len(self._forward) == 1

    def forward_local(self, x: LocalArray, out: LocalArray) -> LocalArray:
        """Return the matrix times every trace."""
        return self._apply(self._forward, x, out)

    def adjoint_local(self, y: LocalArray, out: LocalArray) -> LocalArray:
        """Return the transposed matrix times every trace."""
        return self._apply(self._adjoint, y, out)

    def _apply(self, pieces: list[tuple[slice, slice, LocalArray]], source: LocalArray, out: LocalArray) -> LocalArray:
        traces, target = source.reshape(self._traces), out.reshape(self._traces)
        if len(pieces) == 1:
            self._multiply(traces, pieces[0][2], target)
        else:
            for read, write, piece in pieces:
                target[:, write] = traces[:, read] @ piece
        if self._live is not None:
            target *= self._live
        return out


def trace_operator(job: Job[Any], matrix: Any, live: np.ndarray) -> LinearOperator:
    """Return the operator that applies a matrix to every trace of a volume, without communication. Collective.

    `live` (bool) is False for missing traces of this rank's rows. Domain and range are the ravelled layout of the
    volume.
    """
    from collops import BlockDiag

    with local_stage(job.comm):
        operators = [TraceMatrix(matrix, live, job.engine, job.options.dtype)] if live.size else []
    return BlockDiag(operators, job.comm)


def _pieces(transposed: Any, compute: Engine, dtype: np.dtype) -> list[tuple[slice, slice, LocalArray]]:
    """Cut a banded matrix into dense pieces; return for each its input samples, its output samples, and the piece."""
    samples = transposed.shape[0]
    count = max(1, samples // _PIECE) if samples > 2 * _PIECE else 1
    edges = [samples * number // count for number in range(count + 1)]
    pieces = []
    for first, last in pairwise(edges):
        rows = np.unique(transposed[:, first:last].nonzero()[0])
        read = slice(int(rows[0]), int(rows[-1]) + 1) if count > 1 else slice(0, samples)
        dense = np.ascontiguousarray(transposed[read, first:last].toarray(), dtype=dtype)
        pieces.append((read, slice(first, last), compute.from_host(dense)))
    return pieces
