"""The algebra of blocks of columns: inner products in one message, combinations, and orthonormal bases.

Small matrices are arrays of the engine and equal on all ranks, so that no step synchronises with the device. A basis is
computed from the eigenvalues of the matrix of inner products [Stathopoulos and Wu 2002], in several passes. Like a
Cholesky factorisation, each pass takes one message, but the columns may be linearly dependent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from operator import add
from typing import Any, TypeAlias

import numpy as np

from collops.array import Array, DistributedArray, StackedArray
from collops.array.dtypes import accumulator
from collops.array.kernels import kernels_for
from collops.backend import Engine, LocalArray, engine_of
from collops.comm import Communicator
from collops.errors import InputError
from collops.operators.base import AnyLayout
from collops.operators.columns import Columns, block_layout
from collops.solvers.problem import check_array, on_host
from collops.solvers.state import Scalar

__all__ = ["basis", "combine", "grams"]

Block: TypeAlias = Array | Sequence[Array]
"""Columns: a block, as :class:`collops.operators.Columns` describes it, or a list or tuple of arrays."""

_PIECE = 1 << 13  # elements of a column; some 30 columns of this length stay in the L2 cache

_FEW = 2  # number of columns for which a matrix product is too small for a device


def as_block(name: str, columns: Any, layout: AnyLayout) -> Array:
    """Return columns of this layout, a block or a list or tuple of arrays, as a block.

    Raises LayoutError for another layout, and the errors of :meth:`Columns.join`.
    """
    if isinstance(columns, list | tuple):
        columns = Columns.join(columns)
    first = Columns.split(columns)[0]
    check_array(f"a column of {name}", first, layout)
    if first.dtype.kind not in "fc":
        raise InputError(f"{name} must be of a real or complex dtype, not {first.dtype}")
    return columns


def grams(*pairs: tuple[Array, Array], columns: tuple[slice, slice] = (slice(None), slice(None))) -> list[LocalArray]:
    """Return the matrix of inner products of the columns of each pair, X^H Y. Collective: one allreduce for all.

    `columns` are the numbers of columns of X and of Y to use. Replicated pairs need no message; see
    :func:`collops.array.dots`.
    """
    rows, others = columns
    engine = pairs[0][0].engine
    by_ranks: dict[Communicator | None, dict[int, LocalArray]] = {}
    for number, (X, Y) in enumerate(pairs):
        shape = tuple(len(block.leaves[0].local_array[some]) for block, some in ((X, rows), (Y, others)))
        # JAX sums each part over the ranks that it is split over, so that a replica has its complete cotangent.
        counted = (True,) * len(X.leaves) if engine.traced else X._plan.counted
        for x, y, counts in zip(X.leaves, Y.leaves, counted, strict=True):
            parts = by_ranks.setdefault((x if engine.traced else X)._plan.communicator, {})
            product = _local_gram(x.local_array[rows], y.local_array[others], shape)
            parts[number] = parts.get(number, 0) + (product if counts else 0 * product)
    totals: list[LocalArray] = [0] * len(pairs)
    for communicator, parts in by_ranks.items():
        values = list(parts.values())
        if communicator is not None:
            values = communicator.allreduce(engine.xp.stack(values))
        for index, number in enumerate(parts):
            totals[number] = totals[number] + values[index]
    return totals


def combine(X: Array, matrix: LocalArray, Y: Array | None = None) -> Array:
    """Return ``X matrix``, or ``Y + X matrix``, as a new block. No messages."""
    same = matrix.shape[1] == len(matrix)
    if isinstance(X, StackedArray):
        others = [None] * len(X.arrays) if Y is None else Y.arrays
        parts: list[Any] = [combine(x, matrix, y) for x, y in zip(X.arrays, others, strict=True)]
        return X._like(parts) if same else StackedArray(parts)
    x, precise = X.local_array, accumulator(X.dtype)
    matrix = X.engine.replicated_operand(matrix, X._plan.communicator).astype(precise)
    product = multiply(matrix.T, as_rows(x).astype(precise, copy=False))
    product = product.reshape(len(product), *x.shape[1:])
    total = (product if Y is None else product + Y.local_array).astype(X.dtype, copy=False)
    if same:
        return X._like(total)
    return DistributedArray._uncompared(block_layout(X.layout.drop(0), len(total)), X.comm, total)


def factors(gram: LocalArray) -> tuple[LocalArray, LocalArray, Scalar]:
    """Return S, where ``S^H S`` is the Gram matrix of a block X, its inverse T, and the smallest scaled eigenvalue.

    The columns of ``X T`` are orthonormal, except that they are shorter in directions of X below rounding. ``X T S`` is
    X in all directions. For the eigenvalue, the Gram matrix is scaled to a unit diagonal.
    """
    lengths, per_length, values, vectors, hidden = _spectrum(gram)
    roots = engine_of(gram).xp.sqrt(engine_of(gram).xp.maximum(values, hidden))
    return roots[:, None] * vectors.conj().T * lengths, per_length[:, None] * vectors / roots, values[0]


def second_factors(gram: LocalArray) -> tuple[LocalArray, LocalArray]:
    """Return the factors for a second pass over a block that is nearly orthonormal.

    Columns that are still short are rounding errors: ``X T`` has zeros for them, and S drops them.
    """
    *_, values, vectors, hidden = _spectrum(gram, scaled=False)
    xp = engine_of(gram).xp
    roots = xp.where(values > hidden, xp.sqrt(xp.maximum(values, hidden)), 0)
    per_root = xp.where(roots > 0, 1 / xp.where(roots > 0, roots, 1), 0)
    return roots[:, None] * vectors.conj().T, vectors * per_root


def pseudo_inverse(matrix: LocalArray) -> tuple[LocalArray, Scalar]:
    """Return the inverse of a Hermitian positive definite matrix, in the directions above rounding.

    The second result is the smallest eigenvalue of the matrix after scaling to a unit diagonal.
    """
    _, per_length, values, vectors, hidden = _spectrum(matrix)
    xp = engine_of(matrix).xp
    half = per_length[:, None] * vectors * xp.where(values > hidden, 1 / xp.sqrt(xp.maximum(values, hidden)), 0)
    return multiply(half, half.conj().T), values[0]


def basis(block: Array, passes: int = 3) -> tuple[Array, LocalArray]:
    """Return an orthonormal basis Q of a block, and S, where the block is ``Q S``. Collective: `passes` messages.

    One pass prevents columns from becoming parallel. Three passes make them orthonormal to rounding even if they are
    nearly dependent, as for Cholesky QR [Fukaya et al. 2020]. Directions below rounding then are columns of zeros.
    """
    S, T, _ = factors(*grams((block, block)))
    block = combine(block, T)
    for _ in range(passes - 1):
        again, T = second_factors(*grams((block, block)))
        block, S = combine(block, T), multiply(again, S)
    return block, S


def multiply(*matrices: LocalArray) -> LocalArray:
    """Return the product of small matrices, in full precision on all engines. The last may be a block of JAX."""
    engine = engine_of(matrices[0])
    product = partial(engine.xp.tensordot, axes=1, precision="highest") if engine.traced else engine.xp.matmul
    return reduce(product, matrices)


def as_rows(block: LocalArray) -> LocalArray:
    """Return the columns of a local block as vectors; views if the engine has them.

    Blocks of JAX keep their axes: as a vector, an array that is sharded along another axis would be gathered.
    """
    return block if engine_of(block).traced else block.reshape(len(block), block.size // len(block))


def pieces(engine: Engine, size: int) -> list[slice]:
    """Return the ranges of `size` elements for partial products: on hosts, ranges that stay in cache."""
    step = _PIECE if on_host(engine) else max(size, 1)
    return [slice(start, start + step) for start in range(0, size, step)]


def _local_gram(x: LocalArray, y: LocalArray, shape: tuple[int, ...]) -> LocalArray:
    """Return the inner products of the columns of local arrays; empty arrays may have fewer axes."""
    engine, dtype = engine_of(x), accumulator(np.result_type(x.dtype, y.dtype))
    if engine.traced and x.ndim == y.ndim > 1:
        axes = [*range(1, x.ndim)]
        return engine.xp.tensordot(x.astype(dtype).conj(), y.astype(dtype), (axes, axes), precision="highest")
    x, y = (part.reshape(count, part.size // count) for part, count in zip((x, y), shape, strict=True))
    if engine.memory == "device" and engine.mutable and shape[1] <= _FEW:
        # All processors share the sum over long columns.
        return kernels_for(engine).dots([((a, b),) for a in x for b in y], dtype, True).reshape(shape)
    products_with_two = getattr(kernels_for(engine), "products_with_two", None)
    if products_with_two is not None and (products := products_with_two(x, y)) is not None:
        return products
    products = []
    for piece in pieces(engine, x.shape[1]):
        left, right = (part[:, piece].astype(dtype, copy=False) for part in (x, y))
        products.append(multiply(left, right.conj().T).conj())
    return reduce(add, products) if products else engine.xp.zeros(shape, dtype)


def _spectrum(gram: LocalArray, *, scaled: bool = True) -> tuple[LocalArray, ...]:
    """Return lengths of columns, their inverses, eigenvalues, eigenvectors, and the rounding of eigenvalues.

    The eigenvalues are for columns scaled to length 1; if `scaled` is false, lengths are taken as 1. A matrix that is
    not finite is replaced by the identity: results get their non-finite numbers from the blocks.
    """
    xp = engine_of(gram).xp
    gram = xp.where(xp.all(xp.isfinite(gram)), gram, xp.eye(len(gram), dtype=gram.dtype))
    lengths = xp.sqrt(xp.abs(xp.diagonal(gram)))
    lengths = lengths if scaled else xp.ones_like(lengths)
    per_length = xp.where(lengths > 0, 1 / xp.where(lengths > 0, lengths, 1), 0)
    values, vectors = xp.linalg.eigh(per_length[:, None] * (gram + gram.conj().T) / 2 * per_length)
    hidden = 10 * len(gram) * float(np.finfo(gram.dtype).eps) * xp.maximum(values[-1], 1)
    return lengths, per_length, values, vectors, hidden
