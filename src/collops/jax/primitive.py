"""The common parts of all primitives: effect, eager execution, lowering, and the rules of linear primitives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from collops.backend import LocalArray
from collops.comm.call import in_elements
from collops.comm.failure import call_site
from collops.comm.reductions import library_loses_nan, sortable, unsorted
from collops.errors import InputError
from collops.jax import calls, versions
from collops.jax.communicators import NativeComm
from collops.jax.native import OPS
from collops.jax.order import ORDER, Jit, recordable
from collops.jax.versions import IrValue, LoweringContext, Traced

_PLATFORMS = ("cpu", "cuda", "rocm")


def like(aval: ShapedArray, shape: Sequence[int]) -> ShapedArray:
    """Return the abstract value with another shape."""
    return ShapedArray(tuple(shape), aval.dtype)


def whole(tangent: Traced) -> Traced:
    """Return a tangent or cotangent as an array even if it is zero, because it may be nonzero on other ranks."""
    return ad.instantiate_zeros(tangent)


def _attributes(avals: Sequence[ShapedArray], parameters: dict[str, Any]) -> dict[str, int | tuple[int, ...]]:
    """Return the handler's attributes: a root unchanged, an operation as its number, and counts in elements."""
    attributes: dict[str, int | tuple[int, ...]] = {}
    for name, value in parameters.items():
        if name == "root":
            attributes[name] = value
        elif name == "op":
            attributes[name] = OPS.index(value)
        elif name in ("counts", "leaving", "arriving"):
            attributes[name] = tuple(in_elements(value, avals[0].shape))
    return attributes


def collective(
    handler: str,
    shapes: Callable[..., Sequence[ShapedArray]] = lambda x, **_: [x.update(weak_type=False)],
    attributes: Callable[[Sequence[ShapedArray], dict[str, Any]], dict[str, int | tuple[int, ...]]] = _attributes,
    *,
    operands: Callable[..., int] | None = None,
    in_place: bool = False,
) -> Primitive:
    """Return the primitive for a native handler.

    `shapes` returns the abstract results for abstract operands and the primitive's parameters; `attributes` returns the
    handler's attributes for the list of abstract operands and the parameters. `operands` returns, for the parameters,
    the number of operands of the handler; other operands only carry shapes and derivatives. With `in_place` the handler
    can write its result over an operand that is not used again.
    """
    primitive = Primitive(f"collops_{handler}")
    primitive.multiple_results = True

    def results(*avals: ShapedArray, **parameters: Any) -> tuple[Sequence[ShapedArray], set[versions.Effect]]:
        parameters["comm"].check_mapping(versions.checks_varying_axes())
        return shapes(*avals, **parameters), {ORDER}

    primitive.def_effectful_abstract_eval(results)
    primitive.def_impl(functools.partial(_run, primitive))
    versions.run_in_shard_map(primitive, functools.partial(_run_on_devices, primitive))

    def lower(
        platform: str, context: LoweringContext, *values: IrValue, comm: NativeComm, **parameters: Any
    ) -> Sequence[IrValue]:
        comm.check_devices(*versions.program_devices(context))
        count = len(values) if operands is None else operands(**parameters)

        def called(context: LoweringContext, *values: IrValue) -> list[IrValue]:
            return versions.custom_call(
                context,
                ORDER,
                f"collops_{comm.handlers(platform, recordable())}_{handler}",
                list(values),
                {"wire": comm.number(platform), "call": text, **attributes(context.avals_in, parameters)},
                {0: 0} if in_place and versions.is_intermediate(values[0]) else {},
            )

        text = calls.text_of(handler, comm, context, parameters)
        op = parameters.get("op")
        if comm.size > 1 and op is not None and library_loses_nan(op, context.avals_in[0].dtype):
            return _lowered_in_integers(called, context, values[0], op)
        return called(context, *values[:count])

    for platform in _PLATFORMS:
        # Not cached on hosts, where the text of a call has its line.
        cacheable = platform != "cpu"
        mlir.register_lowering(primitive, functools.partial(lower, platform), platform=platform, cacheable=cacheable)
    return primitive


