"""What all primitives share: their effect, how they run eagerly, how they are lowered, and the rules of linear ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from collops.jax import versions
from collops.jax.order import ORDER, Jit, recordable
from collops.jax.wires import Wire

__all__ = ["PLATFORMS", "collective", "like", "linear", "whole"]

PLATFORMS = ("cpu", "cuda", "rocm")


def collective(
    handler: str,
    shapes: Callable[..., Sequence[ShapedArray]],
    attributes: Callable[..., dict[str, int | tuple[int, ...]]],
    *,
    operands: Callable[..., int] | None = None,
    in_place: bool = False,
) -> Primitive:
    """Make the primitive of one native handler.

    Parameters
    ----------
    handler : str
        Name of the handler.
    shapes : callable
        Abstract results from abstract operands and the primitive's parameters.
    attributes : callable
        What the handler needs to know, from the abstract operands (one list) and the parameters; counts in elements.
    operands : callable, optional
        From the parameters, how many of the operands the handler gets; the others only carry shapes and derivatives.
    in_place : bool
        Whether the handler can write its result over an operand that nothing else uses.
    """
    primitive = Primitive(f"collops_{handler}")
    primitive.multiple_results = True
    primitive.def_effectful_abstract_eval(lambda *avals, **parameters: (shapes(*avals, **parameters), {ORDER}))
    primitive.def_impl(functools.partial(_run, primitive))

    def lower(platform: str, context: Any, *values: Any, wire: Wire, **parameters: Any) -> Any:
        wire.check_devices(versions.device_count(context))
        count = len(values) if operands is None else operands(wire=wire, **parameters)
        return versions.custom_call(
            context,
            ORDER,
            f"collops_{wire.handlers(platform, recordable())}_{handler}",
            list(values[:count]),
            {"wire": wire.number(platform), **attributes(context.avals_in, wire=wire, **parameters)},
            {0: 0} if in_place and versions.is_intermediate(values[0]) else {},
        )

    for platform in PLATFORMS:
        mlir.register_lowering(primitive, functools.partial(lower, platform), platform=platform)
    return primitive


def linear(
    primitive: Primitive,
    transposed: Callable[..., Sequence[Any]],
    batched: Callable[..., tuple[Sequence[Any], Sequence[int]]],
) -> None:
    """Give a linear primitive of one operand its rules.

    Parameters
    ----------
    primitive : Primitive
        With one operand and one result.
    transposed : callable
        Cotangent of the operand, from the cotangent of the result, the operand's abstract value and the parameters.
    batched : callable
        Result and the place of its batch axis, from the operand, the place of its batch axis, and the parameters. JAX
        may put that axis elsewhere on other ranks, whose programs differ: what is sent has it in one place everywhere.
    """

    def jvp(primals: Any, tangents: Any, **parameters: Any) -> Any:
        return primitive.bind(*primals, **parameters), primitive.bind(*map(whole, tangents), **parameters)

    def transpose(cotangents: Any, x: Any, **parameters: Any) -> Any:
        return [transposed(whole(cotangents[0]), x.aval, **parameters)]

    def batch(values: Any, places: Any, **parameters: Any) -> Any:
        result, place = batched(values[0], places[0], **parameters)
        return [result], [place]

    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch


def like(aval: Any, shape: Sequence[int]) -> ShapedArray:
    """Return the abstract value with another shape."""
    return ShapedArray(tuple(shape), aval.dtype)


def whole(tangent: Any) -> Any:
    """Return a tangent or cotangent as an array: other ranks may have one here that is not zero."""
    return ad.instantiate_zeros(tangent)


def _run(primitive: Primitive, *values: Any, **parameters: Any) -> Any:
    return _compiled(primitive, tuple(sorted(parameters.items()))).dispatch(*values)


@functools.lru_cache(maxsize=4096)
def _compiled(primitive: Primitive, parameters: tuple[tuple[str, Any], ...]) -> Jit:
    def run(*values: Any) -> Any:
        return primitive.bind(*values, **dict(parameters))

    return Jit(run, {})
