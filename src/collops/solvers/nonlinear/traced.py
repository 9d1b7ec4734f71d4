"""Nonlinear problems from functions of JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from collops.array import Array, DistributedArray, StackedArray
from collops.errors import UnsupportedTypeError, type_name
from collops.operators import LinearOperator
from collops.operators.base import AnyLayout
from collops.solvers.nonlinear.descent import LeastSquares


def jax_problem(function: Callable[[Any], Array]) -> LeastSquares:
    """Create a nonlinear problem from a function of JAX, which JAX differentiates.

    Parameters
    ----------
    function : callable
        Maps a distributed array of JAX to the residual, also of JAX. It may use operators and collective calls. For
        complex arrays it must be holomorphic.

    Returns
    -------
    object
        With ``residual(x)`` and ``jacobian(x)``. A product with the Jacobian evaluates the function again instead of
        storing intermediate arrays.

    Raises
    ------
    UnsupportedTypeError
        If `function` is not callable. The methods raise it unless `x` and the residual are arrays of JAX, both real or
        both complex.

    Examples
    --------
    >>> import collops
    >>> from collops.solvers.nonlinear import gauss_newton, jax_problem
    >>> problem = jax_problem(lambda x: x * x - 2.0)
    >>> root = gauss_newton(problem, collops.ones(3, engine="jax", dtype="float32")).x
    >>> bool(abs(root - 2**0.5).max() < 1e-5)
    True
    """
    if not callable(function):
        raise UnsupportedTypeError(f"a nonlinear problem needs a function, not {type_name(function)}")
    return _TracedProblem(function)


class _TracedProblem:
    def __init__(self, function: Callable[[Any], Array]) -> None:
        self._function = function
        self._programs = cache(self._compiled)
        # Layout and dtype of the residual, by layout and dtype of x.
        self._ranges: dict[tuple[AnyLayout, np.dtype], tuple[AnyLayout, np.dtype]] = {}

    def residual(self, x: Array) -> Array:
        if not isinstance(x, DistributedArray | StackedArray) or not x.engine.traced:
            raise UnsupportedTypeError(f"a problem from a function of JAX needs arrays of JAX, not {_kind(x)}")
        residual = self._programs(x.comm.size == 1)[0](x)
        if not isinstance(residual, DistributedArray | StackedArray) or (residual.dtype.kind == "c") != (
            x.dtype.kind == "c"
        ):
            raise UnsupportedTypeError(
                f"the function must return a distributed array, complex if x is, not {_kind(residual)}"
            )
        self._ranges[x.layout, x.dtype] = residual.layout, residual.dtype
        return residual

    def jacobian(self, x: Array) -> LinearOperator:
        if (x.layout, x.dtype) not in self._ranges:
            self.residual(x)
        return _Derivative(x, *self._ranges[x.layout, x.dtype], *self._programs(x.comm.size == 1)[1:])

    def _compiled(self, one_rank: bool) -> tuple[Callable[..., Array], ...]:
        """Return the compiled function, its derivative, and the adjoint of the derivative."""
        import jax

        from collops.jax import jit

        function = self._function

        def derivative(x: Array, direction: Array) -> Array:
            return jax.jvp(function, (x,), (direction,))[1]

        def adjoint(x: Array, y: Array) -> Array:
            return jax.vjp(function, x)[1](y.conj())[0].conj()  # JAX transposes without conjugation

        return tuple(map(jax.jit if one_rank else jit, (function, derivative, adjoint)))


class _Derivative(LinearOperator):
    """The derivative at a point."""

    def __init__(
        self,
        x: Array,
        layout: AnyLayout,
        dtype: DTypeLike,
        forward: Callable[..., Array],
        adjoint: Callable[..., Array],
    ) -> None:
        super().__init__(x.layout, layout, dtype, x.comm)
        self._x, self._programs = x, (forward, adjoint)

    def _forward(self, x: Array, out: Array | None) -> Array:
        return self._programs[0](self._x, x)

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        return self._programs[1](self._x, y)


def _kind(value: Any) -> str:
    return f"{value.engine.name} of {value.dtype}" if hasattr(value, "engine") else type_name(value)
