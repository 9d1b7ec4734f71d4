"""Products of dense matrices in this rank's memory, in the form of their engine."""

from __future__ import annotations

from typing import Any

from collops.backend import KernelTable, engine_of

forms_for = KernelTable(__name__, "generic", numpy="host", cupy="device")
"""The module for an engine; each has the functions of this package."""


def local_matrix(matrix: Any) -> Any:
    """Return the local operator of a 2-D array of any engine."""
    return forms_for(engine_of(matrix)).local_matrix(matrix)


def bfloat16_matrix(matrix: Any) -> Any:
    """Return the local operator of a real 2-D array of any engine, rounded to bfloat16 by way of float32."""
    return forms_for(engine_of(matrix)).bfloat16_matrix(matrix)


def batched(matrices: Any, keep_adjoint: bool, at_once: bool) -> Any:
    """Return the products of a batch of matrices, each with a matrix of its own; see ``matrix.BatchedMatrix``."""
    return forms_for(engine_of(matrices)).batched(matrices, keep_adjoint, at_once)


def multiply(a: Any, b: Any, out: Any, *, adjoint: bool = False, accumulate: bool = False) -> Any:
    """Return ``a @ b``, or the product with the conjugate transpose of `a`; in `out` unless that is ``None``.

    A conjugate transpose takes no copy. Matrices are C-contiguous, of one engine and one dtype, and may be empty. With
    `accumulate`, the product is added to the values of `out`.
    """
    return forms_for(engine_of(b)).multiply(a, b, out, adjoint=adjoint, accumulate=accumulate)
