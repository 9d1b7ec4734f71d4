"""Local operators, which one rank applies to its own part, and conversions from operators of other packages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from collops.array import DistributedArray, Layout, StackedLayout
from collops.array.fused import LocalPairs
from collops.backend import LocalArray, SparseArray, engine_of
from collops.comm.world import alone
from collops.errors import LayoutError, UnsupportedTypeError, type_name
from collops.operators.base import FORMS, Direction, LinearOperator
from collops.operators.dense import forms_for
from collops.operators.dense.matrix import DenseMatrix
from collops.operators.memory import Coefficients, check_holds, store

__all__ = ["applied_on_host"]

_MAX_COLUMNS = 16  # columns that a sparse matrix multiplies at once on hosts; more would leave fewer rows in the cache


@runtime_checkable
class LocalOperator(Protocol):
    """A linear map of flat arrays in this rank's memory.

    Attributes
    ----------
    shape : tuple of int
        Numbers of rows and columns.
    dtype : numpy.dtype
        Type of the coefficients.

    Notes
    -----
    An attribute ``capturable = False`` or ``clinear = False`` also applies to every stack that contains the operator;
    see :class:`LinearOperator`.

    Functions ``forward_columns(X, out)`` and ``adjoint_columns(Y, out)`` may apply the operator to each row of a 2-D
    array at once, for example by a matrix product. They fill and return `out`. The arrays may be non-contiguous. Both
    are on the host, unless an attribute ``columns_engine = "cupy"`` says that they are on a device. :class:`Columns`
    uses the functions if all operators of a stack have them for the same engine.

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

    def forward_local(self, x: LocalArray, out: LocalArray | None) -> LocalArray:
        """Return the product with a 1-D array; `out`, 1-D and contiguous, may be used for it unless it is ``None``."""
        ...

    def adjoint_local(self, y: LocalArray, out: LocalArray | None) -> LocalArray:
        """Return the product of the conjugate transpose with a 1-D array; `out` likewise."""
        ...


