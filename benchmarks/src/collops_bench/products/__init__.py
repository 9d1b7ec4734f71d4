"""Fourier transforms and sparse products, beside libraries that do the same work in one process or with MPI.

On hosts these are SciPy, mpi4py-fft and PETSc; on GPUs CuPy, JAX, PyTorch and nvmath-python. Libraries of one process
are measured on one rank. The peer of a measurement is the fastest of all.
"""

from __future__ import annotations

from collections.abc import Iterator

from collops_bench.products import fourier, sparse
from collops_bench.record import Measurement
from collops_bench.registry import Context

__all__ = ["measure"]


def measure(context: Context) -> Iterator[Measurement]:
    """Yield forward and adjoint of each."""
    yield from fourier.measure(context)
    yield from sparse.measure(context)
