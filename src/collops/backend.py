"""Array engines: the namespace, memory and current stream of an array.

All other modules ask an :class:`Engine` instead of importing CuPy or JAX, so that both stay optional.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from collops.errors import InputError, UnsupportedTypeError, type_name
from collops.limits import memory_limit

__all__ = ["Engine", "engine", "engine_of"]


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
    xp : module
        The array namespace: ``numpy``, ``cupy`` or ``jax.numpy``.

    Examples
    --------
    >>> from collops.backend import engine
    >>> host = engine("numpy")
    >>> host.name, host.memory, host.xp.arange(3)
    ('numpy', 'host', array([0, 1, 2]))
    """

    __slots__ = ("memory", "mutable", "name", "traced", "xp")

    def __init__(self, name: str, xp: Any, memory: str, *, mutable: bool = True, traced: bool = False) -> None:
        self.name = name
        self.xp: Any = xp
        self.memory = memory
        self.mutable = mutable
        self.traced = traced

    def __repr__(self) -> str:
        return f"<engine {self.name} ({self.memory} memory)>"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return engine, (self.name,)

    def stream(self) -> int:
        """Return the address of the current stream; 0 on hosts."""
        return 0

    def synchronize(self) -> None:
        """Wait until all work on the current stream has finished."""

    def to_host(self, array: Any) -> np.ndarray:
        """Return `array` as a NumPy array. Waits for its values."""
        return np.asarray(array)

    def from_host(self, array: Any) -> Any:
        """Return a NumPy array as an array of this engine."""
        return self.xp.asarray(array)

    def adopt(self, array: Any) -> Any:
        """Return an array of the engine's package without special semantics, such as masks; no copy."""
        return array

    def check_devices(self, array: Any) -> None:
        """Raise an UnsupportedTypeError if `array` is spread over several devices, from which no messages are sent."""

    def dtype(self, dtype: Any) -> np.dtype:
        """Return the engine's dtype for `dtype`: single instead of double precision in JAX without 64 bits."""
        return np.dtype(dtype)

    def put(self, array: Any, index: Any, values: Any) -> Any:
        """Return `array` with `values` at `index`, converted to its dtype; `array` itself if it is mutable."""
        array[index] = values
        return array

    def add(self, array: Any, index: Any, values: Any) -> Any:
        """Return `array` with `values` added at `index` (slices); `array` itself if it is mutable."""
        view = array[index]
        view += values  # not array[index] += values, which copies the view to itself
        return array

    def replicated_operand(self, value: Any, comm: Any) -> Any:
        """Return `value`, which is replicated over `comm`, for use with local data.

        In JAX its cotangent is the sum of the cotangents of all ranks.
        """
        return value

    def linear_map(self, forward: Callable[[Any], Any], adjoint: Callable[[Any], Any], x: Any, shape: Any) -> Any:
        """Return ``forward(x)``, of shape `shape`; both functions take and return an array of this rank.

        JAX uses `adjoint` as the transpose, which it cannot derive from the program of a single rank.
        """
        return forward(x)


class _NumpyEngine(Engine):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("numpy", np, "host")

    def adopt(self, array: Any) -> Any:
        # Products of matrices and sums of masked arrays differ from those of arrays.
        if type(array) is np.ndarray or isinstance(array, np.generic):
            return array
        if np.ma.is_masked(array):
            raise UnsupportedTypeError("masked elements of an array have no value: set them with filled()")
        return np.asarray(array)


class _CupyEngine(Engine):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("cupy", importlib.import_module("cupy"), "device")

    def stream(self) -> int:
        return self.xp.cuda.get_current_stream().ptr

    def synchronize(self) -> None:
        self.xp.cuda.get_current_stream().synchronize()

    def to_host(self, array: Any) -> np.ndarray:
        return self.xp.asnumpy(array)


_NUMPY = _NumpyEngine()
_PACKAGES = ("cupy", "jax")
_makers: dict[str, Callable[[], Engine]] = {"cupy": _CupyEngine}
_engines: dict[str, Engine] = {"numpy": _NUMPY}
_by_type: dict[type, Engine] = {np.ndarray: _NUMPY}


def engine(name: str | None = None) -> Engine:
    """Return the engine called `name`.

    Parameters
    ----------
    name : str, optional
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
    """Return the memory that this process may use, used or not, or that of the rank's device, in bytes."""
    if chosen.name == "cupy":
        return chosen.xp.cuda.Device().mem_info[1]
    return memory_limit()


def engine_of(array: Any) -> Engine:
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


def _recognise(array: Any) -> Engine:
    if isinstance(array, (np.ndarray, np.generic)):
        return _NUMPY
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return engine("cupy")
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        return engine("jax")
    raise UnsupportedTypeError(f"{type_name(array)} is no array of numpy, cupy or jax")


def repeatable() -> bool:
    """Return whether the environment's ``COLLOPS_DETERMINISTIC``, 0 or 1, asks for the same bits in every run."""
    text = os.environ.get("COLLOPS_DETERMINISTIC", "").strip()
    if text not in ("", "0", "1"):
        raise InputError(f"COLLOPS_DETERMINISTIC={text!r}: give 1 for bitwise reproducible results, or 0")
    return text == "1"


@cache
def _cuda_module(path: Path, *options: str) -> Any:
    return engine("cupy").xp.RawModule(code=path.read_text(encoding="utf-8"), options=("-std=c++17", *options))


@cache
def cuda_kernel(module: str, source: str, name: str, *options: str) -> Any:
    """Return the CUDA kernel `name` of a file next to a Python module, to be called with grid, block and arguments.

    `module` is the ``__file__`` of the Python module. The file is compiled once, with ``-std=c++17`` and `options`.
    """
    return _cuda_module(Path(module).with_name(source), *options).get_function(name)
