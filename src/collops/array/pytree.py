"""Distributed and stacked arrays as pytrees of JAX, whose leaves are this rank's local arrays.

Arrays of one layout and one communicator have one structure.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from collops.array.distributed import DistributedArray
from collops.array.stacked import StackedArray
from collops.backend import engine
from collops.errors import UnsupportedTypeError


@cache
def register() -> None:
    """Register both classes with JAX."""
    from jax.tree_util import GetAttrKey, SequenceKey, register_pytree_with_keys

    register_pytree_with_keys(
        DistributedArray,
        lambda x: (((GetAttrKey("local_array"), x.local_array),), (x.layout, x.comm, x._plan)),
        _array,
        lambda x: ((x.local_array,), (x.layout, x.comm, x._plan)),
    )
    register_pytree_with_keys(
        StackedArray,
        lambda x: ([(SequenceKey(number), part) for number, part in enumerate(x.arrays)], (x.layout, x.comm, x._plan)),
        _stacked,
        lambda x: (x.arrays, (x.layout, x.comm, x._plan)),
    )


def _array(structure: tuple[Any, ...], leaves: Any) -> DistributedArray:
    # Unchecked, because JAX also makes trees whose leaves are not arrays.
    (held,) = leaves
    x = object.__new__(DistributedArray)
    x.layout, x.comm, x._plan = structure
    if x.comm.size > 1 and not x.layout.is_replicated:
        _check_part(held, x.layout.local_shape(x.comm.rank))
    x.engine = engine("numpy" if isinstance(held, np.ndarray) else "jax")
    x.local_array = held
    return x


def _check_part(held: Any, local_shape: tuple[int, ...]) -> None:
    """Raise unless a leaf can be a rank's part of an array that is split over ranks, or a batch of such parts.

    Krylov methods of other libraries reduce the leaves of vectors, and form trees of the results: inner products, or
    products with a matrix of basis vectors, which has one more axis, the last. Tests of all elements pass: optimistix
    looks for NaN on each rank.
    """
    if hasattr(held, "local_array"):
        raise UnsupportedTypeError(
            "this function of JAX or of another library forms a matrix with an entry for each pair of elements of this "
            "rank's parts, such as a Jacobian, but the array is split over ranks; use methods that need products only: "
            "jax.jvp and jax.vjp, collops.bridges.lineax.Solver, and collops.solvers.nonlinear"
        )
    if not hasattr(held, "dtype") or held.dtype == bool:
        return
    if held.shape[max(0, len(held.shape) - len(local_shape)) :] != local_shape:
        raise UnsupportedTypeError(
            "this function of JAX or of another library reduces this rank's part of an array that is split over ranks, "
            f"not the array, or changes its shape from {local_shape} to {held.shape}: use the array's methods, such as "
            "vdot, norm and sum, and the solvers of collops, such as collops.cg and collops.gmres"
        )


def _stacked(structure: tuple[Any, ...], parts: Any) -> StackedArray:
    x = object.__new__(StackedArray)
    x._block = None
    x.arrays = tuple(parts)
    x.layout, x.comm, x._plan = structure
    known = [part for part in x.arrays if isinstance(part, DistributedArray | StackedArray)]
    x.engine = known[0].engine if known else engine("jax")
    x.leaves = tuple(leaf for part in known for leaf in part.leaves)
    return x
