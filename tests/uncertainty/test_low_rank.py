"""Randomised singular values and eigenvalues against dense ones."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops import profile
from collops.errors import InputError, LayoutError
from collops.operators import Columns, Diagonal, VStack
from collops.uncertainty import randomized_eigh, randomized_svd
from tests.solvers.problems import assert_close, problem, random_matrix
from tests.solvers.systems import system


def gathered(block) -> np.ndarray:
    return np.concatenate(block.gather(), axis=1) if isinstance(block, collops.StackedArray) else block.gather()


@pytest.mark.parametrize(("kind", "dtype"), [("vstack", "f8"), ("hstack", "c8"), ("block_diag", "c16")])
def test_all_singular_values(comm, kind, dtype):
    """With as many vectors as there are values they are exact."""
    op, serial, _, _ = problem(kind, comm, dtype)
    real = np.empty(0, dtype).real.dtype
    found = randomized_svd(op, 4, oversample=200, dtype=real)
    assert found.U.dtype == found.V.dtype == np.dtype(dtype)
    assert_close(found.values, np.linalg.svd(serial.A, compute_uv=False)[:4], dtype)
    U, V = gathered(found.U), gathered(found.V)
    for vectors in (U, V):
        assert_close(vectors.conj() @ vectors.T, np.eye(4), dtype)
    assert_close(serial.A @ V.T, U.T * found.values, dtype)


def test_the_error_is_that_of_the_best_approximation(comm):
    """Against the bound of Halko, Martinsson and Tropp; values that lie 1e12 apart do not disturb each other."""
    n, rank = 60, 12
    u, v = (np.linalg.qr(random_matrix(n, n, "f8", seed))[0] for seed in (1, 2))
    values = 10.0 ** -np.arange(n)
    matrix = (u * values) @ v.T
    op = VStack([np.array_split(matrix, comm.size)[comm.rank]], comm)
    found = randomized_svd(op, rank, power=0)
    approximate = gathered(found.U).T * found.values @ gathered(found.V)
    assert np.linalg.norm(matrix - approximate, 2) < 100 * values[rank] + 1e-15
    np.testing.assert_allclose(found.values[:7], values[:7], rtol=1e-8)
    U = gathered(found.U)
    assert_close(U @ U.T, np.eye(rank))


def test_power_steps_help_where_values_decay_slowly(comm):
    values = 1 / np.sqrt(1 + np.arange(80.0))
    op = Diagonal(collops.from_global(values, comm=comm))
    errors = [np.abs(randomized_svd(op, 5, power=power).values - values[:5]).max() for power in (0, 2)]
    assert errors[1] < 0.02 < errors[0]


@pytest.mark.parametrize(("kind", "dtype"), [("split", "f8"), ("split", "c16"), ("stacked", "c8")])
def test_eigenvalues_of_both_signs(comm, kind, dtype):
    op, matrix, _, _ = system(kind, comm, dtype, symmetric=True)
    found = randomized_eigh(op, 3, oversample=200, dtype=np.empty(0, dtype).real.dtype)
    expected = np.linalg.eigvalsh(matrix)
    expected = expected[np.argsort(-np.abs(expected))][:3]
    # Two copies of a matrix have equal pairs of values.
    assert_close(np.abs(found.values), np.abs(expected), dtype)
    vectors = gathered(found.vectors)
    assert_close(vectors.conj() @ vectors.T, np.eye(3), dtype)
    assert_close(matrix @ vectors.T, vectors.T * found.values, dtype)


def test_any_number_of_ranks_draws_the_same_vectors(comm):
    """Against the dense algorithm, with the columns of one rank's random numbers."""
    matrix = random_matrix(30, 20, "f8", 5)
    op = VStack([np.array_split(matrix, comm.size)[comm.rank]], comm)
    found = randomized_svd(op, 3, oversample=2, power=0, seed=7)
    alone = collops.random((5, 20), seed=7, comm=comm.split(comm.rank))
    Q = np.linalg.qr(matrix @ alone.gather().T)[0]
    assert_close(found.values, np.linalg.svd(Q.T @ matrix, compute_uv=False)[:3])


def test_messages(comm):
    """One message for each power step, besides those of the operator."""
    op, _, _, _ = problem("block_diag", comm, "f8")
    counts = []
    for power in (0, 3):
        with profile.count_messages() as sent:
            randomized_svd(op, 2, oversample=1, power=power)
        counts.append([(message.operation, message.elements) for message in sent.records])
    assert counts[0] == [("allreduce", 9)] * 6 * (comm.size > 1)
    assert len(counts[1]) == len(counts[0]) + 3 * (comm.size > 1)


def test_arguments(comm):
    op, _, _, _ = problem("vstack", comm, "f8")
    with pytest.raises(InputError, match="at most 6"):
        randomized_svd(op, 7)
    with pytest.raises(InputError, match="power"):
        randomized_svd(op, 2, power=-1)
    with pytest.raises(LayoutError, match="one layout on both sides"):
        randomized_eigh(op, 2)
    assert Columns.split(randomized_svd(op, 2).V)[0].layout is op.domain
