"""Samples and variances of Gaussian posteriors against their closed form."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops import profile
from collops.array import StackedArray, from_global
from collops.errors import InputError, LayoutError
from collops.operators import BlockDiag, Columns, Diagonal, FirstDerivative, Identity, StackedVStack, VStack
from collops.uncertainty import GaussianPosterior, probe_diagonal
from tests.solvers.problems import assert_close, problem, random_matrix


def blur(n: int, width: float = 2.0) -> np.ndarray:
    """Return a matrix that smooths, so that data hardly see rough models."""
    x = np.arange(n)
    rows = np.exp(-0.5 * ((x[:, None] - x) / width) ** 2)
    return rows / rows.sum(axis=1)[:, None]


def split_rows(matrix, comm):
    return VStack([np.array_split(matrix, comm.size)[comm.rank]], comm)


def smoothness(op, comm):
    """Return a prior that prefers smooth models, as an operator and as a matrix."""
    n = op.domain.size
    D, one = FirstDerivative(op.domain, kind="forward", comm=comm), Identity(op.domain, comm=comm)
    difference = np.diff(np.eye(n), axis=0, append=0)
    difference[-1] = 0
    return StackedVStack([3.0 * D, one]), np.vstack([3.0 * difference, np.eye(n)])


def whitened(samples: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return samples in rows as independent numbers of variance 1, if this is their covariance."""
    return np.linalg.solve(np.linalg.cholesky(covariance), samples.T)


@pytest.mark.parametrize("prior", ["deviation", "operator"])
def test_samples_have_the_covariance_of_the_closed_form(comm, prior):
    """Also of the directions that the data do not see."""
    n, count = 16, 120
    matrix, noise = blur(n), np.linspace(0.05, 0.2, n)
    op = split_rows(matrix, comm)
    L, root = smoothness(op, comm) if prior == "operator" else (2.0, np.eye(n) / 2.0)
    posterior = GaussianPosterior(op, noise=from_global(noise, op.range, comm=comm), prior=L)
    samples = posterior.samples(count, rtol=1e-6, seed=3).x.gather()
    covariance = np.linalg.inv((matrix.T / noise**2) @ matrix + root.T @ root)
    white = whitened(samples, covariance)
    # The entries of a sample covariance vary by the root of 1 / count, of 2 / count on the diagonal.
    assert np.abs(white @ white.T / count - np.eye(n)).max() < 4.5 * np.sqrt(2 / count)
    assert abs(np.mean(white**2) - 1) < 4 * np.sqrt(2 / (n * count))
    assert np.abs(white.mean(axis=1)).max() < 4.5 / np.sqrt(count)
    y = random_matrix(n, 1, "f8", 8)[:, 0]
    mean = posterior.mean(from_global(y, op.range, comm=comm), rtol=1e-10).x.gather()
    np.testing.assert_allclose(mean, covariance @ (matrix.T @ (y / noise**2)), atol=1e-7)


def test_complex_samples(comm):
    op, serial, _, _ = problem("block_diag", comm, "c16")
    samples = GaussianPosterior(op, noise=2.0, prior=0.7).samples(200, rtol=1e-8).x.gather()
    covariance = np.linalg.inv(serial.A.conj().T @ serial.A / 4 + np.eye(op.domain.size) / 0.49)
    white = whitened(samples, covariance)
    assert np.abs(white @ white.conj().T / 200 - np.eye(len(white))).max() < 5 * np.sqrt(1 / 200)
    assert np.abs(white @ white.T / 200).max() < 5 * np.sqrt(2 / 200)  # real and imaginary parts are independent


def test_coverage(comm):
    """The truth lies within 1.96 standard deviations of the mean in 95 of 100 cases."""
    n, cases, noise, scale = 30, 60, 0.1, 1.5
    matrix = blur(n)
    op = split_rows(matrix, comm)
    posterior = GaussianPosterior(op, noise=noise, prior=scale)
    samples = posterior.samples(120, seed=5).x.gather()
    deviation = np.sqrt(np.mean(samples**2, axis=0))
    probed = np.sqrt(posterior.variance(120, seed=5).value.gather())
    truth = scale * random_matrix(cases, n, "f8", 1)
    data = truth @ matrix.T + noise * random_matrix(cases, n, "f8", 2)
    means = data @ matrix @ np.linalg.inv(matrix.T @ matrix + (noise / scale) ** 2 * np.eye(n))
    for each in (deviation, probed):
        assert abs(np.mean(np.abs(truth - means) < 1.96 * each) - 0.95) < 0.015
        assert abs(np.mean(np.abs(truth - means) < each) - 0.683) < 0.03


def test_variance_by_probing_knows_its_error(comm):
    n = 40
    matrix = blur(n, 1.0)
    op = split_rows(matrix, comm)
    expected = np.diag(np.linalg.inv(matrix.T @ matrix / 0.25 + np.eye(n)))
    value, error = GaussianPosterior(op, noise=0.5, prior=1.0).variance(60, rtol=1e-6)
    off = np.abs(value.gather() - expected) / error.gather()
    assert off.max() < 4.5 and 0.5 < np.mean(off < 1) < 0.85
    assert error.gather().max() < 0.1 * expected.max()


