"""The L21 norm: the sum of lengths of short vectors, such as gradients; isotropic total variation is made of it."""

from __future__ import annotations

from typing import Any

from collops.array import StackedArray
from collops.array.elementwise import check_alike
from collops.errors import LayoutError
from collops.operators.base import new_array
from collops.solvers.kernels import step_kernels_for
from collops.solvers.problem import check_count, check_number
from collops.solvers.proximal.operator import ProxOperator
from collops.solvers.proximal.values import combined
from collops.solvers.thresholds import Rule

__all__ = ["L21"]


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
        components = self._components(x)
        if out is None:
            out = new_array(x.layout, x, x.dtype)
        elif out is not x:
            check_alike(x, out)
        step_kernels_for(x.engine).group_shrink(rule, threshold, components, self._components(out))
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
