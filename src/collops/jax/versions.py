"""All uses of JAX's private modules, which may differ between versions of JAX."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, TypeAlias

import jax
import numpy as np
from jax._src import api as _api
from jax._src import array as _array
from jax._src import config as _config
from jax._src import core as _core
from jax._src import dispatch as _dispatch
from jax._src import effects as _effects
from jax._src import mesh as _mesh
from jax._src import shard_map as _shard_map
from jax._src.interpreters import mlir as _mlir
from jax._src.interpreters import partial_eval as _partial_eval
from jax._src.util import HashablePartial as _HashablePartial
from jax.extend.core import Primitive
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from jaxlib.mlir import ir

from collops.backend import LocalArray

__all__ = ["lowered", "product_precision"]

# Whether XLA runs calls once before it records them. A first call may do operations that a recording does not allow.
RUNS_BEFORE_RECORDING = jax.__version_info__ >= (0, 11)

# Errors of JAX when a program fails: its own error, or, from the dispatch in C++, a ValueError.
RUNTIME_ERRORS = (jax.errors.JaxRuntimeError, ValueError)

Effect = _effects.Effect
IrValue: TypeAlias = ir.Value

Device: TypeAlias = Any
"""A `jax.Device`."""

LoweringContext: TypeAlias = Any
"""The state of the lowering of a primitive: `jax.interpreters.mlir.LoweringRuleContext`."""

Program: TypeAlias = Any
"""A traced program: `jax.extend.core.ClosedJaxpr` or `jax.extend.core.Jaxpr`."""

Traced: TypeAlias = Any
"""A value in a transformation of JAX: an array, a tracer, or a tangent or cotangent, which may be a symbolic zero."""

at_top_level = _core.trace_state_clean
_tokens = _dispatch.runtime_tokens
_SECONDS_BETWEEN_LOOKS = 2e-5


def jit_disabled() -> bool:
    """Return whether functions run operation by operation: ``jax_disable_jit``."""
    return _config.disable_jit.value


def product_precision() -> str | None:
    """Return the precision of products that the user has set, by ``jax.default_matmul_precision``, or ``None``."""
    return _config.default_matmul_precision.value


def without_repetition(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that JAX must not call again, operation by operation, to find the origin of a NaN."""
    function._apply_primitive = True  # type: ignore[attr-defined]
    return function


