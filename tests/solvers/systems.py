"""Square systems for the tests: uneven over the ranks, with and without messages, and as dense matrices."""

from __future__ import annotations

import numpy as np
import scipy.linalg
import scipy.sparse

from collops.array import StackedArray, from_global, zeros
from collops.operators import BlockDiag, StackedBlockDiag, VStack

from .problems import ROWS, joined, random_matrix

KINDS = [("split", "f8"), ("split", "c16"), ("replicated", "f8"), ("stacked", "c8"), ("split", "f4")]
"""Kinds of systems and dtypes: split arrays with an empty rank, replicated ones, and stacks of two arrays."""


def _conditioned(n: int, dtype, seed: int) -> np.ndarray:
    """Return an unsymmetric matrix whose eigenvalues have positive real parts."""
    return random_matrix(n, n, dtype, seed) + 3 * np.sqrt(n) * np.eye(n, dtype=dtype)


def _symmetric(n: int, dtype, seed: int) -> np.ndarray:
    """Return a Hermitian matrix, which is indefinite."""
    matrix = random_matrix(n, n, dtype, seed)
    return (matrix + matrix.conj().T) / 2 + np.diag(np.linspace(-3, 4, n)).astype(dtype)


def system(kind: str, comm, dtype, *, symmetric: bool = False):
    """Return a square operator, the same as a dense matrix, data for both, and the distributed form of an array."""
    make = _symmetric if symmetric else _conditioned
    ranks = ROWS[: comm.size]
    if kind == "replicated":
        wide = [[random_matrix(n + 3, 7, dtype, n) for n in rows] for rows in ranks]
        other = [[block + 0.3 * random_matrix(*block.shape, dtype, 7) for block in rows] for rows in wide]
        left = VStack((wide if symmetric else other)[comm.rank], comm)
        op = left.H @ VStack(wide[comm.rank], comm)
        matrix = np.vstack(joined(wide if symmetric else other)).conj().T @ np.vstack(joined(wide))
    else:
        every = [[make(n, dtype, n) for n in rows] for rows in ranks]
        op, matrix = BlockDiag(every[comm.rank], comm), scipy.linalg.block_diag(*joined(every))
        if kind == "stacked":
            op, matrix = StackedBlockDiag([op, 2 * op]), scipy.linalg.block_diag(matrix, 2 * matrix)
    data = random_matrix(len(matrix), 1, dtype, 97)[:, 0]

    def distributed(values):
        if kind == "stacked":
            halves = zip(np.split(values, 2), op.range, strict=True)
            return StackedArray([from_global(half, layout, comm=comm) for half, layout in halves])
        return from_global(values, op.range, comm=comm)

    return op, matrix, data, distributed


def whole(x) -> np.ndarray:
    """Return all elements of an array."""
    return np.concatenate([part.gather() for part in x]) if isinstance(x, StackedArray) else x.gather()


def convection_diffusion(n: int, wind: float = 20.0):
    """Return the matrix of convection and diffusion on n x n points."""
    one, h = scipy.sparse.eye_array(n), 1 / (n + 1)
    second = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n), dtype=float)
    first = wind * h / 2 * scipy.sparse.diags_array([-1.0, 1.0], offsets=[-1, 1], shape=(n, n), dtype=float)
    return (scipy.sparse.kron(second + first, one) + scipy.sparse.kron(one, second + 0.5 * first)).tocsr()


def masked(comm):
    """Return the operator and the data of two groups of ranks, and this rank's part of its group's solution."""
    mask = [rank % 2 for rank in range(comm.size)]
    op = BlockDiag([_conditioned(3 + rank, "f8", rank) for rank in [comm.rank]], comm, mask=mask)
    y = zeros(op.range, comm=comm)
    y.local_array[...] = random_matrix(len(y.local_array), 1, "f8", 50 + comm.rank)[:, 0]
    members = [rank for rank in range(comm.size) if mask[rank] == mask[comm.rank]]
    data = [random_matrix(3 + rank, 1, "f8", 50 + rank)[:, 0] for rank in members]
    solution = scipy.linalg.solve(
        scipy.linalg.block_diag(*[_conditioned(3 + rank, "f8", rank) for rank in members]), np.concatenate(data)
    )
    place = members.index(comm.rank)
    return op, y, np.split(solution, np.cumsum([len(part) for part in data]))[place]
