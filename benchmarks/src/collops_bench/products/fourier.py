"""Fourier transforms along all axes, whose result stays in the layout of the last one, beside other libraries.

On hosts these are mpi4py-fft, which splits the arrays as ours do, and ``scipy.fft`` on one rank; on one GPU
``cupy.fft``, and ``jax.numpy.fft`` under ``jax.jit``, whose calls wait for their results; on several GPUs NVIDIA's
cuFFTMp through nvmath-python, which splits the arrays as ours do. Nothing is scaled, except by JAX's inverse, which
always is. mpi4py-fft and cuFFTMp may overwrite their argument, so that each of their calls begins with a copy of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from typing import Any

from scipy.fft import next_fast_len

from collops.array import DistributedArray, Layout
from collops.comm.cores import threads_of_rank
from collops.operators import FFTND
from collops_bench.operators.beside import Beside, Program, measure_beside
from collops_bench.operators.case import sizes_of
from collops_bench.peers import load_jax, why_missing, why_no_package
from collops_bench.record import Measurement
from collops_bench.registry import Context
from collops_bench.timing import Plan

__all__ = ["measure"]

_QUICK_ON_DEVICES, _ON_DEVICES = (64,), (344, 512)
_LARGEST = 1024  # on four GPUs and more; with fewer, the checks on the host would take minutes
_COMPLEX = {"float32": "complex64", "float64": "complex128"}


def measure(context: Context) -> Iterator[Measurement]:
    """Yield forward and adjoint in every size."""
    for edge, dtype, plan in _sizes(context):
        dims = (edge,) * 3
        operator = FFTND(dims, axes=(0, 1, 2), norm="none", dtype=dtype, comm=context.comm)
        peers = partial(_on_devices if context.engine.memory == "device" else _on_hosts, context, operator)
        case = Beside(
            "FFTND",
            {"shape": list(dims), "dtype": dtype},
            operator,
            dtype,
            plan,
            peers,
            pylops_mpi="it leaves the data split like the model: see collops bench operators",
            headline=edge > 100,
        )
        yield from measure_beside(context, case)


def _sizes(context: Context) -> list[tuple[int, str, Plan]]:
    """Return the points along each axis, the dtype, and how much to measure."""
    if context.engine.memory == "device":
        edges = _QUICK_ON_DEVICES if context.options.quick else _ON_DEVICES
        if context.comm.size >= 4 and not context.options.quick:
            edges += (_LARGEST,)
        return [(edge, "complex64", Plan(rounds=7, seconds=0.05)) for edge in edges]
    ranks = context.comm.size
    # Lengths have only small factors, since FFTW would plan others for minutes.
    return [
        (next_fast_len(max(ranks, round((size.elements * ranks) ** (1 / 3)))), _COMPLEX[size.dtype], size.plan)
        for size in sizes_of(context)
    ]


def _on_hosts(context: Context, operator: FFTND, direction: str, x: DistributedArray) -> Mapping[str, Program | str]:
    threads, local = threads_of_rank(context.comm), x.local_array
    if (scipy := why_no_package(context, "scipy", one_process=True)) is None:
        from scipy import fft

        transform = partial(fft.fftn if direction == "forward" else partial(fft.ifftn, norm="forward"), workers=threads)
        scipy = Program(partial(transform, local))
    if (mpi4py_fft := why_no_package(context, "mpi4py_fft")) is None:
        mpi4py_fft = _of_mpi4py_fft(operator, direction, local, threads)
    return {"mpi4py-fft": mpi4py_fft, "SciPy": scipy}


def _of_mpi4py_fft(operator: FFTND, direction: str, local: Any, threads: int) -> Program:
    from mpi4py import MPI
    from mpi4py_fft import PFFT

    transforms = PFFT(
        MPI.COMM_WORLD, operator.dims, axes=operator.axes, dtype=operator.cdtype, slab=True, threads=threads
    )
    transform = transforms.forward if direction == "forward" else transforms.backward

    def run() -> Any:
        transform.input_array[...] = local  # which its plans may overwrite, unlike ours
        return transform(normalize=False)

    return Program(run)


def _why_no_cufftmp(context: Context) -> str | None:
    """Return why cuFFTMp is not measured, or None. Collective."""

    def obstacle() -> str | None:
        from nvmath.bindings import cufftMp

        try:
            cufftMp.get_version()
        except RuntimeError as error:  # neither it nor NVSHMEM is a dependency of nvmath-python without extras
            return f"cuFFTMp does not load (pip install nvidia-cufftmp-cu13): {str(error).strip()}"
        return None

    if context.comm.size == 1:
        return "it is for several GPUs"
    if context.comm.device_transport != "nccl":
        return "every rank needs a GPU of its own"
    why = why_no_package(context, "nvmath.distributed", package="nvmath-python[cu13]")
    return why or why_missing(context, obstacle)


def _of_cufftmp(context: Context, operator: FFTND, direction: str, x: DistributedArray) -> Program:
    import nvmath.distributed
    from mpi4py import MPI
    from nvmath.distributed.distribution import Slab
    from nvmath.distributed.fft import FFT, allocate_operand

    xp, comm = context.engine.xp, context.comm
    if nvmath.distributed.get_context() is None:
        nvmath.distributed.initialize(xp.cuda.Device().id, MPI.COMM_WORLD, ["nvshmem"])
    # Its result is split along the other one of its first two axes, while ours is split along the last.
    slabs = (Slab.X, Slab.Y) if direction == "forward" else (Slab.Y, Slab.X)
    before, after = (Layout.split(operator.dims, comm.size, slab.partition_dim) for slab in slabs)
    argument = x.redistribute(before).local_array
    operand = allocate_operand(argument.shape, xp, input_dtype=argument.dtype, distribution=slabs[0], fft_type="C2C")
    transform = FFT(operand, distribution=slabs[0], options={"redistribute": False})
    transform.plan()

    def run() -> Any:
        operand[...] = argument
        return transform.execute(direction="FORWARD" if direction == "forward" else "INVERSE")

    def free() -> None:
        transform.free()
        nvmath.distributed.free_symmetric_memory(operand)

    return Program(run, layout=after, free=free)


def _on_devices(context: Context, operator: FFTND, direction: str, x: DistributedArray) -> Mapping[str, Program | str]:
    forward, local = direction == "forward", x.local_array
    if (cupy := why_no_package(context, "cupy", package="cupy-cuda13x", one_process=True)) is None:
        fft = context.engine.xp.fft
        cupy = Program(partial(fft.fftn, local) if forward else partial(fft.ifftn, local, norm="forward"))
    if (jax := why_no_package(context, "jax", package="jax[cuda13]", one_process=True)) is None:
        jax = load_jax()
        transform = jax.jit(jax.numpy.fft.fftn if forward else jax.numpy.fft.ifftn)
        argument = jax.device_put(context.engine.to_host(local))
        factor = 1.0 if forward else float(prod(operator.dims))
        jax = Program(lambda: transform(argument).block_until_ready(), factor)
    if (cufftmp := _why_no_cufftmp(context)) is None:
        cufftmp = _of_cufftmp(context, operator, direction, x)
    return {"CuPy": cupy, "JAX": jax, "cuFFTMp": cufftmp}