def _lowered_in_integers(
    called: Callable[..., list[IrValue]], context: LoweringContext, value: IrValue, op: str
) -> Sequence[IrValue]:
    """Lower a floating-point reduction by min or max, in which libraries may lose NaN, to a reduction of integers.

    This is done at lowering, not when the primitive is bound, since integers have no derivatives.
    """
    (operand,), (result,) = context.avals_in, context.avals_out
    to_integers = functools.partial(sortable, op=op, xp=jnp)
    keys = jax.eval_shape(to_integers, operand)
    arriving = context.replace(avals_out=[like(keys, keys.shape)])
    (value,) = mlir.lower_fun(to_integers, multiple_results=False)(arriving, value)
    reduced = context.replace(avals_in=[like(keys, operand.shape)], avals_out=[like(keys, result.shape)])
    (value,) = called(reduced, value)
    leaving = context.replace(avals_in=reduced.avals_out)
    results = mlir.lower_fun(lambda y: unsorted(y, operand.dtype, jnp), multiple_results=False)(leaving, value)
    context.set_tokens_out(reduced.tokens_out)
    return results


def linear(primitive: Primitive, transposed: Callable[..., Traced], batch_axes: tuple[int, int]) -> None:
    """Register the transformation rules of a linear primitive with one operand and one result.

    `transposed` returns the cotangent of the operand for the cotangent of the result and the parameters. If the
    parameters have ``replicated=True``, the result is a replicated value, and :func:`local_adjoint` is used instead.
    `batch_axes` are the positions of a batch axis in the operand and in the result. They are fixed, because JAX may
    choose other positions on ranks with other programs.
    """

    def jvp(
        primals: Sequence[Traced], tangents: Sequence[Traced], **parameters: Any
    ) -> tuple[list[Traced], list[Traced]]:
        return primitive.bind(*primals, **parameters), primitive.bind(*map(whole, tangents), **parameters)

    def transpose(
        cotangents: Sequence[Traced], _: Traced, *, replicated: bool = False, **parameters: Any
    ) -> list[Traced]:
        cotangent = whole(cotangents[0])
        if replicated:
            return [local_adjoint(cotangent, primitive, {**parameters, "replicated": True})]
        return [transposed(cotangent, **parameters)]

    def batch(values: Sequence[Traced], axes: Sequence[int], **parameters: Any) -> tuple[list[Traced], list[int]]:
        return primitive.bind(jnp.moveaxis(values[0], axes[0], batch_axes[0]), **parameters), [batch_axes[1]]

    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch


def _run(primitive: Primitive, *values: LocalArray, **parameters: Any) -> list[LocalArray]:
    if versions.jit_disabled():
        with jax.disable_jit(False):
            return _run(primitive, *values, **parameters)
    return _dispatch(_compiled, primitive, tuple(sorted(parameters.items())), values)


def _run_on_devices(primitive: Primitive, mesh: Mesh, *values: LocalArray, **parameters: Any) -> list[LocalArray]:
    parameters["comm"].check_mapping(versions.checks_varying_axes())
    if any(value.shape[0] != mesh.size for value in values):
        raise InputError("a collective inside shard_map needs all axes of the mesh to be manual")
    program = functools.partial(_compiled_for, mesh, len(values))
    operands = values or [np.zeros(mesh.size, bool)]  # JAX cannot map a program without operands
    return _dispatch(program, primitive, tuple(sorted(parameters.items())), operands)


def _dispatch(
    program: Callable[..., Jit],
    primitive: Primitive,
    parameters: tuple[tuple[str, Any], ...],
    values: Sequence[LocalArray],
) -> list[LocalArray]:
    if not calls.checking:
        return program(primitive, parameters).dispatch(*values)
    before = calls.eager_site.set(call_site())
    try:
        return program(primitive, parameters, calls.eager_site.get()).dispatch(*values)
    finally:
        calls.eager_site.reset(before)


@functools.lru_cache(maxsize=4096)
def _compiled(primitive: Primitive, parameters: tuple[tuple[str, Any], ...], _site: str = "") -> Jit:
    def run(*values: Traced) -> list[Traced]:
        return primitive.bind(*values, **dict(parameters))

    run.__name__ = run.__qualname__ = primitive.name
    return Jit(run, {})


