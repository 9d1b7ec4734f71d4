"""The common parts of all primitives: effect, eager execution, lowering, and the rules of linear primitives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from collops.jax import versions
from collops.jax.communicators import NativeComm
from collops.jax.order import ORDER, Jit, recordable

_PLATFORMS = ("cpu", "cuda", "rocm")


def collective(
    handler: str,
    shapes: Callable[..., Sequence[ShapedArray]],
    attributes: Callable[..., dict[str, int | tuple[int, ...]]],
    *,
    operands: Callable[..., int] | None = None,
    in_place: bool = False,
) -> Primitive:
    """Return the primitive for a native handler.

    Parameters
    ----------
    handler : str
        Name of the handler.
    shapes : callable
        Returns the abstract results for abstract operands and the primitive's parameters.
    attributes : callable
        Returns the handler's attributes for the list of abstract operands and the parameters; counts are in elements.
    operands : callable, optional
        Returns, for the parameters, how many operands the handler gets. The others only carry shapes and derivatives.
    in_place : bool
        Whether the handler can write its result over an operand that is not used again.
    """
    primitive = Primitive(f"collops_{handler}")
    primitive.multiple_results = True
    primitive.def_effectful_abstract_eval(lambda *avals, **parameters: (shapes(*avals, **parameters), {ORDER}))
    primitive.def_impl(functools.partial(_run, primitive))

    def lower(platform: str, context: Any, *values: Any, comm: NativeComm, **parameters: Any) -> Any:
        comm.check_devices(versions.device_count(context))
        count = len(values) if operands is None else operands(comm=comm, **parameters)
        return versions.custom_call(
            context,
            ORDER,
            f"collops_{comm.handlers(platform, recordable())}_{handler}",
            list(values[:count]),
            {"wire": comm.number(platform), **attributes(context.avals_in, comm=comm, **parameters)},
            {0: 0} if in_place and versions.is_intermediate(values[0]) else {},
        )

    for platform in _PLATFORMS:
        mlir.register_lowering(primitive, functools.partial(lower, platform), platform=platform)
    return primitive


def linear(primitive: Primitive, transposed: Callable[..., Any], batch_axes: tuple[int, int]) -> None:
    """Register the transformation rules of a linear primitive with one operand and one result.

    Parameters
    ----------
    primitive : Primitive
        The primitive.
    transposed : callable
        Returns the cotangent of the operand for the cotangent of the result and the parameters.
    batch_axes : pair of int
        Position of a batch axis in the operand and in the result. It is fixed, because JAX may put the batch axis
        elsewhere on other ranks, whose programs differ.
    """

    def jvp(primals: Any, tangents: Any, **parameters: Any) -> Any:
        return primitive.bind(*primals, **parameters), primitive.bind(*map(whole, tangents), **parameters)

    def transpose(cotangents: Any, _: Any, **parameters: Any) -> Any:
        return [transposed(whole(cotangents[0]), **parameters)]

    def batch(values: Any, axes: Any, **parameters: Any) -> Any:
        return primitive.bind(jnp.moveaxis(values[0], axes[0], batch_axes[0]), **parameters), [batch_axes[1]]

    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch


def like(aval: Any, shape: Sequence[int]) -> ShapedArray:
    """Return the abstract value with another shape."""
    return ShapedArray(tuple(shape), aval.dtype)


def whole(tangent: Any) -> Any:
    """Return a tangent or cotangent as an array also if it is zero, because on other ranks it may not be."""
    return ad.instantiate_zeros(tangent)


def _run(primitive: Primitive, *values: Any, **parameters: Any) -> Any:
    return _compiled(primitive, tuple(sorted(parameters.items()))).dispatch(*values)


@functools.lru_cache(maxsize=4096)
def _compiled(primitive: Primitive, parameters: tuple[tuple[str, Any], ...]) -> Jit:
    def run(*values: Any) -> Any:
        return primitive.bind(*values, **dict(parameters))

    return Jit(run, {})
