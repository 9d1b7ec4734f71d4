"""Array engines: the namespace, memory and current stream of an array.

All other modules ask an :class:`Engine` instead of importing CuPy or JAX, so that both stay optional.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from collops._nvrtc import cuda_kernel
from collops.errors import InputError, UnsupportedTypeError, type_name
from collops.limits import memory_limit

__all__ = ["Engine", "engine", "engine_of", "is_traced", "kernel_table"]

LocalArray: TypeAlias = Any
"""An array of one of the engines: :class:`numpy.ndarray`, `cupy.ndarray` or :class:`jax.Array`.

The optional packages share no base class, so that a type checker accepts any type."""

Selection: TypeAlias = Any
"""Indices of an array: integers, slices, an ellipsis, an array of integers or booleans, or a tuple of these."""

SparseArray: TypeAlias = Any
"""A sparse matrix of SciPy or CuPy, in any format."""

CudaKernel: TypeAlias = Any
"""A compiled kernel of CuPy, called with grid, block and arguments."""

CudaModule: TypeAlias = Any
"""Compiled kernels of CuPy: ``get_function(name)`` returns one."""

CudaStream: TypeAlias = Any
"""A stream of CuPy: `cupy.cuda.Stream` or `cupy.cuda.ExternalStream`."""

CudaEvent: TypeAlias = Any
"""A point in the work of a stream: `cupy.cuda.Event`."""

_LARGE_BOX = 32 << 20  # bytes; CuPy's copy starts 8 µs earlier, which an H200 needs for fewer bytes
_COPY_THREADS, _COPY_EACH = 256, 4  # threads of a block, and units of a row that a thread copies: as in boxes.cu
_PLANES_OF_ROWS = 3  # axes
_SHORTEST_ROW = 128  # bytes
_MAX_BLOCKS = 65535  # of a grid's second axis


class Engine:
    """The arrays of one package, and operations that differ between packages.

    Attributes
    ----------
    name : str
        ``"numpy"``, ``"cupy"`` or ``"jax"``.
    memory : str
        ``"host"`` or ``"device"``, which determines the transport.
    mutable : bool
        Whether arrays can be written to. If not, as with JAX, every operation returns a new array and ignores ``out=``.
    traced : bool
        Whether arrays may be tracers of a program that is being compiled or differentiated. Messages are then
        primitives of that program, see :mod:`collops.jax`.
    streams : bool
        Whether operations are queued on streams of a device, as with CuPy. There can be several streams.
    cuda : bool
        Whether the device runs CUDA, so that its libraries and kernels can be called; not so with CuPy for ROCm.
    xp : module
        The array namespace: ``numpy``, ``cupy`` or ``jax.numpy``.
    empty : callable
        Makes an array of a shape and a dtype, in less host time than the function of this name in some namespaces.

    Examples
    --------
    >>> from collops.backend import engine
    >>> host = engine("numpy")
    >>> host.name, host.memory, host.xp.arange(3)
    ('numpy', 'host', array([0, 1, 2]))
    """

    __slots__ = ("cuda", "empty", "memory", "mutable", "name", "streams", "traced", "xp")

    def __init__(self, name: str, xp: ModuleType, memory: str, *, mutable: bool = True, traced: bool = False) -> None:
        self.name = name
        self.xp: ModuleType = xp
        self.empty: Callable[[Sequence[int], np.dtype], LocalArray] = xp.empty
        self.memory = memory
        self.mutable = mutable
        self.traced = traced
        self.streams = False
        self.cuda = False

    def __repr__(self) -> str:
        return f"<engine {self.name} ({self.memory} memory)>"

    def __reduce__(self) -> tuple[Callable[..., Engine], tuple[str]]:
        return engine, (self.name,)

    def stream(self) -> int:
        """Return the address of the current stream; 0 on hosts."""
        return 0

    def synchronize(self) -> None:
        """Wait until all work on the current stream has finished."""

    def to_host(self, array: LocalArray) -> np.ndarray:
        """Return `array` as a NumPy array. Waits for its values."""
        return np.asarray(array)

    def from_host(self, array: LocalArray) -> LocalArray:
        """Return a NumPy array as an array of this engine: itself for NumPy, else a copy."""
        return self.xp.asarray(array)

    def adopt(self, array: LocalArray) -> LocalArray:
        """Return an array of the engine's package without special semantics, such as masks; no copy."""
        return array

    def check_devices(self, array: LocalArray) -> None:
        """Raise an UnsupportedTypeError unless `array` is on one device, the current one: others send no messages."""

    def dtype(self, dtype: DTypeLike) -> np.dtype:
        """Return the engine's dtype for `dtype`: single instead of double precision in JAX without 64 bits."""
        return np.dtype(dtype)

    def put(self, array: LocalArray, index: Selection, values: LocalArray) -> LocalArray:
        """Return `array` with `values` at `index`, converted to its dtype; `array` itself if it is mutable."""
        array[index] = values
        return array

    def contiguous(self, view: LocalArray) -> LocalArray:
        """Return `view` if it is contiguous, else a contiguous copy."""
        return self.xp.ascontiguousarray(view)

    def add(self, array: LocalArray, index: Selection, values: LocalArray) -> LocalArray:
        """Return `array` with `values` added at `index` (slices); `array` itself if it is mutable."""
        view = array[index]
        view += values  # not array[index] += values, which copies the view to itself
        return array

    def sliced(self, array: LocalArray, index: Sequence[slice]) -> LocalArray:
        """Return the elements of `array` at `index`, slices of its first axes; a view if the engine has them."""
        return array[tuple(index)]

    def embedded(self, values: LocalArray, index: Sequence[slice], target: LocalArray) -> LocalArray:
        """Return `target` with `values` at `index`, slices of its first axes, and zeros elsewhere."""
        return self.put(self.put(target, ..., 0), tuple(index), values)

    def shifted(self, array: LocalArray, by: int, axis: int) -> LocalArray:
        """Return `array` moved by `by` indices along `axis`, with zeros for elements from beyond its ends."""
        before, after = max(by, 0), max(-by, 0)
        wide = self.xp.pad(array, [(before, after) if a == axis else (0, 0) for a in range(array.ndim)])
        return wide[(*(slice(None),) * axis, slice(after, after + array.shape[axis]))]

    def matmul(self, a: LocalArray, b: LocalArray) -> LocalArray:
        """Return the product of two matrices or stacks of them in the precision of their dtype.

        JAX by default multiplies float32 in lower precision on accelerators, unless the user has set
        ``jax.default_matmul_precision``.
        """
        return self.xp.matmul(a, b)

    def replicated_operand(self, value: LocalArray, comm: Any) -> LocalArray:
        """Return `value`, which is replicated over `comm`, for use with local data.

        In JAX its cotangent is the sum of the cotangents of all ranks.
        """
        return value

    def ufunc(self, ufunc: np.ufunc, masked: bool) -> Callable[..., LocalArray]:
        """Return this package's function for a ufunc of NumPy.

        Raises
        ------
        UnsupportedTypeError
            If the package has no such function, or it is `masked` by ``where=``, which only the engine ``numpy``
            supports.
        """
        if masked:
            raise UnsupportedTypeError(
                f"where= is not supported by the engine {self.name}; use collops.where on the result"
            )
        function = getattr(self.xp, ufunc.__name__, None)
        if function is None:
            raise UnsupportedTypeError(f"the engine {self.name} has no function {ufunc.__name__}")
        return function

    def linear_map(
        self,
        forward: Callable[[LocalArray], LocalArray],
        adjoint: Callable[[LocalArray], LocalArray],
        x: LocalArray,
        shape: Sequence[int],
    ) -> LocalArray:
        """Return ``forward(x)``, of shape `shape`; both functions take and return an array of this rank.

        JAX uses `adjoint` as the transpose, which it cannot derive from the program of a single rank.
        """
        return forward(x)


