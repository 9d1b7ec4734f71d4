"""Local operators: what one rank applies to its own part, and how operators of other packages become one."""

from __future__ import annotations

import sys
from typing import Any, Protocol, runtime_checkable

import numpy as np

from collops.backend import engine_of
from collops.errors import LayoutError, UnsupportedTypeError
from collops.operators.base import LinearOperator
from collops.operators.dense import dense
from collops.operators.host_calls import applied_on_host
from collops.operators.one_rank import OneRank, derivative_of_pylops

__all__ = ["LiftedOperator", "LocalOperator", "SparseMatrix", "lift_local", "store"]


@runtime_checkable
class LocalOperator(Protocol):
    """A linear map of flat arrays in this rank's memory.

    Attributes
    ----------
    shape : tuple of int
        Numbers of rows and columns.
    dtype : numpy.dtype
        Of the coefficients.

    Notes
    -----
    One that says ``capturable = False`` or ``clinear = False`` says it of every stack that it stands in; see
    :class:`LinearOperator`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> class Doubled:
    ...     shape, dtype = (3, 3), np.dtype(float)
    ...     def forward_local(self, x, out):
    ...         return np.multiply(2, x, out=out)
    ...     adjoint_local = forward_local
    >>> A = collops.BlockDiag([Doubled()], collops.world())
    >>> A.dottest()
    True
    """

    shape: tuple[int, int]
    dtype: np.dtype

    def forward_local(self, x: Any, out: Any) -> Any:
        """Return the product with a 1-D array; in `out` where that is a (contiguous, 1-D) array and not ``None``."""
        ...

    def adjoint_local(self, y: Any, out: Any) -> Any:
        """Return the product of the conjugate transpose with a 1-D array, in `out` likewise."""
        ...


def lift_local(op: Any) -> LocalOperator:
    """Make a local operator of `op`.

    Parameters
    ----------
    op : LocalOperator, array, PyLops or SciPy operator
        One of: an object of the protocol `LocalOperator`, which is returned as it is; an operator of this package on a
        communicator of one rank (:func:`collops.comm.alone`); a 2-D array of any engine or a ``pylops.MatrixMult`` of
        one, applied by our own matrix product; PyLops' derivatives and Laplacian, applied as our own; a sparse matrix
        of SciPy or CuPy; anything with ``shape``, ``dtype``, ``matvec`` and ``rmatvec``, such as the other operators of
        PyLops and those of ``scipy.sparse.linalg``.

    Returns
    -------
    LocalOperator

    Raises
    ------
    UnsupportedTypeError
        If `op` is none of these, or a distributed operator of several ranks.
    LayoutError
        If it is an array that has not two axes.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.operators import lift_local
    >>> local = lift_local(np.arange(6.0).reshape(2, 3))
    >>> local.forward_local(np.ones(3), None)
    array([ 3., 12.])
    """
    if callable(getattr(op, "forward_local", None)) and callable(getattr(op, "adjoint_local", None)):
        return op
    if isinstance(op, LinearOperator):
        return OneRank(op)
    matrix = _dense_matrix(op)
    if matrix is not None:
        return dense(matrix)
    derivative = derivative_of_pylops(op)
    if derivative is not None:
        return derivative
    shape, dtype = getattr(op, "shape", None), getattr(op, "dtype", None)
    if shape is not None and len(shape) == 2 and dtype is not None:
        if hasattr(op, "tocsr"):
            return SparseMatrix(op)
        if callable(getattr(op, "matvec", None)) and callable(getattr(op, "rmatvec", None)):
            return LiftedOperator(op)
    raise UnsupportedTypeError(
        f"{type(op).__module__}.{type(op).__qualname__} is no local operator: it needs shape, dtype, matvec and "
        "rmatvec (PyLops, SciPy), or forward_local and adjoint_local"
    )