def lift_local(op: Any) -> LocalOperator:
    """Make a local operator of `op`.

    Parameters
    ----------
    op : LocalOperator, array, PyLops or SciPy operator
        One of: a `LocalOperator`, which is returned unchanged; an operator of this package on a communicator of one
        rank (:func:`collops.comm.alone`); a 2-D array of any engine or a ``pylops.MatrixMult`` of one; derivatives,
        Laplacian and Diagonal of PyLops, replaced by the operators of this package; a sparse matrix of SciPy or CuPy;
        any object with ``shape``, ``dtype``, ``matvec`` and ``rmatvec``, such as other operators of PyLops and
        operators of ``scipy.sparse.linalg``.

    Returns
    -------
    LocalOperator

    Raises
    ------
    UnsupportedTypeError
        If `op` is none of these, or a distributed operator on several ranks.
    LayoutError
        If it is an array without exactly two axes.

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
    matrix = _matrix_behind(op)
    if matrix is not None:
        return forms_for(engine_of(matrix)).local_matrix(matrix)
    native = _form_of_pylops(op)
    if native is not None:
        return native
    shape, dtype = getattr(op, "shape", None), getattr(op, "dtype", None)
    if shape is not None and len(shape) == 2 and dtype is not None:
        if hasattr(op, "tocsr"):
            return SparseMatrix(op)
        if callable(getattr(op, "matvec", None)) and callable(getattr(op, "rmatvec", None)):
            return LiftedOperator(op)
    raise UnsupportedTypeError(
        f"{type_name(op)} is not a local operator: it needs shape, dtype, matvec and "
        "rmatvec (PyLops, SciPy), or forward_local and adjoint_local"
    )


class LiftedOperator:
    """An operator of another package, applied through its ``matvec`` and ``rmatvec``.

    Operators of PyLops and SciPy get NumPy copies of arrays of JAX; other operators get the arrays of JAX.
    """

    def __init__(
        self,
        operator: Any,
        matvec: Callable[[LocalArray], LocalArray] | None = None,
        rmatvec: Callable[[LocalArray], LocalArray] | None = None,
    ) -> None:
        self.operator = operator
        self.shape: tuple[int, int] = (int(operator.shape[0]), int(operator.shape[1]))
        try:
            self.dtype = np.dtype(operator.dtype)
        except TypeError:
            raise UnsupportedTypeError(
                f"the dtype of {type_name(operator)} must be a dtype of NumPy, not {operator.dtype!r}"
            ) from None
        self.clinear = bool(getattr(operator, "clinear", True))
        self._matvec = matvec or operator.matvec
        self._rmatvec = rmatvec or operator.rmatvec
        package = type(operator).__module__.partition(".")[0]
        self._on_host = package in ("pylops", "scipy") and type(operator).__name__ != "JaxOperator"

    def forward_local(self, x: LocalArray, out: LocalArray | None) -> LocalArray:
        if self._on_host and engine_of(x).traced:
            return applied_on_host(self._matvec, self._rmatvec, self.shape, self.dtype, x)
        return store(_of_engine(self._matvec(x), x), out)

    def adjoint_local(self, y: LocalArray, out: LocalArray | None) -> LocalArray:
        if self._on_host and engine_of(y).traced:
            return applied_on_host(self._rmatvec, self._matvec, self.shape[::-1], self.dtype, y)
        return store(_of_engine(self._rmatvec(y), y), out)


def _of_engine(result: LocalArray, x: LocalArray) -> LocalArray:
    """Copy the product of an operator to JAX if `x` is of JAX, since the operator may reuse its memory.

    The product may be a list or a tensor of PyTorch, as in SciPy.
    """
    engine = engine_of(x)
    if not isinstance(getattr(result, "dtype", None), np.dtype):
        try:
            result = np.asarray(result)
        except ValueError:
            raise LayoutError("the product of a local operator is a list of lists of different lengths") from None
        except (RuntimeError, TypeError) as problem:  # of PyTorch, for gradients, devices and dtypes that NumPy lacks
            raise UnsupportedTypeError(
                f"the product of a local operator, a {type_name(result)}, cannot become an array: {problem}"
            ) from problem
        if result.ndim and result.dtype.kind not in "biufc":
            raise UnsupportedTypeError(f"the product of a local operator must be numbers, not {result.dtype}")
    return engine.from_host(result) if engine.traced and isinstance(result, np.ndarray) else result


class DiagonalMatrix:
    """The product with a vector element by element, without a temporary array."""

    def __init__(self, diagonal: LocalArray) -> None:
        self.shape = diagonal.size, diagonal.size
        self.dtype = np.dtype(diagonal.dtype)
        self._diagonal = Coefficients(diagonal)
        self._conjugate = Coefficients(diagonal.conj()) if self.dtype.kind == "c" else self._diagonal

    def forward_local(self, x: LocalArray, out: LocalArray | None) -> LocalArray:
        return self._product(self._diagonal, x, out)

    def adjoint_local(self, y: LocalArray, out: LocalArray | None) -> LocalArray:
        return self._product(self._conjugate, y, out)

    def _product(self, diagonal: Coefficients, x: LocalArray, out: LocalArray | None) -> LocalArray:
        engine = engine_of(x)
        factor = diagonal.on_engine(engine)
        if out is None or out.dtype != self.dtype or x.dtype != self.dtype:
            return store(factor * x, out)
        return engine.xp.multiply(factor, x, out=out)


class SparseMatrix(LiftedOperator):
    """A sparse matrix of SciPy or CuPy in any format, stored as compressed rows."""

    def __init__(self, matrix: SparseArray) -> None:
        rows = matrix.tocsr()
        columns = rows.T  # compressed columns of the same memory

        def adjoint(y: LocalArray) -> LocalArray:
            return (columns @ y.conj()).conj() if self.dtype.kind == "c" else columns @ y

        super().__init__(rows, lambda x: rows @ x, adjoint)
        self.columns_engine = engine_of(rows.data).name

    def forward_columns(self, X: LocalArray, out: LocalArray) -> LocalArray:
        return _by_few_columns(self._matvec, X, out)

    def adjoint_columns(self, Y: LocalArray, out: LocalArray) -> LocalArray:
        return _by_few_columns(self._rmatvec, Y, out)


def _by_few_columns(multiply: Callable[[LocalArray], LocalArray], X: LocalArray, out: LocalArray) -> LocalArray:
    step = _MAX_COLUMNS if engine_of(X).memory == "host" else len(X)
    for begin in range(0, len(X), step):
        some = slice(begin, begin + step)
        store(multiply(X[some].T).T, out[some])
    return out


class OneRank:
    """An operator between single arrays on a communicator of one rank, applied to flat arrays in this rank's memory.

    Raises UnsupportedTypeError if the operator has several ranks, LayoutError if one side is a stack of arrays.
    """

    def __init__(self, operator: LinearOperator) -> None:
        if operator.comm.size > 1:
            raise UnsupportedTypeError(
                f"a local operator must have one rank, not {operator.comm.size} as {operator!r}; stack distributed "
                "operators by StackedVStack, StackedHStack or StackedBlockDiag"
            )
        if isinstance(operator.domain, StackedLayout) or isinstance(operator.range, StackedLayout):
            raise LayoutError("a local operator must map one array to one array, not a stack of arrays")
        self.operator = operator
        self.shape = operator.shape
        self.dtype = operator.dtype
        self.capturable = operator.capturable
        self.clinear = operator.clinear
        forward, adjoint = operator._directions
        self._sides = (forward, operator.domain, operator.range), (adjoint, operator.range, operator.domain)

    def forward_local(self, x: LocalArray, out: LocalArray | None, squares: LocalPairs | None = None) -> LocalArray:
        return self._product(self._sides[0], x, out, squares)

    def adjoint_local(self, y: LocalArray, out: LocalArray | None, squares: LocalPairs | None = None) -> LocalArray:
        return self._product(self._sides[1], y, out, squares)

    def _product(
        self, side: tuple[Direction, Layout, Layout], source: LocalArray, out: LocalArray | None, squares: Any
    ) -> LocalArray:
        direction, layout, range = side
        comm = self.operator.comm
        memory = None if out is None else out.reshape(range.shape)
        target = None if out is None else DistributedArray._uncompared(range, comm, memory)
        parts = None if squares is None else []
        x = DistributedArray._uncompared(layout, comm, source.reshape(layout.shape))
        value = direction.with_squares(x, target, parts).local_array
        if squares is not None:
            squares += parts if value is memory else [(out, out)]
        return out if value is memory else store(value.reshape(-1), out)


def applied_on_host(
    forward: Callable[[np.ndarray], np.ndarray],
    adjoint: Callable[[np.ndarray], np.ndarray],
    shape: tuple[int, ...],
    dtype: np.dtype,
    x: LocalArray,
) -> LocalArray:
    """Return ``forward(x)`` of a vector of JAX, possibly traced, by a callback from the program to Python.

    `forward` is a linear map of vectors on the host, of `shape` and with coefficients of `dtype`; `adjoint` is its
    adjoint, which defines the derivative. The vectors are copied.
    """
    import jax

    engine = engine_of(x)
    kind = engine.dtype(np.result_type(dtype, x.dtype))

    def called(function: Callable[[np.ndarray], np.ndarray], size: int, vector: LocalArray) -> LocalArray:
        result = jax.ShapeDtypeStruct((size,), kind)
        return jax.pure_callback(
            lambda array: np.asarray(function(np.array(array)), kind).reshape(size),
            result,
            vector,
            vmap_method="sequential",
        )

    def transposed(vector: LocalArray) -> LocalArray:
        return called(adjoint, shape[1], vector.conj()).conj()

    vector = x.astype(kind).reshape(shape[1])
    return engine.linear_map(lambda array: called(forward, shape[0], array), transposed, vector, shape[:1])


def in_precision(op: LocalOperator, dtype: np.dtype) -> LocalOperator:
    """Return a local operator with its coefficients in `dtype`; raise UnsupportedTypeError if not convertible."""
    if isinstance(op, OneRank):
        return OneRank(op.operator.astype(dtype))
    check_holds(dtype, op.dtype)
    half = dtype.name == "bfloat16"
    if isinstance(op, DenseMatrix) and op.dtype == op.matrix.dtype:
        forms = forms_for(engine_of(op.matrix))
        return forms.bfloat16_matrix(op.matrix) if half else forms.local_matrix(op.matrix.astype(dtype))
    if isinstance(op, SparseMatrix) and not half:
        return SparseMatrix(op.operator.astype(dtype))
    raise UnsupportedTypeError(f"{type(op).__name__} of {op.dtype} cannot be converted to {dtype}; {FORMS}")


def _matrix_behind(op: Any) -> LocalArray | None:
    """Return the 2-D array of `op`; ``None`` if it has none."""
    pylops = sys.modules.get("pylops")
    if pylops is not None and isinstance(op, pylops.MatrixMult):
        # Subclasses, products with matrices (otherdims) and sparse matrices are left to PyLops.
        if op.reshape or hasattr(op.A, "tocsr") or type(op) is not pylops.MatrixMult:
            return None
        return op.A
    try:
        engine_of(op)
    except UnsupportedTypeError:
        return None
    if op.ndim != 2:
        raise LayoutError(f"a dense local operator must be an array with two axes, not of shape {op.shape}")
    return op


def _form_of_pylops(op: Any) -> DiagonalMatrix | OneRank | None:
    """Return the collops operator for a diagonal with an entry for each element, or a derivative; else ``None``.

    Unlike the operators of PyLops, they need no temporary arrays.
    """
    pylops = sys.modules.get("pylops")
    if pylops is None:
        return None
    if type(op) is pylops.Diagonal:
        return DiagonalMatrix(op.diag.ravel()) if op.diag.size == op.shape[0] and op.diag.dtype == op.dtype else None
    derivatives = pylops.FirstDerivative, pylops.SecondDerivative, pylops.Laplacian
    if type(op) not in derivatives or np.dtype(op.dtype).kind not in "fc":
        return None
    from collops.operators.derivatives.operators import FirstDerivative, Laplacian, SecondDerivative

    dims, common = tuple(map(int, op.dims)), {"comm": alone(), "dtype": op.dtype}
    if type(op) is pylops.FirstDerivative:
        return OneRank(FirstDerivative(dims, op.axis, op.sampling, op.kind, op.edge, op.order, **common))
    if type(op) is pylops.SecondDerivative:
        return OneRank(SecondDerivative(dims, op.axis, op.sampling, op.kind, op.edge, **common))
    return OneRank(Laplacian(dims, op.axes, op.weights, op.sampling, op.edge, op.kind, **common))
