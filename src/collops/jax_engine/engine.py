"""The engine of JAX arrays, as :mod:`collops.backend` describes engines."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from collops.backend import Engine
from collops.jax_engine.namespace import namespace
from collops.jax_engine.variable import Variable, value_of

__all__ = ["JaxEngine"]


class JaxEngine(Engine):
    """JAX arrays, held by variables.

    The program that works on them may be traced, in which its arrays end with the trace: nothing is kept for the next
    call.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("jax", namespace, "host" if jax.default_backend() == "cpu" else "device", keeps=False)

    def adopt(self, array: Any) -> Any:
        """Return `array` in a variable."""
        return array if isinstance(array, Variable) else Variable(array)

    def shared(self, number: Any, comm: Any) -> Any:
        """Return what all ranks of `comm` hold, whose cotangent is the sum of theirs."""
        if comm is None or comm.size == 1 or not isinstance(number, jax.Array | Variable):
            return number
        value = value_of(number)
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            return number
        calls = importlib.import_module("collops.jax")
        # The adjoint of a sum over the ranks whose result counts once: nothing moves, and its own adjoint is the sum.
        (value,) = jax.linear_transpose(lambda v: calls.allreduce(v, comm=comm, cotangents="replicated"), value)(value)
        return Variable(value) if isinstance(number, Variable) else value

    def linear(self, forward: Any, adjoint: Any, array: Any, shape: Any) -> Any:
        """Return ``forward(array)``; while a program is traced, as a map whose transpose is `adjoint`."""
        value = value_of(array)
        if not isinstance(value, Tracer):
            return forward(array)
        maps = [functools.partial(_of_values, function) for function in (forward, adjoint)]
        linear_map = importlib.import_module("collops.jax.linear_map").linear_map
        return Variable(linear_map(*maps, value, (value.shape, tuple(shape))))

    def synchronize(self) -> None:
        """Wait until all work is done."""
        jax.effects_barrier()

    def to_host(self, array: Any) -> np.ndarray:
        """Return `array` as a NumPy array, waiting for its value."""
        return np.asarray(value_of(array))

    def from_host(self, array: Any) -> Any:
        """Return a NumPy array in a variable: a constant also where a program is being traced."""
        with jax.ensure_compile_time_eval():
            return Variable(jnp.asarray(array))


def _of_values(function: Any, value: Any) -> Any:
    return value_of(function(Variable(value)))
