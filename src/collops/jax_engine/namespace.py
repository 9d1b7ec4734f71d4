"""``jax.numpy`` for variables: the same functions, which take variables and fill those that are given as ``out``."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np

from collops.errors import UnsupportedTypeError
from collops.jax_engine.variable import Variable, as_result, canonical, value_of

__all__ = ["Namespace", "namespace"]


class Namespace:
    """A module of ``jax.numpy`` whose functions take variables.

    Dtypes are those that JAX has: without ``jax_enable_x64``, single instead of double precision.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.__name__ = module.__name__

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if isinstance(found, ModuleType):
            found = Namespace(found)
        elif callable(found) and not isinstance(found, type) and not hasattr(found, "dtype"):
            found = _taking_variables(found)
        setattr(self, name, found)
        return found

    def __repr__(self) -> str:
        return f"<{self.__name__} of variables>"


class _JaxNumpy(Namespace):
    """``jax.numpy`` itself, with what only makes sense for memory."""

    def asarray(self, array: Any, dtype: Any = None) -> Any:
        """Return `array` as a variable: itself if it is one of that dtype."""
        if isinstance(array, Variable) and (dtype is None or array.dtype == canonical(dtype)):
            return array
        return as_result(jnp.asarray(value_of(array), None if dtype is None else canonical(dtype)))

    def ascontiguousarray(self, array: Any, dtype: Any = None) -> Any:
        """Return `array` as a variable, as :meth:`asarray` does: all of them are contiguous."""
        return self.asarray(array, dtype)

    def array(self, array: Any, dtype: Any = None, copy: bool = True, order: str = "C") -> Any:
        """Return a variable of its own."""
        return Variable(value_of(self.asarray(array, dtype)))

    def empty(self, shape: Any, dtype: Any = np.float64) -> Variable:
        """Return zeros: JAX has no memory without values."""
        return Variable(jnp.zeros(shape, canonical(dtype)))

    def zeros(self, shape: Any, dtype: Any = np.float64) -> Variable:
        """Return a variable, also of no axes, that holds zeros."""
        return Variable(jnp.zeros(shape, canonical(dtype)))

    def copyto(self, target: Variable, source: Any) -> None:
        """Write `source` into `target`."""
        target[...] = source


def _taking_variables(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, out: Any = None, **arguments: Any) -> Any:
        result = function(*map(_given, args), **{name: _given(value) for name, value in arguments.items()})
        if out is None:
            return as_result(result)
        if not np.can_cast(result.dtype, out.dtype, "same_kind"):
            raise UnsupportedTypeError(f"a result of {result.dtype} does not fit into out of {out.dtype}")
        out[...] = result
        return out

    return call


def _given(argument: Any) -> Any:
    if isinstance(argument, Variable):
        return argument.value
    if isinstance(argument, np.dtype) or (isinstance(argument, type) and issubclass(argument, np.generic)):
        return canonical(argument)
    if isinstance(argument, list | tuple):
        return type(argument)(map(_given, argument))
    return argument


namespace = _JaxNumpy(jnp)