class _NumpyEngine(Engine):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("numpy", np, "host")

    def adopt(self, array: LocalArray) -> LocalArray:
        # Products of matrices and sums of masked arrays differ from the same operations on arrays.
        if type(array) is np.ndarray or isinstance(array, np.generic):
            return array
        if np.ma.is_masked(array):
            raise UnsupportedTypeError("masked elements of an array have no value: set them with filled()")
        return np.asarray(array)

    def ufunc(self, ufunc: np.ufunc, masked: bool) -> Callable[..., LocalArray]:
        return ufunc


def kernel_table(package: str, default: str | None, **modules: str) -> Callable[[Engine], ModuleType]:
    """Return a function that returns an engine's form of a set of functions: a module of a package.

    Modules are imported at their first use.

    Parameters
    ----------
    package : str
        Full name of the package.
    default : str or None
        Name of the module for all other engines; ``None`` raises an UnsupportedTypeError for them.
    **modules : str
        Names of the modules by name of the engine.

    Examples
    --------
    >>> from collops.backend import engine, kernel_table
    >>> kernels_for = kernel_table("collops.array.kernels", "generic", numpy="numpy_kernels", cupy="cupy_kernels")
    >>> kernels_for(engine("numpy")).__name__
    'collops.array.kernels.numpy_kernels'
    """

    @cache  # three times as fast as a look-up in Python
    def kernels_for(engine: Engine) -> ModuleType:
        name = modules.get(engine.name, default)
        if name is None:
            raise UnsupportedTypeError(f"{package} has no kernels for {engine.name}: choose {' or '.join(modules)}")
        return importlib.import_module(f"{package}.{name}")

    return kernels_for


