"""The order of collectives: the effect of every primitive, and a ``jit`` that keeps the order at low cost.

All ranks must run collectives in the same order: the order of the program, executed line by line. XLA may reorder and
overlap independent operations. It preserves the order of collectives for these reasons, from the inside out:

1. *Within a block* of one program, each call takes four bytes from the previous call and passes four bytes to the next.
   These are data, so that no schedule, of threads or of a command buffer, runs two calls at once or in another order.
   Calls are declared to have side effects, so that none is dropped, merged with an equal one, or moved into or out of a
   loop.
2. *Across blocks* (loops, branches, nested ``jit``, ``checkpoint``, ``shard_map``), each call also takes and returns a
   token of XLA. All primitives share one ordered effect, and JAX passes the tokens of ordered effects through its
   control flow: a loop with collectives depends on what precedes it, and what follows depends on the loop. All
   communicators share the effect: two ranks in two communicators must agree on the order of the calls of both.
3. *Between programs* that are dispatched one after the other, on hosts, the token of the last program is an argument of
   the next: an empty array, which is ready when its program has ended. Devices run programs in the order of dispatch.
   After a program on several CPU devices, :func:`jit` waits for its token instead of passing it on.
4. *Transformations* preserve all effects and their order. The collectives that they add (derivatives) depend on the
   program's collectives and on the dependencies of their operands. When a derivative is taken, two properties must
   therefore be the same on all ranks: whether an operand depends on the variable of differentiation, and, inside a
   ``scan``, whether it changes between iterations (JAX moves constant operations before the loop). Other operations of
   a rank are arbitrary.
5. *Between the CPU devices of a process*, which run one program at different speeds, the last device to arrive at a
   call makes it for all, and no device continues before the call ends. Thus a process makes the calls in program order,
   one at a time; when a device has completed a program, all others have begun its last call.

JAX starts a compiled program with an ordered effect from Python instead of C++, which costs time at every dispatch.
:func:`jit` therefore compiles a program whose tokens begin and end inside it, so that it has no effect for JAX, and on
hosts passes the token of point 3 as an ordinary array. JAX uses the same token, so that ``jax.jit`` works too and can
be mixed with :func:`jit`; only its dispatch is slower.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import MethodType
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray, Tracer
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import Sharding

from collops.backend import LocalArray
from collops.jax import calls, versions
from collops.jax.versions import IrValue, LoweringContext, Program, Traced


class Order(versions.Effect):
    """The ordered effect of all collectives."""

    def __repr__(self) -> str:
        return "collops order"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Order)

    def __hash__(self) -> int:
        return hash(Order)


ORDER = Order()
versions.allow_everywhere(Order)


_jax_jit = jax.jit  # compat.mpi4jax may replace it by `jit`
_recordable = ContextVar("recordable", default=False)


def recordable() -> bool:
    """Return whether XLA may record the program that is being lowered as a graph on GPUs.

    This holds for programs of :func:`jit` without collectives in branches of a conditional.
    """
    return _recordable.get()


_PLACING = {"backend", "device", "in_shardings", "out_shardings"}


def settle() -> None:
    """Wait for the computations with collectives that this thread has started, and raise the error of the last one."""
    try:
        token = versions.get_runtime_token(ORDER)
        if token is not None:
            token.block_until_ready()
    except versions.RUNTIME_ERRORS as error:
        calls.raise_error_behind(error)
        raise


class Jit:
    """A compiled function with the methods of ``jax.jit``; see :func:`jit`.

    A function that always runs on the same several devices can name them, by a sharding that replicates an array.
    """

    def __init__(
        self, function: Callable[..., Any], options: dict[str, Any], replicated: Sharding | None = None
    ) -> None:
        plain = _jax_jit(function, **options)  # raises errors in the options
        functools.update_wrapper(self, function)
        self._plain = plain
        # Parameters of ``jax.jit``, whose compiled program is dispatched by JAX.
        self.trace, self.lower, self.eval_shape = plain.trace, plain.lower, plain.eval_shape
        self._replicated = replicated
        self._as_jax = not _PLACING.isdisjoint(options)
        traced = plain
        if "compiler_options" in options:  # opaque to JAX, not a part of a program
            traced = _jax_jit(
                function, **{name: value for name, value in options.items() if name != "compiler_options"}
            )
        options = {name: value for name, value in options.items() if name not in _PLACING}
        self._alone = _jax_jit(_without_effect(function, traced), **options)
        self._in_turn = _jax_jit(_with_token(function, traced), **{**options, "keep_unused": True})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function, compiling it at the first call with such arguments."""
        if self._as_jax or versions.jit_disabled() or not versions.at_top_level():
            return self._plain(*args, **kwargs)
        return self.dispatch(*args, **kwargs)

    def __get__(self, owner: object, kind: type | None = None) -> Jit | MethodType:
        """Bind the function to an object, as a method."""
        return self if owner is None else MethodType(self, owner)

    def dispatch(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function on values, after all earlier computations with collectives.

        Raises the error of a collective if the program runs synchronously. Otherwise, JAX raises an error with the same
        text when the results are used.
        """
        try:
            if not _on_hosts():
                return self._alone(*args, **kwargs)
            token, result = self._in_turn(*args, **kwargs, _collops_token=_last_token(self._replicated))
            if calls.checking:
                jax.block_until_ready((token, result))
        except FloatingPointError as error:  # in the results, found by jax_debug_nans or jax_debug_infs
            error.add_note(
                "collops.jax.jit does not repeat a program to find the operation, because other ranks would not "
                "participate in its messages; run it in 'with jax.disable_jit():' on all ranks instead"
            )
            raise
        except versions.RUNTIME_ERRORS as error:
            calls.raise_error_behind(error)
            raise
        versions.set_runtime_token(ORDER, token)
        return result

    def clear_cache(self) -> None:
        """Clear the cache of compiled programs of the function."""
        compiled: Any
        for compiled in (self._plain, self._alone, self._in_turn):
            compiled.clear_cache()


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function with collectives, like ``jax.jit`` but with a fast dispatch.

    Parameters
    ----------
    function : callable
        As for ``jax.jit``. Without it, a decorator is returned.
    **options
        All options of ``jax.jit``. With ``in_shardings``, ``out_shardings``, ``device`` or ``backend``, JAX dispatches
        the program itself, which is slower.

    Returns
    -------
    Jit
        Called with values, it runs directly, in order with all other collectives. In transformations and inside other
        compiled functions it acts like ``jax.jit(function)``. It has the methods ``trace``, ``lower``, ``eval_shape``
        and ``clear_cache`` of ``jax.jit``.

    Raises
    ------
    TypeError
        If an option is unknown, or `function` is not callable.

    Notes
    -----
    Not collective, but all ranks must call compiled functions in the same order.

    With ``jax_debug_nans`` a NaN in the result on this rank raises ``FloatingPointError``. Unlike ``jax.jit``, the
    function is not called again to find the operation, since ranks without a NaN would not participate in its messages.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> double = collops.jax.jit(lambda x: 2 * collops.jax.allreduce(x))
    >>> float(double(jnp.array(1.0))) == 2 * collops.world().size
    True
    >>> double.eval_shape(jnp.ones(3)).shape
    (3,)
    """
    if function is None:
        return functools.partial(jit, **options)
    return Jit(function, options)


@functools.cache
def _on_hosts() -> bool:
    return jax.default_backend() == "cpu"


@functools.cache
def _first_token(replicated: Sharding | None) -> LocalArray:
    with jax.ensure_compile_time_eval():  # cached, so it must not be a tracer
        token = jnp.zeros(0, bool)
        return token if replicated is None else jax.device_put(token, replicated)


def _last_token(replicated: Sharding | None) -> LocalArray:
    """Return the token of the last program, or the first token if no program is pending."""
    token = versions.get_runtime_token(ORDER)
    if token is None:
        return _first_token(replicated)
    if token.committed:  # to several devices, and JAX would reject it with arguments on others
        versions.wait_until_ready(token)
        return _first_token(replicated)
    return token


def _without_effect(function: Callable[..., Any], traced: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, traced as `traced`, as a program without the effect."""

    @versions.without_repetition
    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))

        def on_operands(*operands: Traced) -> Any:
            values = iter(operands)
            arguments = [next(values) if isinstance(leaf, Tracer) else leaf for leaf in leaves]
            args, kwargs = jax.tree.unflatten(tree, arguments)
            return traced(*args, **kwargs)

        operands = [leaf for leaf in leaves if isinstance(leaf, Tracer)]
        program, shapes = jax.make_jaxpr(on_operands, return_shape=True)(*operands)
        name = getattr(function, "__name__", "ordered")
        results = _ordered_p.bind(*operands, program=versions.lowered(program), name=name)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return inside


def _with_token(function: Callable[..., Any], traced: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` without its effect; it takes a token as another keyword, and returns one as its first result.

    A keyword does not change the positions of other arguments.
    """
    without_effect = _without_effect(function, traced)

    @versions.without_repetition
    @functools.wraps(function)
    def inside(*args: Any, _collops_token: LocalArray, **kwargs: Any) -> Any:
        return jnp.zeros_like(_collops_token), without_effect(*args, **kwargs)

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return inside
    token = inspect.Parameter("_collops_token", inspect.Parameter.KEYWORD_ONLY)
    parameters = sorted([*signature.parameters.values(), token], key=lambda parameter: parameter.kind)
    inside.__signature__ = signature.replace(parameters=parameters)
    return inside


def _evaluate_ordered(*_: Any, program: Program, name: str) -> tuple[list[ShapedArray], set[versions.Effect]]:
    """Return the abstract results and the effects other than the order, such as the effect of ``jax.debug.print``."""
    return program.out_avals, program.effects - {ORDER}


def _lower_ordered(context: LoweringContext, *operands: IrValue, program: Program, name: str) -> Sequence[IrValue]:
    # A branch of a recorded graph may only contain kernels, but NCCL adds events.
    before = _recordable.set(not versions.branches(program, ORDER))
    try:
        return versions.call_in_order(context, ORDER, operands, program, name)
    finally:
        _recordable.reset(before)


_ordered_p = Primitive("collops_whole_program")
_ordered_p.multiple_results = True
_ordered_p.def_effectful_abstract_eval(_evaluate_ordered)
mlir.register_lowering(_ordered_p, _lower_ordered)
