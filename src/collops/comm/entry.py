"""How the methods of a communicator are entered: arrays of JAX go to their own form, errors are told to other ranks."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np

from collops.backend import engine_of
from collops.errors import REFUSALS
from collops.profile import messages
from collops.profile.marks import Span, active

__all__ = ["collective", "of_arrays", "or_traced"]

Method = TypeVar("Method", bound=Callable[..., Any])
_is_jax: dict[type, bool] = {}


def collective(method: Method) -> Method:
    """Have a method that refuses its arguments tell the other ranks so, which may wait for this one already."""
    name = method.__name__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except REFUSALS as error:
            self.refuse(name, error)
            raise

    return _named(call, method)


def of_arrays(method: Method) -> Method:
    """Do as :func:`collective` and :func:`or_traced` do, in one step."""
    name, array = method.__name__, _first_parameter(method)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else kwargs.get(array)
        if type(x) is not np.ndarray and _of_jax(x):
            return _traced(name, x)(self, *args, **kwargs)
        try:
            if not active:  # without the cost of a mark
                return method(self, *args, **kwargs)
            with Span("communication"):
                return method(self, *args, **kwargs)
        except REFUSALS as error:
            self.refuse(name, error)
            raise

    return _named(call, method)


def or_traced(method: Method) -> Method:
    """Let a method that takes an array take one of JAX as well, by the function of its name that this engine has."""
    name, array = method.__name__, _first_parameter(method)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else kwargs.get(array)
        if type(x) is not np.ndarray and _of_jax(x):
            return _traced(name, x)(self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return _named(call, method)


def _first_parameter(method: Callable[..., Any]) -> str:
    return list(inspect.signature(method).parameters)[1]


def _named(call: Callable[..., Any], method: Method) -> Method:
    """Make `call` look like `method`, also in what errors and profiles read from its frames."""
    function = cast(FunctionType, functools.wraps(method)(call))
    function.__code__ = function.__code__.replace(
        co_name=method.__name__, co_qualname=f"Communicator.{method.__name__}"
    )
    return cast(Method, function)


def _of_jax(x: Any) -> bool:
    known = _is_jax.get(type(x))
    if known is None:
        jax = sys.modules.get("jax")
        if jax is None:
            return False  # and not remembered: the type may become one of JAX's only by its import
        known = _is_jax[type(x)] = isinstance(x, jax.Array)
    return known


def _traced(name: str, x: Any) -> Callable[..., Any]:
    if messages.active:
        messages.record(name, x.size, x.nbytes)
    engine: Any = engine_of(x)
    return getattr(engine.methods, name)