@functools.lru_cache(maxsize=4096)
def _compiled_for(
    mesh: Mesh, count: int, primitive: Primitive, parameters: tuple[tuple[str, Any], ...], _site: str = ""
) -> Jit:
    """Return the program of a collective of `count` operands, with one entry for each device of `mesh`."""

    def run(*values: Traced) -> list[Traced]:
        return [row[None] for row in primitive.bind(*(value[0] for value in values[:count]), **dict(parameters))]

    rows = PartitionSpec(mesh.axis_names)
    mapped = jax.shard_map(run, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    return Jit(mapped, {}, NamedSharding(mesh, PartitionSpec()))


# Linear maps with an explicit adjoint. A replicated array is one value, also in derivatives: JAX sees only the program
# of one rank, and would sum the cotangents of some replicas and lose the cotangents of others.


def linear_map(
    forward: Callable[[LocalArray], LocalArray],
    adjoint: Callable[[LocalArray], LocalArray],
    x: LocalArray,
    shapes: tuple[tuple[int, ...], ...],
    collective: tuple[bool, bool | None] = (True, True),
) -> LocalArray:
    """Return ``forward(x)``, a linear map with the transpose `adjoint`.

    Both are traceable functions of one array; `collective` tells for each whether it may call collectives. With
    ``None`` as its second entry, `adjoint` only raises an error, as soon as JAX transposes. `shapes` has the shapes of
    `x` and of the result, which has the dtype of `x`.
    """
    return linear_map_p.bind(x, forward=forward, adjoint=adjoint, shapes=shapes, collective=collective)


def local_adjoint(cotangent: Traced, forward: Primitive, parameters: dict[str, Any]) -> Traced:
    """Return this rank's part of a replicated cotangent; its transpose is `forward`. No message.

    The cotangent of a replicated result is also replicated. Each rank selects the part of its operand: the complete
    cotangent (``allreduce``), its rows (``allgather``), or the complete one on the root and zero elsewhere (``bcast``).
    """
    counts, root, comm = parameters.get("counts"), parameters.get("root"), parameters["comm"]
    rows = cotangent.shape[:1] if counts is None else (counts[comm.rank],)
    start = 0 if counts is None else sum(counts[: comm.rank])
    elsewhere = root is not None and comm.rank != root

    def own_part(cotangent: Traced) -> Traced:
        if counts is not None:
            return lax.slice_in_dim(cotangent, start, start + rows[0], axis=0)
        return jnp.zeros_like(cotangent) if elsewhere else cotangent

    def summed(part: Traced) -> Traced:
        return forward.bind(part, **parameters)[0]

    shapes = cotangent.shape, (*rows, *cotangent.shape[1:])
    return linear_map(own_part, summed, cotangent, shapes, (False, True))


def _run_map(x: LocalArray, *, forward: Callable[[LocalArray], LocalArray], **_: Any) -> LocalArray:
    return forward(x)


def _transpose_map(
    cotangent: Traced,
    _: Traced,
    *,
    forward: Callable[[LocalArray], LocalArray],
    adjoint: Callable[[LocalArray], LocalArray],
    shapes: tuple[tuple[int, ...], ...],
    collective: Any,
) -> list[Traced]:
    if collective[1] is None:
        adjoint(whole(cotangent))
    return [linear_map(adjoint, forward, whole(cotangent), shapes[::-1], collective[::-1])]


def _batch_map(
    values: Sequence[Traced],
    axes: Sequence[int],
    *,
    forward: Callable[[LocalArray], LocalArray],
    adjoint: Callable[[LocalArray], LocalArray],
    shapes: tuple[tuple[int, ...], ...],
    collective: Any,
) -> tuple[Traced, int]:
    x = jnp.moveaxis(values[0], axes[0], 0)
    several = tuple((x.shape[0], *shape) for shape in shapes)
    return linear_map(jax.vmap(forward), jax.vmap(adjoint), x, several, collective), 0


linear_map_p = Primitive("collops_linear_map")
linear_map_p.def_impl(_run_map)
linear_map_p.def_effectful_abstract_eval(
    lambda x, *, shapes, collective, **_: (like(x, shapes[1]), {ORDER} if collective[0] else set())
)
mlir.register_lowering(linear_map_p, mlir.lower_fun(_run_map, multiple_results=False))
ad.deflinear2(linear_map_p, _transpose_map)
batching.primitive_batchers[linear_map_p] = _batch_map
