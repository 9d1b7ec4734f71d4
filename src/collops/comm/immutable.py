"""Arrays that cannot be written: a communicator hands JAX's, traced ones included, to the primitives of collops.jax."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["or_traced"]

Method = TypeVar("Method", bound=Callable[..., Any])
_is_jax: dict[type, bool] = {}


def or_traced(method: Method) -> Method:
    """Let a method that takes an array take one of JAX as well, by what ``collops.jax.methods`` has under its name."""
    name = method.__name__
    array = list(inspect.signature(method).parameters)[1]

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else kwargs.get(array)
        known = _is_jax.get(type(x))
        if known is None:
            known = _recognised(x)
        if known:
            # Imported by name when the first such array comes, because that room is above this one and needs JAX.
            return getattr(importlib.import_module("collops.jax.methods"), name)(self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]


def _recognised(x: Any) -> bool:
    jax = sys.modules.get("jax")
    if jax is None:
        return False  # and not remembered: the type may become one of JAX's only by its import
    return _is_jax.setdefault(type(x), isinstance(x, jax.Array))