class BoxCopy(NamedTuple):
    """A launch of ``boxes.cu``: the unit that a thread copies, in bytes, and sizes and strides in these units."""

    unit: int
    grid: tuple[int, int]
    block: tuple[int, int]
    sizes: tuple[np.int64, ...]


@lru_cache(maxsize=1024)
def box_copy(
    shape: Sequence[int], source: Sequence[int], target: Sequence[int], itemsize: int, places: Sequence[int]
) -> BoxCopy | None:
    """Return how to copy a box between arrays with these strides in bytes; ``None`` without planes of long rows.

    `places` are the addresses of both, or these modulo 16.
    """
    # Length and the two strides of axes, the last one first; neighbouring axes are merged if possible.
    axes = [[itemsize, 1, 1]]
    for length, *strides in zip(shape[::-1], source[::-1], target[::-1], strict=True):
        last, *spacing = axes[-1]
        if strides == [last * step for step in spacing]:
            axes[-1][0] *= length
        elif length != 1:
            axes.append([length, *strides])
    if len(axes) > _PLANES_OF_ROWS or axes[0][0] < _SHORTEST_ROW:
        return None
    (width, *_), (height, *rows), (depth, *planes) = axes + [[1, 0, 0]] * (_PLANES_OF_ROWS - len(axes))
    parts = (width, *rows, *planes, *places)
    unit = next(size for size in (16, 8, 4, 2, 1) if not any(part % size for part in parts))
    across = min(_COPY_THREADS, 1 << max(0, -(-width // (unit * _COPY_EACH)) - 1).bit_length())
    down = _COPY_THREADS // across
    grid = -(-width // (unit * _COPY_EACH * across)), min(_MAX_BLOCKS, -(-height * depth // down))
    spacings = (part // unit for part in (*rows, *planes))
    return BoxCopy(unit, grid, (across, down), tuple(map(np.int64, (width // unit, height, height * depth, *spacings))))


class _CupyEngine(Engine):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("cupy", importlib.import_module("cupy"), "device")
        self.empty = self.xp.ndarray  # cupy.empty calls it, and takes a third longer
        self.streams = True
        self.cuda = not self.xp.cuda.runtime.is_hip

    def check_devices(self, array: LocalArray) -> None:
        current = self.xp.cuda.runtime.getDevice()
        if array.data.device_id != current:
            raise UnsupportedTypeError(
                f"the local array is on GPU {array.data.device_id}, but GPU {current} is current in this thread: "
                "create it on the rank's own GPU, which collops.world() makes current, or copy it there by cupy.array"
            )

    def put(self, array: LocalArray, index: Selection, values: LocalArray) -> LocalArray:
        # CuPy reaches 40 % of the memory's bandwidth if rows are not aligned, else 65 %.
        if getattr(values, "nbytes", 0) < _LARGE_BOX or engine_of(values) is not self or values.dtype != array.dtype:
            return super().put(array, index, values)
        view = array[index]
        addresses = values.data.ptr, view.data.ptr
        copy = None
        if view.shape == values.shape and view.data.mem is not values.data.mem:
            places = tuple(address % 16 for address in addresses)
            copy = box_copy(view.shape, values.strides, view.strides, view.itemsize, places)
        if copy is None:
            return super().put(array, index, values)
        kernel = cuda_kernel(__file__, "boxes.cu", "copy_box", f"-DBYTES={copy.unit}")
        kernel(copy.grid, copy.block, (*map(np.uint64, addresses), *copy.sizes))
        return array

    def contiguous(self, view: LocalArray) -> LocalArray:
        return view if view.flags.c_contiguous else self.put(self.xp.empty(view.shape, view.dtype), ..., view)

    def stream(self) -> int:
        return self.xp.cuda.get_current_stream().ptr

    def synchronize(self) -> None:
        self.xp.cuda.get_current_stream().synchronize()

    def to_host(self, array: LocalArray) -> np.ndarray:
        return self.xp.asnumpy(array)


_NUMPY = _NumpyEngine()
_PACKAGES = ("cupy", "jax")
_makers: dict[str, Callable[[], Engine]] = {"cupy": _CupyEngine}
_engines: dict[str, Engine] = {"numpy": _NUMPY}
_by_type: dict[type, Engine] = {np.ndarray: _NUMPY}


def engine(name: Engine | str | None = None) -> Engine:
    """Return the engine called `name`; an engine is returned unchanged.

    Parameters
    ----------
    name : str or Engine, optional
        ``"numpy"``, ``"cupy"`` or ``"jax"``; by default the environment's ``COLLOPS_ENGINE``, else ``"numpy"``.

    Raises
    ------
    InputError
        If there is no such engine, or its package is not installed.

    Examples
    --------
    >>> from collops.backend import engine
    >>> engine("numpy").name
    'numpy'
    """
    if isinstance(name, Engine):
        return name
    name = name or os.environ.get("COLLOPS_ENGINE") or "numpy"
    known = _engines.get(name)
    if known is not None:
        return known
    if name not in _PACKAGES:
        raise InputError(f"there is no engine {name!r}; choose numpy, cupy or jax")
    if importlib.util.find_spec(name) is None:
        raise InputError(f"engine {name!r} needs the package {name}, which is not installed")
    if name not in _makers:
        raise InputError(f"engine {name!r} needs the distributed arrays: import collops.array first")
    return _engines.setdefault(name, _makers[name]())


def register_engine(name: str, make: Callable[[], Engine]) -> None:
    """Register a function that makes an engine at its first use; its class is in a package that imports this module."""
    _makers[name] = make


@cache
def memory_of(chosen: Engine) -> int:
    """Return the total memory that this process may use, or the memory of the rank's device, in bytes."""
    if chosen.streams:
        return chosen.xp.cuda.Device().mem_info[1]
    return memory_limit()


def free_memory(chosen: Engine) -> int:
    """Return the memory of the rank's device, in bytes, that this process can still use, for an engine with streams.

    It is what other processes have not allocated, and what CuPy has allocated and does not use.
    """
    return chosen.xp.cuda.Device().mem_info[0] + chosen.xp.get_default_memory_pool().free_bytes()


def any_true(mask: LocalArray) -> bool:
    """Return whether an element of an array of booleans is true. Waits for its values.

    CuPy compiles reductions of booleans, for seconds at the first use, but not the maximum of integers.
    """
    if engine_of(mask).streams:
        return bool(mask.size) and bool(mask.view(np.uint8).max())
    return bool(mask.any())


def engine_of(array: object) -> Engine:
    """Return the engine of an array.

    Raises
    ------
    UnsupportedTypeError
        If `array` is not an array of a known engine.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.backend import engine_of
    >>> engine_of(np.zeros(3)).name
    'numpy'
    """
    kind = type(array)
    known = _by_type.get(kind)
    if known is None:
        known = _by_type[kind] = _recognise(array)
    return known


def _recognise(array: object) -> Engine:
    if isinstance(array, (np.ndarray, np.generic)):
        return _NUMPY
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return engine("cupy")
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        return engine("jax")
    raise UnsupportedTypeError(f"expected an array of numpy, cupy or jax, not {type_name(array)}")


def is_traced(value: object) -> bool:
    """Return whether `value` is an array without a value yet, in a program that JAX is tracing.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.backend import is_traced
    >>> is_traced(np.ones(3))
    False
    """
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


def repeatable() -> bool:
    """Return whether the environment's ``COLLOPS_DETERMINISTIC``, 0 or 1, requests bitwise reproducible results."""
    text = os.environ.get("COLLOPS_DETERMINISTIC", "").strip()
    if text not in ("", "0", "1"):
        raise InputError(f"COLLOPS_DETERMINISTIC={text!r}: give 1 for bitwise reproducible results, or 0")
    return text == "1"
