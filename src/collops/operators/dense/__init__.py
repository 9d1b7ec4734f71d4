"""Products of dense matrices in this rank's memory, for every engine.

Each module of :data:`forms_for` has ``local_matrix(matrix)`` and ``bfloat16_matrix(matrix)``, the local operator of a
2-D array as it is or rounded to bfloat16; ``batched(matrices, keep_adjoint, at_once)``, see ``matrix.BatchedMatrix``;
and the function :func:`multiply` for its engine.
"""

from __future__ import annotations

from collops.backend import LocalArray, engine_of, kernel_table

forms_for = kernel_table(__name__, "generic", cupy="device")


def multiply(
    a: LocalArray, b: LocalArray, out: LocalArray | None, *, adjoint: bool = False, accumulate: bool = False
) -> LocalArray:
    """Return ``a @ b``, or the product with the conjugate transpose of `a`; in `out` unless that is ``None``.

    A conjugate transpose is not copied. Matrices are C-contiguous, of one engine and one dtype, and may be empty. With
    `accumulate`, the product is added to the values of `out`.
    """
    return forms_for(engine_of(b)).multiply(a, b, out, adjoint=adjoint, accumulate=accumulate)