class LiftedOperator:
    """An operator of another package, applied through its ``matvec`` and ``rmatvec``.

    Parameters
    ----------
    operator : object with shape, dtype, matvec and rmatvec
        For instance one of PyLops or ``scipy.sparse.linalg``, which also work on arrays of JAX, by calls back to the
        host; others get arrays of JAX as they are.
    """

    __slots__ = ("_matvec", "_on_host", "_rmatvec", "clinear", "dtype", "operator", "shape")

    def __init__(self, operator: Any) -> None:
        self.operator = operator
        self.shape: tuple[int, int] = (int(operator.shape[0]), int(operator.shape[1]))
        self.dtype = np.dtype(operator.dtype)
        self.clinear = bool(getattr(operator, "clinear", True))
        self._matvec = operator.matvec
        self._rmatvec = operator.rmatvec
        package = type(operator).__module__.partition(".")[0]
        self._on_host = package in ("pylops", "scipy") and type(operator).__name__ != "JaxOperator"

    def forward_local(self, x: Any, out: Any) -> Any:
        """Return ``matvec(x)``."""
        if self._on_host and not engine_of(x).keeps:
            return store(applied_on_host(self._matvec, self._rmatvec, self.shape, self.dtype, x), out)
        return store(self._matvec(x), out)

    def adjoint_local(self, y: Any, out: Any) -> Any:
        """Return ``rmatvec(y)``."""
        if self._on_host and not engine_of(y).keeps:
            return store(applied_on_host(self._rmatvec, self._matvec, self.shape[::-1], self.dtype, y), out)
        return store(self._rmatvec(y), out)


class SparseMatrix:
    """A sparse matrix of SciPy or CuPy.

    Parameters
    ----------
    matrix : sparse matrix or sparse array
        In any format; kept as compressed rows.
    """

    __slots__ = ("_complex", "_matrix", "_transposed", "dtype", "shape")

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix.tocsr()
        self._transposed = self._matrix.T  # compressed columns of the same memory
        self.shape: tuple[int, int] = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.dtype = np.dtype(matrix.dtype)
        self._complex = self.dtype.kind == "c"

    def forward_local(self, x: Any, out: Any) -> Any:
        """Return the matrix times `x`."""
        if not engine_of(x).keeps:
            return store(applied_on_host(self._times, self._adjoint_times, self.shape, self.dtype, x), out)
        return store(self._times(x), out)

    def adjoint_local(self, y: Any, out: Any) -> Any:
        """Return the conjugate transpose times `y`."""
        if not engine_of(y).keeps:
            return store(applied_on_host(self._adjoint_times, self._times, self.shape[::-1], self.dtype, y), out)
        return store(self._adjoint_times(y), out)

    def _times(self, x: Any) -> Any:
        return self._matrix @ x

    def _adjoint_times(self, y: Any) -> Any:
        return (self._transposed @ y.conj()).conj() if self._complex else self._transposed @ y


def store(result: Any, out: Any) -> Any:
    """Put `result` into `out` where that is given, and return it.

    Raises
    ------
    UnsupportedTypeError
        If `result` is complex and `out` is not: nothing drops imaginary parts in silence.
    LayoutError
        If the sizes differ.
    """
    if out is None:
        return result
    if result.dtype is not out.dtype and result.dtype.kind == "c" and out.dtype.kind != "c":
        raise UnsupportedTypeError(
            f"a local operator returned {result.dtype} where {out.dtype} is wanted; give it a complex dtype"
        )
    if result.shape != out.shape:
        if result.size != out.size:
            raise LayoutError(f"a local operator returned shape {result.shape} instead of {out.shape}")
        result = result.reshape(out.shape)
    out[...] = result
    return out


def _dense_matrix(op: Any) -> Any:
    """Return the 2-D array behind `op`, or ``None`` where there is none."""
    pylops = sys.modules.get("pylops")
    if pylops is not None and isinstance(op, pylops.MatrixMult):
        # One with otherdims multiplies a matrix by a matrix, one of a sparse matrix knows best itself, and the
        # imaginary part of a matrix declared real is PyLops' affair too.
        if op.reshape or hasattr(op.A, "tocsr") or type(op) is not pylops.MatrixMult:
            return None
        return op.A
    try:
        engine_of(op)
    except UnsupportedTypeError:
        return None
    if op.ndim != 2:
        raise LayoutError(f"a dense local operator is an array with two axes, not of shape {op.shape}")
    return op
