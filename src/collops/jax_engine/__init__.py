"""Names that operators and solvers still import; disappears with their last use."""

from collops.jax.versions import lowered

Variable = value_of = lambda array: array

__all__ = ["Variable", "lowered", "value_of"]