def test_samples_before_convergence_vary_too_much(comm):
    """They begin as those of the prior."""
    op = split_rows(blur(24), comm)
    posterior = GaussianPosterior(op, noise=0.05, prior=1.0)
    spread = [float((posterior.samples(8, niter=niter, rtol=1e-8).x ** 2).sum()) for niter in (0, 1, 2, 30)]
    assert spread == sorted(spread, reverse=True) and spread[0] > 1.5 * spread[-1]


def test_the_same_samples_on_any_number_of_ranks(comm):
    """And the same ones to begin with, however many there are."""
    matrix, own = blur(14), comm.split(comm.rank)
    results = [
        GaussianPosterior(split_rows(matrix, ranks), noise=0.3, prior=1.0).samples(count, rtol=1e-10, seed=9).x.gather()
        for ranks, count in ((comm, 4), (own, 4), (own, 2))
    ]
    assert_close(results[0], results[1], factor=1e4)
    assert_close(results[0][:2], results[2], factor=1e4)


def test_stacked_models_and_uneven_ranks(comm):
    """A model of two arrays, of which one rank has nothing."""
    blocks = [np.diag([1.0, 2.0, 3.0])] if comm.rank == 0 else []
    A = BlockDiag(blocks, comm)
    both = collops.StackedHStack([A, 2 * A])
    samples = GaussianPosterior(both, noise=1.0, prior=1.0).samples(200, rtol=1e-8).x
    assert isinstance(samples, StackedArray)
    matrix = np.hstack([np.diag([1.0, 2.0, 3.0]), np.diag([2.0, 4.0, 6.0])])
    white = whitened(np.concatenate(samples.gather(), axis=1), np.linalg.inv(matrix.T @ matrix + np.eye(6)))
    assert np.abs(white @ white.T / 200 - np.eye(6)).max() < 4.5 * np.sqrt(2 / 200)


class Counted(collops.LinearOperator):
    """An operator that counts how often it is applied."""

    def __init__(self, operator) -> None:
        super().__init__(operator.domain, operator.range, operator.dtype, operator.comm)
        self.operator, self.count = operator, 0

    def _forward(self, x, out):
        self.count += 1
        return self.operator._forward(x, out)

    def _adjoint(self, y, out):
        self.count += 1
        return self.operator._adjoint(y, out)


def test_64_samples_cost_less_than_ten(comm):
    """The samples share directions: all that the data determine is found in a few iterations."""
    op = Counted(split_rows(blur(200, 4.0), comm))
    posterior = GaussianPosterior(op, noise=0.01, prior=1.0)
    counts = []
    for count in (64, 1):
        op.count = 0
        posterior.samples(count, rtol=1e-3)
        counts.append(op.count)
    assert 64 * 2 < counts[0] < 10 * counts[1]


def test_messages(comm):
    op = split_rows(blur(14), comm)
    posterior = GaussianPosterior(op, noise=0.3, prior=1.0)
    counts = []
    for niter in (1, 2):
        with profile.count_messages() as sent:
            posterior.samples(3, niter=niter, rtol=0)
        counts.append([message.elements for message in sent.records if message.operation == "allreduce"])
    at_the_end = [3 * 14, 9] * (comm.size > 1)  # the operator, and the residuals
    assert counts[1] == [
        *counts[0][: len(counts[0]) - len(at_the_end)],
        *[3 * 14, 27, 9] * (comm.size > 1),
        *at_the_end,
    ]


def test_diagonal_by_probing(comm):
    matrix = random_matrix(20, 12, "c16", 4)
    op = split_rows(matrix, comm)
    expected = np.sum(np.abs(matrix) ** 2, axis=0)
    value, error = probe_diagonal(op.H @ op, 200, dtype="c16")
    off = np.abs(value.gather() - expected) / error.gather()
    assert value.dtype == np.dtype("c16") and error.dtype == np.dtype("f8")
    assert off.max() < 4 and np.mean(off < 1) > 0.4
    scale = collops.random(10, seed=1, comm=comm)
    value, error = probe_diagonal(Diagonal(scale), 2)
    np.testing.assert_array_equal(value.gather(), scale.gather())
    assert float(error.norm()) < 1e-7


def test_arguments(comm):
    op = split_rows(blur(9), comm)
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="noise must be"):
            GaussianPosterior(op, noise=wrong, prior=1.0)
        with pytest.raises(InputError, match="prior must be"):
            GaussianPosterior(op, noise=1.0, prior=wrong)
    with pytest.raises(InputError, match="must be positive"):
        GaussianPosterior(op, noise=collops.zeros(op.range, comm=comm), prior=1.0)
    with pytest.raises(LayoutError, match="domain of A"):
        GaussianPosterior(op, noise=1.0, prior=Identity(8, comm=comm))
    with pytest.raises(LayoutError, match="noise must have the layout"):
        GaussianPosterior(op, noise=collops.ones(8, comm=comm), prior=1.0)
    posterior = GaussianPosterior(op, noise=1.0, prior=1.0)
    for wrong in (0, 1.5):
        with pytest.raises(InputError, match="count"):
            posterior.samples(wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="at least 2"):
        posterior.variance(1)
    with pytest.raises(TypeError, match="no option 'nniter'"):
        posterior.samples(2, nniter=3)
    with pytest.raises(LayoutError, match="one layout on both sides"):
        probe_diagonal(VStack([np.ones((3, 2))], comm))
    assert Columns.split(posterior.samples(2).x)[1].layout is op.domain
