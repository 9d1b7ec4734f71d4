"""Distributed operators as operators of SciPy, whose methods then run on all ranks with replicated vectors."""

from __future__ import annotations

import math
import zlib

import numpy as np
from scipy.sparse import linalg

import collops
from collops.errors import LayoutError, UnsupportedTypeError, type_name
from collops.extend.arrays import Array, significant_bytes
from collops.extend.engines import Engine
from collops.extend.engines import engine as find_engine
from collops.extend.operators import AnyLayout, Columns

__all__ = ["as_scipy"]

_VECTOR = (
    "an array that SciPy passes to a distributed operator (make b, x0 and X from the same numbers on all ranks; eigsh "
    "and svds draw another start vector on each rank unless they get v0=numpy.random.default_rng(0).random(n))"
)


def as_scipy(op: collops.LinearOperator, *, engine: Engine | str = "numpy") -> linalg.LinearOperator:
    """Return an operator of SciPy that applies a distributed operator to NumPy vectors that every rank has.

    All ranks call a method of ``scipy.sparse.linalg`` together, with equal arguments, and all get its result. Vectors
    are flat, of ``op.domain.size`` and ``op.range.size`` elements; the arrays of a stack follow each other.

    Parameters
    ----------
    op : LinearOperator
        The operator, also a preconditioner for ``M=``.
    engine : str or Engine, optional
        The engine of the arrays to which `op` is applied. Vectors are copied to it and back.

    Returns
    -------
    scipy.sparse.linalg.LinearOperator
        With the shape and dtype of `op`; with ``matvec``, ``rmatvec``, ``matmat`` and ``rmatmat``, which are
        collective.

    Raises
    ------
    UnsupportedTypeError
        If `op` is not a distributed operator, or is linear over the real numbers only (``op.clinear``).
    LayoutError
        If the groups of a mask have independent values, so that no global vector exists.
    InputError
        If `engine` is unknown. Products raise it on all ranks if the vectors of the ranks differ.

    Notes
    -----
    Each product sends one allreduce of two integers, which compares checksums of the vectors, the messages of `op`, and
    one gather for each array of the result, or none if it is replicated. ``matmat`` sends one such set for all columns,
    in which `op` is applied by :class:`collops.operators.Columns`.

    ``eigsh``, ``svds`` and others draw a random start vector if they get none, a different one on each rank: pass
    ``v0=``, or in newer releases ``rng=`` with a seed. Otherwise the first product raises InputError on all ranks.

    Every rank holds all vectors of SciPy's method. If they do not fit into its memory, use the solvers of collops.

    Examples
    --------
    >>> import collops
    >>> import numpy as np
    >>> from collops.bridges.scipy import as_scipy
    >>> from scipy.sparse.linalg import eigsh
    >>> A = as_scipy(collops.Diagonal(collops.from_global(np.arange(1.0, 21.0))))
    >>> eigsh(A, k=2, v0=np.ones(20), return_eigenvectors=False).round(6)
    array([19., 20.])
    """
    if not isinstance(op, collops.LinearOperator):
        raise UnsupportedTypeError(
            f"as_scipy takes a distributed operator, not {type_name(op)}; VStack, HStack, BlockDiag and CSRMatrix of "
            "collops make one from operators and sparse matrices of SciPy"
        )
    if not op.clinear:
        raise UnsupportedTypeError(
            f"the adjoint of {type(op).__name__} takes real parts, which the methods of SciPy do not expect; use the "
            "solvers of collops"
        )
    for layout in (op.domain, op.range):
        if any(leaf.has_group_values for leaf in _leaves(layout)):
            raise LayoutError(
                f"each group of ranks has values of its own in the layout {layout}, so that SciPy would get different "
                "vectors; make the operator on the communicator of each group (comm.split)"
            )
    return _OnAllRanks(op, find_engine(engine) if isinstance(engine, str) else engine)


class _OnAllRanks(linalg.LinearOperator):
    """A distributed operator that is applied to replicated vectors: distribute, apply, gather."""

    def __init__(self, op: collops.LinearOperator, engine: Engine) -> None:
        super().__init__(op.dtype, op.shape)
        self._op, self._engine = op, engine
        self._blocks: dict[int, Columns] = {}

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self._product(self._op, np.asarray(x).reshape(-1), False)

    def _rmatvec(self, x: np.ndarray) -> np.ndarray:
        return self._product(self._op, np.asarray(x).reshape(-1), True)

    def _matmat(self, X: np.ndarray) -> np.ndarray:
        return self._product_of_columns(X, False)

    def _rmatmat(self, X: np.ndarray) -> np.ndarray:
        return self._product_of_columns(X, True)

    def _product_of_columns(self, X: np.ndarray, adjoint: bool) -> np.ndarray:
        X = np.asarray(X)  # a matrix of NumPy always has two axes
        count = X.shape[1]
        if count == 0:
            return np.zeros((self.shape[1 if adjoint else 0], 0), np.result_type(X.dtype, self._op.dtype))
        if count not in self._blocks:
            self._blocks[count] = Columns(self._op, count)
        return self._product(self._blocks[count], X.T, adjoint).T

    def _product(self, op: collops.LinearOperator, values: np.ndarray, adjoint: bool) -> np.ndarray:
        """Return the product of `op` with a vector, or with the rows of a matrix."""
        comm = op.comm
        if comm.size > 1:
            checksum = zlib.crc32(significant_bytes(values))
            direction = "adjoint" if adjoint else "forward"
            comm.agree(_VECTOR, f"{direction}, {values.dtype} of shape {values.shape}, checksum {checksum:08x}")
        apply, source = (op.adjoint, op.range) if adjoint else (op.forward, op.domain)
        result = apply(self._distributed(values, source))
        parts = [self._engine.to_host(leaf.gather()).reshape(*values.shape[:-1], -1) for leaf in result.leaves]
        # SciPy may write into the result; arrays of JAX are read-only on the host.
        return np.require(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1), requirements="W")

    def _distributed(self, values: np.ndarray, layout: AnyLayout) -> Array:
        """Return this rank's part of vectors along the last axis. No messages."""
        if isinstance(layout, collops.Layout):
            return collops.from_global(values.reshape(layout.shape), layout, comm=self._op.comm, engine=self._engine)
        lengths = [part.size // math.prod(values.shape[:-1]) for part in layout]
        pieces = np.split(values, np.cumsum(lengths)[:-1], axis=-1)
        parts = zip(pieces, layout, strict=True)
        return collops.StackedArray([self._distributed(piece, part) for piece, part in parts])


def _leaves(layout: AnyLayout) -> tuple[collops.Layout, ...]:
    return (layout,) if isinstance(layout, collops.Layout) else layout.leaves
