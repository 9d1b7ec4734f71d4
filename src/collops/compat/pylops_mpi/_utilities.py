"""PyLops-MPI's utilities: dot test, timing, reshaping, spectrum shifts, optional packages and plots."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import numpy as np

import collops
from collops import Communicator, Layout, profile
from collops.compat.pylops_mpi._arrays import AnyArray, Partition, wrap
from collops.compat.pylops_mpi._native import mpi_comm, to_layout
from collops.errors import InputError, TransportError
from collops.extend.engines import engine_of


def dottest(Op, u, v, nr=None, nc=None, rtol=1e-6, atol=1e-21, raiseerror=True, verb=False) -> bool:
    r"""Check that :math:`\langle A u, v\rangle = \langle u, A^H v\rangle` for the given vectors. Collective.

    `nr` and `nc` are the expected numbers of rows and columns; `verb` prints both inner products. Raises an
    AssertionError if the shape is wrong, or if the test fails and `raiseerror` is true.
    :meth:`collops.operators.LinearOperator.dottest` chooses the vectors itself.
    """
    if (Op.shape[0] if nr is None else nr, Op.shape[1] if nc is None else nc) != Op.shape:
        raise AssertionError(f"Provided nr and nc do not match operator shape: {(nr, nc)} and {Op.shape}")
    pairs = (Op.matvec(u), v), (u, Op.rmatvec(v))
    # Gathered, as in PyLops-MPI: a vector may be replicated while the result beside it is split.
    forward, adjoint = (np.vdot(*(engine_of(a := x.asarray()).to_host(a) for x in pair)) for pair in pairs)
    passed = bool(np.isclose(forward, adjoint, rtol, atol))
    text = f"Dot test {'passed' if passed else 'failed'}, v^H(Opu)={forward} - u^H(Op^Hv)={adjoint}"
    if verb:
        print(text)
    if not passed and raiseerror:
        raise AssertionError(text)
    return passed


# Timing

# For each running call of a timed function, innermost last: the lines of its report and its last mark.
_calls: list[tuple[list[str], list[tuple[str, float]]]] = []


def mark(label: str) -> None:
    """Mark this point of the innermost timed function; its report has the time since the previous mark."""
    if not _timing():
        return
    if not _calls:
        raise RuntimeError("mark() called outside of a benchmarked region: call it in a function under @benchmark")
    (lines, marks), now = _calls[-1], _now()
    lines += [f"{before}-->{label}: {now - begin:.6f} s" for before, begin in marks]
    marks[:] = [(label, now)]


def benchmark(
    func: Callable[..., Any] | None = None, description: str | None = "", logger: logging.Logger | None = None
) -> Any:
    """Time every call of a function, unless the environment variable ``BENCH_PYLOPS_MPI`` is 0.

    Rank 0 reports to `logger` or standard output. Each call is also a mark of :mod:`collops.profile`, named
    `description` or after the function.
    """
    if func is None:
        return functools.partial(benchmark, description=description, logger=logger)
    if not _timing():
        return func
    label = description or func.__name__

    @functools.wraps(func)
    def timed(*args: Any, **keywords: Any) -> Any:
        _calls.append(([], []))
        begin = _now()
        try:
            with profile.mark(label):
                result = func(*args, **keywords)
            end = _now()
        finally:
            inner, _ = _calls.pop()
        lines = [f"[decorator]{label}: total runtime: {end - begin:.6f} s", *("\t" + line for line in inner)]
        if _calls:
            _calls[-1][0].extend(lines)
        else:
            _report("\n".join(lines) + "\n", logger)
        return result

    return timed


def _timing() -> bool:
    return os.environ.get("BENCH_PYLOPS_MPI", "1") != "0"


def _now() -> float:
    """Return the time after synchronising with the current device."""
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        cupy.cuda.get_current_stream().synchronize()
    return time.perf_counter()


def _report(text: str, logger: logging.Logger | None) -> None:
    if mpi_comm(None).Get_rank() != 0:
        return
    if logger is not None:
        logger.info(text)
    else:
        print(text)


# Shapes of arrays


def reshaped(func: Callable[..., Any] | None = None, forward: bool | None = None, stacking: bool | None = None) -> Any:
    """Decorate ``_matvec`` or ``_rmatvec`` to receive an N-dimensional array; the result is ravelled.

    The array has the shape ``dims`` if `forward`, else ``dimsd``; by default this depends on the method's name. With
    `stacking` the array stays a vector with parts of ``local_shapes_m`` (``local_shapes_n`` for the adjoint).
    """
    if func is None:
        return functools.partial(reshaped, forward=forward, stacking=stacking)
    towards_data = not func.__name__.startswith("_rmatvec") if forward is None else forward

    @functools.wraps(func)
    def apply(self: Any, x: AnyArray) -> AnyArray:
        flat, ranks = x.native, x.size
        if stacking:
            sizes = [int(shape[0]) for shape in (self.local_shapes_m if towards_data else self.local_shapes_n)]
            vector = to_layout(flat, Layout.split(flat.size, ranks, sizes=sizes, mask=x.mask))
        else:
            layout = Layout.split(self.dims if towards_data else self.dimsd, ranks, mask=x.mask)
            vector = to_layout(flat, layout.reshape(flat.size)).reshape(layout.shape)
        return func(self, wrap(vector, x, Partition.SCATTER)).ravel()

    return apply


def fftshift_nd(x: AnyArray, axes: int | Sequence[int] | None = None) -> AnyArray:
    """Shift the zero frequency to the centre. Collective: one exchange if the split axis is shifted.

    As in PyLops-MPI, `x` is overwritten by shifts along other axes. The result may be split along another axis.
    """
    return _shifted("fftshift", x, axes)


def ifftshift_nd(x: AnyArray, axes: int | Sequence[int] | None = None) -> AnyArray:
    """Invert :func:`fftshift_nd`, with the same arguments and result."""
    return _shifted("ifftshift", x, axes)


def _shifted(shift: str, x: AnyArray, axes: int | Sequence[int] | None) -> AnyArray:
    if x.ndim < 2:
        raise InputError("a shift along the split axis needs another one to split instead")
    chosen = range(x.ndim) if axes is None else [axes] if isinstance(axes, int) else axes
    for axis in sorted({axis % x.ndim for axis in chosen}, key=lambda axis: axis == x.axis):
        if axis == x.axis:
            x = x.redistribute(0 if axis else 1)
        x.local_array[...] = getattr(x.native.engine.xp.fft, shift)(x.local_array, axes=axis)
    return x


def to_scalar(x: Any) -> Any:
    """Return the only element of an array as a Python number, and other values as they are."""
    return x.item() if hasattr(x, "item") else x


# Optional packages


def nccl_import(message: str | None = None) -> str | None:
    """Return the reason why NCCL is unavailable, or ``None``."""
    if os.environ.get("NCCL_PYLOPS_MPI", "1") == "0":
        return f"{message or 'NCCL'} is disabled by NCCL_PYLOPS_MPI=0"
    if importlib.util.find_spec("cupy") is None:
        return f"{message or 'NCCL'} requires CuPy, which is not installed"
    return None


def mpi4py_fft_import(message: str | None) -> str | None:
    """Return ``None``: Fourier transforms need no optional package."""
    return None


nccl_enabled = nccl_import() is None
cuda_aware_mpi_enabled = os.environ.get("PYLOPS_MPI_CUDA_AWARE", "0") == "1"
mpi4py_fft = True


def initialize_nccl_comm() -> Communicator:
    """Return the native communicator, to be passed as ``base_comm_nccl``. Collective.

    Each rank's GPU becomes its current device. Raises a TransportError without NCCL or without a GPU on each rank.
    """
    reason = nccl_import()
    if reason is not None:
        raise TransportError(reason)
    comm = collops.world()
    if comm.size > 1 and comm.device_transport != "nccl":
        raise TransportError(f"NCCL is not the transport of device arrays:\n{comm.describe()}")
    return comm


def nccl_split(mask: Sequence[SupportsIndex]) -> Communicator:
    """Return the native communicator of the ranks with the same entry in `mask` as this one. Collective."""
    return initialize_nccl_comm().subgroup(tuple(map(int, mask)))


# Plots


def plot_distributed_array(arr: AnyArray) -> None:
    """Plot the distribution of the elements over the ranks, on rank 0. No message.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> x = pylops_mpi.DistributedArray(global_shape=8)
    >>> x[:] = 1.0
    >>> pylops_mpi.plot_distributed_array(x)
    """
    if arr.rank == 0:
        import matplotlib.pyplot as plt

        layout = arr.native.layout
        owners = np.zeros(arr.global_shape)
        for rank in range(arr.size):
            owners[layout.slices(rank)] = rank
        figure, axes = plt.subplots()
        image = axes.matshow(np.atleast_2d(owners), cmap="rainbow", vmin=0, vmax=max(1, arr.size - 1))
        figure.colorbar(image, ax=axes, label="rank", ticks=range(arr.size))
        axes.set_title(f"Distributed over {arr.size} ranks along axis {arr.axis}")


def plot_local_arrays(
    arr: AnyArray, title: str | None = None, vmin: float | None = None, vmax: float | None = None
) -> None:
    """Plot each rank's part in a separate panel, on rank 0. Collective: one gather.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> x = pylops_mpi.DistributedArray(global_shape=(4, 4))
    >>> x[:] = 1.0
    >>> pylops_mpi.plot_local_arrays(x, "ones")
    """
    full = arr.native.gather(root=0)
    if arr.rank == 0:
        import matplotlib.pyplot as plt

        values = arr.native.engine.to_host(full)
        figure, axes = plt.subplots(1, arr.size, squeeze=False)
        for rank, ax in enumerate(axes[0]):
            part = values[arr.native.layout.slices(rank)]
            if part.size:
                ax.imshow(np.atleast_2d(part), vmin=vmin, vmax=vmax)
            else:
                ax.set_axis_off()  # Matplotlib warns about empty images
            ax.set_title(f"Rank {rank}")
        if title is not None:
            figure.suptitle(title)
