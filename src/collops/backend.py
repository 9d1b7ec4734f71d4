"""Array engines: which namespace holds an array, in which memory, and on which stream its work is ordered.

Everything above this module asks an :class:`Engine` instead of importing CuPy or JAX, which keeps both optional
and keeps ``import collops`` fast.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from collops.errors import InputError, UnsupportedTypeError

__all__ = ["Engine", "engine", "engine_of", "memory_of", "repeatable", "when_made"]


class Engine:
    """One way to hold and compute with arrays.

    Attributes
    ----------
    name : str
        ``"numpy"``, ``"cupy"`` or ``"jax"``.
    memory : str
        ``"host"`` or ``"device"``: which wires can carry the arrays.
    keeps : bool
        Whether memory may be kept from one call to the next; ``False`` for JAX, whose arrays end with the program that
        is being traced.
    xp : module
        The array namespace: ``numpy``, ``cupy``, or ``jax.numpy`` for :class:`collops.jax_engine.Variable`.

    Examples
    --------
    >>> from collops.backend import engine
    >>> host = engine("numpy")
    >>> host.name, host.memory, host.xp.arange(3)
    ('numpy', 'host', array([0, 1, 2]))
    """

    __slots__ = ("keeps", "memory", "name", "xp")

    def __init__(self, name: str, xp: Any, memory: str, keeps: bool = True) -> None:
        self.name = name
        self.xp: Any = xp
        self.memory = memory
        self.keeps = keeps

    def __repr__(self) -> str:
        return f"<engine {self.name} ({self.memory} memory)>"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return engine, (self.name,)

    def stream(self) -> int:
        """Address of the caller's current stream; 0 on hosts, where work is ordered by the program."""
        return 0

    def synchronize(self) -> None:
        """Wait until all work on the current stream is done."""

    def to_host(self, array: Any) -> np.ndarray:
        """Return `array` as a NumPy array, waiting for its value."""
        return np.asarray(array)

    def from_host(self, array: Any) -> Any:
        """Return a NumPy array as an array of this engine."""
        return self.xp.asarray(array)

    def adopt(self, array: Any) -> Any:
        """Return an array of the engine's package as this package works with it, sharing its memory."""
        return array

    def shared(self, number: Any, comm: Any) -> Any:
        """Return a number that all ranks of `comm` hold, as it may meet what only this rank has.

        For engines that differentiate: its cotangent is then the sum of what all of them found.
        """
        return number

    def linear(self, forward: Callable[[Any], Any], adjoint: Callable[[Any], Any], array: Any, shape: Any) -> Any:
        """Return ``forward(array)``, of `shape`: a linear map whose adjoint is `adjoint`.

        For engines that differentiate, where the program of one rank alone does not show the adjoint.
        """
        return forward(array)


class _NumpyEngine(Engine):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("numpy", np, "host")

    def adopt(self, array: Any) -> Any:
        # Matrices have a product of their own, and masked arrays sums; memory maps are kept as what they are of.
        if type(array) is np.ndarray or isinstance(array, np.generic):
            return array
        if np.ma.is_masked(array):
            raise UnsupportedTypeError("an array with masked elements has no value there: give it some with filled()")
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


def _jax_engine() -> Engine:
    return importlib.import_module("collops.jax_engine").JaxEngine()


_NUMPY = _NumpyEngine()
_hooks: dict[str, list[Callable[[], None]]] = {}
_MAKERS = {"cupy": _CupyEngine, "jax": _jax_engine}
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
    if name not in _MAKERS:
        raise InputError(f"there is no engine {name!r}; choose numpy, cupy or jax")
    if importlib.util.find_spec(name) is None:
        raise InputError(f"engine {name!r} needs the package {name}, which is not installed")
    made = _engines.setdefault(name, _MAKERS[name]())
    for hook in _hooks.pop(name, ()):
        hook()
    return made


def when_made(name: str, hook: Callable[[], None]) -> None:
    """Call `hook` when the engine called `name` is first asked for; at once if it has been.

    Examples
    --------
    >>> from collops.backend import engine, when_made
    >>> host = engine("numpy")
    >>> when_made("numpy", lambda: print("it is there"))
    it is there
    """
    if name in _engines:
        hook()
    else:
        _hooks.setdefault(name, []).append(hook)


@cache
def memory_of(chosen: Engine) -> int:
    """Return how many bytes of memory a rank can have at most: the machine's, or its device's.

    Examples
    --------
    >>> from collops.backend import engine, memory_of
    >>> memory_of(engine("numpy")) > 1e6
    True
    """
    if chosen.name == "cupy":
        return chosen.xp.cuda.Device().mem_info[1]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def engine_of(array: Any) -> Engine:
    """Return the engine that `array` belongs to; its package is imported only if `array` came from it.

    Raises
    ------
    UnsupportedTypeError
        If `array` is no array of a known engine.

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
    if jax is not None and (isinstance(array, jax.Array) or type(array).__module__.startswith("collops.jax_engine")):
        return engine("jax")
    raise UnsupportedTypeError(f"{type(array).__module__}.{type(array).__qualname__} is no array of numpy, cupy or jax")


def repeatable() -> bool:
    """Return whether the environment's ``COLLOPS_DETERMINISTIC`` asks for the same bits in every run.

    Raises
    ------
    InputError
        If it is neither 0 nor 1.

    Examples
    --------
    >>> from collops.backend import repeatable
    >>> isinstance(repeatable(), bool)
    True
    """
    text = os.environ.get("COLLOPS_DETERMINISTIC", "").strip()
    if text not in ("", "0", "1"):
        raise InputError(f"COLLOPS_DETERMINISTIC={text!r}: give 1 for the same bits in every run, or 0")
    return text == "1"
