"""The dot test: whether an operator's forward and adjoint belong to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from collops.array import dots, random
from collops.array.dtypes import is_half
from collops.errors import CollopsError
from collops.operators.algebra import check_operators

if TYPE_CHECKING:
    from collops.operators.base import LinearOperator

__all__ = ["dottest"]


def dottest(
    op: LinearOperator,
    *,
    rtol: float | None = None,
    seed: int = 0,
    raises: bool = True,
    complex_vectors: bool | None = None,
    engine: str | None = None,
) -> bool:
    r"""Check with random vectors that :math:`\langle A u, v\rangle = \langle u, A^H v\rangle`. Collective.

    Of an operator that is linear over the real numbers only (``op.clinear``), the real parts are compared.

    Parameters
    ----------
    op : LinearOperator
        What is tested.
    rtol : float, optional
        Largest difference of the two numbers, relative to the larger of :math:`\|A u\| \|v\|` and
        :math:`\|u\| \|A^H v\|`; by default 1000 times the rounding error of the operator's type, of half types 8 times.
    seed : int
        Of the random vectors, which are the same on any number of ranks.
    raises : bool
        Whether a failure raises; otherwise it is returned.
    complex_vectors : bool, optional
        Whether the vectors are complex; by default they are when the operator is.
    engine : str, optional
        Of the vectors: ``"numpy"`` or ``"cupy"``.

    Returns
    -------
    bool
        Whether the test passed.

    Raises
    ------
    CollopsError
        If it did not, with both numbers.

    Examples
    --------
    >>> import collops
    >>> collops.dottest(collops.FirstDerivative(5))
    True
    """
    check_operators(op)
    dtype = op.dtype if op.dtype.kind in "fcV" else np.dtype(np.float64)
    if complex_vectors and dtype.kind != "c":
        dtype = np.result_type(dtype, np.complex64)
    if rtol is None:
        # A wrong adjoint of n elements is off by about one part in the root of n.
        rtol = (8 if is_half(dtype) else 1000) * _rounding_error(dtype)
    u = random(op.domain, comm=op.comm, dtype=dtype, engine=engine, seed=seed)
    v = random(op.range, comm=op.comm, dtype=dtype, engine=engine, seed=seed + 1)
    forward, adjoint = op.forward(u), op.adjoint(v)
    left, right, *squares = (
        value.item()
        for value in (
            *dots((forward, v)),
            *dots((u, adjoint)),
            *dots((forward, forward), (v, v)),
            *dots((u, u), (adjoint, adjoint)),
        )
    )
    norms = [abs(square) ** 0.5 for square in squares]
    scale = max(norms[0] * norms[1], norms[2] * norms[3])
    if not op.clinear:
        left, right = left.real, right.real
    passed = bool(abs(left - right) <= rtol * scale)
    if not passed and raises:
        raise CollopsError(
            f"the dot test of {op!r} failed: <A u, v> = {left:.10g}, <u, A^H v> = {right:.10g}, "
            f"difference {abs(left - right):.3g}, allowed {rtol * scale:.3g}"
        )
    return passed


def _rounding_error(dtype: np.dtype) -> float:
    if dtype.kind == "V":  # bfloat16: eight significant bits
        return 2.0**-8
    return float(np.finfo(dtype).eps)
