"""Diagonal: the product with an array, element by element or along one axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.array import DistributedArray, Layout
from collops.array.layout_arguments import normal_axis
from collops.backend import engine_of
from collops.comm import Communicator
from collops.errors import LayoutError, UnsupportedTypeError
from collops.operators.base import LinearOperator, is_complex
from collops.operators.coefficients import Coefficients
from collops.operators.dims import Dims, as_layout, communicator_of

__all__ = ["Diagonal"]


class Diagonal(LinearOperator):
    r"""The product with a diagonal: :math:`y_i = d_i x_i`. No messages.

    Parameters
    ----------
    diag : array or DistributedArray
        Of the shape of the model, or a vector as long as one of its axes. A plain array is the whole diagonal, the same
        on every rank, of which each keeps its part; a distributed one is replicated, or has the layout of the model
        (a vector: that of the axis).
    dims : Layout, int or sequence of int, optional
        The model; by default that of a distributed diagonal, or the shape of a plain one, split along axis 0.
    axis : int, optional
        The axis along which a vector is multiplied.
    comm : Communicator, optional
        The ranks; by default those of a distributed diagonal, else the world.
    dtype : dtype, optional
        Of the operator; by default that of `diag`.

    Raises
    ------
    LayoutError
        If the diagonal does not fit the model, or has its elements on other ranks.
    UnsupportedTypeError
        If `diag` is complex and `dtype` is not.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.operators import Diagonal
    >>> Diagonal(np.arange(3.0)).forward(collops.ones(3)).gather()
    array([0., 1., 2.])
    """

    def __init__(
        self,
        diag: Any,
        dims: Dims | None = None,
        axis: int = -1,
        *,
        comm: Communicator | None = None,
        dtype: Any = None,
    ) -> None:
        distributed = isinstance(diag, DistributedArray)
        comm = communicator_of(diag, comm)
        if not distributed:
            diag = np.asarray(diag) if isinstance(diag, list | tuple) else diag
            engine_of(diag)  # refuses what is no array
        model = as_layout((diag.layout if distributed else diag.shape) if dims is None else dims, comm)
        kind = np.dtype(diag.dtype if dtype is None else dtype)
        if is_complex(diag.dtype) and not is_complex(kind):
            raise UnsupportedTypeError(f"a diagonal of dtype {diag.dtype} does not fit into {kind}")
        super().__init__(model, model, kind, comm)
        local = _local_part(diag, model, axis, comm.rank)
        if local.dtype != kind:
            local = local.astype(kind)
        self._diagonal = Coefficients(local)
        self._conjugate = Coefficients(local.conj()) if is_complex(kind) else self._diagonal

    def _forward(self, x: Any, out: Any) -> Any:
        return self._product(self._diagonal, x, out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return self._product(self._conjugate, y, out)

    def _product(self, diagonal: Coefficients, x: Any, out: Any) -> Any:
        engine = x.engine
        factors = diagonal.on(engine)
        if out is None:
            return x._like(engine.xp.multiply(factors, x.local_array))
        if out.dtype.kind != "c" and (self.dtype.kind == "c" or x.dtype.kind == "c"):
            raise UnsupportedTypeError(f"a complex product does not fit into {out.dtype}")
        engine.xp.multiply(factors, x.local_array, out=out.local_array)
        return out


def _local_part(diag: Any, model: Layout, axis: int, rank: int) -> Any:
    """Return this rank's part of the diagonal, shaped to multiply its part of the model."""
    axis = normal_axis(axis, model.ndim)
    whole = tuple(diag.shape) == model.shape
    if not whole and tuple(diag.shape) != (model.shape[axis],):
        raise LayoutError(
            f"a diagonal of shape {tuple(diag.shape)} fits neither the model {model.shape} nor its axis {axis}"
        )
    kept = list(range(model.ndim)) if whole else [axis]
    block = [model.slices(rank)[a] for a in kept]
    if not isinstance(diag, DistributedArray):
        local = diag[tuple(block)]
    elif diag.layout.is_replicated:
        local = diag.local_array[tuple(block)]
    elif all(diag.layout.slices(r) == tuple(model.slices(r)[a] for a in kept) for r in range(model.ranks)):
        local = diag.local_array
    else:
        raise LayoutError(
            f"a diagonal in the layout {diag.layout} does not lie where the model {model} does; redistribute it"
        )
    if not isinstance(diag, DistributedArray):
        local = local.copy()  # so that a large global array is not kept alive
    return local if whole else local.reshape([-1 if a == axis else 1 for a in range(model.ndim)])
