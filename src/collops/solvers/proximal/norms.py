"""Norms of whole vectors and matrices: Euclidean, sum of the lengths of short vectors, sum of singular values."""

from __future__ import annotations

import math
from typing import Any

from collops.array import StackedArray, axpby, divide, dots
from collops.array.operands import check_alike
from collops.errors import InputError, LayoutError
from collops.solvers.kernels import Rule, step_kernels_for
from collops.solvers.problem import check_count, check_number, rank_consistent
from collops.solvers.proximal.operator import ProxOperator, combined, like

__all__ = ["L21", "Euclidean", "Nuclear"]


class Euclidean(ProxOperator):
    r"""The function :math:`\sigma \|x\|_2`, the norm itself, not its square.

    Parameters
    ----------
    sigma : float
        Not negative.

    Raises
    ------
    InputError
        If `sigma` is negative or no number.

    Notes
    -----
    .. math:: \mathrm{prox}_{\tau f}(x) = \Big(1 - \frac{\tau \sigma}{\max(\|x\|_2, \tau \sigma)}\Big) x, \quad
        \mathrm{prox}_{\tau f^*}(x) = \frac{\sigma}{\max(\|x\|_2, \sigma)} x

    A point takes two passes over memory and one scalar allreduce, as a value does.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> x = collops.from_global(np.array([3.0, 4.0]))
    >>> float(collops.Euclidean()(x)), collops.Euclidean().prox(x, 2.5).gather()
    (5.0, array([1.5, 2. ]))
    """

    def __init__(self, sigma: float = 1.0) -> None:
        self._sigma = check_number("sigma", sigma)

    def _prox(self, x: Any, tau: float, out: Any) -> Any:
        xp, size = x.engine.xp, tau * self._sigma
        # A vector that vanished stays 0 whatever its factor is.
        return axpby(1 - divide(size, xp.maximum(_norm(x), size)), x, 0.0, x, out=out)

    def _proxdual(self, x: Any, tau: float, out: Any) -> Any:
        return axpby(divide(self._sigma, x.engine.xp.maximum(_norm(x), self._sigma)), x, 0.0, x, out=out)

    def _value(self, x: Any) -> Any:
        return self._sigma * x.norm()


class L21(ProxOperator):
    r"""The function :math:`\sigma \sum_j \|x_j\|_2` of vectors :math:`x_j` with `ndim` components.

    Parameters
    ----------
    ndim : int
        Number of components: the parts of a stacked array, all of one layout, or the extent of the first axis of an
        array, which is not split.
    sigma : float
        Not negative.

    Raises
    ------
    InputError
        If `ndim` is no integer of at least 1, or `sigma` negative or no number.

    Notes
    -----
    .. math:: \mathrm{prox}_{\tau f}(x)_j = \Big(1 - \frac{\tau \sigma}{\max(\|x_j\|_2, \tau \sigma)}\Big) x_j, \quad
        \mathrm{prox}_{\tau f^*}(x)_j = \frac{\sigma}{\max(\|x_j\|_2, \sigma)} x_j

    No messages; a value takes one scalar allreduce.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> layout = collops.Layout.split((2, 2), collops.world().size, axis=1)  # two components of two points
    >>> x = collops.from_global(np.array([[3.0, 0.0], [4.0, 0.0]]), layout)
    >>> float(collops.L21(2)(x)), collops.L21(2).prox(x, 2.5).gather()
    (5.0, array([[1.5, 0. ],
           [2. , 0. ]]))
    """

    def __init__(self, ndim: int, sigma: float = 1.0) -> None:
        self._ndim = check_count("ndim", ndim, smallest=1)
        self._sigma = check_number("sigma", sigma)

    def _prox(self, x: Any, tau: float, out: Any) -> Any:
        return self._shrunk(Rule.SOFT, tau * self._sigma, x, out)

    def _proxdual(self, x: Any, tau: float, out: Any) -> Any:
        return self._shrunk(Rule.PROJECT, self._sigma, x, out)

    def _value(self, x: Any) -> Any:
        norms = step_kernels_for(x.engine).group_norms(self._components(x))
        first = x.leaves[0]
        return self._sigma * combined(first, [norms.sum()])

    def _shrunk(self, rule: Rule, threshold: float, x: Any, out: Any) -> Any:
        components, out = self._components(x), like(x, out)
        if out is not x:
            check_alike(x, out)
        shrunk = step_kernels_for(x.engine).group_shrink(rule, threshold, components, self._components(out))
        if isinstance(out, StackedArray):
            for leaf, part in zip(out.leaves, shrunk, strict=True):
                leaf.local_array = part
        elif not out.engine.mutable:
            out.local_array = out.engine.xp.stack(shrunk)
        return out

    def _components(self, x: Any) -> list[Any]:
        """Return this rank's part of each component."""
        if isinstance(x, StackedArray):
            if len(x.leaves) != self._ndim or any(leaf.layout is not x.leaves[0].layout for leaf in x.leaves):
                raise LayoutError(f"L21 of {self._ndim} components needs as many parts of one layout, not {x.layout}")
            return [leaf.local_array for leaf in x.leaves]
        if not x.ndim or x.shape[0] != self._ndim or 0 in x.layout.split_axes:
            raise LayoutError(
                f"L21 of {self._ndim} components needs them along the first axis, not split; not {x.layout}"
            )
        return [x.local_array[number] for number in range(self._ndim)]


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
        out = like(x, out)
        point = ((left * values) @ right).reshape(out.local_array.shape)
        out.local_array = out.engine.put(out.local_array, ..., point)
        return out

    def _value(self, x: Any) -> Any:
        xp = x.engine.xp
        values = xp.linalg.svd(self._matrix(x), compute_uv=False)
        return (xp.asarray(self._sigma, dtype=values.dtype) * values).sum()

    def _matrix(self, x: Any) -> Any:
        if len(x.leaves) != 1 or not x.layout.is_replicated or math.prod(self._dim) != x.size:
            raise LayoutError(f"Nuclear of a matrix {self._dim} needs it on every rank, but the layout is {x.layout}")
        return x.leaves[0].local_array.reshape(self._dim)


def _norm(x: Any) -> Any:
    """Return the Euclidean norm, the same to the last bit on ranks that hold copies."""
    together = rank_consistent(x)
    return x.engine.xp.sqrt(dots((together, together))[0])