class _StepsOfShardMap:
    """The module `api` for `shard_map`: ``jit`` returns the same compiled function for equal functions.

    JAX runs a `shard_map` without ``jit`` step by step: a program for each operand and result, and one for each
    primitive. It creates a compiled function for each step at every call. Compiled programs are cached in this
    function, and freed with it, so that every call would compile all steps again.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(_api, name)

    @staticmethod
    def jit(function: Any, **options: Any) -> Any:
        return (_kept_jit if isinstance(function, _HashablePartial) else _api.jit)(function, **options)


_kept_jit = lru_cache(maxsize=4096)(_api.jit)


@cache
def keep_steps_of_shard_map() -> None:
    """Cache the compiled steps of a `shard_map` without ``jit`` in this process.

    JAX has no interface for this: the function replaces the name ``api`` in ``jax._src.shard_map``. Without the cache a
    call takes a hundred times as long (0.1 s instead of 0.75 ms on an H200).
    """
    _shard_map.api = _StepsOfShardMap()  # type: ignore[attr-defined]


def run_in_shard_map(primitive: Primitive, run: Callable[..., list[LocalArray]]) -> None:
    """Use ``run(mesh, *values, **parameters)`` to bind a primitive inside a ``shard_map`` without ``jit``.

    The first axis of the values and of the results has one entry for each device.
    """

    def rule(mesh: Mesh, *values: LocalArray, **parameters: Any) -> list[LocalArray]:
        axes = _core.trace_ctx.axis_env
        # Programs over a mesh with explicit axes cannot be lowered; use automatic axes over the same devices.
        automatic = _mesh.Mesh(mesh.devices, mesh.axis_names)
        rows = PartitionSpec(mesh.axis_names)
        with _core.eval_context(), jax.disable_jit(False), _mesh.use_abstract_mesh(automatic.abstract_mesh):
            _core.trace_ctx.set_axis_env(_core.top_axis_env)  # JAX dispatches from C++ only if no axis has a name
            try:
                if automatic == mesh:
                    return run(mesh, *values, **parameters)
                results = run(automatic, *_placed(values, NamedSharding(automatic, rows)), **parameters)
                return _placed(results, NamedSharding(mesh, rows))
            finally:
                _core.trace_ctx.set_axis_env(axes)

    _shard_map.eager_rules[primitive] = rule


def _placed(values: Sequence[LocalArray], sharding: Sharding) -> list[LocalArray]:
    """Return arrays with the same sharding over other axes of the same devices, without moving data."""
    return [jax.device_put(value, sharding) for value in values]


def checks_varying_axes() -> bool:
    """Return whether a `shard_map` with ``check_vma=True`` is being traced or run."""
    return _config._check_vma.value


def allow_everywhere(kind: type[Effect]) -> None:
    """Allow effects of this kind in ordered programs, control flow, rematerialisation and derivatives."""
    for kinds in (
        _effects.ordered_effects,
        _effects.shardable_ordered_effects,
        _effects.lowerable_effects,
        _effects.control_flow_allowed_effects,
        _effects.custom_derivatives_allowed_effects,
        _effects.remat_allowed_effects,
        _effects.partial_eval_kept_effects,
    ):
        kinds.add_type(kind)


def get_runtime_token(effect: Effect) -> LocalArray:
    """Return the token of the last computation with `effect`, an empty array; ``None`` if that computation has ended.

    This includes an end by an error: waiting for the results raises it, and later calls need not fail for the same
    reason. The token of a computation dispatched by JAX cannot be passed to a computation without the effect, so that
    this function waits for it.
    """
    token: Any = _tokens.current_tokens.get(effect)
    if token is None:
        return None
    if getattr(token, "of_collops", False):
        return None if token._buf.is_ready() else token._buf
    del _tokens.current_tokens[effect]
    token.block_until_ready()
    return None


def wait_until_ready(token: LocalArray) -> None:
    """Wait until the computation of a token of :func:`get_runtime_token` has ended, also if it ends by an error."""
    while not token.is_ready():
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def set_runtime_token(effect: Effect, array: LocalArray) -> None:
    """Make `array` the token for which the next computation with `effect` waits.

    That computation may run on another device, to which JAX copies an uncommitted token of a single device.
    """
    if array.committed and len(array.sharding.device_set) == 1:
        array = _array.ArrayImpl(array.aval, array.sharding, array._arrays, committed=False, _skip_checks=True)
    token: Any = _core.Token(array)
    token.of_collops = True
    _tokens.current_tokens[effect] = token


def call_in_order(
    context: LoweringContext, effect: Effect, operands: Sequence[IrValue], jaxpr: Program, name: str
) -> Sequence[IrValue]:
    """Lower a call of `jaxpr` to a computation without `effect`, whose tokens begin and end here.

    Other effects of `jaxpr`, such as ordered callbacks, are effects of the computation.
    """
    outer = context.tokens_in
    tokens = _mlir.TokenSet({**dict(outer.items()), effect: _mlir.create_token()})
    inner = context.replace(tokens_in=tokens, tokens_out=None)
    results = _mlir.core_call_lowering(inner, *operands, name=name, call_jaxpr=jaxpr)
    if len(outer):
        context.set_tokens_out(inner.tokens_out.subset(outer.effects()))
    return results


def lowered(program: Program) -> Program:
    """Return a traced program without high-level calls with custom derivatives, which JAX since 0.11 lowers later.

    The result does not use these derivatives. JAX does not lower such calls inside primitives of collops, and would
    otherwise search for them at every dispatch.
    """
    if not getattr(program, "is_high", False):
        return program
    return _partial_eval.lower_jaxpr2(program)  # pyright: ignore[reportAttributeAccessIssue]


def program_devices(context: LoweringContext) -> tuple[int, tuple[Device, ...] | None, bool]:
    """Return the number of devices of the program being lowered, the devices, and whether it is written for each.

    The devices are ``None`` if JAX does not provide them. Each device runs the program on its part inside ``shard_map``
    over all axes of its mesh, and inside ``pmap``.
    """
    axes = context.module_context.axis_context
    if (mesh := getattr(axes, "mesh", None)) is not None:  # inside shard_map
        devices = getattr(mesh, "_flat_devices_tuple", None)
        return mesh.size, devices, set(mesh.axis_names) == set(axes.manual_axes)
    if (count := getattr(axes, "num_devices", None)) is not None:
        return count, axes.device_assignment, False
    return axes.axis_env.nreps, None, True  # inside pmap


def branches(program: Program, effect: Effect) -> bool:
    """Return whether a program has `effect` inside a conditional."""
    return any(
        (equation.primitive.name == "cond" and effect in equation.effects)
        or any(branches(inner, effect) for inner in _core.jaxprs_in_params(equation.params))
        for equation in program.eqns
    )


def custom_call(
    context: LoweringContext,
    effect: Effect,
    target: str,
    operands: list[IrValue],
    attributes: dict[str, int | str | tuple[int, ...]],
    aliases: dict[int, int],
) -> list[IrValue]:
    """Emit a call of an FFI handler at a fixed position among the calls with `effect`.

    It takes and returns two tokens: XLA's own, which JAX passes through loops, branches and nested functions; and four
    bytes from the previous call in the same block, because a schedule made from buffers alone (a command buffer of a
    GPU) ignores the first.
    """
    before = context.tokens_in.get(effect)
    types = [ir.RankedTensorType.get(aval.shape, _mlir.dtype_to_ir_type(aval.dtype)) for aval in context.avals_out]
    bytes_type = ir.RankedTensorType.get([1], ir.IntegerType.get_unsigned(32))
    call = _mlir.custom_call(
        target,
        result_types=[*types, bytes_type, before.type],
        operands=[*operands, _bytes_before(before), before],
        backend_config={name: _attribute(value) for name, value in attributes.items()},
        has_side_effect=True,
        api_version=4,
        operand_output_aliases=aliases,
        operand_layouts=[*map(_row_major, operands), [0], []],
        result_layouts=[*(tuple(reversed(range(len(aval.shape)))) for aval in context.avals_out), [0], []],
    )
    *results, _, after = call.results
    context.set_tokens_out(_mlir.TokenSet({**dict(context.tokens_in.items()), effect: after}))
    return results


def _bytes_before(token: IrValue) -> IrValue:
    owner = token.owner
    operation = getattr(owner, "operation", owner)
    if isinstance(operation, ir.Operation) and operation.name == "stablehlo.custom_call":
        return operation.results[len(operation.results) - 2]
    return _mlir.ir_constant(np.zeros(1, np.uint32))


def _attribute(value: int | str | tuple[int, ...]) -> ir.Attribute:
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, tuple):
        return ir.DenseI64ArrayAttr.get(list(value))
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _row_major(value: IrValue) -> tuple[int, ...]:
    return tuple(reversed(range(len(ir.RankedTensorType(value.type).shape))))


def is_intermediate(value: IrValue) -> bool:
    """Return whether an operand was computed by the program, rather than being one of its arguments."""
    return not isinstance(value.owner, ir.Block)
