"""PyLops-MPI's power iteration."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops import solvers
from collops.compat.pylops_mpi._native import brought, relabelled
from collops.compat.pylops_mpi._operator import native_of

__all__ = ["power_iteration"]


def power_iteration(
    Op: Any, b_k: Any, niter: int = 10, tol: float = 1e-5, dtype: Any = "float64", backend: str = "numpy"
) -> tuple[Any, Any, int]:
    """Find the eigenvalue of largest modulus; see :func:`collops.solvers.power_iteration`. Collective.

    Parameters
    ----------
    Op : MPILinearOperator or MPIStackedLinearOperator
        Square.
    b_k : DistributedArray or StackedDistributedArray
        Gets random numbers of NumPy's (or CuPy's) global generator first, and the eigenvector in the end.
    niter, tol
        Largest number of iterations, and the relative change of the eigenvalue that ends them.
    dtype : dtype
        Complex for complex random numbers.
    backend : str
        ``"numpy"`` or ``"cupy"``, from whose generator the numbers are.

    Returns
    -------
    maxeig : float or complex
        The eigenvalue.
    b_k : DistributedArray or StackedDistributedArray
        The eigenvector, of norm 1.
    iiter : int
        Number of iterations.
    """
    operator = native_of(Op, b_k, b_k)
    for leaf in _leaves(b_k):
        rand = leaf.native.engine.xp.random.rand
        real, imaginary = rand(*leaf.local_shape), rand(*leaf.local_shape)  # PyLops-MPI always takes both
        leaf[:] = real + 1j * imaginary if np.dtype(dtype).kind == "c" else real
    start = brought(b_k.native, operator.domain)
    result = solvers.power_iteration(operator, start, niter=niter, tol=tol)
    for leaf, found in zip(_leaves(b_k), brought(result.x, b_k.native.layout).leaves, strict=True):
        leaf.native = relabelled(found, leaf.native.layout)
    return result.details["eigenvalue"], b_k, result.iterations


def _leaves(array: Any) -> list[Any]:
    if hasattr(array, "distarrays"):
        return [leaf for part in array.distarrays for leaf in _leaves(part)]
    return [array]
