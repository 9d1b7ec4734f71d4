"""PyLops-MPI's L21 norm."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import numpy as np

from collops.compat.pylops_mpi._stacked_array import wrapped
from collops.compat.pylops_mpi.proximal.ProxOperator import MPIProxOperator
from collops.solvers import proximal

__all__ = ["MPIL21"]


class MPIL21(MPIProxOperator):
    """The sum of lengths of short vectors; see :class:`collops.solvers.proximal.L21`.

    Parameters
    ----------
    ndim : int
        Number of components: the parts of a stacked array.
    sigma : float
        A factor.
    """

    def __init__(self, ndim: int, sigma: float = 1.0) -> None:
        super().__init__()
        self.ndim, self.sigma = ndim, sigma
        self.native = proximal.L21(ndim, sigma)

    def sum_squared(self, x: Any) -> Any:
        """Return the lengths, despite the name."""
        squares = reduce(operator.add, [abs(part.native) ** 2 for part in x.distarrays])
        return wrapped(np.sqrt(squares), x)
