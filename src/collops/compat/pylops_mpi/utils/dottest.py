"""PyLops-MPI's dot test, with the user's vectors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

__all__ = ["dottest"]


def dottest(
    Op: Any,
    u: Any,
    v: Any,
    nr: int | None = None,
    nc: int | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-21,
    raiseerror: bool = True,
    verb: bool = False,
) -> bool:
    r"""Check that :math:`\langle A u, v\rangle = \langle u, A^H v\rangle`. Collective.

    Parameters
    ----------
    Op : MPILinearOperator or MPIStackedLinearOperator
        What is tested.
    u, v : DistributedArray or StackedDistributedArray
        In domain and range.
    nr, nc : int, optional
        Numbers of rows and columns that `Op` shall have.
    rtol, atol : float
        Allowed difference.
    raiseerror : bool
        Whether a failure raises; otherwise it is returned.
    verb : bool
        Whether to print both numbers.

    Raises
    ------
    AssertionError
        If the test, or the shape, fails.
    """
    if (Op.shape[0] if nr is None else nr, Op.shape[1] if nc is None else nc) != Op.shape:
        raise AssertionError(f"{Op!r} has the shape {Op.shape}, not {(nr, nc)}")
    left = (Op @ u).dot(v, vdot=True)
    right = u.dot(Op.H @ v, vdot=True)
    passed = bool(np.isclose(left, right, rtol, atol))
    text = f"Dot test {'passed' if passed else 'failed'}, v^H(Opu)={left} - u^H(Op^Hv)={right}"
    if verb:
        sys.stdout.write(text + "\n")
    if not passed and raiseerror:
        raise AssertionError(text)
    return passed
