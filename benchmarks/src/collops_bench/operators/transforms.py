"""Fourier transforms, Fredholm integrals, multi-dimensional and non-stationary convolutions.

The peer knows Fredholm integrals and MDC of replicated arrays only, and its Fourier transforms leave the data split as
the model is; ours do the same here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from math import isqrt
from typing import Any

import numpy as np
from scipy.fft import next_fast_len

from collops.operators import FFT2D, FFTND, MDC, Fredholm1, NonStationaryConvolve1D
from collops_bench.operators.case import Case, Size, of_peer, sizes_of
from collops_bench.registry import Context

__all__ = ["cases"]

_COMPLEX = {"float32": "complex64", "float64": "complex128"}
_BOTH = ("model", "data")
_TAPS, _FILTERS = 21, 16


def cases(context: Context) -> Iterator[Case]:
    """Yield every transform in every size."""
    for size in sizes_of(context):
        yield from _fourier(context, size)
        yield _fredholm(context, size)
        yield _mdc(context, size)
        yield _convolution(context, size)


def _fourier(context: Context, size: Size) -> Iterator[Case]:
    comm, dtype = context.comm, _COMPLEX[size.dtype]
    # Lengths have only small factors, since FFTW would plan others for minutes.
    side = next_fast_len(isqrt(size.elements * comm.size))
    edge = next_fast_len(max(comm.size, round((size.elements * comm.size) ** (1 / 3))))
    for name, kind, dims in (("FFT2D", FFT2D, (side, side)), ("FFTND", FFTND, (edge, edge, edge))):
        options: dict[str, Any] = {"axes": tuple(range(len(dims))), "norm": "none", "dtype": dtype}
        operator = kind(dims, **options, comm=comm, range_layout="domain")
        case = Case(
            name,
            {"shape": list(dims), "dtype": dtype},
            operator,
            of_peer(f"signalprocessing.MPI{name}", dims, **options),
            dtype,
            plan=size.plan,
        )
        if importlib.util.find_spec("mpi4py_fft") is None:
            case = replace(case, peer=None, missing="its Fourier transforms need mpi4py-fft: pip install mpi4py-fft")
        yield case


def _kernel(context: Context, slices: int, rows: int, dtype: str) -> Any:
    """Return this rank's slices of a complex kernel."""
    random = np.random.default_rng(context.comm.rank)
    shape = (slices, rows, rows)
    return context.engine.from_host((random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(dtype))


def _fredholm(context: Context, size: Size) -> Case:
    dtype = _COMPLEX[size.dtype]
    rows = 10 if size.elements < 100_000 else 250
    slices = size.elements // rows**2
    kernel = _kernel(context, slices, rows, dtype)
    operator = Fredholm1(kernel, model="replicated", data="replicated", comm=context.comm)
    parameters = {"kernel_per_rank": [slices, rows, rows], "dtype": dtype}
    return Case(
        "Fredholm1",
        parameters,
        operator,
        of_peer("signalprocessing.MPIFredholm1", kernel, dtype=kernel.dtype),
        dtype,
        plan=size.plan,
        replicated=_BOTH,
    )


def _mdc(context: Context, size: Size) -> Case:
    small, ranks = size.elements < 100_000, context.comm.size
    samples, receivers = (101, 20) if small else (501, 200)
    sources = max(1, size.elements // (samples * receivers))
    frequencies = samples // 2 // ranks
    kernel = _kernel(context, frequencies, receivers, _COMPLEX[size.dtype])
    arguments = (kernel, samples, sources, frequencies * ranks)
    operator = MDC(*arguments, comm=context.comm)
    parameters = {
        "kernel_per_rank": [frequencies, receivers, receivers],
        "samples": samples,
        "virtual_sources": sources,
        "dtype": size.dtype,
    }
    return Case(
        "MDC",
        parameters,
        operator,
        of_peer("waveeqprocessing.MPIMDC", *arguments, usematmul=True),
        size.dtype,
        plan=size.plan,
        replicated=_BOTH,
    )


def _convolution(context: Context, size: Size) -> Case:
    rows = 2000 if size.elements < 100_000 else 10_000
    dims = (rows * context.comm.size, size.elements // rows)
    step = dims[0] // _FILTERS
    filters = np.random.default_rng(0).standard_normal((_FILTERS, _TAPS)).astype(size.dtype)
    centres = np.arange(_FILTERS) * step + step // 2
    options: dict[str, Any] = {"axis": 0, "dtype": size.dtype}
    return Case(
        "NonStationaryConvolve1D",
        {"shape": list(dims), "taps": _TAPS, "filters": _FILTERS, "dtype": size.dtype},
        NonStationaryConvolve1D(dims, filters, centres, comm=context.comm, **options),
        of_peer(
            "signalprocessing.MPINonStationaryConvolve1D", dims, context.engine.from_host(filters), centres, **options
        ),
        size.dtype,
        plan=size.plan,
    )
