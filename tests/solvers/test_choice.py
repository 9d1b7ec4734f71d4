"""Choices from the data, against dense algebra and solutions that are known."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops.errors import InputError
from collops.solvers import cross_validate, discrepancy

ROWS, COLUMNS = 12, 8


def problem(comm, noise: float):
    """Return the operator, the data, and which of them are held out, each also whole."""
    rng = np.random.default_rng(3)
    matrix = rng.normal(size=(ROWS * comm.size, COLUMNS)) * 0.6 ** np.arange(COLUMNS)
    data = matrix @ np.ones(COLUMNS) + noise * rng.normal(size=len(matrix))
    held = (np.arange(len(data)) % 3 == 1).astype(float)
    own = slice(ROWS * comm.rank, ROWS * (comm.rank + 1))
    A = collops.VStack([matrix[own]], comm)
    y, h = (collops.from_local(values[own], A.range, comm=comm) for values in (data, held))
    return A, y, h, matrix, data, held.astype(bool)


def test_the_shares_are_those_of_iterates_without_the_held_out_rows(comm):
    from pylops import MatrixMult
    from pylops.optimization.basic import cgls

    A, y, h, matrix, data, held = problem(comm, 0.3)
    shares = cross_validate(A, y, h, niter=5, tol=0.0)
    used = MatrixMult(matrix[~held])
    expected = [1.0]
    for niter in range(1, 6):
        x = cgls(used, data[~held], x0=np.zeros(COLUMNS), niter=niter, tol=0)[0]
        expected.append(np.linalg.norm(data[held] - matrix[held] @ x) / np.linalg.norm(data[held]))
    np.testing.assert_allclose(shares, expected, rtol=1e-6)


def test_it_stops_when_patience_ends(comm):
    A, y, h, *_ = problem(comm, 2.0)
    whole = cross_validate(A, y, h, niter=COLUMNS, patience=COLUMNS, tol=0.0)
    assert whole.argmin() < COLUMNS - 2  # the last iterations fit noise
    impatient = cross_validate(A, y, h, niter=COLUMNS, patience=2, tol=0.0)
    assert len(impatient) < len(whole) and len(impatient) == impatient.argmin() + 3


def test_without_one_of_the_parts_there_is_nothing_to_compare(comm):
    A, y, h, *_ = problem(comm, 0.0)
    assert cross_validate(A, y, 0.0 * h, niter=3).tolist() == [1.0]
    assert cross_validate(A, y, 0.0 * h + 1.0, niter=3).tolist() == [1.0]
    with pytest.raises(InputError, match="patience"):
        cross_validate(A, y, h, niter=3, patience=0)


@pytest.mark.serial
def test_the_residual_at_the_chosen_weight_is_the_noise():
    singular, data = 0.5 ** np.arange(10.0), np.linspace(1, 2, 10)
    tried: list[float] = []

    def misfit(weight: float) -> float:
        tried.append(weight)
        return float(np.linalg.norm(data * weight**2 / (singular**2 + weight**2)))

    weight = discrepancy(misfit, 1.7, 4.0, 1e-4)
    assert tried == sorted(tried, reverse=True)
    assert tried[-1] < weight < tried[-2]
    assert misfit(weight) == pytest.approx(1.7, rel=0.05)  # the residual is no power of the weight
    assert discrepancy(misfit, 100.0, 4.0, 1e-4) == 4.0
    assert discrepancy(misfit, 0.0, 4.0, 1.5) == 1.5
    with pytest.raises(InputError, match="positive"):
        discrepancy(misfit, 1.0, 1.0, 2.0)
