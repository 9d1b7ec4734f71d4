"""PyLops-MPI's decorator for operators on ravelled arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from collops.array import Layout
from collops.compat.pylops_mpi._array import Partition
from collops.compat.pylops_mpi._native import brought
from collops.compat.pylops_mpi._stacked_array import wrapped

__all__ = ["reshaped"]


def reshaped(func: Callable[..., Any] | None = None, forward: bool | None = None, stacking: bool | None = None) -> Any:
    """Give ``_matvec`` or ``_rmatvec`` an array in the operator's N-dimensional shape, and ravel what it returns.

    Parameters
    ----------
    func : callable, optional
        ``func(self, x)``.
    forward : bool, optional
        Whether `x` has the shape ``dims``; ``dimsd`` otherwise. By default as the function's name says.
    stacking : bool, optional
        Whether `x` stays a vector, whose parts are ``local_shapes_m`` (``local_shapes_n`` for the adjoint).
    """
    if func is None:
        return functools.partial(reshaped, forward=forward, stacking=stacking)
    towards_data = not func.__name__.startswith("_rmatvec") if forward is None else forward

    @functools.wraps(func)
    def apply(self: Any, x: Any) -> Any:
        flat, ranks = x.native, x.size
        if stacking:
            sizes = [int(shape[0]) for shape in (self.local_shapes_m if towards_data else self.local_shapes_n)]
            given = brought(flat, Layout.split(flat.size, ranks, sizes=sizes, mask=x.mask))
        else:
            whole = Layout.split(self.dims if towards_data else self.dimsd, ranks, mask=x.mask)
            given = brought(flat, whole.reshape(flat.size)).reshape(whole.shape)
        return func(self, wrapped(given, x, Partition.SCATTER)).ravel()

    return apply
