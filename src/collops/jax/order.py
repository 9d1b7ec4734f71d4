"""The order of collectives: the effect of every primitive, and a ``jit`` that keeps the order at low cost.

All ranks must run collectives in one order: the order of the program, executed line by line. XLA may reorder and
overlap independent operations. The argument why it keeps the order of collectives, from the inside out:

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
4. *Transformations* keep effects in order and drop none. The collectives that they add (derivatives) depend on the
   program's collectives and on the dependencies of their operands. When a derivative is taken, two properties must
   therefore be the same on all ranks: whether an operand depends on the variable of differentiation, and, inside a
   ``scan``, whether it changes between iterations (JAX moves constant operations before the loop). All other work of
   a rank is arbitrary.

JAX starts a compiled program with an ordered effect from Python instead of C++, which costs time at every dispatch.
:func:`jit` therefore compiles a program whose tokens begin and end inside it, so that it has no effect for JAX, and on
hosts passes the token of point 3 as an ordinary array. It is the token that JAX would use, so that ``jax.jit`` may be
used as well, and mixed with it; its calls only take longer.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import mlir

from collops.errors import InputError
from collops.jax import versions

__all__ = ["jit"]


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


_jax_jit = jax.jit  # compat.mpi4jax may put `jit` in its place
_recordable = ContextVar("recordable", default=False)


def recordable() -> bool:
    """Return whether XLA may record the program that is being lowered as a graph on GPUs.

    This is so in programs of :func:`jit` without collectives in branches of a conditional.
    """
    return _recordable.get()


_OPTIONS = {"compiler_options", "donate_argnames", "donate_argnums", "static_argnames", "static_argnums"}


class Jit:
    """A compiled function; see :func:`jit`."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        unknown = sorted(set(options) - _OPTIONS)
        if unknown:
            raise InputError(f"collops.jax.jit has no option {unknown[0]!r}; it takes {', '.join(sorted(_OPTIONS))}")
        functools.update_wrapper(self, function)
        self._function = function
        self._plain = _jax_jit(function, **options)
        self._alone = _jax_jit(_without_effect(function), **options)
        shifted = {name: _after_token(name, value) for name, value in options.items()}
        self._in_turn = _jax_jit(_with_token(function), keep_unused=True, **shifted)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function, compiling it at the first call with such arguments."""
        if not versions.at_top_level():
            return self._plain(*args, **kwargs)
        return self.dispatch(*args, **kwargs)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        """Bind the function to an object, as a method."""
        return self if owner is None else functools.partial(self, owner)

    def dispatch(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function on values, after all earlier computations with collectives."""
        if not _on_hosts():
            return self._alone(*args, **kwargs)
        token = versions.get_runtime_token(ORDER)
        token, result = self._in_turn(_first_token() if token is None else token, *args, **kwargs)
        versions.set_runtime_token(ORDER, token)
        return result

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lower the function for these arguments, like ``jax.jit``, for inspection."""
        return self._plain.lower(*args, **kwargs)


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function with collectives, like ``jax.jit`` but with a fast dispatch.

    Parameters
    ----------
    function : callable
        As for ``jax.jit``. Without it, a decorator is returned.
    **options
        Options of ``jax.jit``: ``static_argnums``, ``static_argnames``, ``donate_argnums``, ``donate_argnames``,
        ``compiler_options``. Options that place arguments on devices are not supported; use ``jax.jit``.

    Returns
    -------
    Jit
        Called with values, it runs at once, in order with all other collectives. In transformations and inside other
        compiled functions it acts like ``jax.jit(function)``.

    Raises
    ------
    InputError
        For other options.

    Notes
    -----
    Not collective, but all ranks must call compiled functions in the same order.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> double = collops.jax.jit(lambda x: 2 * collops.jax.allreduce(x))
    >>> float(double(jnp.array(1.0))) == 2 * collops.world().size
    True
    """
    if function is None:
        return functools.partial(jit, **options)
    return Jit(function, options)


@functools.cache
def _on_hosts() -> bool:
    return jax.default_backend() == "cpu"


@functools.cache
def _first_token() -> Any:
    with jax.ensure_compile_time_eval():  # cached, so it must not be a tracer
        return jnp.zeros(0, bool)


def _after_token(name: str, value: Any) -> Any:
    """Return argument positions shifted by one for the token."""
    if name not in ("static_argnums", "donate_argnums"):
        return value
    positions = (value,) if isinstance(value, int) else value
    return tuple(position if position < 0 else position + 1 for position in positions)


def _without_effect(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` as a program without an effect for JAX."""

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        traced = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tracer)]

        def on_leaves(*values: Any) -> Any:
            for place, value in zip(traced, values, strict=True):
                leaves[place] = value
            args, kwargs = jax.tree.unflatten(tree, leaves)
            return function(*args, **kwargs)

        operands = [leaves[place] for place in traced]
        program, shapes = jax.make_jaxpr(on_leaves, return_shape=True)(*operands)
        name = getattr(function, "__name__", "ordered")
        results = _whole_p.bind(*operands, program=versions.lowered(program), name=name)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return inside


def _with_token(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` without its effect, with a token as the first argument and the first result."""
    without_effect = _without_effect(function)

    def inside(token: Any, *args: Any, **kwargs: Any) -> Any:
        return jnp.zeros_like(token), without_effect(*args, **kwargs)

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return inside
    token = inspect.Parameter("_token", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [token, *signature.parameters.values()]
    inside.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return inside


def _whole_avals(*_: Any, program: Any, name: str) -> Iterable[Any]:
    return program.out_avals


def _lower_whole(context: Any, *operands: Any, program: Any, name: str) -> Any:
    # A branch of a recorded graph may only contain kernels, but NCCL adds events.
    before = _recordable.set(not versions.branches(program, ORDER))
    try:
        return versions.call_in_order(context, ORDER, operands, program, name)
    finally:
        _recordable.reset(before)


_whole_p = Primitive("collops_whole_program")
_whole_p.multiple_results = True
_whole_p.def_abstract_eval(_whole_avals)
mlir.register_lowering(_whole_p, _lower_whole)
