"""Distributed arrays: layouts, arrays and stacks of arrays, and the vector operations that solvers are made of."""

from collops.array.base import Array
from collops.array.coefficients import Finite, finite, quotient
from collops.array.conversion import from_global, from_local
from collops.array.creation import empty, empty_like, full, full_like, ones, ones_like, random, where, zeros, zeros_like
from collops.array.distributed import DistributedArray
from collops.array.fused import (
    axpby,
    axpby_and_square,
    divide,
    dots,
    shared,
    square_of_sum,
    start_dots,
    update_solution_and_direction,
)
from collops.array.index_scatter import IndexScatter
from collops.array.layout import Layout, StackedLayout
from collops.array.loading import load
from collops.array.regions import transfers
from collops.array.stacked import StackedArray
from collops.array.store import save
from collops.backend import Engine, register_engine

__all__ = [
    "Array",
    "DistributedArray",
    "Finite",
    "IndexScatter",
    "Layout",
    "StackedArray",
    "StackedLayout",
    "axpby",
    "axpby_and_square",
    "divide",
    "dots",
    "empty",
    "empty_like",
    "finite",
    "from_global",
    "from_local",
    "full",
    "full_like",
    "load",
    "ones",
    "ones_like",
    "quotient",
    "random",
    "save",
    "shared",
    "square_of_sum",
    "start_dots",
    "transfers",
    "update_solution_and_direction",
    "where",
    "zeros",
    "zeros_like",
]


def _jax_engine() -> Engine:
    from collops.array.pytree import register
    from collops.jax.engine import JaxEngine

    register()
    return JaxEngine()


register_engine("jax", _jax_engine)
