"""The nuclear norm: the sum of singular values of a matrix that every rank holds."""

from __future__ import annotations

import math
from typing import Any

from collops.errors import InputError, LayoutError
from collops.operators.base import new_array
from collops.solvers.problem import check_number
from collops.solvers.proximal.operator import ProxOperator

__all__ = ["Nuclear"]


class Nuclear(ProxOperator):
    r"""The function :math:`\sigma \|X\|_* = \sigma \sum_i \lambda_i(X)`, of the singular values of one matrix.

    Parameters
    ----------
    dim : tuple of int
        Rows and columns.
    sigma : float or array_like
        Not negative; or a weight for each singular value, the largest first.

    Raises
    ------
    InputError
        If `dim` is no shape of a matrix, or `sigma` negative or of another length.

    Notes
    -----
    .. math:: \mathrm{prox}_{\tau f}(X) = U\, T_{\tau \sigma}(\Lambda)\, V^H

    The array, of the shape `dim` or ravelled, is replicated: every rank decomposes its copy, and there are no messages.
    On devices the decomposition waits, so that it cannot be captured.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> x = collops.from_global(np.diag([3.0, 1.0]).ravel())
    >>> float(collops.Nuclear((2, 2))(x)), collops.Nuclear((2, 2)).prox(x, 1.0).gather().reshape(2, 2)
    (4.0, array([[2., 0.],
           [0., 0.]]))
    """

    capturable = False

    def __init__(self, dim: tuple[int, int], sigma: Any = 1.0) -> None:
        if len(dim) != 2 or any(extent < 0 for extent in dim):
            raise InputError(f"dim must be the shape of a matrix, not {dim!r}")
        self._dim = (int(dim[0]), int(dim[1]))
        weights = [check_number("sigma", weight) for weight in sigma] if hasattr(sigma, "__len__") else None
        if weights is not None and len(weights) != min(self._dim):
            raise InputError(f"sigma must have {min(self._dim)} weights, not {len(weights)}")
        self._sigma = check_number("sigma", sigma) if weights is None else weights

    def _prox(self, x: Any, tau: float, out: Any) -> Any:
        xp = x.engine.xp
        left, values, right = xp.linalg.svd(self._matrix(x), full_matrices=False)
        weights = xp.asarray(self._sigma, dtype=values.dtype)
        values = xp.maximum(values - tau * weights, 0)
        if out is None:
            out = new_array(x.layout, x, x.dtype)
        out.local_array[...] = ((left * values) @ right).reshape(out.local_array.shape)
        return out

    def _value(self, x: Any) -> Any:
        xp = x.engine.xp
        values = xp.linalg.svd(self._matrix(x), compute_uv=False)
        return (xp.asarray(self._sigma, dtype=values.dtype) * values).sum()

    def _matrix(self, x: Any) -> Any:
        if len(x.leaves) != 1 or not x.layout.is_replicated or math.prod(self._dim) != x.size:
            raise LayoutError(f"Nuclear of a matrix {self._dim} needs it on every rank, but the layout is {x.layout}")
        return x.leaves[0].local_array.reshape(self._dim)
