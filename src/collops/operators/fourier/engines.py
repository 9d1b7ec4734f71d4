"""One-dimensional transforms and scratch memory of each engine; all other code of this folder is engine-independent.

The transforms of an engine have ``fft(source, target, axes, norm, inverse, samples)`` for neighbouring axes, whose
source and target may be one array, ``rfft(source, target, axis, norm)`` and ``irfft(source, target, axis, norm,
samples)``, which may overwrite its source. All take local arrays in C order and return the result, in `target` unless
it is ``None``. `norm` has the meaning of the operators: an adjoint is scaled like its forward, not by the number of
samples like an inverse. On devices the `samples` of `fft` may be the product of the lengths of several transforms, so
that one of them scales for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import get_ident
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.backend import Engine, LocalArray, kernel_table
from collops.exchange.peer_copy import mapped_memory
from collops.operators.memory import Buffers, store

if TYPE_CHECKING:
    from collops.comm import Communicator

_transforms_for = kernel_table("collops.operators.fourier", "engines", cupy="cufft")

PIECES = "pieces"
"""The slot in memory that other ranks can access."""

_MIN_FOR_THREADS = 1 << 16  # elements; below, threads cost more than they save
_POWERS = {"ortho": 0.5, "none": 0.0, "1/n": 1.0}
# In SciPy and JAX, the name states the scaled direction.
_FORWARD: dict[str, Any] = {"ortho": "ortho", "none": "backward", "1/n": "forward"}
_INVERSE: dict[str, Any] = {"ortho": "ortho", "none": "forward", "1/n": "backward"}


def scaling(samples: int, norm: str) -> float:
    """Return the factor of a transform of so many samples, and of its adjoint."""
    return samples ** -_POWERS[norm]


class Transforms:
    """Transforms by SciPy on hosts (in place, multithreaded), or by JAX."""

    real_kernels = False

    def __init__(self, engine: Engine, threads: int) -> None:
        if engine.mutable:
            from scipy import fft

            self._module: ModuleType = fft
        else:
            self._module = engine.xp.fft
        self._mutable = self.multiplies = engine.mutable
        self._threads = threads

    def fft(
        self, source: LocalArray, target: LocalArray, axes: tuple[int, ...], norm: str, inverse: bool, samples: int
    ) -> LocalArray:
        """Transform a complex array, scaled by the lengths of its axes at no extra cost."""
        transform, names = (self._module.ifftn, _INVERSE) if inverse else (self._module.fftn, _FORWARD)
        if not self._mutable:
            return self._run(transform, source, None, axes=axes, norm=names[norm])
        if target is not source:  # to transform a copy in place allocates nothing
            target[...] = source
        return self._run(transform, target, target, axes=axes, norm=names[norm], overwrite_x=True)

    def rfft(self, source: LocalArray, target: LocalArray, axis: int, norm: str) -> LocalArray:
        """Return the non-negative frequencies of a real array."""
        return self._run(self._module.rfft, source, target, axis=axis, norm=_FORWARD[norm])

    def irfft(self, source: LocalArray, target: LocalArray, axis: int, norm: str, samples: int) -> LocalArray:
        """Return a real array from its non-negative frequencies; missing ones count as zero."""
        return self._run(self._module.irfft, source, target, n=samples, axis=axis, norm=_INVERSE[norm])

    def _run(
        self, transform: Callable[..., LocalArray], source: LocalArray, target: LocalArray, **options: object
    ) -> LocalArray:
        if not self._mutable:
            return transform(source, **options)
        if self._threads > 1 and source.size >= _MIN_FOR_THREADS:
            options["workers"] = self._threads
        result = transform(source, **options)
        if not np.may_share_memory(result, target):  # SciPy may return new memory although it may overwrite its source
            target[...] = result
        return target


class Workspace:
    """Scratch arrays of at most `size` elements, and the transforms, of one engine in one precision.

    `dtype` is the complex type of the computation, and `threads` the number of threads of a transform on the host.
    ``multiplies`` tells whether a product with a matrix may replace a short transform, ``real_kernels`` whether the
    kernels of :mod:`collops.operators.fourier.real` may replace a real one. ``addresses`` are the addresses of the slot
    `PIECES` on all ranks, and ``barrier()`` synchronises the current streams of all ranks. Both are ``None`` if ranks
    cannot access each other's memory.
    """

    def __init__(self, engine: Engine, dtype: np.dtype, size: int, threads: int) -> None:
        self.complex = dtype
        self.real = np.dtype(f"f{dtype.itemsize // 2}")
        self.engine = engine
        self.transforms = _transforms_for(engine).Transforms(engine, threads)
        self.multiplies, self.real_kernels = self.transforms.multiplies, self.transforms.real_kernels
        self.size = size
        self._buffers = Buffers()
        self._views: dict[tuple[str, tuple[int, ...], bool, int], LocalArray] = {}
        self.addresses: Any = None
        self.barrier: Any = None
        self._rank = 0

    def __deepcopy__(self, memo: dict[int, object]) -> Workspace:
        """Return this workspace: copies of an operator share it, since no call reads data of an earlier call."""
        return self

    def prepare_pieces(self, comm: Communicator) -> None:
        """Map the memory of pieces, if ranks can access each other's memory. Collective."""
        transport = comm.transport_of(self.engine.xp.empty(0))
        if transport.short is not None:
            self.addresses = mapped_memory(comm, "pieces of Fourier transforms", self.size * self.complex.itemsize)
            self._rank, self.barrier = comm.rank, transport.short.barrier

    def take(self, slot: str, shape: tuple[int, ...], real: bool = False) -> LocalArray:
        """Return a scratch array in the memory of its slot; ``None`` on an engine of immutable arrays."""
        key = (slot, shape, real, get_ident())
        view = self._views.get(key)
        if view is None and self.engine.mutable:
            memory = self._memory(slot)
            view = self._views[key] = memory.view(self._dtype(real))[: math.prod(shape)].reshape(shape)
        return view

    def _memory(self, slot: str) -> LocalArray:
        if self.addresses is None or slot != PIECES:
            return self._buffers.local(slot, (self.size,), self.complex, self.engine)
        cuda, nbytes = self.engine.xp.cuda, self.size * self.complex.itemsize
        memory = cuda.UnownedMemory(self.addresses[self._rank], nbytes, None)
        return self.engine.xp.ndarray((self.size,), self.complex, cuda.MemoryPointer(memory, 0))

    def converted(self, array: LocalArray, real: bool) -> LocalArray:
        """Return an array converted to the type of the computation, or itself."""
        if real and array.dtype.kind == "c":
            array = array.real
        if array.dtype == self._dtype(real):
            return array
        memory = self.take("input", array.shape, real)
        return array.astype(self._dtype(real)) if memory is None else store(array, memory)

    def result(self, out: LocalArray | None, shape: tuple[int, ...], real: bool) -> LocalArray | None:
        """Return memory for a result in the type of the computation: `out`, or a scratch array if its type differs."""
        return out if out is None or out.dtype == self._dtype(real) else self.take("output", shape, real)

    def _dtype(self, real: bool) -> np.dtype:
        return self.real if real else self.complex
