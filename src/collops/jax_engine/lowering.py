"""Programs as JAX compiles them: since 0.11 it first replaces some calls, those with derivatives of their own."""

from __future__ import annotations

from typing import Any

from jax._src.interpreters import partial_eval

__all__ = ["lowered"]


def lowered(program: Any) -> Any:
    """Return a traced program without the calls that JAX would replace; it has no derivatives of their own afterwards.

    JAX does not look for them inside primitives of ours, and looks again at every dispatch of a program that has some.
    """
    if not getattr(program, "is_high", False):
        return program
    return partial_eval.lower_jaxpr2(program)  # pyright: ignore[reportAttributeAccessIssue]
