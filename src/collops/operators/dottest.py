"""The dot test: whether an operator's forward and adjoint match."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from collops.array import Layout, StackedLayout, dots, random
from collops.array.dtypes import is_half
from collops.backend import engine as find_engine
from collops.errors import CollopsError, InputError, UnsupportedTypeError, type_name

if TYPE_CHECKING:
    from collops.operators.base import LinearOperator


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

    For an operator that is linear over the real numbers only (``op.clinear``), the real parts are compared.

    Parameters
    ----------
    op : LinearOperator
        The operator.
    rtol : float, optional
        Largest allowed difference of the two numbers, relative to the larger of :math:`\|A u\| \|v\|` and
        :math:`\|u\| \|A^H v\|`; by default 1000 times the rounding error of the operator's dtype, 8 times for half
        types. If JAX has no double precision, the rounding error of single precision is used.
    seed : int
        Seed of the random vectors, which are the same on any number of ranks.
    raises : bool
        Whether a failure raises an error; otherwise the function returns ``False``.
    complex_vectors : bool, optional
        Whether the vectors are complex; by default if the operator is complex.
    engine : str, optional
        Engine of the vectors: ``"numpy"``, ``"cupy"`` or ``"jax"``.

    Returns
    -------
    bool
        Whether the test passed.

    Raises
    ------
    CollopsError
        If the test failed; the message has both numbers.
    InputError
        If `rtol` is not a finite number of at least 0, or `seed` is not an integer.

    Examples
    --------
    >>> import collops
    >>> collops.dottest(collops.FirstDerivative(5))
    True
    """
    if not isinstance(getattr(op, "domain", None), Layout | StackedLayout):
        raise UnsupportedTypeError(f"expected a distributed operator, not {type_name(op)}")
    dtype = op.dtype if op.dtype.kind in "fcV" else np.dtype(np.float64)
    if complex_vectors and dtype.kind != "c":
        dtype = np.result_type(dtype, np.complex64)
    if rtol is None:
        # A wrong adjoint of n elements has a relative error of about 1 / sqrt(n). JAX may compute in a lower precision.
        dtype = dtype if dtype.kind == "V" else find_engine(engine).dtype(dtype)
        rounding = 2.0**-8 if dtype.kind == "V" else float(np.finfo(dtype).eps)  # bfloat16 has eight significant bits
        rtol = (8 if is_half(dtype) else 1000) * rounding
    elif not 0 <= rtol < math.inf:
        raise InputError(f"rtol must be a finite number of at least 0, not {rtol!r}")
    u = random(op.domain, comm=op.comm, dtype=dtype, engine=engine, seed=seed)
    v = random(op.range, comm=op.comm, dtype=dtype, engine=engine, seed=seed + 1)
    forward, adjoint = op.forward(u), op.adjoint(v)
    left_product, right_product = dots((forward, v))[0].item(), dots((u, adjoint))[0].item()
    scale = max(float(forward.norm()) * float(v.norm()), float(u.norm()) * float(adjoint.norm()))
    if not op.clinear:
        left_product, right_product = left_product.real, right_product.real
    passed = bool(abs(left_product - right_product) <= rtol * scale)
    if not passed and raises:
        raise CollopsError(
            f"the dot test of {op!r} failed: <A u, v> = {left_product:.10g}, <u, A^H v> = {right_product:.10g}, "
            f"difference {abs(left_product - right_product):.3g}, allowed {rtol * scale:.3g}"
        )
    return passed
